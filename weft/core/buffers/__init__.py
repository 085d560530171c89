"""Buffers, and the memories of devices in which they lie."""
