"""Adds instructions that NVIDIA's OpenCL compiler does not know to the PTX that it writes.

It compiles for sm_90, which lacks what only sm_90a has (wgmma). A kernel hides such instructions in inline
assembly behind `//@`. The compiler takes that for a comment and copies it into its PTX with the registers filled in.
This module uncovers the comments and changes the target; the driver then assembles the text.
"""

from __future__ import annotations

import re

MARK = "//@"
VERSION = "1"
"""The version of `uncover`, part of the key under which programs are cached."""
_TARGET = re.compile(r"^(\s*\.target\s+sm_90)(?=[\s,]|$)", re.MULTILINE)


def uncover(binary: bytes) -> bytes | None:
    """Return a program's PTX with the hidden instructions uncovered, for sm_90a; None if it is not PTX for sm_90."""
    try:
        text = binary.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        return None
    changed, targets = _TARGET.subn(r"\1a", text)
    return changed.replace(MARK, "").encode() if targets == 1 else None
