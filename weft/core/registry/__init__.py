"""The registries of backends and of front ends, and the check whether a backend's hardware is present."""
