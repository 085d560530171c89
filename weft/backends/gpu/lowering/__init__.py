"""From a subgraph to launches: layouts, fusing, merging, and the kernels that each node needs."""
