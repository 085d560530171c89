"""The OpenCL devices; nothing here imports pyopencl before a device is asked for."""
