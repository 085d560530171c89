"""The arrays that a command feeds to a network: from files, or random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.cli.parsing import parse_shapes
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import OPEN_RANK, SequenceSpec, TensorSpec
from weft.core.session.state import state_pairs
from weft.errors import ConfigError, InputError, WeftError

if TYPE_CHECKING:
    from PIL import Image

SEED = 0
_PICTURE_CHANNELS = (1, 3)
_CUT_OFF = ("EOF: reading array", "Failed to read all data", "cannot reshape")
"""What numpy says of an array file that is cut off."""
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
"""pillow's modes of 16-bit grey pictures, which pillow itself would clip to 8 bits."""
_SHARE_OF_DEEP = 257
"""65535 / 255."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is done to a picture: channels in order or reversed, then (value - mean) * scale."""

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    bgr: bool = False

    @classmethod
    def parse(cls, mean: str, scale: str, bgr: bool) -> Preparation:
        """Return the preparation for `--mean 104,117,123 --scale 1/128 --bgr`."""
        return cls(_numbers(mean, "--mean"), _numbers(scale, "--scale"), bgr)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(Fraction(part.strip())) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        numbers = ()
    if len(numbers) not in _PICTURE_CHANNELS:
        raise ConfigError(
            f"{option} {text!r} is not one number or three",
            fix=f"write, for instance, {option} 127 or {option} 104,117,123; 1/128 is a number too",
        )
    return numbers


def collect(
    graph: Graph, shapes: Mapping[str, Shape], files: Mapping[str, str], how: Preparation
) -> tuple[dict[str, Array], list[str]]:
    """Return an array for every input of a network, and a remark on each that is not from a file."""
    _check_names(graph, [name for name in files if name not in graph.inputs])
    for name in graph.inputs:
        if isinstance(spec := graph.specs[name], SequenceSpec):
            raise InputError(
                f"the input {name!r} is a {spec}, and the commands give tensors",
                where=f"network {graph.name!r}",
                fix=f"run it from Python: weft.load(model).run({{{name!r}: [array, array]}})",
            )
    given = {name: _given(graph.specs[name], name, files[name], shapes, how) for name in graph.inputs if name in files}
    known = {**shapes, **{name: array.shape for name, array in given.items()}}
    filled = fill_shapes(graph, known)
    # Loading asks for the shapes of the arrays alone, and knows no sizes of dimensions that --shape names.
    bind(graph, filled)
    rng = np.random.default_rng(SEED)
    arrays, remarks = {}, []
    if how != Preparation() and all(Path(file).suffix.lower() == ".npy" for file in files.values()):
        remarks.append("--mean, --scale and --bgr do nothing here: no input is from a picture")
    remarks += said_of_guesses(graph, known)
    for name in graph.inputs:
        spec = TensorSpec(filled[name], graph.specs[name].dtype)
        try:
            arrays[name] = given[name] if name in given else _random(spec, rng)
        except MemoryError as e:
            raise MemoryError(f"for the input {name!r}: {e}") from None
        if name not in files:
            remarks.append(f"no --input for {name!r}: random numbers, {spec}, seed {SEED}")
    return arrays, remarks


def shaped(graph: Graph, given: Sequence[str] | None) -> tuple[Graph, dict[str, Shape]]:
    """Return the network with the sizes of dimensions that `--shape` names, and the shapes that it gives inputs."""
    shapes, names = parse_shapes(given), graph.symbols() - {OPEN_RANK}
    _check_names(graph, [name for name in shapes if name not in graph.inputs and name not in names])
    sizes = {name: shapes.pop(name) for name in [*shapes] if name not in graph.inputs}
    if not sizes:
        return graph, shapes
    for name, size in sizes.items():
        if len(size) != 1:
            raise ConfigError(
                f"--shape {name}={','.join(map(str, size))} gives a dimension {len(size)} sizes",
                why=f"{name!r} is no input: it is a dimension of {', '.join(_inputs_of(graph, name))}",
                fix=f"write one number, {_example(graph, name)}",
            )
    out = graph.copy()
    for name in graph.inputs:
        dims = (sizes[d][0] if isinstance(d, str) and d in sizes else d for d in graph.specs[name].shape)
        out.specs[name] = replace(graph.specs[name], shape=tuple(dims))
    return out, shapes


def without_state(graph: Graph, state: bool | Mapping[str, str]) -> Graph:
    """Return the network as callers see it, without the inputs and outputs that a session keeps as its state."""
    kept = state_pairs(graph, state)
    if not kept:
        return graph
    out = graph.copy()
    out.inputs = [name for name in graph.inputs if name not in kept]
    out.outputs = [name for name in graph.outputs if name not in kept.values()]
    return out


