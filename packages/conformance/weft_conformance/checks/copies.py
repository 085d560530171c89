"""Copies: every pair of layouts and of float types, host to device and back, and inside the device (M10)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from itertools import product

import numpy as np

from weft.core.contract.backend import Backend, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, Shape, to_storage
from weft.core.graph.tensor import Tensor
from weft.core.host.tensor_copy import copy_tensor
from weft.core.registry.backend_registry import registry
from weft.errors import WeftError
from weft_conformance.drive import acquired, read, write
from weft_conformance.kit import Kit, Untried, check
from weft_conformance.report import Finding

SHAPES: tuple[Shape, ...] = (
    (), (9,), (2, 5), (1, 6, 3), (3, 5, 4), (2, 3, 4, 5), (1, 8, 2, 3), (2, 65, 2, 1), (1, 130, 1, 3), (3, 1, 2, 2),
    (1, 5, 2, 3, 2), (2, 7, 1, 2, 3, 2),
)
"""Ranks 0 to 6, with numbers of channels that fill blocks of four and some that do not."""
TYPES = (DType.FLOAT32, DType.FLOAT16)
Form = tuple[Layout, DType]
FORMS: tuple[Form, ...] = tuple(product(Layout, TYPES))


@check("copies", "M10", "copies between host and device and inside it convert layouts and fp32 to fp16; lanes are zero")
def copies(kit: Kit) -> Iterable[Finding]:
    """Copy in both directions, and inside, for every pair of forms."""
    takes = {form: _taken(kit, form) for form in FORMS}
    for one, other in product(FORMS, FORMS):
        pair = f"{_name(one)} to {_name(other)}"
        yield kit.attempt(f"host {pair} on the device and back", _both_ways, kit, one, other, takes[other])
    for one, other in product(FORMS, FORMS):
        why = takes[one] or takes[other]
        subject = f"inside the device, {_name(one)} to {_name(other)}"
        yield kit.attempt(subject, _inside, kit, one, other, why)
    yield kit.attempt("special values", _special_values, kit)
    plain = (Layout.NCHW, DType.FLOAT32)
    for form in (plain, (Layout.NC4HW4, DType.FLOAT32), (Layout.NCHW, DType.FLOAT16)):
        yield kit.attempt(f"393,420 bytes as {_name(form)}", _large, kit, plain, form, takes[form])
    for name in dict.fromkeys((kit.device, "cpu:0")):
        yield kit.attempt(f"between two objects, one of {name}", _between, kit, name)


@check("element types", "M10", "a copy to the device and back keeps every element type that the device takes")
def element_types(kit: Kit) -> Iterable[Finding]:
    """Copy numbers of every type to the device and back, in the plain layout."""
    for dtype in DType:
        yield kit.attempt(dtype.value, _plain, kit, dtype)


def _name(form: Form) -> str:
    return f"{form[0].value} {form[1].value}"


def _taken(kit: Kit, form: Form) -> str:
    """Return why the device has no memory for tensors of a form, "" if it has."""
    with kit.opened() as backend:
        try:
            acquired(backend, SHAPES[-1], StorageType.DYNAMIC, form[1], form[0])
        except (WeftError, NotImplementedError) as e:
            return str(e) or "no reason"
    return ""


def numbers(shape: Shape) -> Array:
    """Return nonzero numbers that fp16 holds exactly."""
    return np.asarray(np.random.default_rng(len(shape)).integers(1, 2000, shape) / 8, np.float32)


def _host(array: Array, form: Form) -> Tensor:
    """Return a host tensor whose padding lanes hold values that must not reach the device."""
    layout, dtype = form
    tensor = Tensor.from_numpy(array.astype(dtype.numpy), layout, "host")
    if layout is Layout.NC4HW4 and array.ndim > 1 and array.shape[1] % 4:
        tensor.memory = np.array(tensor.memory)
        tensor.memory[:, -1, ..., array.shape[1] % 4 :] = np.nan
    return tensor


def _empty(shape: Shape, form: Form) -> Tensor:
    tensor = Tensor.empty(shape, form[1], form[0], "host")
    tensor.memory[...] = 77
    return tensor


def _stored_wrongly(tensor: Tensor, array: Array) -> str:
    """Return how a host tensor differs from the stored form of an array, padding lanes included."""
    wanted = to_storage(array.astype(tensor.dtype.numpy), tensor.layout)
    if np.array_equal(tensor.memory, wanted):
        return ""
    if tensor.layout is Layout.NC4HW4 and np.array_equal(tensor.numpy(), array.astype(tensor.dtype.numpy)):
        return f"the padding lanes of shape {array.shape} are not zero"
    at = tuple(int(k) for k in np.argwhere(tensor.memory != wanted)[0])
    return f"of shape {array.shape}, {at} is stored as {tensor.memory[at]} instead of {wanted[at]}"


def _copy(backend: Backend, src: Tensor, dst: Tensor) -> None:
    """Copy; Untried if the device refuses with a WeftError that says why."""
    try:
        backend.onCopyBuffer(src, dst)
    except WeftError as e:
        raise Untried(str(e)) from e


def _both_ways(kit: Kit, one: Form, other: Form, why: str) -> str:
    if why:
        raise Untried(why)
    with kit.opened() as backend:
        for shape in SHAPES:
            x = numbers(shape)
            tensor = acquired(backend, shape, StorageType.DYNAMIC, other[1], other[0])
            _copy(backend, _host(x, one), tensor)
            for form in (other, one):
                back = _empty(shape, form)
                _copy(backend, tensor, back)
                problem = _stored_wrongly(back, x)
                if problem:
                    return f"{_name(other)} to {_name(form)} on the host: {problem}"
            backend.onReleaseBuffer(tensor, StorageType.DYNAMIC)
    return ""


def _inside(kit: Kit, one: Form, other: Form, why: str) -> str:
    if why:
        raise Untried(why)
    with kit.opened() as backend:
        for shape in SHAPES:
            x = numbers(shape)
            a = acquired(backend, shape, StorageType.DYNAMIC, one[1], one[0], "a")
            b = acquired(backend, shape, StorageType.DYNAMIC, other[1], other[0], "b")
            _copy(backend, _host(x, one), a)
            _copy(backend, a, b)
            back = _empty(shape, other)
            _copy(backend, b, back)
            problem = _stored_wrongly(back, x)
            if problem:
                return problem
            for tensor in (a, b):
                backend.onReleaseBuffer(tensor, StorageType.DYNAMIC)
    return ""


def _large(kit: Kit, one: Form, other: Form, why: str) -> str:
    """Copy more than a staging buffer of 64 KiB holds: to the device, inside it, and back."""
    if why:
        raise Untried(why)
    x = numbers((3, 5, 83, 79))
    with kit.opened() as backend:
        a, b = (acquired(backend, x.shape, StorageType.DYNAMIC, form[1], form[0]) for form in (one, other))
        _copy(backend, _host(x, one), a)
        _copy(backend, a, b)
        back = _empty(x.shape, other)
        _copy(backend, b, back)
    return _stored_wrongly(back, x)


def _between(kit: Kit, name: str) -> str:
    """Copy to an object of another device, or to a second one of this, and back."""
    x = numbers((2, 5, 3))
    (other,) = registry.choose(name)
    with kit.opened() as mine, closing(other.open(kit.config)) as theirs:
        a = acquired(mine, x.shape, StorageType.DYNAMIC, name="a")
        b = acquired(theirs, x.shape, StorageType.DYNAMIC, name="b")
        c = acquired(mine, x.shape, StorageType.DYNAMIC, name="c")
        copy_tensor(Tensor.from_numpy(x), a)
        copy_tensor(a, b)
        copy_tensor(b, c)
        return "" if np.array_equal(read(mine, c), x) else "what came back is not what was sent"


def _special_values(kit: Kit) -> str:
    x = np.array([[np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1e-38]], np.float32)
    with kit.opened() as backend:
        tensor = acquired(backend, x.shape, StorageType.DYNAMIC)
        write(backend, tensor, x)
        back = read(backend, tensor)
    return "" if back.tobytes() == x.tobytes() else f"{x.tolist()} came back as {back.tolist()}"


def _plain(kit: Kit, dtype: DType) -> str:
    x = np.arange(24).reshape(1, 6, 4).astype(dtype.numpy)
    with kit.opened() as backend:
        try:
            tensor = acquired(backend, x.shape, StorageType.DYNAMIC, dtype)
        except WeftError as e:
            raise Untried(str(e)) from e
        _copy(backend, Tensor.from_numpy(x), tensor)
        back = _empty(x.shape, (Layout.NCHW, dtype))
        _copy(backend, tensor, back)
    same = back.memory.tobytes() == x.tobytes()  # some types of eight bits have NaN for 0
    return "" if same else f"{x.reshape(-1)[:4]} came back as {back.memory.reshape(-1)[:4]}"
