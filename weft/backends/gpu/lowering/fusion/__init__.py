"""Which nodes a kernel takes over from its neighbours: epilogues, prologues, gates, pairs of layers, pools."""
