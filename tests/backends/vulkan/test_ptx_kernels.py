"""Kernels by PTX on Vulkan: the text that the driver gets, and what is launched.

No device of the tests runs PTX: `weft selftest` compares each such kernel by value where one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cards import OPENCL
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from weft.backends.vulkan import context, ptx_kernels
from weft.backends.vulkan._vk import ffi
from weft.backends.vulkan.physical import Physical
from weft.backends.vulkan.ptx_kernels import CAPABILITY, for_vulkan
from weft.core.graph.graph import Graph
from weft.kernels.source import KernelSource

PTX = """.version 9.0
.target sm_90a, texmode_independent
.address_size 64
.entry k(.param .u64 .ptr .global .align 2 k_param_0) .reqntid 128, 1, 1
{
 mov.u32 %r1, %ctaid.x;
 mov.b32 %r2, %envreg0;
 mov.b32 %r3, %envreg6;
 mov.b32 %r4, %envreg8;
 ret;
}
"""


def test_special_registers_of_opencl_are_written_out() -> None:
    text = for_vulkan(PTX)
    assert "envreg" not in text and "texmode_independent" not in text and ".target sm_90a\n" in text
    assert "mov.b32 %r2, 0;" in text and "mov.b32 %r3, %nctaid.x;" in text and "mov.b32 %r4, %nctaid.z;" in text
    assert for_vulkan(text) == text


def test_a_special_register_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueError, match="envreg31"):
        for_vulkan(PTX.replace("envreg8", "envreg31"))


class StandIn:
    """Stands in for what no device of the tests has: the driver's calls for PTX, and NVIDIA's compiler."""

    capability, caps = CAPABILITY, OPENCL

    def __init__(self) -> None:
        self.written: list[str] = []
        self.launched: list[tuple[tuple[int, ...], int]] = []

    def hold(self) -> AbstractContextManager[None]:
        return nullcontext()

    def expect(self) -> None:
        pass

    def close(self) -> None:
        pass

    def write(self, source: KernelSource, values: object, varying: frozenset[str]) -> bytes:
        self.written.append(source.entry)
        return PTX.encode()

    def function(self, device: object, name: str) -> Callable[..., int]:
        """Return what takes the place of a function of the extension."""

        def create(device: object, info: object, allocator: object, out: Any) -> int:
            out[0] = ffi.cast(ffi.typeof(out).item, 1)
            return 0

        def launch(commands: object, info: Any) -> int:
            assert all(ffi.cast("uint64_t*", info.pParams[i])[0] for i in range(2)), "buffers have addresses"
            grid = (info.gridDimX, info.gridDimY, info.gridDimZ, info.blockDimX, info.blockDimY, info.blockDimZ)
            self.launched.append((grid, int(info.paramCount)))
            return 0

        return create if "Create" in name else launch if "Launch" in name else lambda *_: 0


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn()
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Physical, "imports_ptx", True)
    monkeypatch.setattr(context, "PTX_EXTENSION", "VK_KHR_buffer_device_address")
    monkeypatch.setattr(ptx_kernels, "_writer", lambda physical: made)
    monkeypatch.setattr(ptx_kernels, "_function", made.function)
    yield made


def _load(graph: Graph, memory_limit: int, **options: object) -> weft.Session:
    """Load on a device that no other test opens."""
    given = {"vulkan": {"memory_limit": memory_limit, **options}}
    return weft.load(graph, "vulkan", precision="low", fallback="error", backend_options=given)


def test_a_device_that_runs_ptx_launches_what_opencl_compiles(stand_in: StandIn) -> None:
    net = Net()
    graph = net.finish(net.conv(net.input("x", 1, 64, 28, 28), 256, 3, name="y"))
    with _load(graph, 1 << 30) as session:
        assert "conv_wgmma" in stand_in.written
        assert any("PTX" in note for note in session.report.notes), "which kernels run is said"
        session.run(np.zeros((1, 64, 28, 28), np.float32))
        assert len(stand_in.launched) == len(kernels(session)) and stand_in.launched[0][1] == 2
    stand_in.written.clear()
    with _load(graph, (1 << 30) + 1) as session:
        assert stand_in.written == [], "its PTX is kept on disk"


def test_kernels_are_glsl_where_the_option_says_so(stand_in: StandIn) -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 1, 8, 4, 4), name="y"))
    with _load(graph, (1 << 30) + 2, ptx=False) as session:
        x = np.full((1, 8, 4, 4), -1.0, np.float32)
        assert not session.run(x)[0].any() and stand_in.launched == [] == stand_in.written
