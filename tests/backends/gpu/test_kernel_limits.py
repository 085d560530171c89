"""What kernels take of a device is known before its driver is asked: work-group memory, subgroups, warpgroups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from tests.helpers.cards import KINDS, OPENCL, VULKAN, alone
from tests.helpers.null_gpu import CAPS, null_gpu
from weft.backends.gpu.device.limits import check_kernel, shared_bytes
from weft.backends.gpu.device.profiles import parse_profile
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.selftest import value_check
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.vulkan.dialect import GlslDialect
from weft.errors import CompileError
from weft.kernels.device_caps import WARPGROUP_MEMORY, DeviceCaps
from weft.kernels.dialect import KernelParts
from weft.kernels.matrix_shapes import WARPGROUP_HALVES
from weft.kernels.shared_size import DEEPEST, LONGEST, SizeError, parse
from weft.kernels.source import SUBGROUP, KernelCode, KernelSource
from weft.kernels.special import kernel_families, special_kernels

VALUES = {"LX": 8, "LY": 4, "LZ": 2, "N": 7, "SCALE": 0.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("LX", 8),
        ("LZ * 24", 48),
        ("(LZ - 1) * 64", 64),
        ("LZ > 1 ? (LZ - 1) * 64 : 1", 64),
        ("LZ > 2 ? (LZ - 1) * 64 : 1", 1),
        ("LZ == 1 ? 10 : LZ != 2 ? 20 : 30", 30),
        ("LX <= 8 ? LY >= 5 ? 1 : 2 : 3", 2),
        ("LX < LY ? 1 : 0", 0),
        ("LX / 3 * 3 + LX % 3", 8),
        ("10 - 4 - 3", 3),
        ("-N / 2", -3),
        ("-N % 2", -1),
        ("2+3*4", 14),
        ("(2 + 3) * 4", 20),
        ("LZ > 2 ? 1 / (LZ - 2) : 5", 5),
    ],
)
def test_a_size_has_the_value_that_it_has_in_C(text: str, value: int) -> None:
    assert parse(text)(VALUES) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "its end where a number or a name belongs"),
        ("LX +", "its end where a number or a name belongs"),
        ("LX LY", "'LY' is out of place"),
        ("(LX", "its end where ')' belongs"),
        ("LX ? 1", "its end where ':' belongs"),
        ("__import__('os')", "characters that a size cannot have"),
        ("LX.real", "characters that a size cannot have"),
        ("LX ** 9", "'*' where a number or a name belongs"),
        ("exit()", "'(' is out of place"),
        ("WIDTH * 2", "'WIDTH' is no integer constant of the kernel"),
        ("SCALE * 2", "'SCALE' is no integer constant of the kernel"),
        ("LX / (LZ - 2)", "divides by zero"),
        ("(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1), f"{DEEPEST} deep"),
        ("1" * (LONGEST + 1), "too long"),
        ("1" + "+1" * (LONGEST // 2), "too long"),
    ],
)
def test_what_is_no_size_is_refused_and_not_run(text: str, why: str) -> None:
    with pytest.raises(SizeError, match=re.escape(why)):
        parse(text)(VALUES)


def test_the_longest_sum_has_a_value() -> None:
    assert parse("1" + "+1" * (LONGEST // 2 - 1))({}) == LONGEST // 2


def source(*shared: tuple[str, str], subgroup: int = 0, warpgroup: bool = False) -> KernelSource:
    return KernelSource("mine", KernelCode(""), (), (("LX", "int"),), shared, subgroup, warpgroup)


def test_arrays_of_all_types_are_added() -> None:
    assert shared_bytes(source(("f32x4", "LX"), ("uchar", "3"), ("f32", "LZ * 2")), VALUES) == 8 * 16 + 3 + 16


@pytest.mark.parametrize(
    ("shared", "why"),
    [
        (("f24", "LX"), "'f24' is none of the types"),
        (("f32", "WIDTH"), "'WIDTH' is no integer constant"),
        (("f32", "LX - 9"), "'LX - 9' is -1"),
    ],
)
def test_memory_that_is_not_understood_is_an_error_of_the_kernel(shared: tuple[str, str], why: str) -> None:
    with pytest.raises(CompileError) as caught:
        check_kernel(source(shared), VALUES, CAPS, "null:0")
    assert why in caught.value.why and "'mine'" in caught.value.what and caught.value.where == "null:0"


LARGE = ("uchar", str(CAPS.local_memory + 1))
HOPPER = replace(CAPS, matrices=(WARPGROUP_HALVES,))


@pytest.mark.parametrize(
    ("made", "caps"),
    [
        (source(LARGE), HOPPER),
        (source(LARGE, subgroup=SUBGROUP), HOPPER),
        (source(LARGE, subgroup=SUBGROUP, warpgroup=True), CAPS),
        (source(("uchar", str(WARPGROUP_MEMORY + 1)), subgroup=SUBGROUP, warpgroup=True), HOPPER),
    ],
)
def test_work_group_memory_is_checked_for_kernels_of_subgroups_too(made: KernelSource, caps: DeviceCaps) -> None:
    with pytest.raises(CompileError, match="bytes of work-group memory; there are"):
        check_kernel(made, VALUES, caps, "null:0")


def test_warpgroups_have_more_than_drivers_report_but_not_where_a_profile_has_less() -> None:
    made = source(LARGE, subgroup=SUBGROUP, warpgroup=True)
    check_kernel(made, VALUES, HOPPER, "null:0")
    profile = parse_profile("local=16KiB")
    assert profile is not None
    with pytest.raises(CompileError, match="there are 16384"):
        check_kernel(made, VALUES, profile.apply(HOPPER), "null:0")


# -- what templates declare --------------------------------------------------------------------------------------

_TAKES_SUBGROUP = re.compile(
    r"EXCHANGE\(|MMA\(|\basm\b(?! volatile..cp\.async)|LDMATRIX|SHUFFLE_XOR|WARP_BARRIER|coopmat|subgroup"
)
_BODIES: dict[tuple[str, str], set[str]] = {}
"""By language and template, what its kernels say and what they ask of the compiler."""


def _noted(name: str, parts: KernelParts) -> KernelParts:
    _BODIES.setdefault((name, parts.entry), set()).add("\n".join([*parts.extensions, parts.body]))
    return parts


@dataclass(frozen=True)
class NotedOpenCL(OpenCLDialect):
    """OpenCL C of which the bodies of kernels are kept."""

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel."""
        return super().assemble(_noted("opencl", parts))


