"""One row for each way an op can be used; every device, and the oracle test, runs the same rows."""
