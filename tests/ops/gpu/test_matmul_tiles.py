"""Every tile of products of two matrices that a run computes gives the right numbers, however the matrices lie."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.conv_problems import take_where_it_fits
from tests.helpers.convolutions import launched_as_on_the_cpu
from weft.core.graph.dtypes import DType
from weft.core.graph.op import Op, op_types
from weft.ops.gpu.matmul.tiled import TILES, ProductTile, TiledProduct
from weft.ops.shape import Transpose

DEPTH = 144
"""It can be cut into as many parts as a tile has at most, and takes several rounds of as many slices."""


def network(nodes: list[tuple[Op, tuple[str, ...], str]], constants: dict[str, Any], **shapes: tuple[int, ...]) -> Any:
    """Return a graph whose last node's output is its output; `shapes` are those of its inputs."""
    made = [weft.Node(out, op, ins, (out,)) for op, ins, out in nodes]
    graph = weft.Graph("product", list(shapes), [nodes[-1][2]], made)
    graph.constants.update({name: np.asarray(value) for name, value in constants.items()})
    graph.specs = {name: weft.TensorSpec(v.shape, DType.INT64) for name, v in graph.constants.items()}
    graph.specs |= {name: weft.TensorSpec(shape, DType.FLOAT32) for name, shape in shapes.items()}
    return graph


def networks() -> list[Any]:
    """Return products of matrices as they lie, turned and repeated, each with a fused step."""
    kind = op_types()
    relu = (kind["Relu"](), ("m",), "y")
    turned = Transpose(perm=(0, 2, 1))
    return [
        network([(kind["MatMul"](), ("a", "b"), "m"), relu], {}, a=(2, 35, DEPTH), b=(2, DEPTH, 33)),
        network(
            [(turned, ("a",), "t"), (turned, ("b",), "u"), (kind["MatMul"](), ("t", "u"), "m"), relu],
            {}, a=(3, DEPTH, 9), b=(1, 17, DEPTH),
        ),
        network(
            [(kind["Expand"](), ("b", "shape"), "e"), (kind["MatMul"](), ("a", "e"), "m"), relu],
            {"shape": [4, DEPTH, 24]}, a=(20, DEPTH), b=(DEPTH, 24),
        ),
    ]


def _runs() -> list[Any]:
    """Return every tile on every device; the short run has three."""
    short = (ProductTile(4, 2), ProductTile(2, 4, 4), ProductTile(1, 4))
    return [
        pytest.param(tile, device, marks=[pytest.mark.long] * (tile not in short))
        for tile, device in product(TILES, ("opencl", "vulkan"))
    ]


@pytest.mark.covering
@pytest.mark.parametrize(("tile", "device"), _runs(), ids=str)
def test_every_tile_computes_the_product(device: str, tile: ProductTile, monkeypatch: pytest.MonkeyPatch) -> None:
    take_where_it_fits(monkeypatch, TiledProduct(), tile)
    for graph in networks():
        launched = launched_as_on_the_cpu(graph, device)
        assert "matmul" in launched
        assert ("reduce" in launched) == (tile.parts > 1)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_matrix_that_is_repeated_for_a_batch_is_no_more_rows_of_the_other(rows: int) -> None:
    kind = op_types()
    graph = network(
        [(kind["Expand"](), ("b", "shape"), "e"), (kind["MatMul"](), ("a", "e"), "y")],
        {"shape": [4, 32, 24]}, a=(rows, 32), b=(32, 24),
    )
    for device in ("opencl", "vulkan"):
        launched_as_on_the_cpu(graph, device)
