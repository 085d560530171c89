"""A signal while C code that calls back has the thread: it is raised, neither lost nor taken for an answer."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.plugins import needs_compiler, write
from weft.backends.vulkan import glslang, instance
from weft.backends.vulkan._vk import NULL, ffi
from weft.errors import CompileError

INTERRUPTED = r"""
#include <signal.h>
#include <stddef.h>
typedef void (*callback)(const char *data, size_t size, void *user);
struct request {
    size_t size;
    const char *path;
    const char *begin, *end;
    callback diagnostic; void *diagnostic_user;
    callback output; void *output_user;
};
int glslang_compile_1_2(struct request *r)
{
    if (r->end[-1] == 'i') raise(SIGINT);
    if (r->end[-1] == 't') raise(SIGTERM);
    r->diagnostic("said", 4, NULL);
    r->output("\x03\x02\x23\x07", 4, NULL);
    return 0;
}
"""
"""A compiler that is interrupted in the middle of its work by what its source ends with."""
BEGUN = "#version 450\n"


class Ended(BaseException):
    """What the handler of a signal raises."""


@pytest.fixture
def compiler(tmp_path: Path) -> glslang.LibraryCompiler:
    """Load the library."""
    return glslang.LibraryCompiler(str(write(tmp_path / "glslang.so", INTERRUPTED)))


@needs_compiler
def test_an_interrupt_while_a_kernel_compiles_is_raised(compiler: glslang.LibraryCompiler) -> None:
    with pytest.raises(KeyboardInterrupt):
        compiler.compile(f"{BEGUN}i", "k")
    assert compiler.translate(BEGUN, "k") == (glslang.SPIRV_MAGIC, "said")


@needs_compiler
def test_what_a_handler_raises_while_a_kernel_compiles_is_raised(compiler: glslang.LibraryCompiler) -> None:
    def ended(number: int, frame: Any) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, ended)
    try:
        with pytest.raises(Ended):
            compiler.compile(f"{BEGUN}t", "k")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert compiler.translate(BEGUN, "k") == (glslang.SPIRV_MAGIC, "said")


@needs_compiler
def test_what_cannot_be_taken_is_an_error_and_not_half_a_result(
    compiler: glslang.LibraryCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(data: Any, size: int) -> bytes:
        raise MemoryError("full")

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="full"):
        patch.setattr("ctypes.string_at", full)
        compiler.compile(BEGUN, "k")


def test_the_compiler_that_is_there_says_what_is_wrong_from_every_thread() -> None:
    found = glslang.find_compiler()
    if found is None:
        pytest.skip("there is no GLSL compiler")
    with pytest.raises(CompileError, match="nothing"):
        found.compile("#version 450\nvoid main() { nothing; }", "k")


def test_an_interrupt_while_a_validation_message_is_heard_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the signal had come in the driver: what Python raises there cannot pass through it."""

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    listener = instance._listener()
    data = ffi.new("VkDebugUtilsMessengerCallbackDataEXT*")
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(instance.log, "error", interrupted)
        assert listener(0, 0, data, NULL) == 0
        time.sleep(30)
    instance.validation_messages().clear()
