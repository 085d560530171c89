"""Tuning tables: the choices that ops leave open, and the fastest candidate of each as `weft tune` measured it."""
