"""Devices that pretend to have less are right all the same, and hold their limits as a driver would."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.op_rows import GPUS, HALVED, ROWS, Net, assert_agree, reference, run
from weft import models
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import Binding, CopyCommand, GpuDevice, LaunchCommand, MemoryKind
from weft.backends.gpu.device.profiles import PROFILES
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError, ConfigError, DeviceError, OutOfMemory, UnsupportedOps
from weft.kernels.source import Arg
from weft.kernels.template import KernelRequest, render
from weft.ops.binary import Add
from weft.ops.norm import LayerNormalization
from weft.ops.unary import Abs, Neg
from weft_conformance.cases.table import Case
from weft_conformance.checks.table import feeds_of, graph_of

NAMES = [name for name in PROFILES if name != "none"]
MIB = 1 << 20

PICKED = (
    "Conv-f32[1x17x6x6]-!f32[8x17x2x3]-!f32[8]-pads=(0,1,1,2)",
    "Conv-f32[1x3x23x21]-!f32[8x3x7x7]-!f32[8]-strides=(2,2)-pads=(3,3,3,3)",
    "Conv-f32[1x7x10x12]-!f32[5x7x3x3]-dilations=(2,3)-pads=(2,3,2,3)",
    "Conv-f32[1x20x19x21]-!f32[36x20x3x3]-!f32[36]-pads=(1,1,1,1)",
    "Conv-f32[2x64x14x14]-!f32[70x64x1x1]-!f32[70]",
    "Conv-f32[3x9x6x5]-!f32[6x3x3x3]-group=3-strides=(2,1)",
    "Conv-f32[1x7x10x9]-!f32[7x1x3x5]-group=7-strides=(1,3)-pads=(3,1,2,2)",
    "Conv-f32[1x4x17x16]-!f32[4x1x15x14]-!f32[4]-group=4-pads=(7,6,7,7)",
    "Conv-f32[2x4x5x6x7]-!f32[5x4x1x2x3]-strides=(2,1,2)-pads=(0,1,0,0,0,1)",
    "ConvTranspose-f32[1x3x5x6]-!f32[3x4x3x3]-!f32[4]-strides=(2,2)-pads=(1,1,1,1)",
    "weft::Attention-f32[1x2x17x5]-f32[1x2x70x5]-f32[1x2x70x13]-scale=0.5-odd-sizes",
    "weft::Attention-f32[1x1x3x128]-f32[1x1x19x128]-f32[1x1x19x128]-scale=0.1-largest",
    "MatMul-f32[65x129]-f32[129x67]",
    "MatMul-f32[2x1x5x7]-f32[3x7x4]",
    "MatMul-f32[16x1003]-!f32[1003x16]",
    "Gemm-f32[5x7]-f32[7x3]-f32[1x3]-alpha=2.0-beta=-1.5",
    "Softmax-f32[2x3x1003]",
    "Softmax-f32[2x3x5x7]-axis=0",
    "LogSoftmax-f32[2x4099]-axis=1",
    "LayerNormalization-f32[3x11x384]-!f32[384]-!f32[384]-outputs=3",
    "LayerNormalization-f32[2x5x17]-!f32[17]-!f32[17]",
    "InstanceNormalization-f32[3x5x7]-!f32[5]-!f32[5]-epsilon=0.01",
    "GroupNormalization-f32[3x15x7]-!f32[15]-!f32[15]-num_groups=5-epsilon=0.01",
    "LpNormalization-f32[3x5x100]-p=1",
    "LRN-f32[2x7x3x4]-size=3-alpha=0.5-beta=0.5-bias=2.0",
    "MaxPool-f32[3x5x7x9]-kernel_shape=(3,3)-strides=(2,2)-pads=(1,1,1,1)",
    "AveragePool-f32[1x17x7x6]-kernel_shape=(3,2)-pads=(0,1,2,0)",
    "GlobalAveragePool-f32[3x17x5x4]",
    "ReduceSum-f32[2x3x5x7]-!i64=-1,0-keepdims=0-outer",
    "ReduceMax-f32[2x3x5x7]-all",
    "ReduceLogSumExp-f32[2x3x5x7]-!i64=-1-keepdims=0-last",
    "ArgMax-f32[1003]",
    "ArgMin-f32[3x5x7]-axis=1",
    "CumSum-f32[3x5x7]-!i64=2-reverse=1-exclusive=1",
    "Resize-f32[1x2x5x6]-----!i64=1,2,9,4-mode=cubic-coordinate_transformation_mode=half_pixel",
    "Pad-f32[1x3x5x6]-!i64[8]-mode=reflect",
    "Gather-f32[5x7]-i64[2x2]-axis=0",
    "GatherElements-f32[3x4]-i64[3x2]-axis=1",
    "GatherND-f32[2x3x4]-i64[2x1]-batch_dims=1",
    "Where-b8[3x1x5]-f32[4x1]-f32[1x1x5]",
    "Transpose-f32[2x7x5x3]-perm=(0,3,1,2)",
    "Slice-f32[5x7]-!i64=-3,-5-!i64=1000,-2-!i64=-1,0",
    "Concat-f32[2x3x4]-f32[2x3x1]-f32[2x3x17]-axis=-1",
    "Split-f32[2x8x5]-!i64=3,1,4-axis=1-outputs=3",
    "DepthToSpace-f32[1x12x3x5]-blocksize=2-mode=CRD",
    "Add-f32[2x3x17]-f32[2x3x17]",
    "PRelu-f32[2x3x5x7]-f32[3x1x1]",
    "BatchNormalization-f32[2x17x5]-!f32[17]-!f32[17]-!f32[17]-!f32[17]",
)
"""Rows of the op table, at least one for each kernel template; their shapes leave remainders."""
BYTES = frozenset({"Where-b8[3x1x5]-f32[4x1]-f32[1x1x5]"})
"""Those that have 8-bit elements."""


@pytest.fixture(params=GPUS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def rows() -> list[Case]:
    found = {row.id: row for row in HALVED}
    return [found[name] for name in PICKED]


@cache
def all_in_one() -> tuple[Graph, Mapping[str, Array]]:
    """Return the rows as one network, so that each device is asked once: row n has the names n.x0, n.y0 ..."""
    whole = Graph("rows", [], [])
    feeds: dict[str, Array] = {}
    for n, row in enumerate(rows()):
        graph, fed = graph_of(row), feeds_of(row, row.arrays())
        whole.inputs += [f"{n}.{i}" for i in graph.inputs]
        whole.outputs += [f"{n}.{o}" for o in graph.outputs]
        whole.specs |= {f"{n}.{name}": spec for name, spec in graph.specs.items()}
        whole.constants |= {f"{n}.{name}": value for name, value in graph.constants.items()}
        (node,) = graph.nodes
        names = [tuple(f"{n}.{v}" if v else "" for v in side) for side in (node.inputs, node.outputs)]
        whole.nodes.append(replace(node, name=f"{n}", inputs=names[0], outputs=names[1]))
        feeds |= {f"{n}.{name}": array for name, array in fed.items()}
    return whole, feeds


def pretend(name: str, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Vulkan with the kernels that a GPU gets, which take minutes to compile with OpenCL's compiler for CPUs."""
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", name if api == "vulkan" else f"{name},units=0")


