"""The host's side: backends in host memory, copies, threads, processes and their end, and trust in files."""
