"""Checks kernels, launches and copies against the device's limits before the driver sees them.

Drivers need not check, and some crash. For a device that pretends to be another (`profiles`), this is the only check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.backends.gpu.device.device import Binding, CopyCommand, DeviceCaps, LaunchCommand
from weft.errors import CompileError, DeviceError
from weft.kernels import shared_size
from weft.kernels.device_caps import WARPGROUP_ITEMS, WARPGROUP_MEMORY
from weft.kernels.shared_size import SizeError
from weft.kernels.source import LOCAL_SIZE, KernelSource


def shared_bytes(source: KernelSource, values: Mapping[str, int | float]) -> int:
    """Return a kernel's bytes of work-group memory with these constants; SizeError if they cannot be computed."""
    return sum(shared_size.shared_bytes(kind, size, values) for kind, size in source.shared)


def check_kernel(source: KernelSource, values: Mapping[str, int | float], caps: DeviceCaps, where: str) -> None:
    """Raise CompileError for a kernel that exceeds a device's limits."""
    x, y, z = (int(values.get(name, 1)) for name in LOCAL_SIZE)
    problems = []
    warpgroups = source.warpgroup and caps.has_warpgroups
    most = WARPGROUP_ITEMS if warpgroups else caps.max_local_items
    if not replace(caps, max_local_items=most).holds((x, y, z)):
        problems.append(
            f"its local size is {x} x {y} x {z}, {x * y * z} items in all; the limits are "
            f"{' x '.join(map(str, caps.max_local_size))}, {most} in all"
        )
    room = WARPGROUP_MEMORY if warpgroups else caps.local_memory
    try:
        taken = shared_bytes(source, values)
    except SizeError as e:
        problems.append(f"the work-group memory that it takes is not known: {e}")
    else:
        if taken > room:
            problems.append(f"it takes {taken} bytes of work-group memory; there are {room}")
    if len(source.args) > caps.max_buffers:
        problems.append(f"it takes {len(source.args)} buffers; the device binds {caps.max_buffers}")
    sizes = caps.subgroup_sizes
    if source.subgroup and sizes and source.subgroup not in sizes:
        held = " or ".join(map(str, sizes))
        problems.append(f"it counts on subgroups of {source.subgroup} items; those of the device have {held}")
    if problems:
        raise CompileError(
            f"the kernel {source.entry!r} is out of the device's limits",
            where=where,
            why="; ".join(problems),
            fix="choose a smaller tile, or another kernel where `DeviceCaps` says so",
        )


def check_copy(command: CopyCommand) -> None:
    """Raise DeviceError for a copy between pieces of unequal sizes, or of a piece that is not there."""
    source, target = command.source, command.target
    if source.nbytes != target.nbytes:
        raise DeviceError(
            f"a copy of {source.nbytes} bytes goes to {target.nbytes} bytes",
            where=command.label or "copy",
            fix="give both pieces the same number of bytes",
        )
    for piece in (source, target):
        _check_piece(piece, command.label or "copy")


def check_launch(command: LaunchCommand, name: str, takes: int, caps: DeviceCaps) -> None:
    """Raise DeviceError for a launch that does not fit its kernel, which `takes` buffers, or a device's limits."""
    where = f"{command.label or name} (kernel {name})"
    if len(command.bindings) != takes:
        raise DeviceError(
            f"{len(command.bindings)} buffers are bound to a kernel that takes {takes}",
            where=where,
            fix="bind one for each argument of the kernel's source, in its order",
        )
    for piece in command.bindings:
        _check_piece(piece, where)
    if min(command.grid) < 0 or any(n > most for n, most in zip(command.grid, caps.max_grid, strict=True)):
        raise DeviceError(
            "a launch has more work-groups than the device takes",
            where=where,
            why=f"the grid is {command.grid}, the limit {caps.max_grid}",
            fix="let each work-group do more, or fold the axes differently",
        )
    for piece in command.bindings:
        if piece.offset % caps.offset_alignment or piece.nbytes > caps.max_buffer_range:
            raise DeviceError(
                "a kernel argument is out of the device's limits",
                where=where,
                why=f"it starts at {piece.offset} and spans {piece.nbytes} bytes; it may start at "
                f"multiples of {caps.offset_alignment} and span {caps.max_buffer_range}",
                fix="use a smaller batch or input",
            )


def _check_piece(piece: Binding, where: str) -> None:
    if piece.buffer.handle is None:
        raise DeviceError("a buffer is used that was freed", where=where, fix="free it after its last use")
    if min(piece.offset, piece.nbytes) < 0 or piece.offset + piece.nbytes > piece.buffer.nbytes:
        raise DeviceError(
            "a piece lies outside its buffer",
            where=where,
            why=f"bytes {piece.offset} to {piece.offset + piece.nbytes} of a buffer of {piece.buffer.nbytes}",
            fix="bind bytes inside the buffer",
        )