def _check_names(graph: Graph, unknown: Sequence[str]) -> None:
    """Raise InputError if there are names that the network does not know."""
    if not unknown:
        return
    dims = sorted(graph.symbols() - {OPEN_RANK})
    constant = [graph.no_input(name) for name in unknown if name in graph.defaults]
    why = f"its inputs are {', '.join(graph.inputs)}" if graph.inputs else "it has none"
    fix = "name one of these in --input and --shape" if graph.inputs else "leave --input and --shape out"
    raise InputError(
        f"the network has no input {', '.join(map(repr, unknown))}",
        why="; ".join((f"{why}, with the dimensions {', '.join(dims)}" if dims else why, *constant)),
        fix=f"{fix}, or a dimension: {_example(graph, dims[0])}" if dims else fix,
    )


def _inputs_of(graph: Graph, dim: str) -> list[str]:
    """Return the inputs that have a dimension of this name."""
    return [name for name in graph.inputs if dim in graph.specs[name].shape]


def _example(graph: Graph, dim: str) -> str:
    """Return both ways to give a dimension its size, as options."""
    name = _inputs_of(graph, dim)[0]
    whole = ",".join(str(d) if isinstance(d, int) else "2" if d == dim else "1" for d in graph.specs[name].shape)
    return f"--shape {dim}=2 or, for the whole shape of an input, --shape {name}={whole}"


def named_sizes(graph: Graph, given: Mapping[str, Shape]) -> dict[str, int]:
    """Return the sizes of the dimensions with a name that shapes of some inputs tell.

    Of two that contradict each other the first one counts here; `bind` says what is wrong.
    """
    sizes: dict[str, int] = {}
    for name in graph.inputs:
        for dim, size in zip(graph.specs[name].shape, given.get(name, ()), strict=False):
            if isinstance(dim, str) and dim != OPEN_RANK:
                sizes.setdefault(dim, size)
    return sizes


def said_of_guesses(graph: Graph, given: Mapping[str, Shape]) -> list[str]:
    """Return a remark on the dimensions whose sizes nothing tells, for which `fill_shapes` takes 1; else nothing."""
    sizes = named_sizes(graph, given)
    left = {name: [d for d in graph.specs[name].shape if isinstance(d, str) and d not in sizes and d != OPEN_RANK]
            for name in graph.inputs if name not in given}  # fmt: skip
    guessed = {name: dims for name, dims in left.items() if dims}
    if not guessed:
        return []
    those = "; ".join(f"{name} ({', '.join(dict.fromkeys(dims))})" for name, dims in guessed.items())
    example = _example(graph, next(iter(guessed.values()))[0])
    return [f"sizes that the model leaves open are taken as 1 for {those}; to change one, {example}"]


