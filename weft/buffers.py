"""`weft.empty`, `weft.array` and `weft.from_dlpack` make buffers; `weft.memory` tells what devices hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.core.buffers.buffer import Buffer
from weft.core.buffers.device_memories import device_memories
from weft.core.contract.backend import ForwardType
from weft.core.contract.backend_options import BackendOptions
from weft.core.contract.doors import door
from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import TensorSpec
from weft.core.host.dlpack import NotShared, SharedArray, host_array, shared
from weft.core.host.fitted import fit_array, to_array
from weft.core.registry.device_choice import DeviceChoice, DeviceName
from weft.core.session.arguments import take_shape
from weft.core.session.runtime import Runtime, default_runtime
from weft.errors import CannotShare, ConfigError, InputError


@door
def empty(
    shape: Sequence[int],
    dtype: str | DType | np.dtype[Any] | type = "float32",
    *,
    device: DeviceName = "auto",
    backend_options: BackendOptions | None = None,
    runtime: Runtime | None = None,
) -> Buffer:
    """Return a new buffer on a device, whose content is arbitrary; OutOfMemory if the device has no memory for it.

    Sessions on the device use it without a copy if they have the same `backend_options`, as a device is opened once for
    each set of them; `Session.buffer` makes one that fits. `dtype` is an element type as numpy or Weft call it.
    """
    spec = TensorSpec(take_shape("buffer", shape), _dtype(dtype))
    return device_memories.make(_choice(device, backend_options, runtime), spec, "buffer")


@door
def array(
    value: object,
    dtype: str | DType | np.dtype[Any] | type | None = None,
    *,
    device: DeviceName = "auto",
    backend_options: BackendOptions | None = None,
    runtime: Runtime | None = None,
) -> Buffer:
    """Return a new buffer on a device with the value of an array, a buffer, a tensor of another library, or numbers.

    Without a `dtype` it has the element type of the value; Python's numbers are float32 or int64. See `empty`.
    """
    given = host_array(value)
    if dtype is None:
        is_plain = not hasattr(given, "dtype")
        own, problem = to_array(given)
        if problem:
            dtype = np.float32  # `fit_array` says what is wrong
        else:
            given, dtype = own, np.float32 if is_plain and own.dtype == np.float64 else own.dtype
    wanted = _dtype(dtype)
    fitted, problem = fit_array(given, wanted)
    if problem:
        raise InputError("no buffer can be made of the value", why=f"it {problem}",
                         fix="give numbers in rows of one length, or of another dtype")
    spec = TensorSpec(fitted.shape, wanted)
    return device_memories.make(_choice(device, backend_options, runtime), spec, "buffer", fitted)


@door
def from_dlpack(value: SharedArray) -> Buffer:
    """Return a buffer on the CPU in the memory of another library's array, such as a tensor of PyTorch.

    Both see what either writes; the memory lives as long as the buffer. CannotShare, a BufferError, for memory of
    another device, and for elements that do not lie one behind the other.
    """
    try:
        found = shared(value)
    except NotShared as e:
        why = f"it is a {type(value).__name__} {e}"
    else:
        if found.flags.c_contiguous:
            writable = found.flags.writeable and getattr(value, "requires_grad", False) is not True
            return device_memories.adopt(_choice("cpu", None, None), found, "buffer", is_writable=writable)
        why = "its elements do not lie one behind the other"
    raise CannotShare("the array's memory cannot be a buffer", why=why, fix="copy it: weft.array(value, device=...)")


@dataclass(frozen=True)
class DeviceUse:
    """What Weft holds on a device, in bytes."""

    device: str
    buffers: int
    """How many buffers there are."""
    buffer_bytes: int
    """The bytes of these; memory that another library shares is not counted."""
    all_bytes: int | None
    """Of everything: weights, values of networks, staging, buffers; None if the backend does not count them."""


@door
def memory() -> list[DeviceUse]:
    """Return what this process holds on each device that has buffers or whose backend counts its memory."""
    held = device_memories.open
    counted = {(c.id, at): count for c in default_runtime().registry.creators() for at, count in c.held_bytes().items()}
    uses = []
    for id_, index in dict.fromkeys([*(each.place for each in held), *counted]):
        here = [each for each in held if each.place == (id_, index)]
        buffers, nbytes = sum(each.count for each in here), sum(each.nbytes for each in here)
        uses.append(DeviceUse(f"{id_}:{index}", buffers, nbytes, counted.get((id_, index))))
    return uses


def _dtype(dtype: object) -> DType:
    return dtype if isinstance(dtype, DType) else DType.of(dtype)


_chosen: WeakKeyDictionary[Runtime, dict[DeviceName, DeviceChoice]] = WeakKeyDictionary()
"""The devices that names meant, of each runtime."""


def _choice(device: DeviceName, options: BackendOptions | None, runtime: Runtime | None) -> DeviceChoice:
    """Return the device of a name: as long as there are buffers on it, a driver is not asked for its devices again."""
    held = runtime or default_runtime()
    keeps = options is None and isinstance(device, (str, ForwardType))
    known = _chosen.get(held, {}).get(device) if keeps else None
    if known is not None and device_memories.is_open(known) and known.creator in held.registry.creators():
        return known
    found = _looked_up(device, options, held)
    if keeps:
        _chosen.setdefault(held, {})[device] = found
    return found


def _looked_up(device: DeviceName, options: BackendOptions | None, held: Runtime) -> DeviceChoice:
    names = held.registry.check_names(device)
    if len(names) > 1:
        raise ConfigError(
            f"a buffer cannot be on {len(names)} devices",
            why=f"it lies in the memory of one, and device= names {', '.join(map(str, names))}",
            fix=f"name one, such as device={names[0]!r}, or let session.buffer(name) choose that which uses it",
        )
    (choice,) = held.with_options(held.registry.choose(device), options)
    return choice
