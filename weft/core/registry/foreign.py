"""What a model is that no front end reads, told by its first bytes, its files or its class, and the way from there.

Nothing of it is imported, unpacked or unpickled: files begin with bytes of their own, and ZIP archives list names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.errors import ModelError, brief, listing

HEAD, TAIL = 1 << 16, 1 << 18
"""How much of a file is looked at, from its start and its end."""
MOST_ENTRIES = 1000
"""How many names of a folder or an archive are looked at."""
MODELS = (".onnx", ".tflite")
"""How the names of models end that lie in folders and archives."""
SAVED_LIST = "network.json"
"""What only the archive of a network that Weft saved has in it."""

EXPORT = "torch.onnx.export(model.eval(), (example,), 'model.onnx', dynamo=True)"
AGAIN = "export the model that it was made from to ONNX"
WEIGHTS = "it has weights and no graph: export the model itself, as `optimum-cli export onnx --model NAME folder` does"
SOURCE = "name the ONNX file that it was made from"
UNPACK = "unpack it, and name the model in it"
KERAS = "keras.saving.load_model({name!r}).export('model.onnx', format='onnx')"
TF2ONNX = "pip install tf2onnx, then: python -m tf2onnx.convert {} --output model.onnx"


@dataclass(frozen=True)
class Foreign:
    """What a model is, "a TensorFlow Lite model", and the shortest way to one that Weft reads."""

    what: str
    fix: str

    def refusal(self, where: str, told_by: str = "its first bytes say so, whatever its name") -> ModelError:
        """Return the error for such a model; `where` is a path, or the kind of an object in brackets."""
        is_object = where.startswith("(")
        if self == EMPTY and is_object:
            fix = "pass what an ONNX file holds, Path(file).read_bytes(), or its path"
            return ModelError("the model has no bytes", where=where, why="the object is empty", fix=fix)
        name = "FILE" if is_object else Path(where).name
        fix = self.fix.replace("{name!r}", repr(name)).replace("{name}", name)
        return ModelError(f"this is {self.what}", where=brief(where), why=f"{told_by}; no front end reads it", fix=fix)


EMPTY = Foreign("an empty file", "get it again: it was not downloaded, or not written")
Test = Callable[[bytes], bool]


def _starts(*beginnings: bytes) -> Test:
    return lambda head: head.startswith(beginnings)


def _at(place: int, *texts: bytes) -> Test:
    return lambda head: head[place:].startswith(texts)


def _flatbuffer(identifier: bytes) -> Test:
    """Return a test for a FlatBuffer: the place of its root, below 65,536, and what it is."""
    return lambda head: head[2:4] == b"\0\0" and head[4:8] == identifier


def _text(*parts: bytes) -> Test:
    """Return a test for a text with one of these parts near its beginning."""
    return lambda head: any(part in head[:4096].lower() for part in parts) and b"\0" not in head[:4096]


def _is_safetensors(head: bytes) -> bool:
    return head[8:10] == b'{"' and 2 <= int.from_bytes(head[:8], "little") < 1 << 28


def _inside(head: bytes) -> bytes:
    """Return what is within the first message of a protobuf that has a number, then a message, then others in it."""
    if len(head) < 4 or head[0] != 0x08 or head[2] != 0x12:
        return b""
    at = 3
    while at < len(head) and head[at] & 0x80:
        at += 1
    return head[at + 1 : at + 64]


def _second(message: bytes) -> bytes:
    """Return what is within the first message of a message, b"" if it begins with something else."""
    at = 1
    while at < len(message) and message[at] & 0x80:
        at += 1
    return message[at + 1 :] if message[:1] == b"\x0a" else b""


def is_onnx(head: bytes) -> bool:
    """Tell whether bytes begin as exporters begin an ONNX model: with its version and then another field of it."""
    return len(head) > 2 and head[0] == 0x08 and 3 <= head[1] < 0x80 and head[2] in b"\x12\x1a\x22\x28\x32\x3a\x42"


_KINDS: tuple[tuple[Test, str, str], ...] = (
    (lambda head: not head, EMPTY.what, EMPTY.fix),
    (
        _starts(b"version https://git-lfs."),
        "a Git LFS pointer in the place of the model",
        "run `git lfs pull` in the repository, or download the file itself",
    ),
    (
        _text(b"<!doctype html", b"<html", b"<head>"),
        "a web page",
        "download the file itself: on Hugging Face its address has /resolve/ in the place of /blob/, on GitHub /raw/",
    ),
    (_text(b"<net name="), "an OpenVINO network", SOURCE),
    (_starts(b"<?xml"), "an XML file", AGAIN),
    (_flatbuffer(b"ORTM"), "a model in ONNX Runtime's own format", SOURCE),
    (_at(4, b"ET12"), "an ExecuTorch program", f"export the PyTorch module that it was made from: {EXPORT}"),
    (_starts(b"GGUF", b"lmgg", b"tjgg"), "a GGUF file", WEIGHTS),
    (_is_safetensors, "a safetensors file", WEIGHTS),
    (_starts(b"\x89HDF\r\n\x1a\n"), "an HDF5 file, as Keras writes it", KERAS),
    (
        _starts(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"),
        "a PyTorch checkpoint",
        f"load it into its module by torch.load, then: {EXPORT}",
    ),
    (
        lambda head: head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 2,
        "a Python pickle",
        "Weft unpickles nothing: load it with the program that wrote it, and export it to ONNX from there "
        f"(from PyTorch: {EXPORT}; from scikit-learn: skl2onnx)",
    ),
    (_starts(b"\x93NUMPY"), "an array of numpy", "give it to run as an input; a model is another file"),
    (_starts(b"ftrt", b"ptrt"), "a TensorRT engine", SOURCE),
    (_starts(b"\x1f\x8b"), "a file that gzip packed", "run gunzip, and name the model"),
    (_starts(b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c", b"Rar!"), "a packed file", UNPACK),
    (_at(257, b"ustar"), "a tar archive", UNPACK),
    (
        lambda head: _second(_inside(head))[:1] == b"\x0a" and head[1] < 0x20,
        "a Core ML model",
        AGAIN,
    ),
    (
        lambda head: head[:2] == b"\x08\x01" and _inside(head)[:1] == b"\x0a",
        "a TensorFlow SavedModel",
        TF2ONNX.format("--saved-model FOLDER") + " (the folder that it lies in)",
    ),
    (
        lambda head: head[:1] == b"\x0a" and any(op in head[:512] for op in (b"Placeholder", b"Const")),
        "a TensorFlow graph",
        TF2ONNX.format("--graphdef {name} --inputs NAME:0 --outputs NAME:0"),
    ),
    (_starts(b"7767517\n"), "an ncnn network", AGAIN),
    (
        _text(b"ir_version:"),
        "an ONNX model as text",
        "onnx.save(onnx.load({name!r}, format='textproto'), 'model.onnx')",
    ),
    (_text(b'"modeltopology"', b'"weightsmanifest"'), "a TensorFlow.js model", AGAIN),
    (lambda head: head.lstrip()[:1] == b"{" and b"\0" not in head, "a JSON file", "name the model itself"),
)


def recognise(head: bytes, tail: bytes = b"") -> Foreign | None:
    """Return what a file is, by its first bytes and, for archives, its last; None if that is not known."""
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive(_names_in(tail or head))
    return next((Foreign(what, fix) for test, what, fix in _KINDS if test(head)), None)


def _names_in(tail: bytes) -> list[str]:
    """Return the names that the list at the end of a ZIP archive has, as far as it lies in these bytes."""
    names: list[str] = []
    for entry in tail.split(b"PK\x01\x02")[1 : MOST_ENTRIES + 1]:
        length = int.from_bytes(entry[24:26], "little")
        names.append(entry[42 : 42 + length].decode(errors="replace"))
    return names


def _archive(names: Sequence[str]) -> Foreign:
    ends = {name.rpartition("/")[2] for name in names}
    if ends & {"serialized_exported_program.json", "archive_format"}:
        fix = "load it by PyTorch first: weft.load(torch.export.load({name!r}))"
        return Foreign("an exported program of PyTorch (torch.export)", fix)
    if "constants.pkl" in ends or any("/code/" in name for name in names):
        fix = "torch.onnx.export(torch.jit.load({name!r}), (example,), 'model.onnx', dynamo=False)"
        return Foreign("a TorchScript program", fix)
    if "data.pkl" in ends:
        return Foreign("a PyTorch checkpoint", f"load it into its module by torch.load, then: {EXPORT}")
    if {"config.json", "model.weights.h5"} <= ends:
        return Foreign("a Keras model", KERAS)
    if names and all(name.endswith(".npy") for name in names):
        return Foreign("an archive of numpy's arrays", "give them to run as inputs; a model is another file")
    if SAVED_LIST in ends:
        return Foreign("a network that Weft saved", "save the bytes to a file, and load that")
    models = [name for name in names if name.endswith(MODELS)]
    return Foreign("a ZIP archive" + (f" with {listing(models[:3], ', ')} in it" if models else ""), UNPACK)


def recognise_path(path: str | os.PathLike[str]) -> Foreign | None:
    """Return what a file or a folder is; None if that is not known, or it cannot be read."""
    try:
        if os.path.isdir(path):
            return _folder(Path(path))
    except (OSError, ValueError):
        return None
    ends = _ends(path)
    return None if ends is None else recognise(*ends)


def own_suffix(model: str | os.PathLike[str] | bytes | bytearray | memoryview) -> str:
    """Return ".onnx", ".tflite" or ".weft" if that is what a file or its bytes hold, whatever its name; else ""."""
    if isinstance(model, (str, os.PathLike)):
        head, tail = _ends(model) or (b"", b"")
    else:
        head, tail = bytes(memoryview(model)[:HEAD]), b""
    if head.startswith(b"PK"):
        return ".weft" if SAVED_LIST in _names_in(tail) else ""
    if head[4:8] == b"TFL3":
        return ".tflite"
    return ".onnx" if is_onnx(head) and not recognise(head, tail) else ""


def _ends(path: str | os.PathLike[str]) -> tuple[bytes, bytes] | None:
    """Return the first and the last bytes of a file; None if it is no regular one, or cannot be read."""
    try:
        # A pipe must not make us wait for its writer.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            head = file.read(HEAD)
            file.seek(max(status.st_size - TAIL, 0))
            return head, file.read(TAIL)
    except (OSError, ValueError):
        return None


def _folder(path: Path) -> Foreign:
    names = sorted(entry.name for entry, _ in zip(os.scandir(path), range(MOST_ENTRIES), strict=False))
    inner = path / "onnx"
    below = [f"onnx/{name}" for name in sorted(os.listdir(inner))[:MOST_ENTRIES]] if inner.is_dir() else []
    models = [name for name in (*names, *below) if name.endswith(MODELS)]
    if models:
        several = f" with {len(models)} models" if len(models) > 1 else " with a model"
        return Foreign(f"a folder{several}", f"name the file: {listing([str(path / m) for m in models[:5]], ' or ')}")
    if "saved_model.pb" in names:
        return Foreign("a TensorFlow SavedModel", TF2ONNX.format(f"--saved-model {path}"))
    if "Manifest.json" in names or "coremldata.bin" in names:
        return Foreign("a Core ML package", AGAIN)
    stems = [name.removesuffix(".xml") for name in names if name.endswith(".xml")]
    if any(f"{stem}.bin" in names for stem in stems):
        return Foreign("an OpenVINO network", SOURCE)
    if "config.json" in names:
        fix = f"run `optimum-cli export onnx --model {path} folder`, and name the file in that"
        return Foreign("a folder of Hugging Face's", fix)
    return Foreign("a folder without a model", "name a model's file")


def recognise_object(model: object) -> Foreign | None:
    """Return what an object is, by the names of its class and those that it derives from; None if not known."""
    names = [f"{each.__module__}.{each.__qualname__}" for each in type(model).__mro__]
    for begins, what, fix in _OBJECTS:
        if any(name.startswith(tuple(begins)) for name in names):
            return Foreign(what, fix)
    if isinstance(model, dict) and any(_package(value) == "torch" for value in list(model.values())[:8]):
        fix = f"it has weights and no graph: load it into its module, then: {EXPORT}"
        return Foreign("a dict of PyTorch's tensors", fix)
    return None


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]


_OBJECTS: tuple[tuple[Iterable[str], str, str], ...] = (
    (
        ("torch.jit.",),
        "a TorchScript module",
        "torch.onnx.export(model, (example,), 'model.onnx', dynamo=False), and load that file",
    ),
    (("torch.onnx.",), "an ONNX program of PyTorch", "load its model: weft.load(program.model_proto)"),
    (("torch.nn.modules.module.Module",), "a PyTorch module",
     f"weft.load(torch.export.export(model.eval(), (example,))); or {EXPORT}, and load that file"),
    (
        ("keras.", "tf_keras."),
        "a Keras model",
        "model.export('model.onnx', format='onnx'), and load that file",
    ),
    (("tensorflow.",), "an object of TensorFlow", "tf2onnx.convert.from_function or from_keras, and load its model"),
    (("onnx_ir.", "onnxscript.ir."), "a model of onnx_ir", "weft.load(onnx_ir.to_proto(model))"),
    (("onnxscript.",), "a function of onnxscript", "weft.load(function.to_model_proto())"),
    (("onnxruntime.",), "a session of ONNX Runtime", "load the file that it was made from"),
    (("onnx.onnx_ml_pb2.GraphProto", "onnx.GraphProto"), "an ONNX graph", "weft.load(onnx.helper.make_model(graph))"),
    (("sklearn.",), "an estimator of scikit-learn", "weft.load(skl2onnx.to_onnx(model, x[:1]))"),
)
