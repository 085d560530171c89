"""Contract row M10: copies between host and devices, inside a device and between two, in every layout pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.helpers.run_length import examples
from weft.core.contract.backend import Backend, BackendInfo, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, from_storage, storage_shape, to_storage
from weft.core.graph.tensor import Tensor
from weft.core.host.tensor_copy import copy_tensor
from weft.core.registry.backend_registry import registry
from weft.errors import BackendError, InputError

DEVICES = ("cpu", "opencl", "vulkan")
TYPES = (DType.FLOAT32, DType.FLOAT16)
PAIRS = list(product(Layout, Layout))
CHECKS = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


@dataclass(frozen=True)
class Form:
    """How a tensor is stored."""

    layout: Layout
    dtype: DType


FORMS = [Form(layout, dtype) for layout in Layout for dtype in TYPES]
forms = st.sampled_from(FORMS)
sizes = st.sampled_from([1, 2, 3, 5, 7])
channels = st.integers(1, 9)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """Draw a shape of rank 0 to 6 with few elements, mostly with odd sizes."""
    rank = draw(st.integers(0, 6))
    n = draw(st.integers(1, 2))
    shape = (n, draw(channels), *(draw(sizes) for _ in range(4)))
    return shape[:rank] if rank != 1 else (draw(st.integers(1, 40)),)


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return values that fp16 holds, none of them zero."""
    drawn = np.random.default_rng(seed).integers(1, 2000, shape)
    return np.asarray(drawn / 8).astype(np.float32)


def stored(array: Array, form: Form, lanes: float = np.nan) -> Tensor:
    """Return a host tensor whose padding lanes hold something that must not come through."""
    tensor = Tensor.from_numpy(array.astype(form.dtype.numpy), form.layout, "host")
    if form.layout is Layout.NC4HW4 and array.ndim > 1 and array.shape[1] % 4:
        memory = np.array(tensor.memory)
        memory[:, -1, ..., array.shape[1] % 4 :] = lanes
        tensor.memory = memory
    return tensor


def empty(shape: tuple[int, ...], form: Form) -> Tensor:
    tensor = Tensor.empty(shape, form.dtype, form.layout, "host")
    tensor.memory[...] = 77
    return tensor


def assert_is(tensor: Tensor, array: Array) -> None:
    """Fail unless a host tensor is exactly the stored form of an array, with zeros in padding lanes."""
    np.testing.assert_array_equal(tensor.memory, to_storage(array.astype(tensor.dtype.numpy), tensor.layout))


def opened(name: str) -> Backend:
    (choice,) = registry.choose(name)
    return choice.creator.onCreate(BackendInfo(choice.creator.id, choice.index))


@pytest.fixture(params=DEVICES)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = opened(request.param)
    yield made
    made.close()


@pytest.fixture(params=["opencl to vulkan", "vulkan to opencl", "opencl to cpu", "cpu to vulkan"])
def two(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, Backend]]:
    a, b = (opened(name) for name in request.param.split(" to "))
    yield a, b
    a.close()
    b.close()


def on(backend: Backend, shape: tuple[int, ...], form: Form) -> Tensor:
    """Return a tensor with memory of a backend."""
    tensor = Tensor("device", shape, form.dtype, form.layout)
    assert backend.onAcquireBuffer(tensor, StorageType.DYNAMIC)
    return tensor


# -- the layouts themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(Layout.NCHW, (2, 5, 3, 4)), (Layout.NHWC, (2, 3, 4, 5)), (Layout.NC4HW4, (2, 2, 3, 4, 4))],
)
def test_M10_storage_shapes_are_those_of_the_contract(layout: Layout, expected: tuple[int, ...]) -> None:
    assert storage_shape((2, 5, 3, 4), layout) == expected


@given(shapes(), st.sampled_from(list(Layout)))
def test_M10_a_layout_can_be_undone(shape: tuple[int, ...], layout: Layout) -> None:
    x = numbers(shape)
    np.testing.assert_array_equal(from_storage(to_storage(x, layout), shape, layout), x)


