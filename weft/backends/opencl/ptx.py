"""Instructions that NVIDIA's OpenCL compiler does not know, brought in through the PTX that it writes.

It compiles for sm_90, which lacks what only sm_90a has (wgmma). A kernel says such instructions in inline
assembly behind `//@`: to the compiler a comment, which it copies into its PTX with the registers filled in.
Here the comments are uncovered and the target is changed; the driver then assembles the text.
"""

from __future__ import annotations

import re

MARK = "//@"
VERSION = "1"
"""Of what `uncover` does: a part of the key under which programs are kept."""
_TARGET = re.compile(r"^(\s*\.target\s+sm_90)(?=[\s,]|$)", re.MULTILINE)


def uncover(binary: bytes) -> bytes | None:
    """Return a program's PTX with the covered instructions for sm_90a, or None if it is not PTX for sm_90."""
    try:
        text = binary.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        return None
    changed, targets = _TARGET.subn(r"\1a", text)
    return changed.replace(MARK, "").encode() if targets == 1 else None