def fill_shapes(graph: Graph, given: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the given shapes, and for every other input one with the sizes that these tell, or else 1."""
    sizes = named_sizes(graph, given)
    filled = dict(given)
    if open_rank := [i for i in graph.inputs if graph.specs[i].has_open_rank and i not in given]:
        raise InputError(
            f"the model does not say how many dimensions {', '.join(map(repr, open_rank))} has",
            why="the shape of this input is not declared, so there is nothing to fill in",
            fix=f"give its shape, for instance --shape {open_rank[0]}=1,3,224,224, or its values by --input",
        )
    for name in graph.inputs:
        if name not in given:
            filled[name] = tuple(d if isinstance(d, int) else sizes.get(d, 1) for d in graph.specs[name].shape)
    return filled


def _given(spec: TensorSpec, name: str, file: str, shapes: Mapping[str, Shape], how: Preparation) -> Array:
    try:
        array = read(Path(file), TensorSpec(shapes.get(name, spec.shape), spec.dtype), how)
    except MemoryError as e:
        raise MemoryError(f"for the input {name!r}: {e}") from None
    if array.shape != shapes.get(name, array.shape):
        raise _contradiction(name, shapes[name], file, array.shape)
    return array


def _contradiction(name: str, shape: Shape, file: str, found: Shape) -> InputError:
    wanted, there = (",".join(map(str, sizes)) for sizes in (shape, found))
    return InputError(
        f"--shape and --input contradict each other for {name!r}",
        why=f"--shape {name}={wanted}, and {file} has the shape {there}",
        fix=f"leave --shape {name}={wanted} out, or give an array of that shape",
    )


def _random(spec: TensorSpec, rng: np.random.Generator) -> Array:
    """Return floats in 0..1 (complex ones too), integers of 0 and 1."""
    shape, dtype = spec.dims, spec.dtype.numpy
    try:
        if spec.dtype.is_integer or spec.dtype is DType.BOOL:
            bits = rng.integers(0, 2, shape, np.int8)
            return bits.view(dtype) if dtype.itemsize == 1 else bits.astype(dtype)
        numbers = rng.random(shape, np.float32 if dtype.itemsize <= 4 else np.float64)
    except ValueError as e:  # the shape has more dimensions or elements than numpy can hold
        raise MemoryError(f"no array has the shape {shape}: {e}") from None
    return numbers.astype(dtype, copy=False)


def read(path: Path, spec: TensorSpec, how: Preparation) -> Array:
    """Return the array in a .npy file, or a picture as the network's input."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", fix="name one of its files in --input")
    if not path.is_file():
        raise InputError(f"there is no file {path}", fix="check --input")
    if path.suffix.lower() == ".npz":
        raise InputError(
            f"{path} is an archive of arrays, and an input is one", fix="save one array with numpy.save, as .npy"
        )
    if path.suffix.lower() == ".npy":
        try:
            # Unlike numpy.load, this raises one error for whatever is no array, an empty file too.
            with path.open("rb") as file:
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        except ValueError as e:
            if str(e).startswith(_CUT_OFF):
                raise InputError(f"{path} is cut off", why=str(e), fix="copy or write the file once more") from None
            raise InputError(f"{path} is not an array", why=str(e), fix="write it with numpy.save") from None
        except OSError as e:
            raise _unreadable(path, e) from None
    return _picture(path, spec, how)


def _unreadable(path: Path, error: OSError) -> InputError:
    why = error.strerror or str(error)
    return InputError(f"{path} cannot be read", why=why, fix="check its permissions, or name another in --input")


def _picture(path: Path, spec: TensorSpec, how: Preparation) -> Array:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ConfigError(
            "pictures cannot be read",
            where=str(path),
            why="pillow is not installed",
            fix="pip install pillow",
        ) from None
    axis = _channel_axis(spec.shape, path)
    height, width = (spec.shape[a] for a in range(-3, 0) if a != axis)
    channels = 1 if spec.shape[axis] == 1 else 3
    try:
        with Image.open(path) as opened:
            picture = _in_bytes(opened, path, channels == 1)
    except (WeftError, MemoryError):
        raise
    except Exception as e:  # pillow raises errors of many kinds for damaged content
        raise _no_picture(path, e, isinstance(e, UnidentifiedImageError)) from None
    size = (
        width if isinstance(width, int) else picture.width,
        height if isinstance(height, int) else picture.height,
    )
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, np.float32).reshape(size[1], size[0], -1)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], channels))
    return _arrange(pixels, spec, axis, how)


def _no_picture(path: Path, error: Exception, unknown: bool) -> InputError:
    if isinstance(error, OSError) and error.errno is not None:  # errors of the content have no errno
        return _unreadable(path, error)
    if unknown:
        what, fix = f"{path} is neither a picture nor a .npy file", "name one of these in --input"
    else:
        what, fix = f"the picture {path} is damaged or cut off", "copy or write the file once more"
    return InputError(what, why=str(error), fix=fix)


def _in_bytes(opened: Image.Image, path: Path, grey: bool) -> Image.Image:
    """Return a picture with values in 0..255; a 16-bit grey one as one channel of floats."""
    from PIL import Image

    if opened.mode in _DEEP:
        return Image.fromarray(np.asarray(opened).astype(np.float32) / _SHARE_OF_DEEP)
    if opened.mode in ("I", "F"):
        raise InputError(
            f"the range of the picture {path} is not known",
            why=f"its values are {'integers' if opened.mode == 'I' else 'floats'} of 32 bits",
            fix="save it with 8 or 16 bits, or prepare the array yourself and pass it as a .npy file",
        )
    return opened.convert("L" if grey else "RGB")


def _channel_axis(shape: Sequence[int | str], path: Path) -> int:
    """Return where an input of this shape has its channels: -3 or -1."""
    if len(shape) in (3, 4):
        for axis in (-3, -1):
            if shape[axis] in _PICTURE_CHANNELS:
                return axis
    raise InputError(
        f"{path} does not fit the input",
        why=f"an input for a picture has 1 or 3 channels, (n, c, h, w) or (n, h, w, c); this one is {tuple(shape)}",
        fix="prepare the array yourself and pass it as a .npy file, or give its --shape",
    )


def _arrange(pixels: Array, spec: TensorSpec, axis: int, how: Preparation) -> Array:
    """Return pixels (h, w, c) in 0..255, prepared and laid out as the input wants them."""
    if how.bgr:
        pixels = pixels[..., ::-1]
    pixels = (pixels - np.array(how.mean, np.float32)) * np.array(how.scale, np.float32)
    array = np.moveaxis(pixels, -1, 0) if axis == -3 else pixels
    if len(spec.shape) == 4:
        count = spec.shape[0] if isinstance(spec.shape[0], int) else 1
        array = np.repeat(array[None], count, axis=0)
    if spec.dtype is DType.UINT8:
        array = array.round().clip(0, 255)
    return np.ascontiguousarray(array, spec.dtype.numpy)
