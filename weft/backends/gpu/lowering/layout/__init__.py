"""How values lie in memory: layouts, moves folded into loads and stores, and rows of channels."""
