"""Convolutions as implicit GEMMs in portable code: pixels times output channels, over taps and input channels."""
