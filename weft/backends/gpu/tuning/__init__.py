"""Which kernel is the fastest: the tuner, its timings, and the tables that keep its choices."""
