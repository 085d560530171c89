"""Contract rows M5 to M8: storage types on every backend, and the deferred plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from benchmarks import models
from tests.helpers.fakes import Creator, RecordingBackend, registered
from tests.helpers.nets import Net, branching
from tests.helpers.null_gpu import null_gpu
from tests.helpers.run_length import examples
from weft.core.contract.backend import Backend, BackendInfo, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout
from weft.core.graph.tensor import Tensor
from weft.core.memory.buffer_manager import BufferManager, Slot
from weft.core.memory.memory_plan import ArenaPlan
from weft.core.registry.backend_registry import registry
from weft.errors import BackendError, WeftError
from weft.models import path as shipped

STATIC, DYNAMIC, SEPERATE = StorageType.STATIC, StorageType.DYNAMIC, StorageType.DYNAMIC_SEPERATE
DEVICES = ("cpu", "opencl", "vulkan")


@pytest.fixture(params=DEVICES)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    (choice,) = registry.choose(request.param)
    made = choice.creator.onCreate(BackendInfo(choice.creator.id, choice.index))
    yield made
    made.close()


def tensor(*shape: int, name: str = "t", layout: Layout = Layout.NCHW) -> Tensor:
    return Tensor(name, shape, DType.FLOAT32, layout)


def acquired(backend: Backend, storage: StorageType, *shape: int, name: str = "t") -> Tensor:
    made = tensor(*shape, name=name)
    assert backend.onAcquireBuffer(made, storage) is True
    return made


def place(t: Tensor) -> Any:
    """Return where the tensor's memory lies."""
    if isinstance(t.memory, np.ndarray):
        return t.memory.ctypes.data
    return id(t.memory.slot.buffer), t.memory.slot.offset


def fill(backend: Backend, t: Tensor, value: float) -> None:
    backend.onCopyBuffer(Tensor.from_numpy(np.full(t.shape, value, np.float32)), t)


def holds(t: Tensor, value: float) -> bool:
    return bool((t.numpy() == value).all())


# -- outside of a resize -----------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", list(StorageType))
def test_M5_M6_M7_memory_is_there_at_once_outside_a_resize(backend: Backend, storage: StorageType) -> None:
    a, b = acquired(backend, storage, 3, 5), acquired(backend, storage, 3, 5, name="u")
    fill(backend, a, 1.0)
    fill(backend, b, 2.0)
    assert holds(a, 1.0) and holds(b, 2.0)
    assert backend.onReleaseBuffer(a, storage) and backend.onReleaseBuffer(b, storage)


def test_M5_static_memory_survives_a_clear(backend: Backend) -> None:
    kept = acquired(backend, STATIC, 7)
    fill(backend, kept, 3.0)
    acquired(backend, DYNAMIC, 9)
    assert backend.onClearBuffer() is True
    other = acquired(backend, DYNAMIC, 7)
    fill(backend, other, 4.0)
    assert holds(kept, 3.0)


def test_M5_static_memory_is_freed_once(backend: Backend) -> None:
    t = acquired(backend, STATIC, 7)
    assert backend.onReleaseBuffer(t, STATIC)
    try:
        assert not backend.onReleaseBuffer(t, STATIC)
    except BackendError as e:
        assert "twice" in e.what


def test_M6_released_dynamic_memory_is_preferred(backend: Backend) -> None:
    small, large = acquired(backend, DYNAMIC, 100), acquired(backend, DYNAMIC, 1000)
    places = {place(small), place(large)}
    backend.onReleaseBuffer(large, DYNAMIC)
    backend.onReleaseBuffer(small, DYNAMIC)
    again = acquired(backend, DYNAMIC, 90, name="again")
    assert place(again) == place(small), "the piece that fits best is taken"
    assert place(acquired(backend, DYNAMIC, 500, name="more")) in places
    assert place(acquired(backend, DYNAMIC, 10, name="fresh")) not in places


def test_M6_dynamic_memory_in_use_is_not_given_away(backend: Backend) -> None:
    a = acquired(backend, DYNAMIC, 64)
    b = acquired(backend, DYNAMIC, 64, name="b")
    assert place(a) != place(b)


@pytest.mark.parametrize("storage", [DYNAMIC, SEPERATE])
def test_M6_M7_a_clear_frees_dynamic_memory(backend: Backend, storage: StorageType) -> None:
    t = acquired(backend, storage, 64)
    backend.onReleaseBuffer(t, storage)
    backend.onClearBuffer()
    device = getattr(backend, "device", None)
    if device is not None:
        assert t.memory.slot.buffer is None
        with pytest.raises(WeftError):
            backend.onCopyBuffer(Tensor.from_numpy(np.zeros(64, np.float32)), t)


