"""Vulkan: the device, its SPIR-V and its dialect. Importing this package loads no driver and no `vulkan`."""
