"""Check what a caller passes to a session: input arrays, shapes, and arrays for the outputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from weft.core.buffers.buffer import Buffer
from weft.core.contract.check_answers import shown
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array, Shape, address_of
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.host.dlpack import SharedArray, host_array, is_foreign, why_not_shared
from weft.core.host.fitted import fit_array, is_masked_array
from weft.errors import InputError, listing

Input: TypeAlias = "Array | Buffer | SharedArray"
Target: TypeAlias = "Array | Buffer | SharedArray | type[Buffer] | None"
Outputs: TypeAlias = "Sequence[Target] | Mapping[str, Target] | type[Buffer]"
Given: TypeAlias = "Array | Buffer"
"""What runs read inputs from and leave outputs in."""
MOST_WORK = 10_000
"""Effort to find out whether two arrays share memory: some milliseconds; after it, they count as sharing it."""
MOST_LISTED = 8
"""Inputs that an error lists."""
Forms = Sequence[tuple[str, np.dtype[Any], Shape]]
"""The name, element type and shape of each array that a plan takes as it comes, for inputs or outputs, in order."""


def take_inputs(graph: Graph, inputs: Sequence[Any], *, keep_half: bool = False) -> dict[str, Any]:
    """Return the input arrays by name, in the network's element types; InputError lists all that do not fit.

    `inputs` are arrays in order, or one mapping by name; where an input is a sequence or an optional, a list, or None.
    Buffers of these types stay as they are.
    Numbers are converted if that only rounds them: integers to floats, floats to other floats, and integers to an
    integer type that holds their values. With `keep_half`, an fp16 array for an fp32 input stays as it is.
    """
    names = graph.inputs
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        given = dict(inputs[0])
    elif len(inputs) == len(names):
        given = dict(zip(names, inputs, strict=True))
    else:
        there = listing([f"{n!r}: {graph.specs[n]}" for n in names], ", ", most=MOST_LISTED) or "none"
        fix = "give them in this order, or one dict by name"
        if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
            fix = "a list counts as one input: write run(*arrays), or give one dict by name"
        why = "; ".join((f"the network has {len(names)}: {there}", *map(graph.no_input, sorted(graph.defaults))))
        raise InputError(f"{len(inputs)} input(s) were given", where=_place(graph), why=why, fix=fix)
    problems = [f"{n!r} is missing" for n in names if n not in given]
    known = set(names)
    problems += [graph.no_input(n) for n in given if n not in known]
    arrays: dict[str, Any] = {}
    for name in names:
        if name in given:
            spec, value = graph.specs[name], host_array(given[name])
            stays = keep_half and spec.dtype is DType.FLOAT32 and not isinstance(spec, SequenceSpec)
            if (stays and is_half(value)) or (isinstance(value, Buffer) and value.spec.dtype is spec.dtype):
                arrays[name] = value
                continue
            fitted = _fitted_sequence if isinstance(spec, SequenceSpec) else fit_array
            arrays[name], problem = fitted(value, spec.dtype)
            problems += [f"{name!r} {problem}"] if problem else []
    if problems:
        wanted = ", ".join(f"{n!r}: {graph.specs[n]}" for n in names) or "nothing"
        what, why = "the inputs do not fit the network", "; ".join(problems)
        raise InputError(what, where=_place(graph), why=why, fix=f"give {wanted}")
    return arrays


def take_planned(forms: Forms, inputs: Sequence[Any]) -> dict[str, Any] | None:
    """Return the inputs by name if they are plain arrays or buffers of these forms; else None: see `take_inputs`.

    This is what most runs get. To look for everything that may be wrong takes longer than to copy a small input.
    """
    given = _planned(forms, inputs[0] if len(inputs) == 1 and type(inputs[0]) is dict else inputs)
    return None if given is None else {form[0]: array for form, array in zip(forms, given, strict=True)}


def take_planned_outputs(forms: Forms, outputs: Outputs) -> list[Any] | None:
    """Return the caller's arrays for the outputs in order if they are plain, of these forms and apart from each other.

    Else None, and `take_outputs` tells more; see `take_planned`. So it is with several outputs if one is for a buffer.
    """
    given = _planned(forms, outputs)
    if given is None:
        return None
    for array in given:
        if array.__class__ is Buffer:
            if len(given) > 1 or not array.is_writable:
                return None
        elif not (array.flags.c_contiguous and array.flags.writeable):
            return None
    if len(given) > 1:
        end = 0
        for begin, nbytes in sorted((address_of(array), array.nbytes) for array in given):
            if begin < end:
                return None
            end = begin + nbytes
    return list(given)


def _planned(forms: Forms, arrays: Any) -> Sequence[Any] | None:
    """Return plain arrays or buffers of these forms in order, given so or by name; None if they are anything else."""
    if type(arrays) is dict:
        named = arrays
        arrays = [named.get(name) for name, _, _ in forms] if len(named) == len(forms) else ()
    elif type(arrays) is not tuple and type(arrays) is not list:
        return None
    if len(arrays) != len(forms):
        return None
    for (_, dtype, shape), array in zip(forms, arrays, strict=True):
        if (type(array) is not np.ndarray and type(array) is not Buffer) or array.dtype != dtype:
            return None
        if array.shape != shape:
            return None
    found: Sequence[Any] = arrays
    return found


def host_outputs(outputs: Any) -> Any:
    """Return a caller's arrays for the outputs, with arrays of other libraries as numpy's; what was given if none is.

    What cannot be shared stays, and `take_outputs` tells why.
    """
    named = isinstance(outputs, Mapping)
    given = outputs.values() if named else outputs if isinstance(outputs, (list, tuple)) else ()
    for array in given:
        if type(array) is not np.ndarray and type(array) is not Buffer and is_foreign(array):
            break
    else:
        return outputs
    arrays = [host_array(array, writes=True) for array in given]
    return dict(zip(outputs, arrays, strict=True)) if named else arrays


def as_given(graph: Graph, outputs: Any, results: list[Any]) -> list[Any]:
    """Return the outputs of a run with the caller's own arrays, of whatever library, in the place of numpy's."""
    own = outputs if isinstance(outputs, Mapping) else dict(zip(graph.outputs, outputs, strict=True))
    return [
        own[name] if is_foreign(own.get(name)) else result
        for name, result in zip(graph.outputs, results, strict=True)
    ]


def is_half(value: Any) -> bool:
    """Tell whether something is a plain array of fp16, or a buffer."""
    if isinstance(value, Buffer):
        return value.dtype == np.float16
    return isinstance(value, np.ndarray) and value.dtype == np.float16 and not is_masked_array(value)


def half_outputs(graph: Graph, outputs: Any) -> frozenset[str]:
    """Return the outputs for which a caller gives fp16 arrays; `take_outputs` checks them."""
    if outputs is None:
        return frozenset()
    if isinstance(outputs, (list, tuple)):
        outputs = dict(zip(graph.outputs, outputs, strict=False))
    named = outputs if isinstance(outputs, Mapping) else {}
    return frozenset(name for name, array in named.items() if is_half(array))


def _fitted_sequence(value: Any, dtype: DType) -> tuple[Any, str]:
    """Return a list of arrays of the type, an array, or None for an optional that holds nothing; and what is wrong."""
    if value is None:
        return None, ""
    if not isinstance(value, (list, tuple)):
        return fit_array(value, dtype)
    fitted = [fit_array(each, dtype) for each in value]
    problems = [f"at place {k} {problem}" for k, (_, problem) in enumerate(fitted) if problem]
    return [array for array, _ in fitted], "; ".join(problems)


def _place(graph: Graph) -> str:
    return f"network {graph.name!r}" if graph.name else ""


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
    graph: Graph, specs: Mapping[str, TensorSpec], outputs: Outputs | None, *, narrowable: Container[str] = (),
    make: Callable[[str], Buffer] | None = None,
) -> list[Any]:
    """Return the caller's array or buffer for each output of a graph, or None; InputError lists all that do not fit.

    `specs` have the outputs' shapes as numbers. Those of `narrowable` may be float16, too, which an error tells. `make`
    makes buffers for the outputs for which the class was given; without it, the class stays.
    """
    names = graph.outputs
    if outputs is None:
        return [None] * len(names)
    if outputs is Buffer:
        outputs = [Buffer] * len(names)
    where = _place(graph)
    bare = isinstance(outputs, (np.ndarray, Buffer)) or is_foreign(outputs)
    if not (bare or isinstance(outputs, (Mapping, Sequence))) or isinstance(outputs, (str, bytes, bytearray)):
        raise InputError(
            f"outputs={shown(outputs)} holds no arrays",
            where=where,
            why="it is a list with an array for each output, None for those that are returned in new ones, or a dict",
            fix=f"give a list of {len(names)}, or a dict by name: {', '.join(names)}",
        )
    problems: list[str] = []
    if isinstance(outputs, Mapping):
        known = set(names)
        problems = [f"there is no output {n!r}" for n in outputs if n not in known]
        given: list[Any] = [outputs.get(n) for n in names]
    else:
        if bare:
            raise InputError(
                "a bare array was given for the outputs",
                where=where,
                why="its elements would be taken for one output each",
                fix="put it in a list: outputs=[array]",
            )
        given = list[Any](outputs)  # type: ignore[arg-type]  # the class was replaced
        if len(given) != len(names):
            raise InputError(
                f"{len(given)} array(s) were given for the outputs",
                where=where,
                why=f"the network has {len(names)}: {', '.join(names)}",
                fix="give one for each, None where there is none",
            )

    def wanted(name: str) -> str:
        spec = specs[name]
        return f"{spec} or float16" if name in narrowable and spec.dtype is DType.FLOAT32 else f"{spec}"

    for name, array in zip(names, given, strict=True):
        problem = "" if array is Buffer else _misfit(array, specs[name])
        if problem:
            problems.append(f"{name!r} needs a writable array {wanted(name)}; given is {problem}")
    if not problems:
        problems = list(_shared(names, given))
    if problems:
        every = ", ".join(f"{n!r}: {wanted(n)}" for n in names)
        raise InputError(
            "the arrays for the outputs do not fit",
            where=where,
            why="; ".join(problems),
            fix=f"give writable arrays apart from each other, or None: {every}",
        )
    if make is None:
        return given
    return [make(name) if array is Buffer else array for name, array in zip(names, given, strict=True)]


def _misfit(array: Any, spec: TensorSpec) -> str:
    if array is None:
        return ""
    if isinstance(array, Buffer):
        fits = (array.shape, array.spec.dtype) == (spec.dims, spec.dtype)
        return "" if fits and array.is_writable else f"{array!r}{', which is read-only' if fits else ''}"
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__} {why_not_shared(array, writes=True)}".rstrip()
    if is_masked_array(array):
        return "a MaskedArray, whose masked elements would stay masked: give its data (x.data)"
    if array.dtype != spec.dtype.numpy or array.shape != spec.dims:
        return f"{array.dtype}[{'x'.join(map(str, array.shape))}]"
    if not array.flags.writeable:
        return "a read-only one"
    return "one whose elements share memory" if overlaps_itself(array) else ""


def overlaps_itself(array: Array) -> bool:
    """Tell whether two elements of an array share bytes, as they can with strides made by hand."""
    axes = sorted((abs(step), size) for size, step in zip(array.shape, array.strides, strict=True) if size > 1)
    if not array.size or array.flags.forc:
        return False
    reach = array.itemsize  # bytes from the first of the axes so far to behind the last
    for step, size in axes:
        if step < reach:
            break
        reach += step * (size - 1)
    else:
        return False
    if not axes[0][0]:
        return True
    # Axes may interleave without a shared byte, so compare all addresses.
    places = np.zeros(1, np.int64)
    for step, size in axes:
        places = np.add.outer(places, np.arange(size, dtype=np.int64) * step).ravel()
    places.sort()
    return bool((np.diff(places) < array.itemsize).any())


def _shared(names: Sequence[str], targets: Sequence[Given | None]) -> Iterator[str]:
    """Yield a problem for each two outputs that share memory; a value that is named twice may have one array."""
    buffers = [(k, a) for k, a in enumerate(targets) if isinstance(a, Buffer)]
    for n, (j, one) in enumerate(buffers):
        for k, another in buffers[n + 1 :]:
            if one is another and names[j] != names[k]:
                yield f"{names[j]!r} and {names[k]!r} need buffers of their own"
    given = [None if one is None else _host(one) for one in targets]
    pieces = [(*_extent(a), k) for k, a in enumerate(given) if a is not None and a.size]
    open_pieces: list[tuple[int, int]] = []
    for begin, end, k in sorted(pieces):  # thousands of outputs: only arrays whose extents meet are compared
        open_pieces = [(high, j) for high, j in open_pieces if high > begin]
        for _, j in sorted(open_pieces, key=lambda piece: piece[1]):
            a, b = given[j], given[k]
            assert a is not None and b is not None
            shared = np.may_share_memory(a, b, max_work=MOST_WORK)  # type: ignore[arg-type]  # any effort may be given
            same = targets[j] is targets[k]
            if shared and not (same and (names[j] == names[k] or isinstance(targets[j], Buffer))):
                name, other = names[min(j, k)], names[max(j, k)]
                yield f"{name!r} and {other!r} need arrays of their own; those given share memory"
        open_pieces.append((end, k))


def apart(arrays: Mapping[str, Any], outputs: Outputs) -> dict[str, Any]:
    """Return the inputs of a run, copied where they may share memory with the arrays for its outputs.

    Buffers in the host's memory are arrays here; others are left to the run.
    """
    values: Any = outputs.values() if isinstance(outputs, Mapping) else () if outputs is Buffer else outputs
    given = [array for each in values if (array := _host(each)) is not None and array.size]
    if not given:
        return dict(arrays)
    targets = sorted(map(_extent, given))
    begins, ends = [begin for begin, _ in targets], list(accumulate((end for _, end in targets), max))

    def copied(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [copied(each) for each in value]
        array = _host(value)
        if array is None or not array.size:
            return value
        begin, end = _extent(array)
        before = bisect_left(begins, end)
        return array.copy() if before and ends[before - 1] > begin else value

    return {name: copied(value) for name, value in arrays.items()}


def _host(value: Any) -> Array | None:
    """Return an array, or that in whose memory a buffer is; None for others."""
    if isinstance(value, Buffer):
        return value.host
    return value if isinstance(value, np.ndarray) else None


def buffers_in(values: Sequence[Given | None]) -> bool:
    """Tell whether there are buffers for the outputs of a run."""
    for value in values:  # noqa: SIM110  (`any` of a generator makes more calls, and many runs ask)
        if value.__class__ is Buffer:
            return True
    return False


def hosted(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a run with copies on the host in the place of buffers."""
    return {name: value.numpy() if isinstance(value, Buffer) else value for name, value in inputs.items()}


def _extent(array: Array) -> tuple[int, int]:
    """Return the first address that an array can touch, and the address behind the last."""
    reach = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    begin = address_of(array)
    return begin + sum(min(r, 0) for r in reach), begin + sum(max(r, 0) for r in reach) + array.itemsize
