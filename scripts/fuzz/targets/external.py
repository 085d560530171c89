"""External data: what a model says of the files beside it, and what is in their place."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from scripts.fuzz.mutate import NUMBERS, change_bytes
from scripts.fuzz.onnx_cases import networks
from scripts.fuzz.target import Finding, target
from scripts.fuzz.targets.onnx import OnnxTarget
from weft.errors import WeftError
from weft.frontends.onnx import load

SECRET = np.frombuffer(b"what lies outside of the folder\n" * 64, np.float32)
"""The content of a file outside the model's folder, which no model may read."""
LOCATIONS = (
    *("", ".", "..", "../secret", "sub/../../secret", "/etc/passwd", "sub", "\0", "weights.bin/", "./weights.bin"),
    *("sub/../weights.bin", "sub/here/more.bin", "link.bin", "sub/../../model/weights.bin"),
    *("sub//more.bin", "C:\\secret", "..\\secret", "n" * 5000, "\u2028"),
)


@target
class ExternalData(OnnxTarget):
    """Models whose weights are in files beside them."""

    name = "external-data"
    about = "models with weights in other files: entries, lengths, links, pipes, folders"

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write a model, its files, and files that it must not read."""
        inside = folder / "model"
        (inside / "sub").mkdir(parents=True)
        (folder / "secret").write_bytes(SECRET.tobytes())
        model = ModelProto()
        model.CopyFrom(draw.choice(networks()[:2]))
        content = bytearray()
        for tensor in model.graph.initializer:
            value = numpy_helper.to_array(tensor)
            if value.dtype.kind != "f":  # shapes, which ONNX Runtime accepts only inside the model
                continue
            content += b"\0" * draw.choice((0, 0, 0, 1, 8))
            location = draw.choice(("weights.bin", "weights.bin", "sub/more.bin"))
            entries = {"location": location, "offset": str(len(content)), "length": str(value.nbytes)}
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in entries.items():
                tensor.external_data.add(key=key, value=text)
            content += value.tobytes()
        for path in (inside / "weights.bin", inside / "sub" / "more.bin"):
            path.write_bytes(content)
        for _ in range(draw.choice((1, 1, 2, 3))):
            with suppress(OSError, ValueError, IndexError):  # an earlier change removed it
                self._change(model, inside, draw)
        (inside / "link.bin").symlink_to("weights.bin")
        (inside / "sub" / "here").symlink_to(draw.choice((".", ".", "..", "../..")))
        file = inside / "model.onnx"
        if draw.random() < 0.3:  # as a cache of blobs has it: the model and its data are links into one folder
            blobs = folder / "blobs"
            blobs.mkdir()
            file.symlink_to("../blobs/0")
            for k, path in enumerate((inside / "weights.bin", inside / "sub" / "more.bin")):
                if path.is_file() and not path.is_symlink():
                    path.rename(blobs / str(k + 1))
                    path.symlink_to(os.path.relpath(blobs / str(k + 1), path.parent))
        file.write_bytes(model.SerializeToString())

    @staticmethod
    def _change(model: ModelProto, inside: Path, draw: random.Random) -> None:
        tensor = draw.choice([t for t in model.graph.initializer if t.external_data])
        entry = draw.choice(tensor.external_data)
        path = draw.choice((inside / "weights.bin", inside / "sub" / "more.bin"))
        action = draw.randrange(9)
        if action in (5, 6) and not path.is_file():  # reading a pipe would wait for its writer
            return
        if action == 0:
            entry.value = draw.choice(LOCATIONS)
        elif action == 1:
            entry.value = draw.choice(
                (str(draw.choice(NUMBERS)), "", "1e3", " 4", "0x10", "\u0664", "9" * 400, "-0")
            )
        elif action == 2:
            entry.key = draw.choice(("location", "offset", "length", "checksum", "__class__", ""))
        elif action == 3:
            tensor.external_data.add(key=entry.key, value=draw.choice((entry.value, "weights.bin")))
        elif action == 4:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(NUMBERS[:-1])
        elif action == 5:
            path.write_bytes(change_bytes(path.read_bytes(), draw))
        elif action == 6:
            path.write_bytes(path.read_bytes()[: draw.randrange(64)])
        elif action == 7:
            tensor.data_type = draw.choice((1, 2, 6, 7, 9, 10, 11, 16, 99))
        else:  # another kind of file in its place
            path.unlink()
            kind = draw.randrange(9)
            if kind == 0:
                path.symlink_to("../secret" if path.parent == inside else "../../secret")
            elif kind == 1:
                os.link(inside.parent / "secret", path)
            elif kind == 2:
                os.mkfifo(path)
            elif kind == 3:
                path.mkdir()
            elif kind == 4:
                path.symlink_to(path.name)
            elif kind in (5, 6):  # a link that stays inside
                path.symlink_to("sub/more.bin" if path.parent == inside else "../weights.bin")
            elif kind == 7:
                path.symlink_to(draw.choice(("/etc/passwd", "/proc/self/environ", "sub", "link.bin", "..")))
            entry.value = draw.choice(LOCATIONS) if draw.random() < 0.2 else entry.value

    def check(self, folder: Path) -> str:
        """Return whether the model was refused or right; it must not contain what lies outside its folder."""
        inside = folder / "model"
        with suppress(WeftError):
            held = b"".join(c.tobytes() for c in load(inside / "model.onnx").constants.values())
            if b"outside of the folder" in held:
                raise Finding("a model read what lies outside of its folder", str(inside))
        return super().check(inside)