def test_M7_released_separate_memory_is_not_used_again(backend: Backend) -> None:
    a = acquired(backend, SEPERATE, 64)
    fill(backend, a, 5.0)
    assert backend.onReleaseBuffer(a, SEPERATE) is True
    for storage in (SEPERATE, DYNAMIC):
        b = acquired(backend, storage, 64, name=storage.name)
        assert place(b) != place(a)
        fill(backend, b, 6.0)
    assert holds(a, 5.0), "a release does nothing"


def test_M5_M6_M7_a_tensor_that_was_never_acquired_cannot_be_released(backend: Backend) -> None:
    for storage in StorageType:
        assert backend.onReleaseBuffer(tensor(4), storage) is False


def test_M5_M6_M7_tensors_without_elements_have_memory_too(backend: Backend) -> None:
    for storage in StorageType:
        t = acquired(backend, storage, 0, 3, name=storage.name)
        fill(backend, t, 1.0)
        assert t.numpy().shape == (0, 3)
        assert backend.onReleaseBuffer(t, storage)


def test_M5_two_pipelines_on_one_device_have_their_own_memory(backend: Backend) -> None:
    (choice,) = registry.choose(backend.info.id)
    other = choice.creator.onCreate(backend.info)
    a, b = acquired(backend, STATIC, 64), acquired(other, STATIC, 64)
    fill(backend, a, 1.0)
    fill(other, b, 2.0)
    other.close()
    assert holds(a, 1.0)


def test_M5_memory_goes_back_to_the_device_with_the_backend() -> None:
    for name in ("opencl", "vulkan"):
        (choice,) = registry.choose(name)
        backend: Any = choice.creator.onCreate(BackendInfo(name))
        before = (backend.device.stats.live_buffers, backend.device.stats.live_bytes)
        for storage in StorageType:
            acquired(backend, storage, 4_000_000, name=storage.name)
        backend.close()
        assert (backend.device.stats.live_buffers, backend.device.stats.live_bytes) == before


# -- in a resize -------------------------------------------------------------------------------------------


def test_M8_inside_a_resize_lifetimes_are_recorded_and_planned_once(backend: Backend) -> None:
    backend.onResizeBegin()
    a = acquired(backend, DYNAMIC, 1000, name="a")
    b = acquired(backend, DYNAMIC, 1000, name="b")
    backend.onReleaseBuffer(a, DYNAMIC)
    c = acquired(backend, DYNAMIC, 1000, name="c")
    s = acquired(backend, SEPERATE, 1000, name="s")
    backend.onReleaseBuffer(s, SEPERATE)
    d = acquired(backend, SEPERATE, 1000, name="d")
    assert backend.onAllocateBuffer() is True
    backend.onResizeEnd()
    assert place(c) == place(a), "the lifetimes of a and c do not meet"
    assert len({place(t) for t in (b, c, s, d)}) == 4
    assert 2 * 4000 <= backend.statistics()["arena_bytes"] <= 2 * 4096
    for value, t in enumerate((b, c, s, d)):
        fill(backend, t, float(value))
    assert all(holds(t, float(value)) for value, t in enumerate((b, c, s, d)))


def test_M8_the_arena_is_one_piece_of_memory(backend: Backend) -> None:
    device = getattr(backend, "device", None)
    if device is None:
        assert backend.info.id == "cpu"
        return
    before = device.stats.allocations
    backend.onResizeBegin()
    for k in range(20):
        acquired(backend, DYNAMIC, 100 + k, name=f"t{k}")
    backend.onAllocateBuffer()
    assert device.stats.allocations == before + 1


Step = tuple[bool, int]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=40), st.sampled_from([1, 16, 64]))
@settings(max_examples=examples(200), deadline=None)
def test_M8_pieces_that_live_together_never_overlap(steps: list[Step], alignment: int) -> None:
    plan: ArenaPlan[int] = ArenaPlan(alignment)
    live: list[int] = []
    sizes: dict[int, int] = {}
    together: set[tuple[int, int]] = set()
    for k, (acquire, number) in enumerate(steps):
        if acquire or not live:
            plan.acquire(k, number)
            sizes[k] = number
            together |= {(k, other) for other in live}
            live.append(k)
        else:
            plan.release(live.pop(number % len(live)))
    offsets = plan.plan()
    for a, b in together:
        assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
    assert all(o % alignment == 0 and o + sizes[k] <= plan.size for k, o in offsets.items())
    assert plan.live_peak() <= plan.size


