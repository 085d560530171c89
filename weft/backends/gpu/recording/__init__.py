"""Recordings: the commands of a run, ordered once and submitted every time."""
