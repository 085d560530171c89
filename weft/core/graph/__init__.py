"""The network as data: graphs of ops on typed tensors, and what makes one well formed."""
