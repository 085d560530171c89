"""The compiled kernels of a wheel, so that common networks run without a GLSL compiler.

`standard_kernels.json` lists them as requests, one a line; update_standard_kernels.py writes it. Building a
wheel renders and compiles each into `weft/spirv.zip`, where `weft.backends.vulkan.spirv` looks
first. It finds a kernel there by the hash of its text, so an outdated list ships kernels that
nothing requests, but never wrong ones. Each entry is sealed with that hash, as blobs of the cache are with
their keys.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weft.backends.vulkan import glslang
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.spirv import shipped_name
from weft.core.graph.dtypes import DType
from weft.core.host.disk_cache import seal
from weft.errors import CompileError
from weft.kernels.source import Arg, ArgKind, Through
from weft.kernels.template import KernelRequest, Operand, StepText, render

MANIFEST = Path(__file__).with_suffix(".json")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PLAIN_FILE = 0o100644 << 16


def build(target: Path, requests: Iterable[KernelRequest] | None = None) -> int:
    """Compile the standard kernels (or those given) into a zip, equal for equal input; return their number."""
    compiler = glslang.find_compiler()
    if compiler is None:
        raise CompileError("no GLSL compiler was found to build the kernels", fix=glslang.advice())
    dialect = GlslDialect()
    sources = {}
    for request in standard_requests() if requests is None else requests:
        source = render(request, dialect)
        sources[source.digest] = source
    with zipfile.ZipFile(target, "w") as archive:
        for digest in sorted(sources):
            entry = zipfile.ZipInfo(shipped_name(digest), _EPOCH)
            entry.external_attr, entry.compress_type = _PLAIN_FILE, zipfile.ZIP_DEFLATED
            archive.writestr(entry, seal(digest, compiler.compile(sources[digest].text, sources[digest].entry)))
    return len(sources)


def standard_requests(path: Path = MANIFEST) -> list[KernelRequest]:
    """Return the listed kernels."""
    return [_decode(row) for row in json.loads(path.read_text(encoding="utf-8"))]


def write_requests(requests: Iterable[KernelRequest], path: Path = MANIFEST) -> None:
    """Write the list, sorted and one request a line, for readable diffs."""
    rows = sorted(json.dumps(_encode(r), separators=(",", ":")) for r in requests)
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def _encode(r: KernelRequest) -> list[Any]:
    args = [_encode_arg(a) for a in r.args]
    row = [r.template, r.variant, args, r.ints, r.floats, _encode_steps(r.steps), r.steps_on]
    if r.loaded or r.second_outputs or r.gate:
        row += [_encode_steps(r.loaded), r.loaded_on]
    if r.second_outputs or r.gate:
        row.append(r.second_outputs)
    return [*row, _encode_steps(r.gate)] if r.gate else row


def _decode(row: list[Any]) -> KernelRequest:
    template, variant, args, ints, floats, steps, steps_on, *more = row
    absent: list[Any] = [[], "", [], []]
    loaded, loaded_on, seconds, gate = more + absent[len(more) :]
    return KernelRequest(
        template,
        tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in variant),
        tuple(_decode_arg(*arg) for arg in args),
        tuple(ints),
        tuple(floats),
        _decode_steps(steps),
        steps_on,
        _decode_steps(loaded),
        loaded_on,
        tuple((number, name) for number, name in seconds),
        _decode_steps(gate),
    )


def _encode_steps(steps: Iterable[StepText]) -> list[Any]:
    return [[s.expr, [[o.kind, o.name] for o in s.operands]] for s in steps]


def _decode_steps(rows: list[Any]) -> tuple[StepText, ...]:
    return tuple(StepText(expr, tuple(Operand(kind, name) for kind, name in operands)) for expr, operands in rows)


_DOUBLE = "double"
"""What the list calls float64 where kernels compute with it."""


def _encode_arg(arg: Arg) -> list[Any]:
    row = [arg.name, _DOUBLE if arg.double else arg.dtype.value, arg.kind, int(arg.written)]
    if arg.through is not None:
        row += [int(arg.through.in_fours), *("".join("dh"[shifted] for shifted in s) for s in arg.through.stages)]
    return row


def _decode_arg(name: str, dtype: str, kind: ArgKind, written: int, in_fours: int = 0, *stages: str) -> Arg:
    through = Through(tuple(tuple(axis == "h" for axis in s) for s in stages), bool(in_fours)) if stages else None
    double = dtype == _DOUBLE
    return Arg(name, DType.FLOAT64 if double else DType(dtype), kind, bool(written), through, double)