def test_M8_what_is_reshaped_lies_where_it_was() -> None:
    net = Net()
    net.input("x", 64, 64)
    a = net.add("Abs", "x")
    row, column = (net.add("Reshape", a, np.array(shape)) for shape in ((1, 4096), (4096, 1)))
    graph = net.finish(net.add("MatMul", row, column), column)
    with weft.load(graph, "cpu") as session:
        held = session.report.statistics["cpu"]
        assert 4 * 4096 <= held["arena_live_peak"] < 2 * 4 * 4096
        for seed in range(2):
            x = np.random.default_rng(seed).standard_normal((64, 64), np.float32)
            product, absolute = session.run(x)
            np.testing.assert_allclose(product, (x * x).sum(keepdims=True), rtol=1e-4)
            np.testing.assert_array_equal(absolute, np.abs(x).reshape(4096, 1))


def test_M8_a_plan_takes_other_sizes_where_there_is_room() -> None:
    plan: ArenaPlan[str] = ArenaPlan(64)

    def record(grown: int) -> dict[str, int]:
        plan.clear()
        for key, nbytes in (("a", 6400), ("b", 640 + grown)):
            plan.acquire(key, nbytes)
        plan.release("a")
        plan.acquire("c", 640 + grown)
        return plan.plan()

    record(0)
    offsets, size = record(64), plan.size
    assert plan.refit({"b": 768, "c": 768})
    assert (plan.live_peak(), plan.size) == (6400 + 768, size)
    assert not plan.refit({"b": 6400})
    assert not plan.refit({"d": 64})
    assert plan.live_peak() == 6400 + 768
    assert record(128) == offsets
    assert plan.live_peak() == 6400 + 768


def test_M8_wrong_use_of_a_plan_is_refused() -> None:
    plan: ArenaPlan[str] = ArenaPlan()
    plan.acquire("a", 1)
    with pytest.raises(BackendError, match="acquired twice"):
        plan.acquire("a", 1)
    plan.release("a")
    for key in ("a", "b"):
        with pytest.raises(BackendError, match="without being acquired"):
            plan.release(key)


class Counted:
    """An allocator that may refuse, and notes how many buffers there were when it was asked for another."""

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.every: list[ref[Array]] = []
        """Freed ones as well, which lie in memory as long as someone refers to them."""
        self.held: list[int] = []
        self.full = False

    def allocate(self, nbytes: int) -> Array:
        self.held.append(sum(buffer() is not None for buffer in self.every))
        if self.full:
            raise MemoryError
        array = np.zeros(nbytes, np.uint8)
        self.live.add(id(array))
        self.every.append(ref(array))
        return array

    def free(self, buffer: Array) -> None:
        self.live.remove(id(buffer))  # KeyError if it was freed before


@pytest.mark.parametrize("refused", [False, True])
def test_M7_separate_memory_is_freed_once_and_before_there_is_new(refused: bool) -> None:
    memory = Counted()
    manager = BufferManager(memory.allocate, memory.free)
    manager.begin()
    slots = [manager.acquire(1000, storage) for storage in (SEPERATE, DYNAMIC, SEPERATE)]
    manager.allocate()
    for nbytes in (1010, 1020):
        assert manager.refit({slots[0]: nbytes})
        memory.held.clear()
        memory.full = refused
        if refused:
            with pytest.raises(MemoryError):
                manager.renew_separate()
            assert len(memory.live) == 1 and slots[0].buffer is None
            memory.full = False
        manager.renew_separate()
        assert memory.held == [1] * (1 + refused), "beside the arena there was none"
        assert len(memory.live) == 2 and slots[0].buffer is slots[2].buffer is not slots[1].buffer
    memory.full = refused
    if refused:
        with pytest.raises(MemoryError):
            manager.renew_separate()
    manager.clear()
    assert not memory.live


# -- real networks -----------------------------------------------------------------------------------------


