"""Checks that a shared library is complete: loading one that is cut off crashes the process."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"\x7fELF"
_LOAD = 1


def why_cut_off(file: Path) -> str | None:
    """Return why an ELF file is cut off; None if it is complete, or no ELF file."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        header = opened.read(64)
        if len(header) < 64 or not header.startswith(_MAGIC):
            return None
        order, is_wide = "<" if header[5] == 1 else ">", header[4] == 2
        (start,) = struct.unpack_from(order + ("Q" if is_wide else "I"), header, 32 if is_wide else 28)
        each, count = struct.unpack_from(order + "HH", header, 54 if is_wide else 42)
        opened.seek(start)
        table = opened.read(each * count)
    # In a program header: the offset of a segment in the file, and its number of bytes there.
    number, *places = ("Q", 8, 32) if is_wide else ("I", 4, 16)
    end = start + each * count
    if each >= (56 if is_wide else 32) and len(table) == each * count:
        for at in range(0, len(table), each):
            if struct.unpack_from(order + "I", table, at)[0] == _LOAD:
                offset, length = (struct.unpack_from(f"{order}{number}", table, at + int(p))[0] for p in places)
                end = max(end, offset + length)
    return f"the file is cut off: it has {size:,} bytes of at least {end:,}" if end > size else None
