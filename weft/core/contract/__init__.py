"""The device contract: what a backend implements, what it is told, and how its answers are checked."""
