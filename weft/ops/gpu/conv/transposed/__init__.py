"""Transposed convolutions: as convolutions to sub-pixels, or by gathering what reaches each output pixel."""
