"""What a caller hands to a session: input arrays, shapes, and arrays for the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.graph import Graph
from weft.core.layout import Array, Shape
from weft.core.tensor import TensorSpec
from weft.errors import InputError

Outputs = Sequence["Array | None"] | Mapping[str, "Array | None"]
MOST_WORK = 10_000
"""Effort to find out whether two arrays share memory, some milliseconds; where that is not enough they do."""


def take_inputs(graph: Graph, inputs: Sequence[Any]) -> dict[str, Array]:
    """Return the input arrays by name, in the network's element types; InputError lists all that do not fit.

    `inputs` are arrays in order, or one mapping by name. Numbers are converted where no value is lost but
    digits: integers to floats, one float to another, an integer to a type that holds it.
    """
    names = graph.inputs
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        given = dict(inputs[0])
    elif len(inputs) == len(names):
        given = dict(zip(names, inputs, strict=True))
    else:
        shown = ", ".join(f"{n!r}: {graph.specs[n]}" for n in names) or "none"
        raise InputError(f"{len(inputs)} input(s) were given", why=f"the network has {len(names)}: {shown}")
    problems = [f"{n!r} is missing" for n in names if n not in given]
    known = set(names)
    problems += [f"there is no input {n!r}" for n in given if n not in known]
    arrays: dict[str, Array] = {}
    for name in names:
        if name in given:
            array, problem = _fitted(given[name], graph.specs[name].dtype)
            arrays[name] = array
            problems += [f"{name!r} {problem}"] if problem else []
    if problems:
        wanted = ", ".join(f"{n!r}: {graph.specs[n]}" for n in names) or "nothing"
        raise InputError("the inputs do not fit the network", why="; ".join(problems), fix=f"give {wanted}")
    return arrays


def _fitted(value: Any, dtype: DType) -> tuple[Array, str]:
    """Return the value as an array of the type, and what is wrong with it."""
    try:
        array = np.asarray(value)
    except ValueError as e:
        return np.empty(0), f"is not an array ({e})"
    want = dtype.numpy
    if array.dtype == want:
        return array, ""
    wrong = f"has element type {array.dtype} and {want} is needed"
    kinds = array.dtype.kind + want.kind
    if array.dtype.kind not in "iuf" or kinds not in ("ff", "if", "uf", "ii", "iu", "ui", "uu"):
        return array, wrong
    if want.kind in "iu" and array.size:
        limits = np.iinfo(want)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            return array, f"{wrong}, which does not hold all of its values"
    with np.errstate(over="ignore"):
        converted: Array = array.astype(want)
    if want.kind == "f" and bool(np.any(np.isinf(converted) & np.isfinite(array))):
        return array, f"{wrong}, which does not hold all of its values"
    return converted, ""


def take_shape(name: str, shape: Any) -> Shape:
    """Return a shape as a tuple of ints; InputError if it is none."""
    try:
        dims = tuple(shape)
        whole = tuple(int(d) for d in dims)
    except (TypeError, ValueError):
        dims, whole = (), (-1,)
    if dims != whole or min(whole, default=0) < 0:
        raise InputError(
            f"{shape!r} is not a shape for {name!r}",
            why="a shape is a tuple of sizes, each an integer from 0 on",
            fix="write, for instance, (1, 3, 224, 224)",
        )
    return whole


def take_shapes(shapes: Any) -> dict[str, Shape]:
    """Return shapes by input name; InputError if it is no such mapping."""
    if not isinstance(shapes, Mapping):
        raise InputError(f"{shapes!r} is not a dict of shapes", fix="pass {name: shape}: {'x': (1, 3, 224, 224)}")
    return {name: take_shape(name, shape) for name, shape in shapes.items()}


def take_outputs(
    names: Sequence[str], specs: Mapping[str, TensorSpec], outputs: Outputs | None
) -> list[Array | None]:
    """Return the caller's array for each output, or None; InputError lists all that do not fit."""
    if outputs is None:
        return [None] * len(names)
    problems: list[str] = []
    if isinstance(outputs, Mapping):
        known = set(names)
        problems = [f"there is no output {n!r}" for n in outputs if n not in known]
        given = [outputs.get(n) for n in names]
    else:
        if isinstance(outputs, np.ndarray):
            raise InputError(
                "a bare array was given for the outputs",
                why="its elements would be taken for one output each",
                fix="put it in a list: outputs=[array]",
            )
        given = list(outputs)
        if len(given) != len(names):
            raise InputError(
                f"{len(given)} array(s) were given for the outputs",
                why=f"the network has {len(names)}: {', '.join(names)}",
                fix="give one for each, None where there is none",
            )
    for name, array in zip(names, given, strict=True):
        problem = _misfit(array, specs[name])
        if problem:
            problems.append(f"{name!r} needs a writable array {specs[name]}; given is {problem}")
    if not problems:
        problems = list(_shared(names, given))
    if problems:
        wanted = ", ".join(f"{n!r}: {specs[n]}" for n in names)
        raise InputError(
            "the arrays for the outputs do not fit",
            why="; ".join(problems),
            fix=f"give writable arrays apart from each other, or None: {wanted}",
        )
    return given


def _misfit(array: Any, spec: TensorSpec) -> str:
    if array is None:
        return ""
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__}"
    if array.dtype != spec.dtype.numpy or array.shape != spec.dims:
        return f"{array.dtype}[{'x'.join(map(str, array.shape))}]"
    if not array.flags.writeable:
        return "a read-only one"
    repeated = any(size > 1 and not step for size, step in zip(array.shape, array.strides, strict=True))
    return "one whose elements share memory" if repeated and array.size else ""


def _shared(names: Sequence[str], given: Sequence[Array | None]) -> Iterator[str]:
    """Say which outputs would write to each other's memory; one value that is named twice may have one array."""
    pieces = [(*_extent(a), k) for k, a in enumerate(given) if a is not None and a.size]
    open_pieces: list[tuple[int, int]] = []
    for begin, end, k in sorted(pieces):  # thousands of outputs: only arrays whose extents meet are compared
        open_pieces = [(high, j) for high, j in open_pieces if high > begin]
        for _, j in sorted(open_pieces, key=lambda piece: piece[1]):
            a, b = given[j], given[k]
            assert a is not None and b is not None
            shared = np.may_share_memory(a, b, max_work=MOST_WORK)  # type: ignore[arg-type]  # any effort may be given
            if shared and not (names[j] == names[k] and a is b):
                name, other = names[min(j, k)], names[max(j, k)]
                yield f"{name!r} and {other!r} need arrays of their own; those given share memory"
        open_pieces.append((end, k))


def _extent(array: Array) -> tuple[int, int]:
    """Return the first address that an array may touch, and the one behind the last."""
    reach = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    begin = array.__array_interface__["data"][0]
    return begin + sum(min(r, 0) for r in reach), begin + sum(max(r, 0) for r in reach) + array.itemsize
