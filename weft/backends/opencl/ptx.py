"""The PTX that NVIDIA's OpenCL compiler writes: instructions that it does not know, and its form for other APIs.

It compiles for sm_90, which lacks what only sm_90a has (wgmma). A kernel hides such instructions in inline
assembly behind `//@`. The compiler takes that for a comment and copies it into its PTX with the registers filled in.
`uncover` takes the marks away and changes the target; the driver then assembles the text.
"""

from __future__ import annotations

import re

MARK = "//@"
VERSION = "1"
"""The version of `uncover`, part of the key under which programs are cached."""
_TARGET = re.compile(r"^(\s*\.target\s+sm_90)(?=[\s,]|$)", re.MULTILINE)
_TEXTURES = re.compile(r"^(\s*\.target\s+\w+)\s*,\s*texmode_independent", re.MULTILINE)
_SPECIAL = re.compile(r"%envreg(\d+)\b")
_GROUPS = {"6": "%nctaid.x", "7": "%nctaid.y", "8": "%nctaid.z"}
_OFFSETS = frozenset("012345")


def uncover(binary: bytes) -> bytes | None:
    """Return a program's PTX with the hidden instructions uncovered, for sm_90a; None if it is not PTX for sm_90."""
    try:
        text = binary.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        return None
    changed, targets = _TARGET.subn(r"\1a", text)
    return changed.replace(MARK, "").encode() if targets == 1 else None


def as_cuda(text: str) -> str:
    """Return OpenCL's PTX as CUDA's: what OpenCL's driver would put into special registers is written out.

    These are the offsets of groups (0 to 2) and of items (3 to 5), which Weft's launches do not have, and the number of
    groups (6 to 8). ValueError names any other.
    """

    def register(found: re.Match[str]) -> str:
        number = found[1]
        if number in _OFFSETS:
            return "0"
        if number not in _GROUPS:
            raise ValueError(f"it reads {found[0]}")
        return _GROUPS[number]

    return _SPECIAL.sub(register, _TEXTURES.sub(r"\1", text))
