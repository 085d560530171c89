"""Optimised networks as files: writing, reading, and checking what was read."""
