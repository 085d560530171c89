"""Many requests: a pool of sessions over devices, a predictor for workers in other processes, and a server."""
