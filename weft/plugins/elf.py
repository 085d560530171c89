"""Whether a shared library is whole: the loader of the system dies of one that is cut off, with its process."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"\x7fELF"
_LOAD = 1


def why_cut_off(file: Path) -> str | None:
    """Return why an ELF file is shorter than it says, or None; what is no ELF file is left to the loader."""
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
    # Where a segment begins in the file, and how many bytes of it the file has.
    number, *places = ("Q", 8, 32) if is_wide else ("I", 4, 16)
    end = start + each * count
    if each >= (56 if is_wide else 32) and len(table) == each * count:
        for at in range(0, len(table), each):
            if struct.unpack_from(order + "I", table, at)[0] == _LOAD:
                offset, length = (struct.unpack_from(f"{order}{number}", table, at + int(p))[0] for p in places)
                end = max(end, offset + length)
    return f"the file is cut off: it has {size:,} bytes of at least {end:,}" if end > size else None
