"""A resize of the CPU that only lets tensors grow or shrink keeps the last memory plan (contract M8, M11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, feeds, op
from weft.backends.cpu.backend import CpuBackend
from weft.backends.cpu.pipeline import CpuPipeline
from weft.core.contract.backend import BackendInfo, StorageType
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.core.placement.optimized_network import Part
from weft.core.session.session import Session
from weft.errors import OutOfMemory
from weft.extend import PassContext, graph_pass


def cached(rows: int | str = "N") -> Graph:
    """Return a cache that grows by a row: most values keep their sizes, some grow, and one is only reshaped."""
    net = Net()
    word, past = net.input("word", 1, 64), net.input("past", rows, 64)
    row = net.add("Tanh", net.add("MatMul", word, net.constant(np.eye(64, dtype=np.float32))))
    now = net.add("Concat", past, row, axis=0)
    flat = net.add("Reshape", net.add("Abs", now), np.array([-1]))
    column = net.add("Transpose", net.add("Neg", now), perm=[1, 0])
    scores = net.add("Softmax", net.add("MatMul", row, column), axis=-1)
    return net.finish(net.add("MatMul", scores, now), now, flat)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what the CPU's backends are asked for; the class itself answers, as no subclass keeps plans."""
    counts: Counter[str] = Counter()
    for name in ("onClearBuffer", "onAcquireBuffer", "onAllocateBuffer"):
        usual = getattr(CpuBackend, name)

        def counted(self: CpuBackend, *given: object, name: str = name, usual: object = usual) -> object:
            if not (given and given[-1] is StorageType.STATIC):
                counts[name] += 1
            return usual(self, *given)  # type: ignore[operator]

        monkeypatch.setattr(CpuBackend, name, counted)
    return counts


