"""Kernels by PTX on Vulkan: what the driver gets, and what is launched.

No device of the tests runs PTX: `weft selftest` compares each such kernel by value where one does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cards import OPENCL
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from tests.helpers.vulkan_kernels import whole
from weft.backends.gpu.device.device import BarrierCommand, Binding, Command, CopyCommand, LaunchCommand
from weft.backends.opencl.ptx_cache import CACHE, key_of
from weft.backends.vulkan import context, ptx_kernels
from weft.backends.vulkan._vk import ffi
from weft.backends.vulkan.device import open_device
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.physical import Physical
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.host.disk_cache import DiskCache
from weft.errors import CompileError
from weft.kernels.source import Arg, KernelCode, KernelSource


class StandIn:
    """Stands in for what no device of the tests has: the driver's calls for PTX, and NVIDIA's compiler."""

    capability, caps = (9, 0), OPENCL

    def __init__(self) -> None:
        self.written: list[str] = []
        self.launched: list[tuple[tuple[int, ...], list[int]]] = []
        self.objects: list[int] = []
        """What is not destroyed yet, by the number that the driver gave it."""
        self.made, self.held, self.refuses = 0, 0, False

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.held += 1
        yield
        self.held -= 1

    def expect(self) -> None:
        pass

    def close(self) -> None:
        pass

    def write(self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]) -> bytes:
        assert self.held == 1, "processes may compile while a network is loaded"
        self.written.append(source.entry)
        code = b".version 9.0"
        DiskCache(CACHE).put(key_of(self.known_as, source, values, varying), code)
        return code

    def find(self, physical: Physical) -> StandIn:
        """Return itself, as what compiles for the device."""
        self.known_as = physical.name, physical.driver
        return self

    def function(self, device: object, name: str) -> Callable[..., int]:
        """Return what takes the place of a function of the extension."""

        def create(device: object, info: object, allocator: object, out: Any) -> int:
            if self.refuses:
                return -13
            self.made += 1
            self.objects.append(self.made)
            out[0] = ffi.cast(ffi.typeof(out).item, self.made)
            return 0

        def destroy(device: object, handle: Any, allocator: object) -> int:
            assert self.objects.pop(self.objects.index(int(ffi.cast("uint64_t", handle)))) % 2 == ("Module" in name)
            if "Module" in name:
                assert int(ffi.cast("uint64_t", handle)) + 1 not in self.objects, "its function is destroyed before"
            return 0

        def launch(commands: object, info: Any) -> int:
            grid = (info.gridDimX, info.gridDimY, info.gridDimZ, info.blockDimX, info.blockDimY, info.blockDimZ)
            given = [int(ffi.cast("uint64_t*", info.pParams[i])[0]) for i in range(min(info.paramCount, 2))]
            self.launched.append((grid, given))
            return 0

        return create if "Create" in name else launch if "Launch" in name else destroy


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn()
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Physical, "imports_ptx", True)
    monkeypatch.setattr(context, "PTX_EXTENSION", "VK_KHR_buffer_device_address")
    monkeypatch.setattr(ptx_kernels, "_writer", made.find)
    monkeypatch.setattr(ptx_kernels, "_function", made.function)
    yield made


def _load(graph: Graph, memory_limit: int, **options: object) -> weft.Session:
    """Load on a device that no other test opens."""
    given = {"vulkan": {"memory_limit": memory_limit, **options}}
    # The check would launch the kernels of the first run again.
    return weft.load(
        graph, "vulkan", precision="low", fallback="error", backend_options=given, overflow_check=False
    )


def test_a_device_that_runs_ptx_launches_what_opencl_compiles(stand_in: StandIn) -> None:
    net = Net()
    graph = net.finish(net.conv(net.input("x", 1, 64, 28, 28), 256, 3, name="y"))
    with _load(graph, 1 << 30) as session:
        assert "conv_wgmma" in stand_in.written
        assert any("PTX" in note for note in session.report.notes), "which kernels run is said"
        session.run(np.zeros((1, 64, 28, 28), np.float32))
        assert len(stand_in.launched) == len(kernels(session)) and all(stand_in.launched[0][1])
    assert stand_in.held == 0
    stand_in.written.clear()
    with _load(graph, (1 << 30) + 1) as session:
        assert stand_in.written == [], "its PTX is kept on disk"


SOURCE = KernelSource("k", KernelCode(""), (Arg("x", DType.UINT8, "linear"), Arg("y", DType.UINT8, "linear", True)), ())


def test_a_kernel_gets_the_addresses_of_its_pieces_in_order(stand_in: StandIn) -> None:
    device = open_device(0, GlslDialect())
    buffer = device.allocate(1 << 12)
    with device.building():
        kernel = device.compile(SOURCE, {"LX": 64})
    pieces = (Binding(buffer, 1 << 10, 4), Binding(buffer, 256, 4))
    device.record([LaunchCommand(kernel, pieces, (3, 2, 1))])
    first = buffer.handle.address
    assert stand_in.launched == [((3, 2, 1, 64, 1, 1), [first + 1024, first + 256])]
    device.close()
    assert stand_in.objects == []


def test_a_function_is_destroyed_before_its_module(stand_in: StandIn) -> None:
    device = open_device(0, GlslDialect())
    device.hold_kernels(0)
    with device.building():
        device.compile(SOURCE, {"LX": 64})
    gc.collect()
    assert stand_in.made == 2 and stand_in.objects == []
    device.close()


def test_what_the_driver_refuses_is_not_kept(stand_in: StandIn) -> None:
    device = open_device(0, GlslDialect())
    stand_in.refuses = True
    with device.building(), pytest.raises(CompileError, match="refused the PTX of kernel k"):
        device.compile(SOURCE, {"LX": 64})
    stand_in.refuses = False
    with device.building():
        device.compile(SOURCE, {"LX": 64})
    assert stand_in.written == ["k", "k"] and stand_in.objects == [1, 2]
    device.close()


def test_chains_wait_for_each_other_and_barriers_say_what_they_are_for(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers: list[bool] = []
    barrier = context.Context.barrier

    def noted(self: context.Context, commands: object, *, launches_only: bool) -> None:
        barriers.append(launches_only)
        barrier(self, commands, launches_only=launches_only)

    monkeypatch.setattr(context.Context, "barrier", noted)
    device = open_device(0, GlslDialect())
    x, y = device.allocate(256), device.allocate(256)
    with device.building():
        chain = device.compile(replace(SOURCE, entry="chain"), {"LX": 64})
        plain = device.compile(SOURCE, {"LX": 64})
    copy = CopyCommand(whole(x), whole(y))
    first, second, other = (LaunchCommand(k, (whole(x), whole(y)), (1, 1, 1)) for k in (chain, chain, plain))
    between = BarrierCommand()
    cases: list[tuple[list[Command], list[bool]]] = [
        ([first, second], [False]),  # side by side, some groups of both might wait for ever
        ([first, other, second], [False]),
        ([first, between, second], [True]),
        ([other, other], []),
        ([copy, between, first, between, second, between, copy], [False, True, False]),
        ([first, between, copy], [False]),
    ]
    for commands, expected in cases:
        barriers.clear()
        device.record(commands)
        assert barriers == expected, commands
    device.close()


def test_kernels_are_glsl_where_the_option_says_so(stand_in: StandIn) -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 1, 8, 4, 4), name="y"))
    with _load(graph, (1 << 30) + 2, ptx=False) as session:
        x = np.full((1, 8, 4, 4), -1.0, np.float32)
        assert not session.run(x)[0].any() and stand_in.launched == [] == stand_in.written
