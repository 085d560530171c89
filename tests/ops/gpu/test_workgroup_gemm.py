"""The product by matrices of whole work-groups: by value under emulation; packing, choice and sources by numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from benchmarks.cards import OF_WORKGROUPS
from tests.helpers.cards import H200
from tests.helpers.conv_problems import take
from tests.helpers.convolutions import assert_runs_on, uneven_convolution
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.selftest import verdict_store
from weft.backends.vulkan import glslang
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.kernels.matrix_shapes import HALVES, MatrixShape
from weft.kernels.source import Arg
from weft.kernels.template import KernelRequest, Operand, StepText, render
from weft.ops.gpu.conv.matrix.workgroup import (
    SPECIAL,
    TILES,
    GroupMatrixConv,
    GroupTile,
    choose_tile,
    legal_tiles,
    pack_weights,
)

CAPS = replace(H200, matrices=(HALVES, *OF_WORKGROUPS))
VALUE, RESIDUAL, SCALE = Operand("value"), Operand("same", "fused1"), Operand("channel", "fused2")
EPILOGUES = {
    "none": (),
    "activation": (StepText("max({0}, {1})", (VALUE, Operand("float", "E0_k1"))),),
    "residual": (StepText("{0} + {1}", (VALUE, RESIDUAL)), StepText("max({0}, 0.0)", (VALUE,))),
    "channels": (StepText("{0} * {1}", (VALUE, SCALE)), StepText("{0} + {1} * {0}", (RESIDUAL, VALUE))),
}


def request(tile: GroupTile, steps: tuple[StepText, ...], *, bias: bool, tail: int = 0) -> KernelRequest:
    used = {o.name for s in steps for o in s.operands if o.kind in ("same", "channel")}
    names = ["x", *(["b"] if bias else []), "w", *sorted(used), "y"]
    args = tuple(Arg(n, DType.FLOAT16, "wide" if n in "xw" else "c4", n == "y") for n in names)
    variant = {"rows": tile.rows, "columns": tile.columns, "depth": tile.depth, "tail": tail}
    floats = tuple({o.name for s in steps for o in s.operands if o.kind == "float"})
    ints = ("ROWS", "DEPTH", "COLUMNS", "PLACES")
    on = "y" if steps else ""
    return KernelRequest("workgroup_gemm", tuple(sorted(variant.items())), args, ints, floats, steps, on)


@pytest.mark.covering
@pytest.mark.parametrize("tail", [0, 48])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("steps", EPILOGUES.values(), ids=EPILOGUES)
def test_kernels_with_all_epilogues_compile(steps: tuple[StepText, ...], bias: bool, tail: int) -> None:
    compiler = glslang.find_compiler()
    assert compiler is not None
    for tile in TILES:
        source = render(request(tile, steps, bias=bias, tail=tail), GlslDialect())
        assert compiler.compile(source.text, source.entry).startswith(glslang.SPIRV_MAGIC)
        assert ("coopMatPerElementNV" in source.text) == bool(bias or steps)


@pytest.mark.parametrize(
    ("ci", "co", "residual"),
    [
        (16, 32, False),  # no whole step, only a rest; one tile of columns
        (80, 80, True),  # two steps and a rest; the last tile of columns begins early, and a matrix is added
    ],
)
def test_products_by_value(ci: int, co: int, residual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, GroupMatrixConv(), GroupTile(32, 32, 32, 64))  # 198 rows: the last tile begins early, too
    network_of = uneven_convolution(ci, co, 1, 1, residual)
    caps = {"channels_last": True, "matrices": (HALVES, *OF_WORKGROUPS)}
    assert_runs_on(("workgroup_gemm",), *network_of, "vulkan", caps)


def test_what_steps_read_comes_as_a_matrix_once() -> None:
    text = render(request(TILES[0], EPILOGUES["channels"], bias=True), GlslDialect()).text
    assert text.count("coopMatLoadTensorNV(at_fused1, fused1") == 1
    assert text.count("coopMatLoadTensorNV(at_fused2, fused2") == 1
    assert "_v = _v * e_fused2; _v = e_fused1 + _v * e_fused1;" in text


def test_weights_lie_row_after_row() -> None:
    weight = np.random.default_rng(0).standard_normal((24, 16, 1, 1)).astype(np.float16)
    stored = pack_weights(weight).transpose(0, 2, 1).reshape(16, 24)
    np.testing.assert_array_equal(stored, weight[:, :, 0, 0].T)


def test_the_tile_suits_the_problem() -> None:
    assert choose_tile(CAPS, 4096, 4096, 4096) == GroupTile(128, 128, 64, 128)
    assert choose_tile(CAPS, 1024, 1024, 1024) == GroupTile(128, 64, 64, 128), "each unit has one"
    assert choose_tile(CAPS, 128, 1536, 384) == GroupTile(32, 64, 128, 128)
    assert choose_tile(CAPS, 128, 384, 1536) is None, "too few groups: slices of K do better"
    assert legal_tiles(CAPS, 31, 4096) == [] == legal_tiles(CAPS, 4096, 31)


def test_the_cases_of_the_self_test_meet_the_tiles_that_the_rule_takes() -> None:
    met = set()
    for case in SPECIAL.cases():
        (x,), (w, _) = case.inputs.values(), case.constants.values()
        tile = choose_tile(CAPS, len(x), len(w), w.shape[1])
        assert tile is not None and (len(x) % tile.rows or len(x) == 1024)
        met.add(tile)
    assert len(met) == 5
    assert SPECIAL.present(CAPS) and not SPECIAL.present(SPECIAL.disable(CAPS))


def labels(graph: Graph, **caps: tuple[MatrixShape, ...]) -> list[str]:
    with null_gpu() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict_store, "examine", lambda *_, **__: [])
        device.caps, device.dialect = replace(CAPS, **caps), GlslDialect()  # type: ignore[arg-type]
        with weft.load(graph, "null", precision="low", fallback="error", wait="all") as session:
            (pipeline,) = session.pipelines
            return [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]


def product(rows: int, depth: int, columns: int) -> Graph:
    net = Net()
    x = net.input("x", rows, depth)
    y = net.add("MatMul", x, np.ones((depth, columns), np.float32))
    return net.finish(net.add("Relu", y))


@pytest.mark.parametrize(("rows", "expected"), [(1024, "workgroup_gemm"), (8, "conv_unstaged")])
def test_large_products_use_them_where_the_device_has_them(rows: int, expected: str) -> None:
    graph = product(rows, 1024, 1024)
    assert any(label.endswith(expected) for label in labels(graph)), labels(graph)
    assert not any("workgroup_gemm" in label for label in labels(graph, matrices=(HALVES,)))
    assert not any("workgroup_gemm" in label for label in labels(graph, matrices=OF_WORKGROUPS))


def test_the_driver_gets_the_struct_of_the_extension_in_the_chain() -> None:
    pytest.importorskip("vulkan")
    from weft.backends.vulkan import workgroup_matrices
    from weft.backends.vulkan._vk import Arena, ffi

    arena = Arena()
    after = arena.new("VkPhysicalDeviceFeatures2")
    chained = workgroup_matrices.enable(arena, after)
    assert ffi.cast("int32_t*", chained)[0] == 1000593000
    assert ffi.cast("void**", chained)[1] == ffi.cast("void*", after)
    assert list(ffi.cast("uint32_t*", chained)[4:11]) == [1, 1, 0, 0, 1, 1, 0]


def test_a_program_is_asked_for_the_version_that_the_kernel_needs(tmp_path: Path) -> None:
    program = tmp_path / "compiler"
    program.write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n')
    program.chmod(0o755)
    compiler = glslang.CommandCompiler(str(program), "--target-env", "vulkan1.1")
    plain, newer = "#version 450\n", render(request(TILES[0], (), bias=False), GlslDialect()).text
    assert "vulkan1.1" in compiler.translate(plain, "k")[1]
    assert "vulkan1.3" in compiler.translate(newer, "k")[1]
