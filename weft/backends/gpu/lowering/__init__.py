"""From a subgraph to launches: layouts, fusing, merging, and the kernels that each node needs.

`target.py` says what a part is lowered for. `lower.py` runs the rewrites (`rewrites/order.py` lists them; some are in
`fusion/` and `layout/`), folds moves into loads and stores (`layout/fold_moves.py`), plans the launches of each node
(`launches/builder.py`), and joins small launches (`launches/chains.py`). `fusion/why_apart.py` says afterwards why two
nodes are no single launch, `launches/dry_run.py` beforehand whether a node has kernels, `support.py` whether a device
takes it.
"""
