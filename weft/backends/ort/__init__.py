"""ONNX Runtime's CPU as a device: each subgraph is one of its sessions."""
