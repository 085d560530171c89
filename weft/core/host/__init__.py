"""The host's side: backends in its memory, the memory planner, copies, threads, processes and files."""
