"""Networks of one convolution or product, and checks that the kernels meant for them compile and compute them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import weft
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds, halves
from weft.backends.vulkan import glslang
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.op import op_types
from weft.kernels.source import Arg
from weft.kernels.template import KernelRequest, render
from weft.ops.conv import Conv
from weft_conformance.cases.table import tolerance


def launched_as_on_the_cpu(graph: Graph, device: str) -> list[str]:
    """Return the templates that a GPU launches for all of a graph; fail unless it computes what the CPU does."""
    inputs = [np.random.default_rng(1).standard_normal(graph.specs[i].dims, np.float32) for i in graph.inputs]
    (want,) = weft.load(graph, device="cpu").run(*inputs)
    with weft.load(graph, device=device, fallback="error") as session:
        (got,) = session.run(*inputs)
        assert session.report.nodes_by_device.keys() == {device}
        launched = kernels(session)
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))
    return launched


def launched_in_halves(graph: Graph, device: str, tolerance: float, **options: Any) -> Counter[str]:
    """Return how often a GPU launches each template for all of a graph; fail unless it computes what the CPU does.

    Inputs and weights are numbers that fp16 has. `tolerance` is a share of each output's largest number.
    """
    given = {name: halves(value) for name, value in feeds(graph).items()}
    graph.constants |= {n: halves(v) for n, v in graph.constants.items() if v.dtype == np.float32}
    expected = weft.load(graph, device="cpu").run(given)
    with weft.load(graph, device=device, fallback="error", **options) as session:
        actual = session.run(given)
        (pipeline,) = session.pipelines
        planned = pipeline.backend.recording.run.planned  # type: ignore[attr-defined]
        launched = Counter(launch.label.rpartition("/")[2] for launch in planned)
    for a, b in zip(actual, expected, strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()
    return launched


def convolution(n: int, ci: int, co: int, size: int, kernel: int, stride: int, pad: int) -> Graph:
    """Return one convolution with bias, residual add and Relu as a graph."""
    rng = np.random.default_rng(7)
    op = Conv(kernel_shape=(kernel, kernel), strides=(stride, stride), pads=(pad,) * 4)
    nodes = [
        weft.Node("conv", op, ("x", "w", "b"), ("c",)),
        weft.Node("add", op_types()["Add"](), ("c", "residual"), ("a",)),
        weft.Node("relu", op_types()["Relu"](), ("a",), ("y",)),
    ]
    graph = weft.Graph("conv", ["x", "residual"], ["y"], nodes)
    graph.constants["w"] = rng.standard_normal((co, ci, kernel, kernel), np.float32)
    graph.constants["b"] = rng.standard_normal(co, np.float32)
    graph.specs = {k: weft.TensorSpec(v.shape, DType.FLOAT32) for k, v in graph.constants.items()}
    graph.specs["x"] = weft.TensorSpec((n, ci, size, size), DType.FLOAT32)
    (c,) = op.infer([graph.specs["x"], graph.specs["w"], graph.specs["b"]], [None] * 3)
    graph.specs["residual"] = c
    return graph


def uneven_convolution(ci: int, co: int, kernel: int, stride: int, residual: bool) -> tuple[Graph, tuple[int, ...]]:
    """Return a convolution of uneven images with bias, perhaps a residual, and Relu; and the shape of its input."""
    net, rng = Net(), np.random.default_rng(3)
    shape = (2, ci, 11, 9)
    x = net.input("x", *shape)
    weight = (rng.standard_normal((co, ci, kernel, kernel)) / kernel).astype(np.float16).astype(np.float32)
    bias = rng.standard_normal(co).astype(np.float16).astype(np.float32)
    op = Conv(kernel_shape=(kernel, kernel), strides=(stride, stride), pads=(kernel // 2,) * 4)
    y = net.add(op, x, weight, bias)
    if residual:
        y = net.add("Add", y, net.pool(x))
    return net.finish(net.add("Relu", y, name="y")), shape


def matrices() -> Graph:
    net = Net()
    x = net.input("x", 2, 24, 64)
    y = net.add("MatMul", x, np.ones((64, 32), np.float32))
    return net.finish(net.add("Add", net.add("Relu", y), np.ones(32, np.float32), name="y"))


def assert_compiles(template: str, variant: dict[str, Any], ints: str, wide: bool) -> None:
    """Fail unless a convolution's template, with what all of them are told and these ints, becomes SPIR-V."""
    kinds = dict.fromkeys(("x", "w"), "wide") if wide else {}
    args = [Arg(n, DType.FLOAT16, kinds.get(n, "c4"), n == "y") for n in ("x", "w", "b", "y")]  # type: ignore[arg-type]
    names = [*ints.split(), *"COUNT DD DH DW ID IH IW KD KH KW OD OH OW PD PH PIXELS PW SD SH SW".split()]
    source = render(KernelRequest(template, tuple(sorted(variant.items())), tuple(args), tuple(names)), GlslDialect())
    compiler = glslang.find_compiler()
    assert compiler is not None
    assert compiler.compile(source.text, source.entry).startswith(glslang.SPIRV_MAGIC)


def assert_runs_on(
    kernels: tuple[str, ...], graph: Graph, shape: tuple[int, ...], api: str, caps: dict[str, Any]
) -> None:
    """Fail unless the emulated device computes what the CPU does, by these kernels."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float16).astype(np.float32)
    with weft.load(graph, "cpu") as session:
        (expected,) = session.run(x)
    with emulated_gpu(api, **caps), weft.load(graph, "emulated", precision="low", fallback="error") as session:
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
        (actual,) = session.run(x)
    assert {label.split("/")[-1] for label in labels} >= set(kernels), labels
    assert np.abs(actual - expected).max() <= 2e-3 * np.abs(expected).max()
