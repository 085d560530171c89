"""Convolutions as implicit GEMMs on matrix units: in fp16, and in fp32 on numbers split into halves."""
