"""The network as data: graphs of ops on typed tensors, and the checks that a graph is well formed."""
