"""Plan the launches of a node: nothing is built, uploaded or allocated here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.lowering.layout.layouts import base_inputs
from weft.backends.gpu.memory.slots import Spot, is_packed, place_constants
from weft.backends.gpu.recording.launches import PlannedLaunch
from weft.backends.gpu.tuning_tables.choice import Choice, ChoiceSource, Taken, problem_key
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused, Step, value_number
from weft.core.graph.index_map import IDENTITY, IndexMap
from weft.core.graph.layout import PACK, Array, Layout, Shape, to_storage
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.errors import BackendError, ExecutionError
from weft.kernels.chooser import Candidate, Decision
from weft.kernels.gate import BESIDE, Gate
from weft.kernels.gpu_op import find_gpu_op
from weft.kernels.index_map_text import map_constants, through_map
from weft.kernels.launch import MAX_ELEMENTS, SUM_PARTS, KernelBuilder, LaunchRequest, Prologue
from weft.kernels.output_maps import OutputMap, Pairs
from weft.kernels.source import LOCAL_SIZE, Arg, ArgKind
from weft.kernels.special import wrong_templates
from weft.kernels.template import KernelRequest, Operand, StepText, render
from weft.ops.elementwise import Elementwise

NO_CANDIDATES: frozenset[str] = frozenset()


def choice_of(label: str, number: int) -> str:
    """Return what tells a choice of a node from others, at every shape: its number among them."""
    return f"{label} {number}"


class WrongKernel(ExecutionError):
    """A node would launch a kernel that the self-test found wrong, because it was placed before that was known."""


class PlannedConstant:
    """An array that an op wants in device memory for all runs: its key, and the function that makes it.

    It is made of `sources`: from the same arrays, a node makes the same constant of this key.
    """

    __slots__ = ("_begun", "_made", "_make", "key", "sources", "tensor")

    def __init__(
        self, label: str, key: str, make: Callable[[], Array], layout: Layout, spec: TensorSpec | None,
        sources: Sequence[Array],
    ) -> None:
        self.key, self._make, self.sources = key, make, sources
        self._made: Array | None = None
        self._begun: tuple[Future[Array], Callable[[PlannedConstant], object]] | None = None
        if spec is None:
            self._made = make()
            spec = TensorSpec(self._made.shape, DType.of(self._made.dtype))
        self.tensor = Tensor(f"{label}.{key}", spec.dims, spec.dtype, layout, Spot.of_constant(key))

    def begin(self, threads: Executor, taken: Callable[[PlannedConstant], object]) -> bool:
        """Have a thread make the array as it is stored, unless it is there; tell whether one does.

        `take` or `forget` calls `taken`.
        """
        if self._made is None and self._begun is None:
            self._begun = threads.submit(lambda: self._stored(self._make())), taken
            return True
        return False

    def forget(self) -> None:
        """Forget what a thread makes: nobody needs it any more."""
        if self._begun is not None:
            (_, taken), self._begun = self._begun, None
            taken(self)

    def take(self) -> Array:
        """Return the array as it is stored; BackendError if it has another shape or type than the op announced."""
        made, self._made = self._made, None
        if self._begun is None:
            return self._stored(self._make() if made is None else made)
        (future, taken), self._begun = self._begun, None
        stored = future.result()
        taken(self)
        return stored

    def _stored(self, made: Array) -> Array:
        told, is_ = TensorSpec(self.tensor.shape, self.tensor.dtype), TensorSpec(made.shape, DType.of(made.dtype))
        if told != is_:
            raise BackendError(
                f"constant {self.tensor.name!r} has another shape or type than its op announced",
                why=f"it is {is_}, and the op said {told}",
                fix="give KernelBuilder.constant the shape and type of what `make` returns, or no spec",
            )
        return to_storage(made, self.tensor.layout)


def places_of(tensor: Tensor) -> IndexMap:
    """Return where the elements of a tensor lie in the memory that it is bound to."""
    return tensor.memory.places if isinstance(tensor.memory, Spot) else IDENTITY


def _places(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the constants by which kernels address c4 arguments."""
    packed = [place_constants(tensor, name) for name, tensor in tensors.items() if is_packed(tensor)]
    return {name: value for constants in packed for name, value in constants.items()}


def _shaped(tensor: Tensor, target: Tensor) -> Tensor:
    """Return a tensor in the shape in which a kernel stores the result, as rows are stored as images of one pixel."""
    return tensor if tensor.shape == target.shape else replace(tensor, shape=target.shape, layout=target.layout)


