"""Kernels of one program: their names are told apart, and their binary is kept and found as that of others is."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.opencl_kernels import NO_DIALECT, SOURCE, run, values, whole
from weft.backends.gpu.device.device import LaunchCommand
from weft.backends.opencl.device import OpenCLDevice, open_device
from weft.errors import CompileError
from weft.kernels.source import KernelCode, KernelSource

TWICE = "float twice(float a) { if (a > 0) { return 2 * a; } return 2 * a; }\n"
HEAD = """
__kernel __attribute__((reqd_work_group_size(LX, LY, LZ)))
void scale(__global const float* x, __global float* y) {
"""
BODY = """#define SIGN(a) (SIGNED (a))
for (int i = (int)get_global_id(0); i < N; i += (int)get_global_size(0)) y[i] = twice(SIGN(A)) * x[i];
"""


def source(sign: str) -> KernelSource:
    """Return one of the kernels with a function, a macro and a name that the others have too."""
    body = BODY.replace("SIGNED", sign)
    return replace(SOURCE, code=KernelCode(body, functions=(TWICE,), head=HEAD, end="}\n", macros=("SIGN",)))


def changed(source: KernelSource, **pieces: Any) -> KernelSource:
    return replace(source, code=replace(source.code, **pieces))


SOURCES = [source(sign) for sign in "+-"]


def results(device: OpenCLDevice) -> list[float]:
    buffer, found = device.allocate(4), []
    for each in SOURCES:
        out = np.ones(1, np.float32)
        device.upload(buffer, 0, out)
        run(device, LaunchCommand(device.compile(each, values(1, 3.0)), (whole(buffer), whole(buffer)), (1, 1, 1)))
        device.download(buffer, 0, out)
        found.append(float(out[0]))
    device.free(buffer)
    return found


def test_kernels_that_share_names_are_one_program_and_its_binary_serves_the_next_start(
    device: OpenCLDevice, cache: Path
) -> None:
    held = device.compile_together([(each, values(1, 3.0)) for each in (*SOURCES, SOURCES[0])])
    one, other = (device.compile(each, values(1, 3.0)).built for each in SOURCES)
    assert held == [one, other] and one.program is other.program
    assert results(device) == [6.0, -6.0] and device.stats.compiles == 2
    again = open_device(0, NO_DIALECT)
    assert again.compile_together([(each, values(1, 3.0)) for each in SOURCES]) == []
    assert results(again) == [6.0, -6.0]
    assert (again.programs.built_from_source, again.programs.loaded_from_disk) == (0, 2)
    again.close()
    largest = max((cache / "opencl").iterdir(), key=lambda path: path.stat().st_size)
    largest.unlink()
    again = open_device(0, NO_DIALECT)
    assert results(again) == [6.0, -6.0] and again.programs.built_from_source == 2, "the program is gone: build anew"
    again.close()


def test_what_the_compiler_refuses_is_left_to_those_who_ask_for_it(
    device: OpenCLDevice, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = changed(SOURCES[0], body=BODY.replace("SIGNED", "undeclared_thing *"))
    with caplog.at_level(logging.INFO, "weft.opencl"):
        assert device.compile_together([(each, values(1, 3.0)) for each in (wrong, *SOURCES)]) == []
    assert "3 kernels cannot be built together" in caplog.text
    assert results(device) == [6.0, -6.0]
    with pytest.raises(CompileError, match="undeclared_thing"):
        device.compile(wrong, values(1, 3.0))


def test_those_with_the_same_prelude_are_one_program(device: OpenCLDevice) -> None:
    """An extension that it enables holds for the whole program."""
    exact = [changed(each, prelude="#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n") for each in SOURCES]
    held = device.compile_together([(each, values(1, 3.0)) for each in (*SOURCES, *exact)])
    made = [device.compile(each, values(1, 3.0)).built for each in (*SOURCES, *exact)]
    assert held == made, "each is found under its own name"
    plain, plain_too, double, double_too = (built.program for built in made)
    assert plain is plain_too is not double and double is double_too


def test_kernels_that_know_their_place_in_other_ways_are_not_one_program(device: OpenCLDevice) -> None:
    placed = [changed(SOURCES[0], launch=f"#define SIGNED {sign}\n") for sign in "+-"]
    assert device.compile_together([(each, values(1, 3.0)) for each in placed]) == []


@pytest.mark.parametrize("pragma", ["OPENCL FP_CONTRACT OFF", "unroll"])
def test_a_pragma_in_a_block_ends_with_it(device: OpenCLDevice, pragma: str) -> None:
    """Kernels of steps that must not be contracted have one: without this each would be a program of its own."""
    loop = f"{{\n#pragma {pragma}\nfor (int k = 0; k < 2; k++) {{ const float a = A; }}\n}}\n"
    blocks = [changed(each, body=loop + each.code.body) for each in SOURCES]
    device.compile_together([(each, values(1, 3.0)) for each in (*blocks, *SOURCES)])
    made = {device.compile(each, values(1, 3.0)).built.program for each in (*blocks, *SOURCES)}
    assert len(made) == 1 and results(device) == [6.0, -6.0]


@pytest.mark.parametrize("alone", [SOURCE, changed(SOURCES[0], traits=("covered",))], ids=["one text", "covered"])
def test_what_is_not_in_pieces_or_has_hidden_instructions_is_compiled_alone(
    alone: KernelSource, device: OpenCLDevice
) -> None:
    held = device.compile_together([(each, values(1, 3.0)) for each in (alone, *SOURCES)])
    assert held == [device.compile(each, values(1, 3.0)).built for each in SOURCES]
    assert device.compile_together([(each, values(1, 3.0)) for each in (alone, changed(SOURCES[0], end="}\n\n"))]) == []
