"""Renders a Mako template and a request into a `KernelSource` in one language.

A template is the body of one kernel. It sees its arguments by name (`x.load("i")`, `y.store4(...)`), the
variant's values by name, and `k`, the writer: `k.shared(...)` declares work-group memory, `k.for_each` and
`k.for_groups` open the grid-stride loop and note what bounds it. Constants are written by their names. The argument's
store adds the epilogue, so templates need not know of it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.graph.dtypes import DType
from weft.core.host.disk_cache import DiskCache, hash_of
from weft.errors import CompileError, ConfigError
from weft.kernels.dialect import Dialect, KernelParts, View
from weft.kernels.formats import is_coded
from weft.kernels.index_map_text import place
from weft.kernels.output_maps import OUTPUT_MAPS, Pairs
from weft.kernels.shared_size import TYPE_BYTES, parse
from weft.kernels.source import (
    LOCAL_SIZE,
    SUBGROUP,
    Arg,
    ConstantKind,
    KernelCode,
    KernelSource,
    Shared,
    Trait,
    computes_double,
)

if TYPE_CHECKING:
    from mako.lookup import TemplateLookup

SHADERS = Path(__file__).parent.parent / "shaders"
_NAME = re.compile(r"[A-Za-z_]\w*")
LANES = ("x", "y", "z", "w")
PLACE = ("NS", "CS", "PS", "O", "C")
"""Constants named after a c4 argument. Strides in vectors: image to image, channel block to channel block, pixel to
pixel. Then the first vector, and the number of channels."""
LOADED = ("channel", "pixel")
"""The kinds of a prologue's operands that are arguments (`Operand`)."""
FACTS = ("code", "shared", "subgroup", "warpgroup", "bounds")
"""What a cache entry holds of a source; the rest follows from its request."""
Variant = tuple[tuple[str, str | int | bool | tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a step: the running value, an earlier one, a constant, or another argument.

    kind: "value", "earlier" (the variable that holds it), "float" (a constant's name), "beside" (of a gate, the second
    of its values), "same" (an argument at the stored place), "channel" (an argument with one element a channel),
    "pixel" (an argument with one pixel an image), "trailing" (an argument repeated over the leading axes), "inner"
    (such a one, each element of which is also repeated over the last axes).
    """

    kind: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class StepText:
    """One fused element-wise step: an expression of its operands, {0}, {1} ..."""

    expr: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """Everything that decides the text of a kernel; the values of its constants do not."""

    template: str
    variant: Variant
    args: tuple[Arg, ...]
    ints: tuple[str, ...]
    floats: tuple[str, ...] = ()
    steps: tuple[StepText, ...] = ()
    steps_on: str = ""
    """The argument whose stores get the steps."""
    loaded: tuple[StepText, ...] = ()
    """Steps on what is loaded of an argument."""
    loaded_on: str = ""
    """The argument, by `fetch4`, or values that the template computes, by `apply`, to which the steps are applied."""
    second_outputs: tuple[tuple[int, str], ...] = ()
    """The numbers of the steps before which the value is stored, too, and the arguments that get it."""
    gate: tuple[StepText, ...] = ()
    """Steps that make one value to store of two; there are no `steps` then."""


class _Elements:
    """How the elements of an argument are loaded and stored, in a dialect; those on a grid are converted."""

    def __init__(self, arg: Arg, dialect: Dialect) -> None:
        self._arg, self._dialect = arg, dialect

    def load(self, at: str) -> str:
        return self._number(self._dialect.load(self._arg, at))

    def load4(self, at: str) -> str:
        if self._arg.grid and self._arg.in_fours:
            return f"(four_of({self._arg.name}[{at}]) - (8388736.0 + {self._arg.name}_ZERO)) * {self._arg.name}_SCALE"
        return self._number(self._dialect.load4(self._arg, at))

    def load_lane(self, at: str, lane: str) -> str:
        if self._arg.grid:
            return self._number(f"TO_F32(TO_I32({self._arg.name}[{at}]) << (24 - 8 * ({lane})) >> 24)")
        return self._dialect.load_lane(self._arg, at, lane)

    def load_quad(self, at: str) -> str:
        return self._number(self._dialect.load_quad(self._arg, at))

    def store(self, at: str, value: str) -> str:
        stored = f"TO_I32({self._step(value)} << 24) >> 24" if self._arg.grid else value
        return self._dialect.store(self._arg, at, stored)

    def store4(self, at: str, value: str) -> str:
        """Return the statement that stores an f32x4; one on a grid must be a variable."""
        if not self._arg.grid:
            return self._dialect.store4(self._arg, at, value)
        return f"{self._arg.name}[{at}] = word_of({', '.join(self._step(f'{value}.{lane}') for lane in LANES)});"

    def store8(self, at: str, first: str, second: str) -> str:
        if self._arg.grid:
            words = [f"word_of({', '.join(self._step(f'{v}.{lane}') for lane in LANES)})" for v in (first, second)]
            return self._dialect.store_words(self._arg, at, *words)
        return self._dialect.store8(self._arg, at, first, second)

    def store_quad(self, at: str, value: str) -> str:
        if self._arg.grid:
            return " ".join(self.store(f"({at}) * 4 + {e}", f"{value}.{lane}") for e, lane in enumerate(LANES))
        return self._dialect.store_quad(self._arg, at, value)

    def _number(self, text: str) -> str:
        name = self._arg.name
        return f"(({text}) - {name}_ZERO) * {name}_SCALE" if self._arg.grid else text

    def _step(self, value: str) -> str:
        """Return the uint whose lowest byte is the integer for a number."""
        zero = f"{self._arg.name}_ZERO"
        least, most = f"-128.0 - {zero}", f"127.0 - {zero}"
        return f"(step_of({value}, {self._arg.name}_INVERSE, {least}, {most}) + TO_U32(TO_I32({zero})))"


class ArgWriter:
    """An argument as a template sees it; its methods return text in the kernel's language."""

    def __init__(self, arg: Arg, writer: Writer) -> None:
        self.arg, self._writer, self._dialect = arg, writer, writer.dialect
        self.name, self._elements = arg.name, _Elements(arg, writer.dialect)

    def _place(self, n: str, c4: str, hw: str) -> str:
        a = self.name
        return f"({n}) * {a}_NS + ({c4}) * {a}_CS + ({hw}) * {a}_PS + {a}_O"

    def _at(self, index: str) -> str:
        """Return the place of element `index` of a linear argument."""
        return index if self.arg.through is None else place(self.arg.through, self.name, index)

    def _at_four(self, index: str) -> str:
        """Return the place of vector `index`, in vectors, of an argument of which fours lie together."""
        return index if self.arg.through is None else f"{self._at(f'({index}) * 4')} / 4"

    def load(self, index: str) -> str:
        """Return element `index` of a linear argument."""
        return self._elements.load(self._at(index))

    def load4(self, n: str, c4: str, hw: str) -> str:
        """Return four channels of one pixel of a c4 argument."""
        return self._elements.load4(self._place(n, c4, hw))

    def fetch4(self, target: str, inside: str, n: str, c4: str, hw: str) -> str:
        """Return the statements that load four channels of one pixel of a c4 argument into a variable.

        The prologue is applied. Where `inside` is false, they load what is there to be loaded, and mean nothing.
        """
        line = f"{target} = {self.vector(f'{inside} ? {self.place4(n, c4, hw)} : 0')};"
        if not self.has_prologue():
            return line
        return f"{{ {line} {self.prologue_operands('', inside, n, c4)} {self.applied(target, '', c4)} }}"

    def has_prologue(self) -> bool:
        """Tell whether there are steps on what is loaded of this argument."""
        return self._writer.request.loaded_on == self.name

    def prologue_variables(self, tag: str) -> str:
        """Return the declarations of what `prologue_operands` then assigns, for templates that fetch ahead."""
        return " ".join(f"f32x4 _{name}{tag};" for name in self._loaded())

    def prologue_operands(
        self, tag: str, inside: str, n: str, c4: str, *, kinds: Sequence[str] = LOADED, declared: bool = False
    ) -> str:
        """Return the statements that load what the prologue reads besides, for four channels of image n.

        `tag` tells their variables from others, for `applied`. `kinds` limits them to constants ("channel"), which are
        the same for all images, or to values of each image ("pixel"). Where `inside` is false, they mean nothing.
        `declared`: `prologue_variables` has declared them.
        """
        lines = []
        for name, kind in self._loaded().items():
            if kind in kinds:
                operand, type_ = self._writer.args[name], "" if declared else "const f32x4 "
                place = operand.place4(n if kind == "pixel" else "0", c4, "0")
                lines.append(f"{type_}_{name}{tag} = {operand.vector(f'{inside} ? {place} : 0')};")
        return " ".join(lines)

    def applied(self, variable: str, tag: str, c4: str, pixel_tag: str = "") -> str:
        """Return the statements that apply the prologue to an f32x4 variable, four channels from block c4 on.

        `tag` is that of `prologue_operands`; values of each image may have another, `pixel_tag`.
        """
        request, lines = self._writer.request, []
        self._writer.loads.add(self.name)
        for s, step in enumerate(request.loaded):
            texts = []
            for o in step.operands:
                own = pixel_tag if o.kind == "pixel" and pixel_tag else tag
                known = {"value": variable, "earlier": o.name + variable, "float": o.name}
                texts.append(known.get(o.kind, f"_{o.name}{own}"))
            lines += _step_lines(request.loaded, s, "f32x4", variable, texts)
        # The lanes past the last channel are zeros, of which steps may make infinities or NaN.
        a, block = self.name, f"({c4}) * 4"
        rest = f"first_lanes({variable}, {a}_C - {block})"
        lines.append(f"if ({a}_C % 4 != 0 && {block} + 4 > {a}_C) {variable} = {rest};")
        return self._block(*lines)

    def _loaded(self) -> dict[str, str]:
        """Return the arguments that the prologue reads, each once, and their kinds."""
        operands = (o for step in self._writer.request.loaded for o in step.operands)
        return {o.name: o.kind for o in operands if o.kind in LOADED}

    def load1(self, n: str, c: str, hw: str) -> str:
        """Return one channel of one pixel of a c4 argument."""
        return self._elements.load_lane(self._place(n, f"({c}) / 4", hw), f"({c}) % 4")

    def place4(self, n: str, c4: str, hw: str) -> str:
        """Return the index of four channels of one pixel of a c4 argument, for templates of one language."""
        return self._place(n, c4, hw)

    def word(self, index: str) -> str:
        """Return the four int8 of vector `index` of a c4 argument on a grid as they lie in memory, as one `uint`."""
        return f"{self.name}[{self._at_four(index)}]"

    def vector(self, index: str) -> str:
        """Return vector `index` of a c4 argument or one in fours, counted from the start of its buffer."""
        return self._elements.load4(self._at_four(index))

    def store(self, index: str, value: str) -> str:
        """Store one element, with the epilogue."""
        lines = [f"const int _i = {index};", f"real _v = {value};"]
        for s, step in enumerate(self._steps()):
            texts = [self._scalar_operand(o, s, lines) for o in step.operands]
            lines += _step_lines(self._steps(), s, "real", "_v", texts, self._second_outputs())
        for arg, stored in ((self, "_v"), *self._second_values("")):
            # A narrower float than f32 would be rounded twice.
            narrow = self._writer.double and (arg.arg.dtype is DType.FLOAT16 or is_coded(arg.arg.dtype))
            lines.append(arg._elements.store(arg._at("_i"), f"odd_float({stored})" if narrow else stored))
        return self._block(*lines)

    def _block(self, *lines: str) -> str:
        """Return statements as a block; steps and element-wise nodes are computed as they are written.

        Elsewhere nothing says so: Intel's compiler takes the word for the whole kernel, whose sums of products then
        lose digits.
        """
        request = self._writer.request
        exact = self._steps() or request.loaded or request.gate or request.template.startswith("elementwise")
        return f"{{{self._dialect.exact_block if exact else ''} {' '.join(lines)} }}"

    def _scalar_operand(self, o: Operand, step: int, lines: list[str]) -> str:
        if o.kind == "value":
            return "_v"
        if o.kind in ("float", "earlier"):
            return o.name
        at = {"same": "_i", "inner": f"_i / {o.name}_EACH % {o.name}_SIZE"}.get(o.kind, f"_i % {o.name}_SIZE")
        lines.append(f"const real _{o.name}{step} = {self._writer.args[o.name].load(at)};")
        return f"_{o.name}{step}"

    def store4(self, n: str, c4: str, hw: str, value: str) -> str:
        """Store four channels of one pixel, with the epilogue; lanes past the last channel become zero."""
        if self._is_gated():
            pairs = f"({c4}) % 2 + 2 * ({self._place('_n', f'({c4}) / 2', '_p')})"
            self._writer.add_view(self._dialect.twos_view(self.arg))
            stored = self._dialect.store2(self.arg, pairs, "_v.x", "_v.y")
            return self._closed([*self._pixel(n, c4, hw), *self._gated4((value, value)), stored])
        lines = [*self._pixel(n, c4, hw), *self._finished(c4, value, "")]
        for arg, stored in ((self, "_v"), *self._second_values("_v")):
            lines.append(arg._elements.store4(arg._place("_n", "_c", "_p"), stored))
        return self._closed(lines)

    def _pixel(self, n: str, c4: str, hw: str) -> Sequence[str]:
        """Return the lines that name image _n and pixel _p of what is stored."""
        if self.arg.output_map:
            self._writer.mapped.add(self.name)
            return OUTPUT_MAPS[self.arg.output_map].pixel(self.name, n, c4, hw)
        return (f"const int _n = {n}; const int _p = {hw};",)

    def _closed(self, lines: Sequence[str]) -> str:
        closing = OUTPUT_MAPS[self.arg.output_map].closing if self.arg.output_map else ""
        return self._block(*lines, *([closing] if closing else ()))

    def store_vector(self, index: str, value: str) -> str:
        """Store vector `index` of an argument in fours, with the epilogue."""
        lines = [f"const int _i = {index}; f32x4 _v = {value};"]
        self._add_vector_steps(lines, "", "_v", "")
        for arg, stored in ((self, "_v"), *self._second_values("_v")):
            lines.append(arg._elements.store4(arg._at_four("_i"), stored))
        return self._block(*lines)

    def _add_vector_steps(self, lines: list[str], tag: str, v: str, c: str) -> None:
        for s, step in enumerate(self._steps()):
            texts = [self._vector_operand(o, f"{s}{tag}", v, c, lines) for o in step.operands]
            lines += _step_lines(self._steps(), s, "f32x4", v, texts, self._second_outputs())

    def store8(self, n: str, c4: str, hw: str, first: str, second: str) -> str:
        """Store eight contiguous channels of one pixel, from an even block on, with the epilogue."""
        if self._is_gated():
            stored = self._elements.store4(self._place("_n", f"({c4}) / 2", "_p"), "_v")
            return self._closed([*self._pixel(n, c4, hw), *self._gated4((first, second)), stored])
        lines = list(self._pixel(n, c4, hw))
        lines += [*self._finished(c4, first, ""), *self._finished(f"({c4}) + 1", second, "1")]
        lines.append(self._elements.store8(self._place("_n", "_c", "_p"), "_v", "_v1"))
        for tag in ("", "1"):  # second outputs need not begin at an even block
            for arg, stored in self._second_values(f"_v{tag}"):
                lines.append(arg._elements.store4(arg._place("_n", f"_c{tag}", "_p"), stored))
        return self._closed(lines)

    def store_gated(self, index: str, first: str, second: str) -> str:
        """Store one element of a linear argument, which the gate makes of two values."""
        lines = [f"const int _i = {index};", f"f32 _v = {first};", f"const f32 _beside = {second};"]
        self._add_gate(lines, "f32")
        return self._block(*lines, self._elements.store(self._at("_i"), "_v"))

    def _is_gated(self) -> bool:
        return self.arg.output_map == Pairs.name

    def _gated4(self, vectors: tuple[str, str]) -> list[str]:
        """Return the lines that compute `_v`, four values that the gate makes of two vectors of pairs."""
        lines = [f"const f32x4 _w{k} = {vector};" for k, vector in enumerate(dict.fromkeys(vectors))]
        last = len(lines) - 1
        for name, a, b in (("f32x4 _v", "x", "z"), ("const f32x4 _beside", "y", "w")):
            lines.append(f"{name} = F4(_w0.{a}, _w0.{b}, _w{last}.{a}, _w{last}.{b});")
        self._add_gate(lines, "f32x4")
        return lines

    def _add_gate(self, lines: list[str], kind: str) -> None:
        steps, suffix = self._writer.request.gate, "_v" if kind == "f32x4" else ""
        for s, step in enumerate(steps):
            known = {"value": "_v", "beside": "_beside"}
            texts = [known.get(o.kind, o.name + (suffix if o.kind == "earlier" else "")) for o in step.operands]
            lines += _step_lines(steps, s, kind, "_v", texts)

    def _finished(self, c4: str, value: str, tag: str) -> list[str]:
        """Return the lines that compute `_v<tag>`, the value to store as block `_c<tag>` of pixel _p of image _n."""
        v, c = f"_v{tag}", f"_c{tag}"
        block = OUTPUT_MAPS[self.arg.output_map].block(self.name, c4) if self.arg.output_map else c4
        lines = [f"const int {c} = {block}; f32x4 {v} = {value};"]
        self._add_vector_steps(lines, tag, v, c)
        a = self.name
        for each in (v, *(stored for _, stored in self._second_values(v))):
            lines.append(f"if ({a}_C % 4 != 0 && {c} * 4 + 4 > {a}_C) {each} = first_lanes({each}, {a}_C - {c} * 4);")
        return lines

    def _second_outputs(self) -> Mapping[int, str]:
        """Return the numbers of the steps before which the value is stored, and the arguments that get it."""
        return dict(self._writer.request.second_outputs) if self._steps() else {}

    def _second_values(self, variable: str) -> list[tuple[ArgWriter, str]]:
        """Return the arguments of the second outputs, and what holds their values; `variable` is "" for a scalar."""
        args, seconds = self._writer.args, self._second_outputs()
        return [(args[name], f"_before{number}{variable}") for number, name in seconds.items()]

    def _vector_operand(self, o: Operand, step: str, v: str, c: str, lines: list[str]) -> str:
        if o.kind == "value":
            return v
        if o.kind == "earlier":
            return o.name + v
        if o.kind == "float":
            return o.name
        operand = self._writer.args[o.name]
        if o.kind == "inner":
            text = f"SPLAT({operand.load(f'_i * 4 / {o.name}_EACH % {o.name}_SIZE')})"
        elif self.arg.kind == "fours":
            text = operand.vector("_i" if o.kind == "same" else f"_i % ({o.name}_SIZE / 4)")
        else:
            text = operand.load4(*(("_n", c, "_p") if o.kind == "same" else ("0", c, "0")))
        lines.append(f"const f32x4 _{o.name}_{step} = {text};")
        return f"_{o.name}_{step}"

    def has_steps(self) -> bool:
        """Tell whether there is an epilogue."""
        return bool(self._steps())

    def operands(self) -> list[Operand]:
        """Return the arguments that the epilogue reads, each once, for templates that load them in another way."""
        read = [o for step in self._steps() for o in step.operands if o.kind in ("same", "channel", "trailing")]
        return list(dict.fromkeys(read))

    def finish1(self, value: str, loaded: Mapping[str, str]) -> str:
        """Return the body of a function that applies the epilogue to one element and returns it, without storing it.

        `loaded` maps each argument of `operands` to the variable that holds its value at the element's place. Such a
        kernel stores no second outputs (`KernelBuilder.stores_second_outputs`).
        """
        assert not self._second_outputs()
        lines = [f"f32 _v = {value};"]
        names = {"": "_v", **loaded}  # the running value has no name, a constant its own
        for s, step in enumerate(self._steps()):
            texts = [names.get(o.name, o.name) for o in step.operands]
            lines += _step_lines(self._steps(), s, "f32", "_v", texts)
        return " ".join([self._dialect.exact_block, *lines, "return _v;"])

    def row_pitch(self, places: str) -> str:
        """Return the elements from pixel to pixel of a c4 argument whose pixels are rows, `places` in an image.

        It holds in NC4HW4 too, for images of one pixel, whose pixel stride means nothing.
        """
        return f"({self.name}_NS / {places} * 4)"

    def load_quad(self, index: str) -> str:
        """Return four elements of a linear argument, from 4 * `index` on; its rows start at multiples of four."""
        if self.arg.through is not None and not self.arg.through.in_fours:
            return f"F4({', '.join(self.load(f'({index}) * 4 + {e}') for e in range(4))})"
        self._writer.add_view(self._dialect.quad_view(self.arg))
        return self._elements.load_quad(self._at_four(index))

    def store_quad(self, index: str, value: str) -> str:
        """Store an f32x4 variable as four elements of a linear argument; there is no epilogue."""
        if self.arg.through is not None and not self.arg.through.in_fours:
            places = ((self._at(f"({index}) * 4 + {e}"), f"{value}.{lane}") for e, lane in enumerate(LANES))
            return f"{{ {' '.join(self._elements.store(at, lane) for at, lane in places)} }}"
        self._writer.add_view(self._dialect.quad_view(self.arg))
        return self._elements.store_quad(self._at_four(index), value)

    def store_int(self, index: str, value: str) -> str:
        """Store an i32 (a variable) as one element of an integer argument; there is no epilogue."""
        return self._dialect.store(self.arg, self._at(index), value)

    def load_index(self, index: str) -> str:
        """Return element `index`, an index or a limit, as i32, clamped to 32 bits."""
        return self._dialect.load_index(self.arg, self._at(index))

    def place_inside(self, index: str, size: str) -> str:
        """Return element `index` as an index on an axis of `size`; a negative one counts from the end; -1: outside."""
        return f"place_inside({self.load_index(index)}, {size})"

    def nearest_place(self, index: str, size: str) -> str:
        """Return element `index` as an index on an axis, clamped to it, so that nothing else is read."""
        return f"nearest_place({self.load_index(index)}, {size})"

    def load_high(self, index: str) -> str:
        """Return the upper 32 bits of element `index` of an integer argument, as i32; `load` returns the lower ones."""
        return self._dialect.load_high(self.arg, self._at(index))

    def store_pair(self, index: str, low: str, high: str) -> str:
        """Store an integer given as its lower and upper 32 bits (`uint` variables); there is no epilogue."""
        return self._dialect.store_pair(self.arg, self._at(index), low, high)

    def move(self, to: str, source: ArgWriter, at: str) -> str:
        """Store element `at` of another argument as element `to`, bit for bit."""
        return self._dialect.move(self.arg, self._at(to), source.arg, source._at(at))

    def _steps(self) -> tuple[StepText, ...]:
        request = self._writer.request
        return request.steps if request.steps_on == self.name else ()


def _step_lines(
    steps: Sequence[StepText],
    number: int,
    kind: str,
    variable: str,
    texts: Sequence[str],
    seconds: Collection[int] = (),
) -> list[str]:
    """Return the lines of one step on a variable; they keep the value before it if a later step or a store reads it.

    `seconds` are the numbers of the steps before which the value is stored as a second output.
    """
    step, name = steps[number], f"_before{number}"
    vector = kind == "f32x4"
    is_read = number in seconds or any(o.name == name for later in steps[number + 1 :] for o in later.operands)
    type_ = kind if number in seconds else f"const {kind}"
    lines = [f"{type_} {name}{variable if vector else ''} = {variable};"] if is_read else []
    if not vector:
        return [*lines, f"{variable} = {step.expr.format(*texts)};"]
    for lane in LANES:
        parts = [t if o.kind == "float" else f"{t}.{lane}" for t, o in zip(texts, step.operands, strict=True)]
        lines.append(f"{variable}.{lane} = {step.expr.format(*parts)};")
    return lines


@dataclass
class Writer:
    """What a template uses as `k`."""

    request: KernelRequest
    dialect: Dialect
    shared_arrays: list[Shared] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    macros: list[str] = field(default_factory=list)
    traits: list[Trait] = field(default_factory=list)
    subgroup: bool = False
    """Whether the kernel requires subgroups of SUBGROUP work-items."""
    warpgroup: bool = False
    """Whether the kernel needs four such subgroups together and their memory."""
    loads: set[str] = field(default_factory=set)
    """The arguments and values to which the template has applied a prologue."""
    mapped: set[str] = field(default_factory=set)
    """The arguments to which the template has stored sub-pixels."""
    bounds: set[str] = field(default_factory=set)
    """The constants that bound the loops in which items or groups share the work."""

    def __post_init__(self) -> None:
        self.args = {a.name: ArgWriter(a, self) for a in self.request.args}

    @property
    def double(self) -> bool:
        """Whether the kernel computes in float64."""
        return computes_double(self.request.args)

    @property
    def number(self) -> str:
        """The type that the kernel computes in, f32 or `real`, for text that must stay as it is where it is f32."""
        return "real" if self.double else "f32"

    def to_number(self, text: str) -> str:
        """Return an integer as a number of the type `number`."""
        return f"TO_{'REAL' if self.double else 'F32'}({text})"

    def shared(self, type_: str, name: str, size: str, align: int = 0) -> str:
        """Declare an array of work-group memory; only OpenCL C uses `align`, which is in bytes."""
        if type_ == "real":
            type_ = "double" if self.double else "f32"
        self.shared_arrays.append(Shared(type_, name, size, align))
        return ""

    def shared_number(self, array: str, index: str) -> str:
        """Return number `index` of an array of f32x4 in work-group memory, to assign to."""
        return self.dialect.shared_number(array, index)

    def view(self, arg: str, type_: str, name: str) -> str:
        """Let the template see an argument as an array of another type, too; OpenCL C casts pointers instead."""
        self.views.append(View(arg, type_, name))
        return ""

    def extension(self, *names: str) -> str:
        """Require compiler extensions of the template's language."""
        self.extensions += names
        return ""

    def add_view(self, view: View | None) -> None:
        """Add a view that a dialect needs, unless there is none or it is there."""
        if view is not None and view not in self.views:
            self.views.append(view)

    def function(self, text: str) -> str:
        """Define a function beside the kernel, in the template's language."""
        self.functions.append(text)
        return ""

    def defines(self, *names: str) -> str:
        """Declare the macros that the template defines, unless their texts are the same in all kernels that do.

        Where several kernels become one source, they end with this one.
        """
        self.macros += names
        return ""

    def declare(self, *traits: Trait) -> str:
        """Declare what the kernel's instructions need of others."""
        self.traits += traits
        return ""

    def needs_subgroup(self) -> str:
        """Declare that the kernel requires subgroups of SUBGROUP work-items; other devices refuse it."""
        self.subgroup = True
        return ""

    def needs_warpgroup(self) -> str:
        """Declare that the kernel needs four subgroups together, which share up to WARPGROUP_MEMORY bytes."""
        self.subgroup = self.warpgroup = True
        return ""

    def dot4(self, a: str, b: str, total: str) -> str:
        """Return a sum and the products of the four int8 in two words, for devices with `DeviceCaps.dot8`."""
        self.extensions += [e for e in self.dialect.dot4_extensions if e not in self.extensions]
        return f"DOT4({a}, {b}, {total})"

    def exchange(self, value: str, mask: int) -> str:
        """Return the f32 `value` of the item whose number differs in the bits of `mask`; see `DeviceCaps.shuffles`.

        It needs a subgroup and declares that itself.
        """
        self.subgroup = True
        self.extensions += [name for name in self.dialect.exchange_extensions if name not in self.extensions]
        return f"EXCHANGE({value}, {mask})"

    def repeat(self, index: str, count: int) -> str:
        """Return the head of a loop that the compiler is asked not to write out.

        With some drivers the first launch of a kernel in each run takes longer, the more the longer its code is
        (benchmarks/NOTES.md).
        """
        before, needed = self.dialect.kept_loop
        self.extensions += [name for name in needed if name not in self.extensions]
        return f"{before}for (int {index} = 0; {index} < {count}; {index}++)"

    def for_each(self, index: str, total: str) -> str:
        """Return the head of the loop in which all work-items share the indices below `total`."""
        self._note_bounds(total)
        return f"for (int {index} = GLOBAL_ID; {index} < {total}; {index} += GLOBAL_SIZE)"

    def for_groups(self, index: str, total: str, at_once: str = "") -> str:
        """Return the head of the loop in which all work-groups share the indices below `total`.

        `at_once`: how many a group takes at a time, from `index` on; "" for one.
        """
        self._note_bounds(total)
        times = f" * {at_once}" if at_once else ""
        return f"for (int {index} = GROUP_X{times}; {index} < {total}; {index} += GROUPS_X{times})"

    def _note_bounds(self, total: str) -> None:
        self.bounds.update(set(_NAME.findall(total)).intersection(self.request.ints))

    def split(self, target: ArgWriter, index: str, places: str, blocks: str) -> str:
        """Return the pixel p, block c and image n of vector `index` of a c4 argument, so that neighbours adjoin.

        Where channels come last, the blocks of a pixel vary fastest, else the pixels of a block.
        """
        last = f"{target.name}_PS != 1"
        return (
            f"const int p = {last} ? {index} / {blocks} % ({places}) : {index} % ({places}), "
            f"c = {last} ? {index} % {blocks} : {index} / ({places}) % {blocks}, "
            f"n = {index} / ({places}) / {blocks};"
        )

    def apply(self, values: str, variable: str) -> str:
        """Return the statements that apply the prologue of values of this name to a scalar variable."""
        steps = self.request.loaded if self.request.loaded_on == values else ()
        self.loads.add(values)
        lines = []
        for s, step in enumerate(steps):
            texts = [{"value": variable}.get(o.kind, o.name) for o in step.operands]
            lines += _step_lines(steps, s, "f32", variable, texts)
        return f"{{{self.dialect.exact_block} {' '.join(lines)} }}" if lines else ""

    def has(self, name: str) -> bool:
        """Tell whether the kernel has an argument of that name (an optional one, such as a bias)."""
        return name in self.args

    def expand(self, expr: str, *operands: str) -> str:
        """Return an element-wise expression of scalars."""
        return expr.format(*operands)

    def expand4(self, expr: str, *operands: str) -> str:
        """Return an element-wise expression of f32x4 variables (a trailing '!' marks a scalar)."""
        lanes = [[o[:-1] if o.endswith("!") else f"{o}.{lane}" for o in operands] for lane in LANES]
        return f"F4({', '.join(expr.format(*parts) for parts in lanes)})"


_folders = [SHADERS]


def add_shader_folder(folder: str | Path) -> None:
    """Add a folder of templates for ops and dialects outside Weft; ConfigError if a template name is taken."""
    folder = Path(folder).resolve()
    if folder in _folders:
        return
    taken = {f.name: f for known in _folders for f in known.glob("*.mako")}
    for file in sorted(folder.glob("*.mako")):
        if file.name in taken:
            raise ConfigError(
                f"the template name {file.name!r} is taken",
                where=str(folder),
                why=f"by {taken[file.name]}",
                fix="give it another name",
            )
    _folders.append(folder)
    _lookup.cache_clear()
    writers_hash.cache_clear()
    render.cache_clear()


@lru_cache(maxsize=1)
def _lookup() -> TemplateLookup:
    from mako.lookup import TemplateLookup  # its import takes as long as all of Weft's

    return TemplateLookup([str(f) for f in _folders], strict_undefined=True)


def _trace() -> str:
    """Return the template's own trace of the current error."""
    from mako.exceptions import text_error_template

    return str(text_error_template().render())


def _constants(request: KernelRequest) -> tuple[tuple[str, ConstantKind], ...]:
    placed = [f"{a.name}_{part}" for a in request.args if a.kind in ("c4", "wide") for part in PLACE]
    ints = [*LOCAL_SIZE, *sorted(request.ints), *placed]
    kind: ConstantKind = "double" if computes_double(request.args) else "float"
    return tuple((n, "int") for n in ints) + tuple((n, kind) for n in sorted(request.floats))


@lru_cache(maxsize=16)
def writers_hash(dialect: Dialect) -> str:
    """Return a hash of all that turns a request into text: the templates, these modules and the dialect's."""
    modules = {cls.__module__ for cls in type(dialect).__mro__ if issubclass(cls, Dialect)}
    places = [Path(file).parent for m in modules if (file := getattr(sys.modules[m], "__file__", None))]
    folders = sorted({*places, *_folders, Path(__file__).parent})
    files = (file for folder in folders for file in sorted((*folder.glob("*.mako"), *folder.glob("*.py"))))
    return hash_of(files, f"{dialect.name} {vars(dialect)!r}")


@lru_cache(maxsize=16)
def _prelude(lookup: TemplateLookup, file: str, double: bool) -> str:
    return str(lookup.get_template(file).render(double=double))


@lru_cache(maxsize=4096)
def render(request: KernelRequest, dialect: Dialect) -> KernelSource:
    """Return the kernel's source; CompileError shows the template's own trace if the template fails.

    Sources are kept on disk, so a process that finds all of them there need not import Mako.
    """
    entry = request.template.replace(".", "_")
    cache, key = DiskCache("sources"), f"{writers_hash(dialect)} {request!r}"
    held = _held(cache.get(key), entry, request)
    if held is not None:
        return held
    source = _written(request, dialect, entry)
    facts = {name: getattr(source, name) for name in FACTS}
    facts |= {"code": source.code.facts(), "bounds": sorted(source.bounds)}
    cache.put(key, json.dumps(facts).encode())
    return source


def _held(blob: bytes | None, entry: str, request: KernelRequest) -> KernelSource | None:
    """Return the source in a cache entry; None if there is no entry, or not one that `render` writes."""
    try:
        facts = json.loads(blob or b"{}")
        described, shared, subgroup, warpgroup, bounds = (facts[name] for name in FACTS)
        code = KernelCode.of_facts(described)
        arrays = tuple((kind, size) for kind, size in shared)
        for kind, size in arrays:
            TYPE_BYTES[kind], parse(size)
        known = frozenset(request.ints).issuperset(bounds)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    whole = isinstance(shared, list) and isinstance(warpgroup, bool)
    if not (whole and known and isinstance(bounds, list)) or type(subgroup) is not int or subgroup not in (0, SUBGROUP):
        return None
    return KernelSource(entry, code, request.args, _constants(request), arrays, subgroup, warpgroup, frozenset(bounds))


def _written(request: KernelRequest, dialect: Dialect, entry: str) -> KernelSource:
    writer = Writer(request, dialect)
    try:
        special = f"{request.template}.{dialect.name}.mako"  # a faster version for one language
        file = special if _lookup().has_template(special) else f"{request.template}.mako"
        template = _lookup().get_template(file)
        body = template.render(k=writer, **dict(request.variant), **writer.args)
        if request.loaded_on not in ("", *writer.loads):
            raise ValueError(f"it does not apply the prologue to {request.loaded_on!r} (`fetch4`, `apply`)")
        missed = {arg.name for arg in request.args if arg.output_map} - writer.mapped
        if missed:
            raise ValueError(f"it does not store {', '.join(missed)} with `store4` or `store8`, which find its places")
        if writer.double and "f32" in body:  # OpenCL C would round without a word
            raise ValueError("it computes in f32, and reads or writes float64: such a template says `real`")
        prelude = dialect.prelude_text() or _prelude(_lookup(), dialect.prelude, writer.double)
    except Exception as e:
        raise CompileError(
            f"the kernel template {request.template!r} does not render: {e}",
            where=str(SHADERS / f"{request.template}.mako"),
            why=_trace(),
            fix="mend the template; docs/add-an-op.md says what `k` offers",
        ) from e
    constants = _constants(request)
    asked = writer.extensions, writer.views, writer.functions, writer.macros, writer.traits
    code = dialect.assemble(KernelParts(entry, prelude, request.args, constants, writer.shared_arrays, body, *asked))
    shared = tuple((array.type, array.size) for array in writer.shared_arrays)
    subgroup = SUBGROUP if writer.subgroup else 0
    bounds = frozenset(writer.bounds)
    return KernelSource(entry, code, request.args, constants, shared, subgroup, writer.warpgroup, bounds)