@dataclass(frozen=True)
class _MappedImage:
    """An image that launches compute, and the output to which a map takes it."""

    image: Tensor
    output: Tensor
    by: OutputMap


@dataclass(frozen=True)
class _Turns:
    """Scratch memory of launches that are done in turns, which all builders of a node share."""

    spare: list[Tensor] = field(default_factory=list)
    """What the next turn may use."""
    used: list[Tensor] = field(default_factory=list)
    """What this turn uses."""


@dataclass
class _Steps:
    """Fused steps as a kernel has them: before its first store, or behind its loads."""

    steps: tuple[StepText, ...] = ()
    reads: dict[str, Tensor] = field(default_factory=dict)
    single: set[str] = field(default_factory=set)
    """The arguments among `reads` of which a vector of four takes one element."""
    ints: dict[str, int] = field(default_factory=dict)
    floats: dict[str, float] = field(default_factory=dict)


def _step_text(
    step: Step, inputs: Sequence[Tensor | None], operands: Sequence[Operand], prefix: str, out: _Steps
) -> StepText:
    """Return a step as a kernel has it, whose numbers become constants of the kernel."""
    assert isinstance(step.op, Elementwise)
    expr = step.op.expression(tuple(i < 0 or inputs[i] is not None for i in step.operands))
    assert expr is not None
    numbers = {f"{prefix}_n{i}": number for i, number in enumerate(expr.numbers)}
    out.floats |= numbers
    return StepText(expr.text, (*operands, *(Operand("float", name) for name in numbers)))


def _without_memory(
    position: int, step: int, inputs: Sequence[Tensor | None], prefix: str, out: _Steps
) -> Operand | None:
    """Return an operand of a step that is no argument of the kernel: a value of the steps, or a scalar constant."""
    number = value_number(position, step)
    if number is not None:
        return Operand("value") if number == step else Operand("earlier", f"_before{number}")
    tensor = inputs[position]
    if tensor is None:
        return Operand("value")  # a missing input, of which the expression has nothing
    if tensor.constant is None or tensor.constant.size != 1:
        return None
    name = f"{prefix}_k{position}"
    out.floats[name] = float(tensor.constant.reshape(()))
    return Operand("float", name)


def _gate(gate: Gate) -> _Steps:
    """Return the steps of a gate, whose operands are values and scalar constants."""
    out, texts = _Steps(), []

    def operand(position: int, step: int) -> Operand:
        known = _without_memory(position, step, gate.inputs, f"G{step}", out) if position != BESIDE else None
        return known or Operand("beside")

    for s, step in enumerate(gate.steps):
        operands = [operand(i, s) for i in step.operands]
        texts.append(_step_text(step, gate.inputs, operands, f"G{s}", out))
    out.steps = tuple(texts)
    return out


