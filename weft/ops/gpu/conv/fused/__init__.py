"""Convolutions joined to what comes before them: a small convolution, a max pool, element-wise steps."""
