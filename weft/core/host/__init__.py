"""The host's side: host memory backends, the memory planner, copies, threads, child processes and files."""