def check(session: Session, graph: Graph, rows: int) -> None:
    bound = bind(graph, {"past": (rows, 64)})
    given = feeds(bound, seed=rows)
    for got, wanted in zip(session.run(given), outputs(bound, given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_cache_that_grows_by_a_row_needs_few_plans(called: Counter[str]) -> None:
    graph = cached()
    with weft.load(graph, "cpu", shapes={"past": (30, 64)}) as session:
        check(session, graph, 30)
        check(session, graph, 31)  # the blocks that grow get room
        before = called["onAllocateBuffer"]
        for rows in range(32, 62):
            check(session, graph, rows)
            with weft.load(graph, "cpu", shapes={"past": (rows, 64)}) as fresh:
                held, new = (s.report.statistics["cpu"] for s in (session, fresh))
            assert held["arena_live_peak"] == new["arena_live_peak"]
            assert held["static_bytes"] == new["static_bytes"]
            assert held["arena_live_peak"] <= held["arena_bytes"] < 1.4 * new["arena_bytes"]
            called["onAllocateBuffer"] -= 1  # the fresh session's
        assert 1 <= called["onAllocateBuffer"] - before <= 8


def test_a_plan_serves_sizes_in_any_order() -> None:
    graph = cached()
    with weft.load(graph, "cpu", shapes={"past": (50, 64)}) as session:
        for rows in (50, 52, 51, 54, 50, 3, 4, 200, 198, 202, 0, 1, 60, 61):
            check(session, graph, rows)


def test_only_what_has_another_size_is_acquired(called: Counter[str]) -> None:
    graph = cached()
    with weft.load(graph, "cpu", shapes={"past": (40, 64)}) as session:
        check(session, graph, 41)
        before = called.copy()
        check(session, graph, 42)
        assert called == before


def test_arrays_that_were_lent_do_not_outlive_the_shape() -> None:
    graph = cached()
    with weft.load(graph, "cpu", shapes={"past": (40, 64)}) as session:
        check(session, graph, 41)
        ins, outs = session.input_arrays(), session.output_arrays()
        for name, value in feeds(bind(graph, {"past": (41, 64)}), seed=1).items():
            ins[name][...] = value
        wanted = outputs(bind(graph, {"past": (41, 64)}), ins)
        for got, want in zip(session.run(ins, outputs=outs), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        kept = {name: array.copy() for name, array in {**ins, **outs}.items()}
        check(session, graph, 42)
        check(session, graph, 43)
        for name, array in {**ins, **outs}.items():
            np.testing.assert_array_equal(array, kept[name])


def test_a_backend_with_an_execution_of_others_plans_anew(
    called: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = cached()
    monkeypatch.setattr(CpuBackend, "_creators", {})
    monkeypatch.setattr(CpuBackend, "_inherited", (CpuBackend._creators,))

    @CpuBackend.creator("NoSuchOp")
    def make(inputs: list[Tensor | None], outputs: list[Tensor], op: object, backend: object) -> None:
        return None

    with weft.load(graph, "cpu", shapes={"past": (40, 64)}) as session:
        for rows in (41, 42, 43):
            before = called["onAllocateBuffer"]
            check(session, graph, rows)
            assert called["onAllocateBuffer"] == before + 1


def branching() -> Graph:
    """Return two branches of one value: a squeeze, which needs no memory of its own, and a running sum."""
    net = Net()
    value = net.add("Tanh", net.input("x", "N", 1, 24))
    flat = net.add("Squeeze", value, np.array([1]), name="flat")
    return net.finish(net.add("Softmax", flat, axis=-1), net.add("CumSum", value, np.array(2)))


@graph_pass()
def square_where_even(graph: Graph, context: PassContext) -> Graph:
    """Have the node that squeezes square as well where the batch is even; all names stay."""
    if graph.specs["x"].dims[0] % 2:
        return graph
    square = op("ReduceSumSquare", keepdims=0)
    out = graph.copy()
    out.nodes = [replace(n, op=square) if n.op.type == "Squeeze" else n for n in graph]
    return out if any(n.op.type == "Squeeze" for n in graph) else graph


@pytest.mark.parametrize("sizes", [(39, 41, 40, 42, 41), (40, 42, 41, 43, 42)])
def test_a_node_with_another_op_has_a_plan_of_its_own(sizes: Sequence[int]) -> None:
    graph = branching()
    seen: set[str] = set()
    with weft.load(graph, "cpu", shapes={"x": (sizes[0], 1, 24)}, passes=[square_where_even]) as session:
        for n in sizes:
            x = feeds(bind(graph, {"x": (n, 1, 24)}), seed=n)["x"]
            soft, total = session.run(x)
            flat = np.tanh(x)[:, 0] ** (1 if n % 2 else 2)
            np.testing.assert_allclose(soft, np.exp(flat) / np.exp(flat).sum(1, keepdims=True), rtol=1e-5)
            np.testing.assert_allclose(total, np.cumsum(np.tanh(x), 2), rtol=1e-4, atol=1e-5)
            assert session.optimized is not None
            seen.update(node.op.type for node in session.optimized.graph if node.outputs == ("flat",))
    assert seen == {"Squeeze", "ReduceSumSquare"}


@pytest.mark.parametrize("other", ["Exp", "Identity"])
@pytest.mark.parametrize("first", [True, False])
def test_a_pipeline_whose_node_becomes_another_op_computes_that(other: str, first: bool) -> None:
    net = Net()
    value = net.add("Neg", net.input("x", 4, 6))
    flat = net.add("Flatten", value, axis=1)
    graph = net.finish(net.add("Add", value, flat))
    changed = graph.copy()
    changed.nodes = [replace(n, op=op(other)) if n.op.type == "Flatten" else n for n in graph]
    graphs = [graph, changed] if first else [changed, graph]
    pipeline = CpuPipeline(Part("cpu", graphs[0]), CpuBackend(BackendInfo("cpu", 0)))
    given = feeds(graph)
    for k, now in enumerate(graphs):
        pipeline.resize(Part("cpu", now), {}, now.outputs, first=k == 0)
        pipeline.fill("x", given["x"])
        pipeline.execute()
        np.testing.assert_allclose(pipeline.tensor(now.outputs[0]).numpy(), outputs(now, given)[0], rtol=1e-6)
    pipeline.close()


def test_after_a_resize_that_failed_there_is_a_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, full = CpuBackend._allocate, [False]

    def allocate(device: str, nbytes: int) -> Array:
        if full[0]:
            raise OutOfMemory(f"{nbytes} bytes cannot be allocated")
        return usual(device, nbytes)

    monkeypatch.setattr(CpuBackend, "_allocate", staticmethod(allocate))
    shapes = [cached(rows) for rows in (40, 41, 42)]
    pipeline = CpuPipeline(Part("cpu", shapes[0]), CpuBackend(BackendInfo("cpu", 0)))
    for k, graph in enumerate(shapes[:2]):
        pipeline.resize(Part("cpu", graph), {}, graph.outputs, first=k == 0)
    full[0] = True
    with pytest.raises(OutOfMemory):
        pipeline.resize(Part("cpu", shapes[2]), {}, graph.outputs, first=False)
    full[0] = False
    pipeline.resize(Part("cpu", shapes[2]), {}, graph.outputs, first=False)
    given = feeds(shapes[2])
    for name, value in given.items():
        pipeline.fill(name, value)
    pipeline.execute()
    for name, wanted in zip(graph.outputs, outputs(shapes[2], given), strict=True):
        np.testing.assert_allclose(pipeline.tensor(name).numpy(), wanted, rtol=1e-5, atol=1e-6)
    pipeline.close()


def test_a_buffer_is_freed_before_the_one_in_its_place_is_allocated(
    called: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers: list[ref[Array]] = []
    held: list[int] = []
    usual = CpuBackend._allocate

    def allocate(device: str, nbytes: int) -> Array:
        held.append(sum(buffer() is not None for buffer in buffers))
        array = usual(device, nbytes)
        buffers.append(ref(array))
        return array

    monkeypatch.setattr(CpuBackend, "_allocate", staticmethod(allocate))
    net = Net()
    x = net.input("x", "N", 4, 6)
    flat = net.add("Flatten", x, axis=1)  # lies where the input does
    graph = net.finish(net.add("Softmax", net.add("Tanh", flat), axis=-1), net.add("Exp", flat))
    with weft.load(graph, "cpu", shapes={"x": (40, 4, 6)}) as session:
        kept = []
        for n in (41, 42, 43, 90, 44):
            before, held[:] = called["onAllocateBuffer"], []
            session.resize({"x": (n, 4, 6)})
            kept.append(called["onAllocateBuffer"] == before)
            assert held == ([1] if kept[-1] else [0, 1]), n
            ins, outs = session.input_arrays(), session.output_arrays()
            ins["x"][...] = np.linspace(-1, 1, ins["x"].size).reshape(n, 4, 6)
            session.run(ins, outputs=outs)
        assert True in kept and False in kept
