"""The GPU door: what an API must provide, its limits, the kernels it holds, and what ends it."""
