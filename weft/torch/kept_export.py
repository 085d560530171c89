"""Exported models in files, so that a second start need not export again: `weft.torch.compile(..., cache=path)`.

A file has the graph without the model's weights, and a key: a digest of everything that the export followed from, as
far as it can be seen. That are the code of all modules that are imported, the classes and attributes of the model's
modules, the shapes of its weights, and the example. What else a forward reads, such as a global variable that the
program sets, is not in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch.utils import _pytree as trees

from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import TensorSpec
from weft.core.saved.archive import MANIFEST, array_name, open_archive, write_archive
from weft.core.saved.codec import Decoder, Encoder, npy_header, parse_npy, parse_spec, spec_json
from weft.core.saved.network_file import weft_version
from weft.errors import WeftError
from weft.frontends.torch.exported import Translated

log = logging.getLogger("weft.torch")
FORM = 1
"""Of the file."""
MOST_NESTED = 12
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.memory_format)
_HELD_APART = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class NoKey(Exception):
    """Raised where the model holds what cannot be told from another of its kind; the text says what."""


def key_of(model: torch.nn.Module, example: Any, dynamic_shapes: Any) -> str:
    """Return the key of an export; NoKey if there is none."""
    digest = hashlib.sha256()
    for each in _facts(model, example, dynamic_shapes):
        digest.update(repr(each).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _facts(model: torch.nn.Module, example: Any, dynamic_shapes: Any) -> Iterator[object]:
    yield FORM, weft_version(), torch.__version__, sys.version, torch.get_default_dtype()
    yield from _sources()
    for name, module in model.named_modules(remove_duplicate=False):
        yield name, _class(type(module)), [
            (key, _told(value)) for key, value in sorted(vars(module).items()) if key not in _HELD_APART
        ]
    places: dict[int, int] = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        yield name, str(tensor.dtype), tuple(tensor.shape), places.setdefault(id(tensor), len(places))
    leaves, tree = trees.tree_flatten(example)
    yield str(tree), [
        (str(x.dtype), tuple(x.shape)) if isinstance(x, torch.Tensor) else _told(x) for x in leaves
    ]
    yield repr(dynamic_shapes)


def _sources() -> Iterator[object]:
    """Yield path, size and time of the files of imported modules, but for Python's own and PyTorch's."""
    own = tuple(os.path.join(p, "") for p in {sysconfig.get_path("stdlib"), os.path.dirname(torch.__file__)})
    site = tuple(os.path.join(p, "") for p in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    for file in sorted(f for f in files if isinstance(f, str)):
        if not file.startswith(own) or file.startswith(site):
            try:
                status = os.stat(file)
            except OSError:
                continue
            yield file, status.st_size, status.st_mtime_ns


def _class(kind: type) -> str:
    if kind.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise NoKey(f"{kind.__qualname__} is defined in no file")
    return f"{kind.__module__}.{kind.__qualname__}"


def _told(value: Any, depth: int = 0) -> object:
    """Return a value as what tells it from others; NoKey for what cannot be told."""
    if depth > MOST_NESTED:
        raise NoKey("attributes lie in each other too deep")
    if isinstance(value, Enum):
        return _class(type(value)), value.name
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(content).hexdigest()
    if isinstance(value, torch.nn.Module):
        return "module", _class(type(value))  # it is among the model's own
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, Mapping):
        return _class(type(value)), [(_told(k, depth + 1), _told(v, depth + 1)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return _class(type(value)), sorted(map(repr, (_told(v, depth + 1) for v in value)))
    if isinstance(value, Sequence):
        return _class(type(value)), [_told(v, depth + 1) for v in value]
    if isinstance(value, partial):
        return "partial", [_told(part, depth + 1) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, MethodType):
        return "method", [_told(part, depth + 1) for part in (value.__func__, value.__self__)]
    if isinstance(value, FunctionType):
        with_it = value.__closure__ or (), value.__defaults__, value.__kwdefaults__
        return value.__module__, value.__qualname__, _code(value.__code__), _told(with_it, depth + 1)
    if isinstance(value, CellType):
        try:
            return "cell", _told(value.cell_contents, depth + 1)
        except ValueError:
            return "empty cell"
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (type, ModuleType, NoneType)):
        return value.__module__, value.__qualname__
    if not callable(value) and hasattr(value, "__dict__"):
        return _class(type(value)), _told(vars(value), depth + 1)
    raise NoKey(f"a {type(value).__qualname__} cannot be told from another")


def _code(code: CodeType) -> object:
    """Return what a function does: two lambdas of one function have the same name."""
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return code.co_code.hex(), code.co_names, constants


def keep(path: Path, key: str, made: Translated, in_tree: Any, out_tree: Any) -> None:
    """Write an export to a file; if that cannot be, say so in the log."""
    try:
        encoder = Encoder()
        manifest = {
            "key": key, "graph": encoder.graph(made.graph), "weights": made.weights, "changed": made.changed,
            "results": made.results, "given": made.given, "in": trees.treespec_dumps(in_tree),
            "out": trees.treespec_dumps(out_tree),
            "arrays": [spec_json(TensorSpec(a.shape, DType.of(a.dtype))) for a in encoder.arrays],
        }
        text = json.dumps(manifest).encode()
        arrays = [
            (array_name(k), npy_header(DType.of(a.dtype), a.shape) + a.tobytes())
            for k, a in enumerate(encoder.arrays)
        ]
        write_archive(path, [(MANIFEST, text), *arrays])
    except Exception as e:  # PyTorch's trees raise anything for classes that cannot be written
        log.info("the export is not kept in %s: %s", path, e)


def find(path: Path, key: str) -> tuple[Translated, Any, Any] | None:
    """Return what a file keeps, with the trees of the call and of its result; None if it is of another key."""
    try:
        with open_archive(path) as archive:
            held = json.loads(archive.read(MANIFEST))
            if held["key"] != key:
                return None
            arrays = [parse_npy(archive.read(array_name(k)), parse_spec(s)) for k, s in enumerate(held["arrays"])]
        graph = Decoder(arrays.__getitem__, lambda _: b"", lambda _: None).graph(held["graph"])
        results = [(kind, which) for kind, which in held["results"]]
        given = [(name, value) for name, value in held["given"]]
        made = Translated(graph, held["weights"], held["changed"], results, given)
        return made, trees.treespec_loads(held["in"]), trees.treespec_loads(held["out"])
    except (WeftError, OSError, ValueError, LookupError, TypeError) as e:
        log.info("%s keeps no export: %s", path, e)
        return None
