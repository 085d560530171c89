"""The CPU backend: every op's numpy reference, in planned memory."""