class Watch:
    """Notes what is acquired and released, and from that alone the largest set alive at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live: dict[Slot, int] = {}
        self.now = self.peak = self.count = 0
        acquire, release, withdraw = BufferManager.acquire, BufferManager.release, BufferManager.withdraw
        before = 0

        def watched_acquire(manager: BufferManager, nbytes: int, storage: StorageType) -> Slot:
            slot = acquire(manager, nbytes, storage)
            if storage is DYNAMIC:
                nonlocal before
                before = self.peak
                self.live[slot] = nbytes
                self.now += nbytes
                self.count += 1
                self.peak = max(self.peak, self.now)
            return slot

        def watched_release(manager: BufferManager, slot: Slot) -> None:
            if slot.storage is DYNAMIC:
                self.now -= self.live.pop(slot)
            release(manager, slot)

        def watched_withdraw(manager: BufferManager, slot: Slot) -> bool:
            withdrawn = withdraw(manager, slot)
            if withdrawn:
                self.now -= self.live.pop(slot)
                self.peak = before
            return withdrawn

        monkeypatch.setattr(BufferManager, "acquire", watched_acquire)
        monkeypatch.setattr(BufferManager, "withdraw", watched_withdraw)
        monkeypatch.setattr(BufferManager, "release", watched_release)


LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
HEAVY = {"light_vgg19", "light_zfnet512"}
"""Networks of half a gigabyte of weights, each a chain as light_bvlc_alexnet is."""
SHARED = Path(__file__).parents[3] / "../shared/models"
BENCHMARKS = ("resnet50", "mobilenet_v2", "squeezenet1_1")


def with_batch(path: Path, batch: int) -> onnx.ModelProto:
    """Return a model whose inputs and outputs are declared for so many images at once."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        if value.name not in weights:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    targets = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        target = onnx.numpy_helper.to_array(tensor).copy()
        if tensor.name in targets and target[0] == 1:
            target[0] = batch
            tensor.CopyFrom(onnx.numpy_helper.from_array(target, tensor.name))
    return model


def assert_small_arena(model: onnx.ModelProto | Path, device: str, watch: Watch, **options: Any) -> tuple[int, int]:
    """Check what is planned for a network against the bound; return the bytes of the arena and of the bound."""
    with null_gpu(), weft.load(model, device=device, fallback="error", **options) as session:
        (statistics,) = session.report.statistics.values()
        assert list(session.report.nodes_by_device) == [device]
    assert watch.count > 10
    assert watch.peak <= statistics["arena_bytes"] <= 1.15 * watch.peak
    assert statistics["arena_live_peak"] <= 1.01 * watch.peak
    return statistics["arena_bytes"], statistics["arena_live_peak"]


@pytest.mark.covering
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("device", ["cpu", "null"])
def test_M8_the_arena_is_within_15_percent_of_the_live_set_bound(
    device: str, name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_small_arena(models.MODELS[name](batch), device, Watch(monkeypatch))


@pytest.mark.covering
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(
    ("name", "device"),
    [
        *(
            pytest.param(path.stem, "cpu", marks=[pytest.mark.long] * (path.stem in HEAVY))
            for path in sorted(LIGHT.glob("*.onnx"))
        ),
        ("light_densenet121", "null"),
    ],
)
def test_M8_the_arena_of_light_networks_is_as_small_as_the_bound(
    name: str, device: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_batch(LIGHT / f"{name}.onnx", batch)
    size, bound = assert_small_arena(model, device, Watch(monkeypatch))
    assert size == bound


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("device", ["cpu", "null"])
def test_M8_the_arena_of_the_shipped_network_is_as_small_as_the_bound(
    device: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"image": (batch, 3, 128, 128)}
    size, bound = assert_small_arena(shipped("shapes"), device, Watch(monkeypatch), shapes=shapes)
    assert size == bound


@pytest.mark.parametrize("device", ["cpu", "null"])
@pytest.mark.parametrize("name", ["squeezenet", "squeezenet_fp16", "ultraface_rfb_320"])
def test_M8_the_arena_of_trained_networks_is_as_small_as_the_bound(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = (SHARED / f"{name}.onnx").resolve()
    if not path.exists():
        pytest.skip(f"there is no {path}")
    size, bound = assert_small_arena(path, device, Watch(monkeypatch))
    assert size == bound


def test_M8_the_plan_is_made_after_all_acquires() -> None:
    RecordingBackend.log = []
    with registered(Creator(RecordingBackend)), weft.load(branching(), device="acme"):
        calls = [c[0] for c in RecordingBackend.log]
    assert calls.count("onAllocateBuffer") == 1
    assert "onAcquireBuffer" not in calls[calls.index("onAllocateBuffer") :]
