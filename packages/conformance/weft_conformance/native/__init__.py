"""The rules of `weft_backend.h` that a library must keep: each is tried by calls that Weft could make.

A library that breaks a rule may crash its process, so a child process makes the calls (`child`).
"""
