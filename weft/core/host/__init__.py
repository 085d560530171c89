"""The host's side: backends in host memory, copies, threads, child processes, and trust in files."""
