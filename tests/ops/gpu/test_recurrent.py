"""Every way to divide a recurrent layer, on devices whose own choice is one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.helpers.op_rows import GPUS, ROWS, assert_agree, reference, run
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.tensor import TensorSpec
from weft.kernels.chooser import forget_decisions
from weft.kernels.device_caps import DeviceCaps
from weft.ops.gpu.recurrent import LAYERS, RecurrentProblem, RecurrentTile
from weft.ops.recurrent import GRU, LSTM, Recurrent, Sizes
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import feeds_of, graph_of


def find(op: str, wanted: Callable[[Recurrent], bool]) -> Case:
    """Return the first row of an op, with several steps and units, whose attributes are as wanted."""
    return next(row for row in ROWS if row.op == op and wanted(row.make_op()))  # type: ignore[arg-type]


LAYER_ROWS = [
    find("LSTM", lambda op: op.direction == "bidirectional"),
    find("LSTM", lambda op: op.layout == 1),
    find("LSTM", lambda op: op.hidden_size == 70),
    find("GRU", lambda op: op.direction == "bidirectional"),
    find("GRU", lambda op: op.hidden_size == 70),
    find("GRU", lambda op: op.layout == 1),
    find("RNN", lambda op: op.direction == "bidirectional"),
]
DOUBLE_ROWS = [
    next(row for row in ROWS if row.op == op and row.id.startswith(f"{op}-f64") and f"direction={direction}" in row.id)
    for op, direction in (("LSTM", "bidirectional"), ("GRU", "reverse"))
]
WHOLE, PARTED, ONE_STEP = RecurrentTile(4, 4, True), RecurrentTile(16, 2, True), RecurrentTile(4, 2, False)


@pytest.fixture(autouse=True)
def decide_anew() -> Iterator[None]:
    yield
    forget_decisions()


def use(monkeypatch: pytest.MonkeyPatch, tile: RecurrentTile) -> None:
    """Let every layer be divided so."""
    monkeypatch.setattr(RecurrentProblem, "tiles", lambda self: [tile])
    forget_decisions()


def check(row: Case, device: str) -> None:
    """Run a row, and see that it agrees."""
    assert_agree(
        run(graph_of(row), feeds_of(row, row.arrays()), device),
        reference(row.make_op(), row.arrays()),
        row.make_op(),
    )


@pytest.mark.covering
@pytest.mark.parametrize("row", LAYER_ROWS, ids=lambda row: f"{row.op}-{row.id[-40:]}")
@pytest.mark.parametrize("tile", [PARTED, ONE_STEP], ids=str)
def test_every_tile(monkeypatch: pytest.MonkeyPatch, tile: RecurrentTile, row: Case) -> None:
    use(monkeypatch, tile)
    check(row, "opencl")


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("row", DOUBLE_ROWS, ids=lambda row: row.op)
@pytest.mark.parametrize("tile", [PARTED, ONE_STEP], ids=str)
def test_tiles_of_doubles(monkeypatch: pytest.MonkeyPatch, tile: RecurrentTile, row: Case, device: str) -> None:
    use(monkeypatch, tile)
    check(row, device)


@pytest.mark.parametrize("row", [LAYER_ROWS[0], LAYER_ROWS[4]], ids=lambda row: row.op)
@pytest.mark.parametrize("tile", [WHOLE, ONE_STEP], ids=str)
def test_tiles_on_vulkan(monkeypatch: pytest.MonkeyPatch, tile: RecurrentTile, row: Case) -> None:
    use(monkeypatch, tile)
    check(row, "vulkan")


@pytest.mark.parametrize(
    "op", [LSTM(hidden_size=4, outputs=3), GRU(hidden_size=4, outputs=2)], ids=lambda op: op.type
)
def test_steps_are_divided_where_the_driver_ends_long_loops(
    monkeypatch: pytest.MonkeyPatch, op: Recurrent
) -> None:
    """Three launches of two steps: states and the number of steps go from one to the next."""
    monkeypatch.setattr(RecurrentProblem, "rounds", lambda self, tile: 16000)
    rng = np.random.default_rng(0)
    arrays = [
        rng.uniform(-1, 1, s).astype(np.float32)
        for s in ((5, 2, 3), (1, op.gates * 4, 3), (1, op.gates * 4, 4))
    ]
    graph = Graph("steps", ["x"], [f"y{k}" for k in range(op.outputs)])
    graph.specs["x"] = TensorSpec(arrays[0].shape, DType.FLOAT32)
    for name, value in zip(("w", "r"), arrays[1:], strict=True):
        graph.constants[name] = value
        graph.specs[name] = TensorSpec(value.shape, DType.FLOAT32)
    graph.nodes = [Node("layer", op, ("x", "w", "r"), tuple(graph.outputs))]
    assert_agree(run(graph, {"x": arrays[0]}, "vulkan"), reference(op, list(arrays)), op)


@pytest.mark.parametrize("units", [6, 100, 600, 5000])
@pytest.mark.parametrize("device", GPUS)
def test_tiles_fit_the_device(device: str, units: int) -> None:
    """Small layers stay in a group on a GPU; those whose weights one compute unit would read too long do not."""
    gpu = device == "opencl"
    caps = DeviceCaps(max_local_items=1024, local_memory=49152, compute_units=100, software=not gpu)
    if not gpu:
        caps = DeviceCaps(max_rounds=65535, software=True)
    problem = RecurrentProblem(Sizes(9, 1, 8, 1, units), "LSTM", 4, False, caps)
    assert all(problem.legal(tile) for tile in problem.tiles())
    decision = LAYERS.decide(problem)
    assert decision.candidates[decision.default].tile.whole == (units <= (100 if gpu else 600))
