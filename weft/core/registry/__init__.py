"""The registry of backends: who is there, and whether its hardware is."""
