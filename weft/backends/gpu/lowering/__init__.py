"""From a subgraph to launches: layouts, fusing, merging, and the kernels that each node needs.

`rewrites.py` lists what changes the graph, in order, and `target.py` says what for; `lower.py` runs them, folds moves
into loads and stores (`fold_moves.py`), plans the launches of each node (`launch_builder.py`), and joins small launches
(`chains.py`). `why_apart.py` says afterwards why two nodes are no single launch, `dry_run.py` beforehand whether a node
has kernels, `support.py` whether a device takes it. `kept_plans.py` saves work where shapes change.
"""
