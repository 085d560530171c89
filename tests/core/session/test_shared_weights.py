"""Weights exist once: on the host for all sessions of a file, and on each device for all that read the same bytes."""

from __future__ import annotations

import errno
import gc
import inspect
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import weft
from tests.helpers.null_gpu import NullDevice, null_gpu
from tests.helpers.opened import stats
from tests.helpers.shared_arrays import SharedArray
from tests.helpers.waits import ended
from weft.backends.gpu.device.device import GpuBuffer
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.memory.static_pool import Piece, StaticPool
from weft.core.graph.layout import Array
from weft.errors import DeviceError, ModelError

SIZE, LAYERS = 256, 4
BYTES = LAYERS * SIZE * SIZE * 4
GPUS = ("opencl", "vulkan")


def write(path: Path, seed: int = 0, rows: int | str = 1) -> Path:
    """Write a model of four products."""
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal((SIZE, SIZE), dtype=np.float32) / 16 for _ in range(LAYERS)]
    weights = [numpy_helper.from_array(value, f"w{k}") for k, value in enumerate(values)]
    nodes = [helper.make_node("MatMul", [f"v{k}", f"w{k}"], [f"v{k + 1}"], name=f"m{k}") for k in range(LAYERS)]
    ends = [helper.make_tensor_value_info(f"v{k}", TensorProto.FLOAT, [rows, SIZE]) for k in (0, LAYERS)]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def x(rows: int = 1) -> Array:
    return np.linspace(-1, 1, rows * SIZE, dtype=np.float32).reshape(rows, SIZE)


def wanted(path: Path, rows: int = 1) -> Array:
    out = x(rows).astype(np.float64)
    for weight in onnx.load(path).graph.initializer:
        out = out @ numpy_helper.to_array(weight).astype(np.float64)
    return out


def check(session: weft.Session, path: Path, rows: int = 1, rtol: float = 1e-4) -> None:
    """Fail unless the session computes the file's network on one device alone."""
    expected = wanted(path, rows)
    np.testing.assert_allclose(session.run(x(rows))[0], expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    assert len(session.report.nodes_by_device) == 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "model.onnx")


def host_weights(session: weft.Session) -> list[Array]:
    return [session.graph.constants[f"w{k}"] for k in range(LAYERS)]


# -- the host ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_sessions_of_one_file_share_the_hosts_weights(device: str, file: Path) -> None:
    with weft.load(file, device) as first, weft.load(file, device, precision="normal") as second:
        assert all(a is b or np.shares_memory(a, b) for a, b in zip(*map(host_weights, (first, second)), strict=True))
        check(first, file)
        check(second, file)


def test_threads_that_load_one_file_share_the_hosts_weights(file: Path) -> None:
    together = threading.Barrier(8)

    def load() -> None:
        together.wait()
        sessions.append(weft.load(file, "cpu"))

    for _ in range(3):
        sessions: list[weft.Session] = []
        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        ended(*threads)
        held = [host_weights(session) for session in sessions]
        assert len(held) == 8 and all(np.shares_memory(a, held[0][k]) for each in held for k, a in enumerate(each))
        for session in sessions:
            session.close()


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    return large(tmp_path)


