"""The memory of an open device: buffers within a limit, and the slots of tensors in them."""