@given(channels, sizes)
def test_M10_padding_lanes_are_zero_and_each_element_has_its_place(c: int, w: int) -> None:
    x = numbers((2, c, w))
    packed = to_storage(x, Layout.NC4HW4)
    assert packed.shape == (2, -(-c // 4), w, 4)
    for k in range(packed.shape[1] * 4):
        expected = x[:, k] if k < c else np.zeros((2, w), np.float32)
        np.testing.assert_array_equal(packed[:, k // 4, :, k % 4], expected)


# -- host and device ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize(("from_type", "to_type"), list(product(TYPES, TYPES)))
@given(shape=shapes(), way=st.sampled_from([0, 1]))
@settings(max_examples=examples(12), deadline=None, suppress_health_check=CHECKS)
@example(shape=(1, 3, 5, 7), way=0)
def test_M10_host_and_device_in_both_directions(
    backend: Backend,
    source: Layout,
    target: Layout,
    from_type: DType,
    to_type: DType,
    shape: tuple[int, ...],
    way: int,
) -> None:
    x, one, other = numbers(shape), Form(source, from_type), Form(target, to_type)
    device = on(backend, shape, other if way == 0 else one)
    back = empty(shape, one if way == 0 else other)
    backend.onCopyBuffer(stored(x, one), device)
    backend.onCopyBuffer(device, back)
    assert_is(back, x)
    backend.onReleaseBuffer(device, StorageType.DYNAMIC)


# -- inside a device ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), PAIRS)
@given(shape=shapes(), types=st.tuples(st.sampled_from(TYPES), st.sampled_from(TYPES)))
@settings(max_examples=examples(9), deadline=None, suppress_health_check=CHECKS)
@example(shape=(1, 3, 5, 7), types=(DType.FLOAT32, DType.FLOAT32))
@example(shape=(2, 6, 3), types=(DType.FLOAT16, DType.FLOAT32))
@example(shape=(2, 9, 1, 3), types=(DType.FLOAT32, DType.FLOAT16))
def test_M10_inside_a_device(
    backend: Backend, source: Layout, target: Layout, shape: tuple[int, ...], types: tuple[DType, DType]
) -> None:
    x = numbers(shape)
    a, b = on(backend, shape, Form(source, types[0])), on(backend, shape, Form(target, types[1]))
    backend.onCopyBuffer(stored(x, Form(Layout.NC4HW4, DType.FLOAT32)), a)
    backend.onCopyBuffer(a, b)
    back = empty(shape, Form(target, types[1]))
    backend.onCopyBuffer(b, back)
    assert_is(back, x)
    for t in (a, b):
        backend.onReleaseBuffer(t, StorageType.DYNAMIC)


# -- between devices ---------------------------------------------------------------------------------------


@given(shape=shapes(), first=forms, second=forms)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=CHECKS)
@example(shape=(1, 5, 3, 3), first=FORMS[0], second=FORMS[-1])
def test_M10_between_two_devices(
    two: tuple[Backend, Backend], shape: tuple[int, ...], first: Form, second: Form
) -> None:
    x = numbers(shape)
    a, b = on(two[0], shape, first), on(two[1], shape, second)
    copy_tensor(stored(x, first), a)
    copy_tensor(a, b)
    back = empty(shape, second)
    copy_tensor(b, back)
    assert_is(back, x)
    for backend, t in zip(two, (a, b), strict=True):
        backend.onReleaseBuffer(t, StorageType.DYNAMIC)


@pytest.mark.parametrize("side", [0, 1])
def test_M10_either_backend_copies_between_two_devices(two: tuple[Backend, Backend], side: int) -> None:
    x = numbers((1, 5, 3))
    a = on(two[0], x.shape, Form(Layout.NCHW, DType.FLOAT32))
    b = on(two[1], x.shape, Form(Layout.NC4HW4, DType.FLOAT16))
    two[0].onCopyBuffer(Tensor.from_numpy(x), a)
    two[side].onCopyBuffer(a, b)
    np.testing.assert_array_equal(b.numpy(), x.astype(np.float16))


# -- values and refusals -----------------------------------------------------------------------------------


def test_M10_special_values_come_through(backend: Backend) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, -0.0, 65504.0, 1e-7, 1e9]], np.float32)
    for layout in Layout:
        device = on(backend, x.shape, Form(layout, DType.FLOAT16))
        backend.onCopyBuffer(Tensor.from_numpy(x), device)
        with np.errstate(over="ignore"):
            expected = x.astype(np.float16)
        np.testing.assert_array_equal(device.numpy(), expected)
        assert np.signbit(device.numpy()[0, 3])


@pytest.mark.parametrize("dtype", list(DType))
def test_M10_a_plain_copy_takes_every_element_type(backend: Backend, dtype: DType) -> None:
    x = np.arange(24).reshape(1, 6, 4).astype(dtype.numpy)
    for layout in Layout:
        a, b = on(backend, x.shape, Form(layout, dtype)), on(backend, x.shape, Form(layout, dtype))
        backend.onCopyBuffer(Tensor.from_numpy(x), a)
        backend.onCopyBuffer(a, b)
        assert b.numpy().tobytes() == x.tobytes()  # by bytes: 0 is NaN in FLOAT8E8M0


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3), (1, 3, 0, 2)])
def test_M10_tensors_without_elements_are_copied(backend: Backend, shape: tuple[int, ...]) -> None:
    for one, other in product(FORMS[::2], FORMS[::3]):
        a, b = on(backend, shape, one), on(backend, shape, other)
        backend.onCopyBuffer(stored(numbers(shape), one), a)
        backend.onCopyBuffer(a, b)
        assert b.numpy().shape == shape


def test_M10_two_shapes_or_a_stranger_are_refused(backend: Backend) -> None:
    form = Form(Layout.NCHW, DType.FLOAT32)
    with pytest.raises(InputError, match="cannot copy"):
        copy_tensor(stored(numbers((2, 3)), form), on(backend, (3, 2), form))
    if backend.info.id != "cpu":
        with pytest.raises(BackendError, match="other backends"):
            backend.onCopyBuffer(stored(numbers((2, 3)), form), empty((2, 3), form))
