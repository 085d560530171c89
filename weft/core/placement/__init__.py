"""From a graph to an optimised network: which device runs which node, and the copies between them."""
