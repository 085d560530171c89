"""Device profiles: a device pretends to have less than it has, so that software can stand in for absent GPUs.

A profile is a name from `PROFILES`, single limits, or both: "v3dv", "items=128,range=64MiB", "adreno,fp16=0". It only
takes away: it cannot add what the device does not have. The device layer enforces the limits like a driver: it refuses
an allocation, a kernel or an argument beyond them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import reduce
from math import lcm
from typing import Any

from weft.errors import ConfigError
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.source import SUBGROUP

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {"": 1, "kib": _KIB, "mib": _MIB, "gib": _GIB}


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """The most that a device pretends to have; 0 and True keep the device's own."""

    name: str = ""
    range: int = 0
    """Bytes that one kernel argument may span."""
    allocation: int = 0
    """Bytes of one allocation."""
    memory: int = 0
    """Bytes that all sessions on the device hold together, like the option `memory_limit`."""
    local: int = 0
    """Bytes of work-group memory."""
    items: int = 0
    """Work-items of a group."""
    depth: int = 0
    """Work-items of a group along its third axis."""
    grid: int = 0
    """Work-groups of a launch along each axis."""
    alignment: int = 0
    """A kernel argument must start at a multiple of this many bytes; at least 16."""
    buffers: int = 0
    """Arguments of one kernel."""
    subgroup: int = 0
    """Work-items of a subgroup."""
    units: int = 0
    """Compute units of a GPU, 1 if its driver does not report them; kernels are chosen as for a GPU, even on a CPU."""
    fp16: bool = True
    """Whether kernels load and store 16-bit elements."""
    int8: bool = True
    """Whether kernels load and store 8-bit elements."""
    fp64: bool = True
    """Whether kernels compute in float64."""
    window: bool = True
    """Whether the host can write to the device's own memory (Vulkan; OpenCL always copies)."""
    coherent: bool = True
    """Whether device and host see each other's writes without a flush (Vulkan; OpenCL always copies)."""

    @property
    def limits(self) -> dict[str, int | bool]:
        """Return the limits it sets, by field name."""
        free = DeviceProfile()
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        return {name: value for name, value in held.items() if value != getattr(free, name)}

    def __str__(self) -> str:
        return ", ".join([*([self.name] if self.name else []), *(f"{k}={_text(k, v)}" for k, v in self.limits.items())])

    def apply(self, caps: DeviceCaps) -> DeviceCaps:
        """Return the capabilities of the pretended device."""
        (x, y, z), (across, down, deep) = caps.max_local_size, caps.max_grid
        items = _least(caps.max_local_items, self.items)
        allocation = _least(caps.max_allocation, self.allocation)
        made = replace(
            caps,
            max_local_items=items,
            max_local_size=(min(x, items), min(y, items), _least(min(z, items), self.depth)),
            max_grid=(_least(across, self.grid), _least(down, self.grid), _least(deep, self.grid)),
            local_memory=_least(caps.local_memory, self.local),
            max_buffer_range=min(_least(caps.max_buffer_range, self.range), allocation) // 4 * 4,
            max_allocation=allocation,
            offset_alignment=lcm(caps.offset_alignment, self.alignment or 1),
            max_buffers=_least(caps.max_buffers, self.buffers),
            fp16_storage=caps.fp16_storage and self.fp16,
            int8_storage=caps.int8_storage and self.int8,
            doubles=caps.doubles and self.fp64,
            dot8=caps.dot8 and self.int8,
        )
        if self.local:  # warpgroups need more than `local_memory`
            made = made.without_matrices(*(shape for shape in caps.matrices if shape.scope == "warpgroup"))
        if self.subgroup:
            made = replace(made, subgroup_sizes=(self.subgroup,))
        if self.units:
            made = replace(made, compute_units=self.units, software=False)
        if self.subgroup and self.subgroup != SUBGROUP:
            made = replace(made, shuffles=False, matrices=(), channels_last=False, asynchronous_copies=False)
        return made


def _least(held: int, pretended: int) -> int:
    return min(held, pretended) if pretended else held


_SWITCHES = frozenset(f.name for f in fields(DeviceProfile) if isinstance(f.default, bool))
_NUMBERS = frozenset(f.name for f in fields(DeviceProfile)) - _SWITCHES - {"name"}
_SUBGROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
_ALLOWED: dict[str, tuple[Callable[[int], bool], str]] = {
    "items": (lambda n: n >= 64, "at least 64"),
    "depth": (lambda n: n >= 1, "at least 1"),
    "local": (lambda n: n >= 16 * _KIB, "at least 16KiB"),
    "range": (lambda n: n >= _MIB, "at least 1MiB"),
    "allocation": (lambda n: n >= _MIB, "at least 1MiB"),
    "memory": (lambda n: n >= _MIB, "at least 1MiB"),
    "grid": (lambda n: n >= 1024, "at least 1024"),
    "buffers": (lambda n: n >= 4, "at least 4"),
    "alignment": (lambda n: 4 <= n <= 4096 and n & (n - 1) == 0, "a power of two from 4 to 4096"),
    "subgroup": (lambda n: n in _SUBGROUPS, "a power of two up to 128"),
    "units": (lambda n: n <= 4096, "at most 4096, 0 for as many as there are"),
}
"""Valid values of limits: no device that runs Weft was ever seen below them, and kernels rely on them."""


