"""PTX of OpenCL for other APIs: its text, and the driver's library that assembles it, of which a test builds a like."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.helpers.plugins import COMPILER, needs_compiler
from weft.backends.opencl import ptx
from weft.backends.opencl.ptx import as_cuda, assembled

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
    text = as_cuda(PTX)
    assert "envreg" not in text and "texmode_independent" not in text and ".target sm_90a\n" in text
    assert "mov.b32 %r2, 0;" in text and "mov.b32 %r3, %nctaid.x;" in text and "mov.b32 %r4, %nctaid.z;" in text
    assert as_cuda(text) == text


def test_a_special_register_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueError, match="envreg31"):
        as_cuda(PTX.replace("envreg8", "envreg31"))


LIBRARY = """
#include <stdlib.h>
#include <string.h>
typedef struct { char text[4096]; char target[64]; } Program;
int nvPTXCompilerCreate(Program** made, size_t length, const char* text) {
  *made = calloc(1, sizeof(Program));
  memcpy((*made)->text, text, length);
  return strlen(text) != length;
}
int nvPTXCompilerCompile(Program* p, int count, const char* const* options) {
  strcpy(p->target, options[0]);
  return count != 1 || strstr(p->text, "refused") != 0;
}
int nvPTXCompilerGetCompiledProgramSize(Program* p, size_t* size) { *size = strlen(p->target) + 4; return 0; }
int nvPTXCompilerGetCompiledProgram(Program* p, void* into) {
  memcpy(into, "\\x7f" "ELF", 4);
  memcpy((char*)into + 4, p->target, strlen(p->target));
  return 0;
}
int nvPTXCompilerDestroy(Program** p) { free(*p); *p = 0; return 0; }
"""


@needs_compiler
def test_the_drivers_library_assembles_for_the_device_that_the_text_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert COMPILER is not None
    (tmp_path / "library.c").write_text(LIBRARY)
    built = tmp_path / "library.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", built, tmp_path / "library.c"], check=True)
    monkeypatch.setattr(ptx, "LIBRARY", str(built))
    monkeypatch.setattr(ptx, "_library", ptx._library.__wrapped__)
    text = as_cuda(PTX).encode()
    assert assembled(text) == b"\x7fELF--gpu-name=sm_90a"
    assert assembled(text + b"// refused") is None, "then the other API's driver gets the text"
    assert assembled(b"no PTX") is None


def test_without_the_library_nothing_is_assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "LIBRARY", "no such library")
    monkeypatch.setattr(ptx, "_library", ptx._library.__wrapped__)
    assert assembled(as_cuda(PTX).encode()) is None