def large(folder: Path, value: float = 0.5) -> Path:
    """Write a product with weights of more than a MiB, which get pages of their own."""
    weight = numpy_helper.from_array(np.full((512, 1024), value, np.float32), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", 512), ("y", 1024))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "large", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "large.onnx")
    return folder / "large.onnx"


def test_a_system_may_know_no_large_pages(large_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux without them refuses the advice as one that it does not know."""
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)
    with weft.load(large_file, "cpu") as session:
        assert (session.run(np.ones((1, 512), np.float32))[0] == 256).all()


def test_weights_for_which_there_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = large(tmp_path, value=0.25)  # which no session has that another test has left to the next collection

    def full(*given: object, **named: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(MemoryError, match="2,097,152 bytes of weights"):
        weft.load(file, "cpu")


def test_the_cpu_computes_with_the_weights_that_were_read(file: Path) -> None:
    with weft.load(file, "cpu") as session:
        check(session, file)
        held = session.pipelines[0].constants
        assert all(np.shares_memory(held[f"w{k}"].memory, w) for k, w in enumerate(host_weights(session)))


def test_the_cpu_copies_no_large_weights(large_file: Path) -> None:
    """The array of pages of its own is a view of a memoryview of them."""
    with weft.load(large_file, "cpu") as session, weft.load(large_file, "cpu") as other:
        session.run(np.ones((1, 512), np.float32))
        other.run(np.ones((1, 512), np.float32))
        mine, its = (s.pipelines[0].constants["w"].memory for s in (session, other))
        assert np.shares_memory(mine, its)


def test_a_file_that_was_written_anew_is_read_anew(file: Path) -> None:
    """Also where its size and its time tell nothing."""
    with weft.load(file, "cpu") as before:
        times = os.stat(file)
        old = wanted(file)
        write(file, seed=1)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        with weft.load(file, "cpu") as after:
            check(after, file)
        np.testing.assert_allclose(before.run(x())[0], old, rtol=1e-4, atol=1e-3)


def read_only_view(array: Array) -> Array:
    made = array.view()
    made.flags.writeable = False
    return made


GIVEN: Mapping[str, Callable[[Array], Any]] = {
    "itself": lambda array: array,
    "a read-only view": read_only_view,
    "a part of it": lambda array: np.broadcast_to(array[:1], array.shape),
    "another library's array": lambda array: SharedArray(array, version=None),
}


@pytest.mark.alike
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_an_array_of_the_users_may_change_after_the_load(device: str, given: str) -> None:
    """Also for shapes that come later."""
    weight = np.ones((64, 300), np.float32)
    net = weft.Network()
    x = net.add_input("x", ("rows", 64))
    net.add_output("y", net.add_layer("MatMul", x, net.add_constant(GIVEN[given](weight))))
    with weft.load(net, device) as session:
        for rows in (1, 2, 3, 1):
            assert (session.run(np.ones((rows, 64), np.float32))[0] == 64).all()
            weight[:] = 7
    optimized = weft.optimize(net, device, shapes={"x": (1, 64)})
    weight[:] = 9
    with weft.load(optimized) as session:
        assert (session.run(np.ones((1, 64), np.float32))[0] == 7 * 64).all()


@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_a_closed_session_keeps_no_weights(device: str, file: Path) -> None:
    session = weft.load(file, device)
    check(session, file)
    weights = [weakref.ref(w if w.base is None else w.base) for w in host_weights(session)]
    session.close()
    gc.collect()
    assert [w for w in weights if w() is not None] == []
    assert session.inputs == {"v0": (1, SIZE)} and session.outputs == [f"v{LAYERS}"]


# -- devices -------------------------------------------------------------------------------------------------


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a device that is open and has run, so that what it keeps for itself is there."""
    device: str = request.param
    with weft.load(write(tmp_path_factory.mktemp("warm") / "warm.onnx", seed=2), device) as session:
        session.run(x())
    yield device


def live(device: str) -> int:
    found = stats(device)
    assert found is not None
    return found.live_bytes


def test_sessions_on_a_device_share_its_weights(gpu: str, file: Path) -> None:
    before = live(gpu)
    first = weft.load(file, gpu)
    check(first, file)
    one = live(gpu) - before
    second = weft.load(file, gpu)
    check(second, file)
    assert live(gpu) - before < one + BYTES // 8, "the second has only its own activations"
    first.close()
    check(second, file)
    second.close()
    assert live(gpu) == before


def test_other_weights_of_the_same_names_are_not_shared(gpu: str, file: Path) -> None:
    other = write(file.parent / "other.onnx", seed=1)
    with weft.load(file, gpu) as first, weft.load(other, gpu) as second:
        check(first, file)
        check(second, other)


def test_threads_that_load_one_file_share_its_weights(gpu: str, file: Path) -> None:
    before = live(gpu)
    with weft.load(file, gpu) as alone:
        check(alone, file)
        one = live(gpu) - before
    sessions: list[weft.Session] = []
    threads = [threading.Thread(target=lambda: sessions.append(weft.load(file, gpu))) for _ in range(4)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert len(sessions) == 4 and live(gpu) - before < one + BYTES // 2
    for session in sessions:
        check(session, file)
        session.close()
    assert live(gpu) == before


# -- memory="limit" ------------------------------------------------------------------------------------------


def test_with_memory_limit_the_weights_are_on_the_gpu_alone(gpu: str, tmp_path: Path) -> None:
    file = write(tmp_path / "open.onnx", rows="rows")
    with weft.load(file, gpu, memory="limit") as session:
        for rows in (1, 3, 1):
            check(session, file, rows)
            assert not session.graph.constants.keys() & {f"w{k}" for k in range(LAYERS)}
        write(file, seed=1, rows="rows")
        with pytest.raises(ModelError, match="the model's file has changed"):
            session.run(x(5))


def write_branch(path: Path, change: str = "") -> Path:
    """Write a model with a product, a sum and a branch, with one number changed."""
    weights = np.eye(SIZE, dtype=np.float32)
    weights[77, 130] = change == "weight"
    bias = np.full(SIZE, 2 if change == "bias" else 1, np.float32)
    inner = numpy_helper.from_array(np.full((1,), 3 if change == "branch" else 2, np.float32), "factor")
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["rows", SIZE])
    then = [helper.make_node("Mul", ["sum", "factor"], ["out"])]
    branches = {
        "then_branch": helper.make_graph(then, "then", [], [out], [inner]),
        "else_branch": helper.make_graph([helper.make_node("Neg", ["sum"], ["out"])], "else", [], [out]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("If", ["yes"], ["chosen"], **branches),
        helper.make_node("LeakyRelu", ["chosen"], ["y"], alpha=0.5 if change == "attribute" else 0.25),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", SIZE]) for name in "xy"]
    constants = {"w": weights, "b": bias, "yes": np.array(True)}
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "changing", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("change", ["weight", "bias", "branch", "attribute"])
def test_with_memory_limit_any_change_of_the_file_is_noticed(change: str, tmp_path: Path) -> None:
    file = write_branch(tmp_path / "changing.onnx")
    with weft.load(file, "cpu", memory="limit") as session:
        for rows in (1, 2):
            session.run(x(rows))
        write_branch(file, change)
        session.run(x(2))  # of this shape nothing is read again
        with pytest.raises(ModelError, match="the model's file has changed"):
            session.run(x(5))


# -- the pool ------------------------------------------------------------------------------------------------

KINDS = st.sampled_from([0, 3, 100_000, 70_000, 70_001])


@given(st.lists(st.tuples(KINDS, st.integers(0, 2), st.booleans()), max_size=24))
def test_pieces_hold_what_was_uploaded_until_they_are_given_back(steps: list[tuple[int, int, bool]]) -> None:
    """Constants differ in one byte, which no sample need show."""
    device = NullDevice()
    pool = StaticPool(DeviceHeap(device))
    held: list[tuple[Array, Piece]] = []
    for size, different, gives in steps:
        content = np.zeros(size, np.uint8)
        content[size // 3 : size // 3 + 1] = different
        piece = pool.upload(content)
        assert all(piece == other or not np.array_equal(content, value) or size < 64 << 10 for value, other in held)
        held.append((content, piece))
        if gives:
            pool.give(*held.pop(0)[1])
        for value, (buffer, offset) in held:
            found = np.empty(value.size, np.uint8)
            device.download(buffer, offset, found)
            np.testing.assert_array_equal(found, value)
    for _, piece in held:
        pool.give(*piece)
    assert device.stats.live_buffers == 0


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("size", [1000, 100_000])
def test_an_upload_may_be_interrupted_at_any_call(size: int, held: bool) -> None:
    """Ctrl-C leaves no memory behind, and no constant for whose upload others would wait.

    Python looks for it at the begin of its own functions and behind others.
    """
    lines, first = inspect.getsourcelines(StaticPool.upload)
    last = first + next(k for k, line in enumerate(lines) if line.strip() == "except BaseException:")
    content, device = np.arange(size, dtype=np.uint32).view(np.uint8), NullDevice()
    pool, code = StaticPool(DeviceHeap(device)), StaticPool.upload.__code__

    def upload(after: int) -> list[Piece]:
        """Return the piece of an upload that is interrupted after so many calls, or of one that has fewer."""
        left = [after]

        def profiled(frame: Any, event: str, _: Any) -> None:
            upper = {"c_return": frame, "call": frame.f_back}.get(event)
            if upper is not None and upper.f_code is code and upper.f_lineno < last:
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt

        sys.setprofile(profiled)
        try:
            return [pool.upload(content)]
        except KeyboardInterrupt:
            return []
        finally:
            sys.setprofile(None)

    def upload_again() -> None:
        pieces.append(pool.upload(content))

    interrupted = 0
    while True:
        pieces = [pool.upload(content)] if held else []
        taken = upload(interrupted + 1)
        other = threading.Thread(target=upload_again, daemon=True)
        other.start()
        ended(other)
        for piece in pieces + taken:
            pool.give(*piece)
        assert device.stats.live_buffers == 0, f"at call {interrupted} of an upload"
        if taken:
            break
        interrupted += 1
    assert interrupted > 5


def test_an_upload_that_fails_leaves_nothing_that_others_would_take(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with null_gpu() as device:
        broken = True

        def upload(buffer: GpuBuffer, offset: int, data: Array) -> None:
            if broken:
                raise DeviceError("no")
            NullDevice.upload(device, buffer, offset, data)

        monkeypatch.setattr(device, "upload", upload)
        with pytest.raises(weft.WeftError):
            weft.load(file, "null", fallback="error")
        broken = False
        weft.load(file, "null", fallback="error").close()
        assert device.stats.live_buffers == 0