class NodeBuilder(KernelBuilder):
    """Builds the launches of one node, with its fused steps as the epilogue of the first write."""

    def __init__(
        self,
        device: GpuDevice,
        op: Op,
        label: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        source: ChoiceSource | None = None,
        *,
        node: str = "",
        split_products: bool = False,
        thrifty: bool = False,
        winograd: bool = True,
        earlier: Callable[[str], frozenset[str]] | None = None,
        few: bool = False,
    ) -> None:
        self._few = few
        self.caps, self.split_products, self.thrifty = device.caps, split_products, thrifty
        self.winograd, self.sizes_change, self._earlier = winograd, earlier is not None, earlier
        if thrifty:
            self.caps = replace(device.caps, without=device.caps.without | {SUM_PARTS})
        self._device, self._op, self._label, self._node = device, op, label, node or label
        self._inputs, self._source = inputs, source
        own = base_inputs(op, inputs)
        self._constants = tuple(t.constant for t in own if t is not None and t.constant is not None)
        seconds = zip(op.second_outputs, outputs[1:], strict=True) if isinstance(op, Fused) else ()
        self._second_outputs = dict(seconds)
        self.stores_second_outputs = bool(self._second_outputs)
        self._shape = outputs[0].shape if outputs else ()
        self._key_prefix = ""
        """What begins the keys of constants of `for_channels` and `for_output_map`."""
        self._mapped: _MappedImage | None = None
        form = find_gpu_op(op)
        self._computes_double = self.caps.doubles and form is not None and form.computes_double
        self.launched: list[PlannedLaunch] = []
        self.choices: list[Choice] = []
        self.taken: list[Taken] = []
        self.scratches: list[Tensor] = []
        self._turns = _Turns()
        self.constants: dict[str, PlannedConstant] = {}

    # -- the interface of ops ----------------------------------------------------------------------------

    def add(self, asked: LaunchRequest) -> None:
        """Render and plan one launch; its kernel is built later."""
        if asked.template in wrong_templates(self.caps):
            raise WrongKernel(
                f"the kernel {asked.template!r} is not launched",
                where=self._device.info.name,
                why="the self-test found it wrong on this device",
                fix="put the node on another device with `hints`",
            )
        target, kinds = next(iter(asked.writes)), asked.kinds
        fours, written_to = kinds.get(target) == "fours", self._stored_in(asked.writes[target])
        mapped = self._mapped if written_to is not asked.writes[target] else None
        extra = self._epilogue(written_to, fours) if asked.epilogue else _Steps()
        seconds = {}
        if asked.epilogue:
            seconds = {f"second{n}": _shaped(t, written_to) for n, t in self._second_outputs.items()}
        writes = {**asked.writes, target: written_to, **seconds}
        before = _Steps() if asked.prologue is None else self._prologue(asked.prologue)
        pairs = mapped.by.gate if mapped is not None and isinstance(mapped.by, Pairs) else asked.gate
        gate = _Steps() if pairs is None else _gate(pairs)
        if fours:
            in_fours = (*extra.reads.keys() - extra.single, *seconds)
            kinds = {**kinds, **dict.fromkeys(in_fours, kinds[target])}
        sources = {n: self._on_device(t) for n, t in {**asked.reads, **extra.reads, **before.reads}.items()}
        args = [self._arg(n, t, kinds.get(n), asked.raw, False) for n, t in sources.items()]
        args += [self._arg(n, t, kinds.get(n), asked.raw, True) for n, t in writes.items()]
        ints, floats = {**asked.ints, **extra.ints}, {**asked.floats, **extra.floats, **before.floats, **gate.floats}
        for name, tensor in {**sources, **writes}.items():
            ints |= map_constants(name, places_of(tensor))
            if tensor.quantised is not None:
                scale, zero = tensor.quantised.scale[0], float(tensor.quantised.zero[0])
                floats |= {f"{name}_SCALE": scale, f"{name}_INVERSE": 1 / scale, f"{name}_ZERO": zero}
        if mapped is not None:
            ints |= mapped.by.constants(target)
            args = [replace(arg, output_map=mapped.by.name) if arg.name == target else arg for arg in args]
        request = KernelRequest(
            asked.template,
            tuple(sorted(asked.variant.items())),
            tuple(args),
            tuple(ints),
            tuple(floats),
            extra.steps,
            target if extra.steps else "",
            before.steps,
            asked.prologue.on if asked.prologue is not None and before.steps else "",
            tuple(zip(self._second_outputs, seconds, strict=False)),
            gate.steps,
        )
        source = render(request, self._device.dialect)
        sizes = dict(zip(LOCAL_SIZE, asked.local, strict=True))
        known = {**ints, **floats, **sizes, **_places({**sources, **writes})}
        values = {name: known[name] for name, _ in source.constants}
        read, written = (sum(t.nbytes for t in tensors.values()) for tensors in (sources, writes))
        planned = PlannedLaunch(
            node=self._node,
            kernel=asked.template,
            grid=asked.grid,
            local=asked.local,
            read=read,
            written=written,
            owner=self._label,
            source=source,
            values=values,
            reads=tuple(sources.values()),
            writes=tuple(writes.values()),
            repeatable=asked.repeatable,
        )
        self.launched.append(planned)
        if self.choices:
            self.choices[-1].launches.append(planned)

    def choose(self, decision: Decision) -> Candidate:
        """Return the candidate that the table or the tuner chose for this problem, if there still is such a one."""
        candidates = decision.candidates
        usual = self._usual(decision)
        if decision.facts is None or len(candidates) < 2:
            self.taken.append(Taken(decision, usual, tuned=False))
            return candidates[usual]
        key = problem_key(decision.name, decision.facts_text, self._op, self._inputs)
        chosen = self._source.choose(key, candidates.keys()) if self._source else None
        taken = chosen if chosen in candidates else None
        self.choices.append(Choice(key, decision, taken or usual, taken is not None))
        self.taken.append(Taken(decision, taken or usual, tuned=taken is not None))
        return candidates[taken or usual]

    def _usual(self, decision: Decision) -> str:
        """Return the candidate without tuning: the default, or one whose kernel there is already.

        An earlier shape of the node has it, or if kernels are to be few, another node.
        """
        known = NO_CANDIDATES if self._earlier is None else self._earlier(choice_of(self._label, len(self.taken)))
        if decision.default in known:
            return decision.default
        return decision.near(known, few=self._few) or decision.default

    def constant(
        self, key: str, make: Callable[[], Array], layout: Layout = Layout.NCHW, spec: TensorSpec | None = None
    ) -> Tensor:
        """Return the constant of that key, which is made and uploaded when the node is prepared to run.

        `make` may read the constants that the op itself has as inputs.
        """
        return self._made_of(self._constants, key, make, layout, spec)

    def _made_of(
        self, sources: Sequence[Array], key: str, make: Callable[[], Array], layout: Layout = Layout.NCHW,
        spec: TensorSpec | None = None,
    ) -> Tensor:
        key = f"{self._key_prefix}{key}.{layout.value}"
        if key not in self.constants:
            self.constants[key] = PlannedConstant(self._label, key, make, layout, spec, sources)
        return self.constants[key].tensor

    def scratch(self, shape: tuple[int, ...], dtype: DType, layout: Layout = Layout.NCHW) -> Tensor:
        """Return a tensor that has memory while this node runs."""
        number = len(self.scratches)
        tensor = Tensor(f"{self._label}.scratch{number}", shape, dtype, layout, Spot.of_scratch(number))
        spare = self._turns.spare.pop(0) if self._turns.spare else None
        if spare is not None and spare.nbytes >= tensor.nbytes:
            tensor = replace(tensor, name=spare.name, memory=spare.memory)
        else:
            spare = tensor
            self.scratches.append(tensor)
        self._turns.used.append(spare)
        return tensor

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let scratch memory of this turn be that of the turn before, one by one in order, where it is large enough."""
        self._turns.used.clear()
        yield
        self._turns.spare[:] = self._turns.used

    def shares_memory(self, inner: Tensor, outer: Tensor, first: int = 0) -> bool:
        """Tell whether both are views of one root, `inner` at the right blocks of `outer`."""
        if inner.memory is None:
            return False
        part: Spot = inner.memory
        whole: Spot = outer.memory
        same = part.root == whole.root and part.places == whole.places
        return same and part.first == whole.first + first

    def rows(self, tensor: Tensor) -> tuple[int, int] | None:
        """Return the elements from pixel to pixel and the first one, if the channels of a pixel lie side by side."""
        tensor = self._stored_in(tensor)
        place = place_constants(tensor, "x")
        single = prod(tensor.shape[2:]) == 1
        if place["x_CS"] != 1:
            return None
        return PACK * place["x_NS" if single else "x_PS"], PACK * place["x_O"]

    def is_alias(self, x: Tensor, y: Tensor) -> bool:
        """Tell whether both tensors name the same memory."""
        mine, other = x.memory, y.memory
        same = isinstance(mine, Spot) and isinstance(other, Spot) and mine.root == other.root
        return same and not other.blocks and mine.places == other.places

    def lies_at(self, part: Tensor, whole: Tensor, places: IndexMap) -> bool:
        """Tell whether the elements of `part` lie in `whole` as a map says."""
        inner, outer = part.memory, whole.memory
        if not isinstance(inner, Spot) or not isinstance(outer, Spot) or inner.root != outer.root:
            return False
        return inner.blocks == outer.blocks and inner.places == places.then(outer.places)

    def lies_plain(self, *tensors: Tensor, count: int = 1) -> bool:
        """Tell whether elements lie at their own indices, or with `count`, so many of them together."""
        if count == 1:
            return all(places_of(t).is_identity for t in tensors)
        added = self._step_tensors()
        each = [self._each(t.constant) for t in added if t.constant is not None and t.constant.size > 1]
        whole = all(times == 1 or times % count == 0 for times in each)
        return whole and all(places_of(t).keeps_together(count) for t in (*tensors, *added))

    def from_block(self, tensor: Tensor, shape: Shape, first: int) -> Tensor:
        """Return the part of a packed tensor that has a shape and begins at a channel block."""
        spot: Spot = tensor.memory
        blocks = spot.blocks or -(-tensor.shape[1] // PACK)
        return replace(tensor, shape=shape, memory=replace(spot, first=spot.first + first, blocks=blocks))

    def for_channels(self, output: Tensor, first: int, channels: int) -> tuple[KernelBuilder, Tensor]:
        """Return a builder for some channels of the output, which adds to the same launches, and that part of it."""

        def part(tensor: Tensor) -> Tensor:
            shaped = _shaped(tensor, output)
            return self.from_block(shaped, (shaped.shape[0], channels, *shaped.shape[2:]), first)

        def operand(tensor: Tensor | None) -> Tensor | None:
            if tensor is None or tensor.constant is None:
                return None if tensor is None else part(tensor)
            if tensor.constant.size == 1:
                return tensor
            some = tensor.constant.reshape(-1)[first * PACK : first * PACK + channels]
            return replace(tensor, shape=some.shape, constant=some)

        steps = self._op.steps if isinstance(self._op, Fused) else ()
        read = {i for step in steps for i in step.operands if i >= 0}
        made, place = copy(self), part(output)
        made._key_prefix, made._shape = f"{self._key_prefix}{first}.", place.shape
        made._inputs = [operand(t) if i in read else t for i, t in enumerate(self._inputs)]
        made._second_outputs = {number: part(t) for number, t in self._second_outputs.items()}
        return made, place

    def with_keys(self, begin: str) -> KernelBuilder:
        """Return a builder whose constants have keys that begin so."""
        made = copy(self)
        made._key_prefix = f"{self._key_prefix}{begin}"
        return made

    def for_output_map(
        self, output: Tensor, shape: Shape, output_map: OutputMap
    ) -> tuple[KernelBuilder, Tensor]:
        """Return a builder whose launches store what they compute of an image by a map, and that image."""
        made, image = copy(self), replace(output, shape=shape)
        made._mapped = _MappedImage(image, output, output_map)
        made._key_prefix = f"{self._key_prefix}{output_map.name}."
        return made, image

    def _stored_in(self, tensor: Tensor) -> Tensor:
        """Return the output, if the tensor is the image that is mapped to it, else the tensor."""
        known = self._mapped
        return known.output if known is not None and tensor is known.image else tensor

    def by_steps(self, tensor: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
        """Return a tensor over the whole memory, the steps of the axes in it and the place of the first element."""
        places = places_of(tensor)
        found = None if places.is_identity else places.steps(tensor.shape)
        if found is None:
            return super().by_steps(tensor)
        return replace(tensor, memory=replace(tensor.memory, places=IDENTITY)), *found

    def reads_rows(self, output: Tensor) -> bool:
        """Tell whether all that the fused steps read or store in the output's shape is stored as rows of channels.

        Constants of the channels always are, and a value of another shape is stored like the output.
        """
        shape = self._stored_in(output).shape
        same = [t for t in self._step_tensors() if t.shape == shape and prod(t.shape) > 1]
        return all(t.constant is None and is_packed(t) and self.rows(t) is not None for t in same)

    def joins_channels(self, channels: int) -> bool:
        """Tell whether each constant operand of the fused steps is a scalar or has one number for each channel."""
        return all(t.constant is None or t.constant.size in (1, channels) for t in self._step_tensors())

    # -- parts ---------------------------------------------------------------------------------------------

    def _step_tensors(self) -> list[Tensor]:
        """Return the inputs of the node that its fused steps read, and its second outputs."""
        steps = self._op.steps if isinstance(self._op, Fused) else ()
        read = (self._inputs[i] for step in steps for i in step.operands if i >= 0)
        return [*(t for t in read if t is not None), *self._second_outputs.values()]

    def _each(self, constant: Array) -> int:
        """Return over how many elements of the result each of a constant is repeated, if it is broadcast to it."""
        last = max((a for a, d in enumerate(constant.shape) if d != 1), default=0) - constant.ndim
        return prod(self._shape[len(self._shape) + last + 1 :])

    def _arg(self, name: str, tensor: Tensor, given: ArgKind | None, raw: bool, written: bool) -> Arg:
        if prod(tensor.storage_shape) >= MAX_ELEMENTS:
            raise ExecutionError(
                f"tensor {tensor.name!r} is too large for this kernel",
                why=f"{prod(tensor.storage_shape)} elements; indices have 32 bits",
                fix="use a smaller batch, or put the node on another device with `hints`",
            )
        kind: ArgKind = given or ("raw" if raw else "c4" if is_packed(tensor) else "linear")
        through = through_map(places_of(tensor))
        arg = Arg(name, tensor.dtype, kind, written, through)
        if tensor.quantised is not None and not arg.raw_bytes:
            arg = replace(arg, grid=True)
        if self._computes_double and tensor.dtype is DType.FLOAT64 and not arg.raw_bytes:
            arg = replace(arg, double=True)
        one = kind == "linear" or arg.raw_bytes == tensor.dtype.itemsize
        if through is not None and not one and not (kind == "fours" and through.in_fours):
            raise BackendError(
                f"the kernel cannot reach {tensor.name!r}",
                why=f"its elements do not lie side by side, and the argument {name!r} is of the kind {kind!r}",
                fix="ask KernelBuilder.lies_plain before several elements are accessed at once",
            )
        return arg

    def _on_device(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or for a constant the tensor that will be uploaded."""
        if tensor.constant is None or tensor.memory is not None:
            return tensor
        value = tensor.constant
        return self._made_of([value], f"{tensor.name}.{tensor.layout.value}", lambda: value, tensor.layout)

    def _prologue(self, prologue: Prologue) -> _Steps:
        out, texts = _Steps(), []
        for s, step in enumerate(prologue.steps):
            operands = [self._loaded(prologue, i, s, out) for i in step.operands]
            texts.append(_step_text(step, prologue.inputs, operands, f"L{s}", out))
        out.steps = tuple(texts)
        return out

    def _loaded(self, prologue: Prologue, position: int, step: int, out: _Steps) -> Operand:
        """Return an operand of a step of the prologue: a scalar, or one element for each channel."""
        known = _without_memory(position, step, prologue.inputs, f"L{step}", out)
        if known is not None:
            return known
        tensor, name = prologue.inputs[position], f"loaded{position}"
        assert tensor is not None
        if tensor.constant is None:
            out.reads[name] = tensor
            return Operand("pixel", name)
        value = tensor.constant
        out.reads[name] = self._made_of(
            [value], f"prologue{position}", lambda: value.reshape(1, -1, 1), Layout.NC4HW4
        )
        return Operand("channel", name)

    def _epilogue(self, target: Tensor, fours: bool) -> _Steps:
        out = _Steps()
        steps = self._op.steps if isinstance(self._op, Fused) else ()
        texts = []
        for s, step in enumerate(steps):
            operands = [self._operand(i, s, target, fours, out) for i in step.operands]
            texts.append(_step_text(step, self._inputs, operands, f"E{s}", out))
        out.steps = tuple(texts)
        return out

    def _operand(self, position: int, step: int, target: Tensor, fours: bool, out: _Steps) -> Operand:
        known = _without_memory(position, step, self._inputs, f"E{step}", out)
        if known is not None:
            return known
        tensor, name = self._inputs[position], f"fused{position}"
        assert tensor is not None
        packs = tensor.constant is not None and target.layout.packed  # the constant's numbers, one for each channel
        if tensor.shape == target.shape and not packs:
            out.reads[name] = tensor
            return Operand("same", name)
        if tensor.constant is None:
            assert prod(tensor.shape) == prod(target.shape), "only constants are broadcast in an epilogue"
            out.reads[name] = _shaped(tensor, target)
            return Operand("same", name)
        value = tensor.constant
        if target.layout.packed:
            shape = (1, value.size, *[1] * (len(target.shape) - 2))
            out.reads[name] = self._made_of(
                [value], f"epilogue{position}", lambda: value.reshape(shape), Layout.NC4HW4
            )
            return Operand("channel", name)
        each = self._each(value)
        if each > 1:
            out.reads[name] = self._made_of([value], f"epilogue{position}.inner", lambda: value.reshape(-1))
            out.single.add(name)
            out.ints |= {f"{name}_SIZE": value.size, f"{name}_EACH": each}
            return Operand("inner", name)
        times = PACK if fours and value.size % PACK else 1  # so that no vector of four crosses the end of the operand
        key = f"epilogue{position}" + ("" if times == 1 else ".fours")
        out.reads[name] = self._made_of([value], key, lambda: np.tile(value.reshape(-1), times))
        out.ints[f"{name}_SIZE"] = value.size * times
        return Operand("trailing", name)
