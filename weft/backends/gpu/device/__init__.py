"""GPU devices: what an API must provide, its limits, the kernels it keeps, and what ends it."""
