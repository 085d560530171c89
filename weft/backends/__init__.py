"""The devices: CPU, OpenCL, Vulkan, and the layer that the two GPU APIs share."""
