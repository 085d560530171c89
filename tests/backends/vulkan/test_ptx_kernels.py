"""Kernels by PTX on Vulkan: the text that the driver gets, and which templates become such kernels.

No device of the tests runs PTX: `weft selftest` compares each such kernel by value where one does.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import weft
from tests.helpers.cards import VULKAN
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.ptx_kernels import for_vulkan
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


def test_templates_that_glsl_lacks_are_written_in_the_second_language(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    graph = net.finish(net.conv(net.input("x", 1, 64, 28, 28), 256, 3, name="y"))
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    with null_gpu() as device:
        device.dialect = GlslDialect(also=OpenCLDialect())
        device.caps = replace(VULKAN, warpgroup_units=True)
        languages: dict[str, str] = {}

        def compiled(source: KernelSource, values: object) -> str:
            languages[source.entry] = source.language
            return source.digest

        device.compile = compiled  # type: ignore[method-assign,assignment]
        weft.load(graph, "null", precision="low", fallback="error").close()
    assert languages.pop("conv_wgmma") == "opencl"
    assert set(languages.values()) == {""}, "the rest is GLSL"
