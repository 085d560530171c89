"""Convolutions in groups: depthwise, in whole blocks of channels, and each group as a convolution of its own."""
