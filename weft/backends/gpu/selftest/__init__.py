"""Tests of kernels by value on a device that is seen for the first time, and their verdicts."""
