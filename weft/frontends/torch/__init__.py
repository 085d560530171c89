"""PyTorch's graphs as graphs of Weft: one table of ATen's ops for exported programs and for `torch.compile`.

`rules` holds the table, and the modules that fill it import no torch. `translation` walks a graph of torch.fx with it.
"""
