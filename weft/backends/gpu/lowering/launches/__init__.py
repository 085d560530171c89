"""The launches of each node, and which of them run as one."""