@dataclass(frozen=True)
class NotedGlsl(GlslDialect):
    """GLSL of which the bodies of kernels are kept."""

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return the kernel."""
        return super().assemble(_noted("vulkan", parts))


Rendered = Mapping[tuple[str, str], list[tuple[KernelSource, int]]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    """Return the kernels of all cases on two GPUs with matrix units, with the bytes of work-group memory they take."""
    found: dict[tuple[str, str], list[tuple[KernelSource, int]]] = {}
    with pytest.MonkeyPatch.context() as patch, null_gpu() as device:
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        compile_ = device.compile
        for name, dialect, caps in (("opencl", NotedOpenCL(), OPENCL), ("vulkan", NotedGlsl(), VULKAN)):

            def noted(source: KernelSource, values: Mapping[str, int | float], name: str = name) -> object:
                found.setdefault((name, source.entry), []).append((source, shared_bytes(source, values)))
                return compile_(source, values)

            patch.setattr(device, "compile", noted)
            device.dialect = dialect
            families = [f for f in kernel_families() if f.present(caps)]
            kinds = [kind for kind in KINDS.values() if kind.present(alone(kind, caps))]
            for kind in (*kinds, *families):
                device.caps = value_check.without_others(caps, kind, special_kernels())
                device.caps = getattr(kind, "forced", lambda caps: caps)(device.caps)
                runtime = GpuRuntime(device)
                runtime.trust()
                for case in kind.cases():
                    value_check.ready(case, runtime).close()
        yield found


def test_templates_declare_that_they_count_on_a_subgroup(rendered: Rendered) -> None:
    """And those that work with any do not: devices with other subgroups would go without them."""
    for key, bodies in _BODIES.items():
        counted = {source.subgroup for source, _ in rendered[key]}
        assert counted == {SUBGROUP if _TAKES_SUBGROUP.search(body) else 0 for body in bodies}, key


def test_warpgroups_are_the_two_templates_that_take_more_memory_than_drivers_report(rendered: Rendered) -> None:
    declared = {entry for (_, entry), made in rendered.items() if any(source.warpgroup for source, _ in made)}
    assert declared == {"conv_wgmma", "conv_split_wgmma"}
    assert declared == {entry for (_, entry), bodies in _BODIES.items() if any("wgmma" in body for body in bodies)}
    large = {entry for (_, entry), made in rendered.items() if any(taken > OPENCL.local_memory for _, taken in made)}
    assert large == declared


def test_templates_declare_what_kernels_that_share_a_source_must_know(rendered: Rendered) -> None:
    """Their instructions, the macros that they define otherwise than others, and that items meet for an array."""
    for (api, entry), made in rendered.items():
        for source, _ in made:
            body = source.code.body
            said = {"covered": "//@", "numbered": "bar.sync", "unwritten": "ld.global.nc"}
            assert {trait for trait, word in said.items() if word in body} == {*source.code.traits}, entry
            assert source.shared or not re.search(r"\bBARRIER\b", body), entry
            alike = re.sub(r"#ifndef.*?#endif", "", body, flags=re.DOTALL)
            if api == "opencl":
                assert {*re.findall(r"^\s*#define (\w+)", alike, re.MULTILINE)} <= {*source.code.macros}, entry
            assert source.text == source.code.text and source.code.in_pieces
