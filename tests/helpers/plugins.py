"""Backends in real files for tests: Python text, and C that is compiled here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from weft.backends.cpu.backend import CpuCreator
from weft.core.registry.backend_registry import BackendRegistry
from weft.plugins import PluginFinder, include_dir

COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: apt install gcc libc6-dev")
ROOT = Path(__file__).parents[2]

C_UNUSED = """
static int32_t create(void *d, const weft_node *n, void **s, char *e, size_t size)
{ (void)d; (void)n; (void)s; (void)e; (void)size; return 1; }
static int32_t execute(void *s, const weft_tensor *const *i, const weft_tensor *const *o, char *e, size_t size)
{ (void)s; (void)i; (void)o; (void)e; (void)size; return 1; }
static void destroy(void *s) { (void)s; }
static const weft_backend table = {.struct_size = sizeof table, .supports = supports, .create = create,
                                   .execute = execute, .destroy = destroy};
"""
"""The table of a backend that has only `supports`, and takes nothing."""
C_TABLE = (
    r"""
#include <stdio.h>
#include "weft_backend.h"
static int32_t supports(void *d, const weft_node *n, char *reason, size_t size)
{ (void)d; snprintf(reason, size, "it takes nothing, not even %s", n->op_type); return 0; }
"""
    + C_UNUSED
)
C_ID = 'const char *GetBackendId(void) { return "acme"; }\n'
C_VERSION = "void GetVersion(uint32_t *major, uint32_t *minor) { *major = 1; *minor = 0; }\n"
C_FACTORY = "const weft_backend *BackendFactory(void) { return &table; }\n"

PY_CLASS = """
from weft.backends.cpu.backend import CpuBackend, CpuCreator

class Acme(CpuBackend):
    pass
"""
PY_ID = 'def GetBackendId(): return "acme"\n'
PY_VERSION = "def GetVersion(): return (1, 0)\n"
PY_FACTORY = "def BackendFactory(): return Acme\n"
COUNT = """
import os
with open(os.path.join(os.path.dirname(__file__), "count"), "a") as _file:
    _file.write("x")
"""
"""Notes each execution of a file, in `count` beside it."""


def c_source(id: str = "acme", version: tuple[int, int] = (1, 0), more: str = "") -> str:
    """Return a backend in C that refuses every node."""
    numbers = C_VERSION.replace("= 1", f"= {version[0]}").replace("= 0", f"= {version[1]}")
    return C_TABLE + C_ID.replace("acme", id) + numbers + C_FACTORY + more


def py_source(id: str = "acme", version: object = (1, 0), more: str = "") -> str:
    """Return a backend in Python that computes as the CPU does."""
    return PY_CLASS + PY_ID.replace("acme", id) + PY_VERSION.replace("(1, 0)", repr(version)) + PY_FACTORY + more


@cache
def _compiled(source: str, *options: str) -> bytes:
    assert COMPILER is not None
    with TemporaryDirectory() as folder:
        (Path(folder) / "backend.c").write_text(source)
        command = [COMPILER, "-std=c99", "-Wall", "-Wextra", "-Werror", *options, "-shared", "-fPIC"]
        command += ["-I", str(include_dir()), "-o", "backend.so", "backend.c"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return (Path(folder) / "backend.so").read_bytes()


def write(file: Path, source: str, *options: str) -> Path:
    """Write a backend: Python as it is, C compiled to the shared library of that name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if ".so" in file.name:
        file.write_bytes(_compiled(source, *options))
    else:
        file.write_text(source)
    return file


def new_registry() -> BackendRegistry:
    """Return a registry as that of a new process: it has looked for nothing yet."""
    made = BackendRegistry(PluginFinder())
    made.insert("cpu", CpuCreator(), origin="weft")
    return made


def in_new_process(code: str, *, path: Path | None = None, folders: str = "") -> str:
    """Return what a program prints that finds packages in `path` and backends in `folders`."""
    searched = os.pathsep.join(map(str, filter(None, (ROOT, path))))
    environment = {**os.environ, "PYTHONPATH": searched, "WEFT_DYNAMIC_BACKEND_PATHS": folders}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package(site: Path, module: str, source: str, entry_points: str, *, version: str = "1.2") -> Path:
    """Install a module with entry points (NAME = VALUE lines) into a folder, as pip leaves it there."""
    name = module.replace("_", "-")
    folder = site / f"{module}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(f"[weft.backends]\n{entry_points}\n")
    (site / f"{module}.py").write_text(source)
    return folder
