"""The OpenCL devices; nothing here imports pyopencl before a caller asks for a device."""
