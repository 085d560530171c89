"""The rules of `weft_backend.h` for the library's side: each is tried by calls that Weft could make.

A library that breaks one may take its process with it, so the calls are made in a child process (`child`).
"""