def _value(name: str, text: str) -> int | bool:
    if name in _SWITCHES:
        if text not in ("0", "1"):
            raise ValueError(f"{name}={text} is neither 0 nor 1")
        return text == "1"
    if name not in _NUMBERS:
        raise ValueError(f"there is no limit {name!r}")
    digits = text.rstrip("KMGiBkmgb")
    unit = text[len(digits) :].lower()
    if not (digits.isascii() and digits.isdigit()) or unit not in _UNITS:
        raise ValueError(f"{name}={text} is no number")
    number = int(digits) * _UNITS[unit]
    legal, what = _ALLOWED[name]
    if not legal(number):
        raise ValueError(f"{name}={text} must be {what}")
    return number


def _limited(profile: DeviceProfile, name: str, value: str) -> DeviceProfile:
    """Return a profile with one more limit; ValueError says what is wrong with it."""
    limit: dict[str, Any] = {name: _value(name, value)}
    return replace(profile, **limit)


def _profile(name: str, limits: str) -> DeviceProfile:
    each = (limit.split("=") for limit in limits.split(",") if limit)
    return reduce(lambda made, limit: _limited(made, *limit), each, DeviceProfile(name))


_NAMED = {
    "none": "",
    # What Vulkan 1.1 guarantees and nothing more, in the least useful memory.
    "smallest": "range=64MiB,allocation=256MiB,local=16KiB,items=128,depth=64,grid=65535,alignment=256,buffers=8,"
    "subgroup=1,units=1,fp16=0,int8=0,fp64=0,window=0,coherent=0",
    "v3dv": "range=128MiB,allocation=1GiB,local=16KiB,items=256,grid=65535,alignment=32,subgroup=16,units=1,fp16=0,"
    "int8=0,fp64=0",
    "mali-bifrost": "range=256MiB,local=32KiB,items=384,grid=65535,alignment=256,buffers=35,subgroup=8,units=1,"
    "fp64=0,coherent=0",
    "mali-valhall": "range=256MiB,local=32KiB,items=512,grid=65535,alignment=64,buffers=35,subgroup=16,units=1,"
    "fp64=0,coherent=0",
    "adreno": "range=128MiB,allocation=1GiB,local=32KiB,items=1024,depth=64,grid=65535,alignment=64,buffers=24,"
    "subgroup=64,units=1,int8=0,fp64=0,coherent=0",
    "powervr": "range=128MiB,allocation=1GiB,local=16KiB,items=512,depth=64,grid=65535,alignment=32,subgroup=32,"
    "units=1,int8=0,fp64=0,coherent=0",
    "intel": "range=1GiB,local=32KiB,items=1024,depth=64,grid=65535,alignment=64,subgroup=16,units=1,fp64=0",
    "radv": "allocation=2GiB,local=32KiB,items=1024,depth=1024,alignment=4,subgroup=64,units=36,window=0",
    "nvk": "local=48KiB,items=1024,depth=64,grid=65535,alignment=64,subgroup=32,units=46,window=0",
}
PROFILES = {name: _profile(name, limits) for name, limits in _NAMED.items()}
"""Devices to stand in for; where driver versions differ, the smallest value that one of them reports."""


def parse_profile(text: str, where: str = "WEFT_DEVICE_PROFILE") -> DeviceProfile | None:
    """Return the profile of a text such as "adreno,items=128"; None for an empty text.

    ConfigError names all mistakes; `where` says where the text came from.
    """
    problems: list[str] = []
    made = DeviceProfile()
    for at, piece in enumerate(p.strip() for p in text.split(",") if p.strip()):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            if at or name not in PROFILES:
                problems.append(f"{piece!r} is no profile" if not at else f"{piece!r} is no limit (NAME=VALUE)")
                continue
            made = PROFILES[name]
            continue
        try:
            made = _limited(made, name, value)
        except ValueError as e:
            problems.append(str(e))
    if problems:
        raise ConfigError(
            f"the device profile {text!r} is not understood",
            why="; ".join(problems),
            where=where,
            fix=f"begin with one of {', '.join(PROFILES)}, or set limits: {', '.join(sorted(_NUMBERS))} take a "
            f"number (64MiB, 128), {', '.join(sorted(_SWITCHES))} take 0 or 1",
        )
    return made if made.limits else None


def _text(name: str, value: int | bool) -> str:
    if name not in ("range", "allocation", "memory", "local"):
        return str(int(value))
    for unit, size in (("GiB", _GIB), ("MiB", _MIB), ("KiB", _KIB)):
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)
