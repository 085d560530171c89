"""The registry of backends, and the check whether their hardware is present."""
