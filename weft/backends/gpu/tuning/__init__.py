"""Which kernel is the fastest: the tuner, one node timed by itself, and its candidates compared."""