def opened(api: str) -> GpuDevice:
    creator = registry.find(api)
    assert isinstance(creator, GpuCreator)
    return creator.runtime(0).device


IN_SHORT = {("smallest", "opencl"), ("mali-bifrost", "opencl")}
"""The profiles that run in the short run: little of all, an odd number of items; llvmpipe would take seconds."""


def _profiles() -> list[Any]:
    """Return each profile with each API."""
    return [
        pytest.param(name, api, marks=[pytest.mark.long] * ((name, api) not in IN_SHORT))
        for name in NAMES
        for api in GPUS
    ]


@pytest.mark.parametrize(("name", "api"), _profiles())
def test_rows_of_the_op_table_are_right_on_every_profile(
    name: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(name, api, monkeypatch)
    graph, feeds = all_in_one()
    with weft.load(graph, api) as session:
        report = session.report
        found = dict(zip(session.outputs, session.run(feeds), strict=True))
    assert any(f"pretends to be another: {name}" in note for note in report.notes)
    refused = {rows()[int(node)].id for node in report.refusals}
    assert refused == (set() if PROFILES[name].int8 else BYTES)
    for n, row in enumerate(rows()):
        op = row.make_op()
        expected = reference(op, row.arrays())
        assert_agree([found[f"{n}.y{k}"] for k in range(len(expected))], expected, op)


def test_without_doubles_float64_is_converted_and_not_computed(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "fp64=0")
    converted = [row for row in ROWS if re.fullmatch(r"Cast-f(16|32|64)\[.*\]-to=float(32|64)", row.id)]
    assert len(converted) > 3
    for row in converted:
        right = reference(row.make_op(), row.arrays())
        assert_agree(run(graph_of(row), feeds_of(row, row.arrays()), api), right, row.make_op())
    computed = next(row for row in ROWS if row.id.startswith("Neg-f64"))
    with pytest.raises(UnsupportedOps, match="the device does not compute in float64; 'x0' is float64"):
        run(graph_of(computed), {}, api)


NETWORKS = {("smallest", "opencl"), ("radv", "opencl")}
"""Who runs a network in the short run."""


@pytest.mark.parametrize(
    ("name", "api"),
    [
        pytest.param(name, api, marks=[pytest.mark.long] * ((name, api) not in NETWORKS))
        for name in ("smallest", "adreno", "radv")
        for api in GPUS
    ],
)
def test_a_network_is_right_on_profiles_at_both_precisions(
    name: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.random.default_rng(0).standard_normal((1, 3, 128, 128)).astype(np.float32)
    expected = weft.load(models.path("shapes"), "cpu").run(image)
    pretend(name, api, monkeypatch)
    for precision, tolerance in (("high", 1e-5), ("low", 2e-2)):
        if precision == "low" and not PROFILES[name].fp16:
            shapes = {"image": image.shape}
            with pytest.raises(UnsupportedOps, match="16-bit storage"):
                weft.load(models.path("shapes"), api, precision=precision, fallback="error", shapes=shapes)
            continue
        with weft.load(models.path("shapes"), api, precision=precision, fallback="error") as session:
            for _ in range(2):  # the second run waits for nothing that the first one left
                found = session.run(image)
        for mine, theirs in zip(found, expected, strict=True):
            assert np.abs(mine - theirs).max() <= tolerance * np.abs(theirs).max()


# -- the limits hold -------------------------------------------------------------------------------------------


def test_allocations_beyond_the_profile_are_refused_by_the_device(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "allocation=2MiB,memory=3MiB")
    creator = registry.find(api)
    assert isinstance(creator, GpuCreator)
    device, heap = opened(api), creator.runtime(0).heap
    with pytest.raises(OutOfMemory, match="one allocation has at most"):
        device.allocate(2 * MIB + 16)
    held = heap.allocate(2 * MIB)
    try:
        with pytest.raises(OutOfMemory, match="the device pretends to have 3,145,728 in all"):
            heap.allocate(2 * MIB)
    finally:
        heap.free(held)
    heap.free(heap.allocate(2 * MIB))


def test_a_network_too_large_for_the_profile_is_refused_and_the_next_one_runs(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "memory=8MiB")
    with pytest.raises(OutOfMemory, match="8"):
        weft.load(models.path("shapes"), api, fallback="error", shapes={"image": (8, 3, 128, 128)})
    small = np.zeros((1, 3, 128, 128), np.float32)
    with weft.load(models.path("shapes"), api, fallback="error") as session:
        session.run(small)


def test_work_group_memory_and_items_beyond_the_profile_are_errors(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "smallest")
    device = opened(api)
    f32 = DType.FLOAT32
    names = ("LENGTH", "INNER", "LINES")
    request = KernelRequest(
        "softmax", (("log", False), ("short", False)),
        (Arg("x", f32, "linear"), Arg("y", f32, "linear", True)), names,
    )
    source = render(request, device.dialect)
    values = {**dict.fromkeys(names, 64), "LY": 1, "LZ": 1}
    device.compile(source, {**values, "LX": 64})
    with pytest.raises(CompileError, match="256 items in all"):
        device.compile(source, {**values, "LX": 256})
    more = replace(source, shared=(("f32x4", "LX * 16 + 1"),))
    with pytest.raises(CompileError, match="16400 bytes of work-group memory; there are 16384"):
        device.compile(more, {**values, "LX": 64})


def test_a_kernel_that_counts_on_other_subgroups_is_found(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f32 = DType.FLOAT32
    names = ("LINES", "LENGTH", "UNITS", "ROWS")
    request = KernelRequest(
        "softmax_rows",
        (("ahead", False), ("each", 1), ("fours", False), ("log", False), ("shuffles", True), ("team", 32)),
        (Arg("x", f32, "linear"), Arg("y", f32, "linear", True)), names,
    )
    for size in (8, 16, 64):
        monkeypatch.setenv("WEFT_DEVICE_PROFILE", f"subgroup={size}")
        device = opened(api)
        assert not (device.caps.shuffles or device.caps.matrices or device.caps.asynchronous_copies)
        with pytest.raises(CompileError, match=f"subgroups of 32 items; those of the device have {size}"):
            device.compile(render(request, device.dialect), dict.fromkeys((*names, "LX", "LY", "LZ"), 1))


def test_launches_hold_alignment_and_range(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "range=1MiB,alignment=4096,grid=1024")
    device = opened(api)
    f32 = DType.FLOAT32
    request = KernelRequest(
        "elementwise", (("count", 1), ("expr", "{0}"), ("fours", ()), ("names", ("x0",)), ("rank", 0), ("wide", False)),
        (Arg("x0", f32, "linear"), Arg("y", f32, "linear", True)), ("TOTAL",),
    )
    kernel = device.compile(render(request, device.dialect), {"TOTAL": 16, "LX": 16, "LY": 1, "LZ": 1})
    buffer = device.allocate(4 * MIB)
    try:
        for offset, nbytes, grid, why in (
            (256, 64, 1, "multiples of 4096"),
            (0, 2 * MIB, 1, "span 1048576"),
            (0, 64, 1025, "more work-groups"),
        ):
            pieces = (Binding(buffer, offset, nbytes), Binding(buffer, 2 * MIB, 64))
            with pytest.raises(DeviceError, match=why):
                device.record([LaunchCommand(kernel, pieces, (grid, 1, 1))])
    finally:
        device.free(buffer)


def test_what_spans_more_than_an_argument_is_refused(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "range=1MiB")
    net = Net()
    x = net.feed((1 << 19,))
    graph = net.graph
    graph.outputs = [net.add(Add(), x, x)]
    with weft.load(graph, api) as session:
        (reasons,) = session.report.refusals.values()
        assert "a kernel argument may span 1048576" in reasons[f"{api}:0"]
        np.testing.assert_array_equal(session.run(net.feeds)[0], net.feeds[x] * 2)


def test_a_node_that_binds_too_many_buffers_runs_in_parts(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "buffers=4")
    net = Net()
    x, factor, shift = net.feed((3, 5)), net.feed((5,)), net.feed((5,))
    net.check(api, [net.add(LayerNormalization(), x, factor, shift)])


def test_one_without_parts_that_binds_too_many_is_refused(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "buffers=4")
    row = next(each for each in ROWS if each.id.startswith("Resize-f32[1") and "linear" in each.id)
    with weft.load(graph_of(row), api) as session:
        (reasons,) = session.report.refusals.values()
    assert reasons[f"{api}:0"].endswith("its kernel 'resize' takes 6 buffers; the device binds 4")


def test_few_arguments_end_the_fusing_of_steps(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    values = [net.feed((2, 3, 5)) for _ in range(6)]
    last = values[0]
    for value in values[1:]:
        last = net.add(Add(), last, value)
    launches = []
    for profile in ("", "buffers=4"):
        monkeypatch.setenv("WEFT_DEVICE_PROFILE", profile)
        net.check(api, [last])
        with weft.load(net.graph, api, fallback="error") as session:
            launches.append(sum(each["launches"] for each in session.report.statistics.values()))
    assert launches[0] == 1 < launches[1]


def test_a_value_that_is_read_twice_takes_two_arguments(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "buffers=4")
    net = Net()
    x = net.feed((2, 3, 5))
    last = x
    for value in [net.add(Abs(), x), net.add(Neg(), x), net.add(Abs(), x), net.add(Neg(), x)]:
        last = net.add(Add(), last, value)
    net.check(api, [last])


def test_memory_that_is_not_coherent_is_flushed_and_invalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has a copy of such memory, so that what is not flushed is not seen by the device."""
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "coherent=0")
    device = opened("vulkan")
    up, down = (device.allocate(64, kind) for kind in (MemoryKind.UPLOAD, MemoryKind.DOWNLOAD))
    assert up.host is not None and down.host is not None
    up.host[:] = 7
    recording = device.record([CopyCommand(Binding(up, 0, 64), Binding(down, 0, 64))])
    device.submit(recording)
    device.wait(recording)
    assert down.host.tolist() == [7] * 64
    up.handle.mapped[:] = 9  # the device's side, of which the host is not told
    assert up.host.tolist() == [7] * 64
    device.release(recording)
    for buffer in (up, down):
        device.free(buffer)


@pytest.mark.parametrize("profile", ["window=0", "window=0,coherent=0", "smallest"])
def test_device_memory_that_the_host_cannot_write_takes_copies(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", profile)
    device = opened("vulkan")
    assert not device.computes_on_uploads
    net = Net()
    x = net.feed((3, 1000))
    net.check("vulkan", [net.add(Add(), x, x)])


# -- how a profile is asked for --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("nonsense", "'nonsense' is no profile"),
        ("items=1", "items=1 must be at least 64"),
        ("items=many", "items=many is no number"),
        ("speed=7,coherent=2", "there is no limit 'speed'; coherent=2 is neither 0 nor 1"),
        ("smallest,radv", "'radv' is no limit"),
        ("name=x", "there is no limit 'name'"),
        ("alignment=48", "a power of two"),
    ],
)
def test_a_profile_that_is_not_understood_is_a_mistake(
    text: str, piece: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", text)
    with pytest.raises(ConfigError, match=piece) as caught:
        opened(api)
    assert caught.value.where == "WEFT_DEVICE_PROFILE"
    with pytest.raises(ConfigError, match=piece) as caught:
        shapes = {"image": (1, 3, 128, 128)}
        weft.load(models.path("shapes"), api, shapes=shapes, backend_options={api: {"device_profile": text}})
    assert "the option device_profile" in caught.value.where
    with pytest.raises(ConfigError, match=piece):  # although the network does not run there
        weft.load(models.path("shapes"), "cpu", backend_options={api: {"device_profile": text}})


def test_a_profile_never_gives_more_than_there_is(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = opened(api).caps
    monkeypatch.setenv("WEFT_DEVICE_PROFILE", "items=65536,local=1GiB,range=64GiB,allocation=64GiB,alignment=4")
    device = opened(api)
    assert device.caps == replace(own, max_buffer_range=min(own.max_buffer_range, own.max_allocation) // 4 * 4)
    assert device.profile is not None and "items=65536" in device.info.name


def test_a_profile_is_an_option_of_the_backend_and_opens_a_device_of_its_own(api: str) -> None:
    net = Net()
    x = net.feed((3, 100))
    net.graph.outputs = [net.add(Add(), x, x)]
    own = {api: {"device_profile": "adreno,units=0"}}
    with weft.load(net.graph, api, backend_options=own) as pretends, weft.load(net.graph, api) as session:
        np.testing.assert_array_equal(pretends.run(net.feeds)[0], session.run(net.feeds)[0])
        assert any("adreno" in note for note in pretends.report.notes)
        assert not any("pretends" in note for note in session.report.notes)
