"""What an op is: typed attributes, a rule for shapes and types, and a numpy reference.

An op is a frozen dataclass; its fields are its attributes, by their ONNX names. The CPU backend runs the reference
unless it registers a faster execution; every test compares against the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar, overload

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op_class import Frozen, op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.errors import BackendError, ModelError, WeftError

if TYPE_CHECKING:
    from typing_extensions import Unpack, dataclass_transform
else:
    from weft.core.graph.op_class import dataclass_transform

Constants = Sequence["Array | None"]
OpClass = Literal["exact", "arithmetic", "transcendental", "reduction"]
"""How rounding enters; with the element type it decides a comparison's tolerance."""


@dataclass(frozen=True, eq=False)  # else subclasses with eq=False would inherit that all of a class are equal
class Op(Frozen, ABC):
    """One kind of node. Subclass as a frozen dataclass and register with `@register_op`."""

    type: ClassVar[str] = ""
    op_class: ClassVar[OpClass] = "exact"
    is_elementwise: ClassVar[bool] = False
    """Whether each output element depends only on the elements at its place in the broadcast inputs."""

    by_image: ClassVar[bool] = False
    """Whether image i of the result (axis 0) follows from image i of the first input and the whole of the others."""

    not_negative: ClassVar[bool] = False
    """Whether every float of its results is at least zero, or NaN, whatever it reads."""

    reads_part: ClassVar[bool] = False
    """Whether it reads at most as much of an input as it writes, such as a few rows of a table."""

    reads_shape: ClassVar[bool] = False
    """Whether the result follows from the shape and type of the first input, the only one, whatever its elements."""

    is_random: ClassVar[bool] = False
    """Whether it draws random numbers, so that two nodes alike make different values."""

    most_inputs: ClassVar[int | None] = None
    """The most inputs it takes; None if `infer` counts them or any number is valid."""

    from_optimizing: ClassVar[bool] = False
    """Whether only an optimiser creates it, such as a backend's own fused op; no `why_not` is asked about it."""

    keeps_types: ClassVar[bool] = False
    """Whether it needs all bits of its elements, so that no pass may store its inputs or outputs in other types."""

    wide_inputs: ClassVar[tuple[int, ...]] = ()
    """The positions of inputs that stay float32 where others are float16: coordinates, and what selects or sizes."""

    exact_parameters: ClassVar[tuple[int, ...]] = ()
    """The inputs that, where they are constants, keep their types though floats are stored as float16."""

    wide_outputs: ClassVar[tuple[int, ...]] = ()
    """The positions of outputs of which element-wise ops make float32 where other floats are stored as float16."""

    flags: ClassVar[tuple[str, ...]] = ()
    """The attributes that are yes/no numbers: 0 or 1."""

    @abstractmethod
    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs.

        `inputs` are static specs, None for a missing optional input; `constants` holds the values of the
        inputs that are known. Raise ModelError, saying why, if they do not fit.
        """

    @abstractmethod
    def reference(self, *inputs: Array | None) -> Array | tuple[Array, ...]:
        """Return the output array (or tuple of them) for logical numpy inputs."""

    def inferred(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return what `infer` returns, after checking the number of inputs and the flags.

        Raise ModelError with everything that does not fit. An exception from a foreign op's `infer` passes unchanged.
        """
        problems = self.wrong_flags()
        if self.most_inputs is not None and len(inputs) > self.most_inputs:
            problems.append(f"it has {len(inputs)} inputs and takes at most {self.most_inputs}")
        if problems:
            raise ModelError(f"{self.type} does not fit", why="; ".join(problems))
        return self.infer(inputs, constants)

    def wrong_flags(self) -> list[str]:
        """Return a line for each flag that is neither 0 nor 1."""
        wrong = [name for name in self.flags if getattr(self, name) not in (0, 1)]
        return [f"attribute {name!r} is {getattr(self, name)!r:.40}; it must be 0 or 1" for name in wrong]

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the operations for these shapes, two for a multiply-add; by default one for each output element.

        Profiles compare times against it, so the order of magnitude is enough.
        """
        return sum(prod(shape) for shape in outputs)

    def why_whole(self, inputs: Sequence[Shape | None], constants: Constants, outputs: Sequence[Shape]) -> str:
        """Return why a node of these shapes cannot be taken apart (`decomposition`), though others can; "" by default.

        A device without a kernel for the op gives this as its reason.
        """
        return ""

    def attributes(self) -> dict[str, object]:
        """Return the attributes by name, for printing."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.attributes().items())
        return f"{self.type}({inner})"


class MovingOp(Op):
    """An op that only copies elements and computes nothing."""

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return 0."""
        return 0


class WritingOp(Op):
    """An op whose one result is the first input with some elements replaced.

    If the result may lie where that input does (`Graph.aliases`), only these elements need be written.
    """

    @property
    def in_place(self) -> bool:
        """Tell whether `write` may change the first input itself: not if what it writes depends on what was there."""
        return True

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return 0 if elements are only moved."""
        return 0 if self.in_place else super().flops(inputs, outputs)

    @abstractmethod
    def write(self, memory: Array, *inputs: Array | None) -> None:
        """Replace the elements in `memory`, which holds the first input; `inputs` are the others."""

    def reference(self, *inputs: Array | None) -> Array:
        """Return a copy of the first input with the elements replaced."""
        if not inputs or inputs[0] is None:
            raise ModelError("the inputs do not fit", why="input 0 is missing")
        out = inputs[0].copy()
        self.write(out, *inputs[1:])
        return out


OpT = TypeVar("OpT", bound=type[Op])
ReferenceT = TypeVar("ReferenceT", bound=Callable[..., Any])


def silent(reference: ReferenceT) -> ReferenceT:
    """Mark a `reference` that turns numpy's warnings off itself: who calls it for a run need not do it again.

    It marks the function and not the class, so that a subclass with a reference of its own is not taken for silent.
    """
    reference.is_silent = True  # type: ignore[attr-defined]
    return reference


Filler = Callable[..., bool]
"""Puts the results of an op for `inputs` into `outputs`, arrays of their shapes and types; see `filled_by`."""


def filled_by(fill: Filler) -> Callable[[ReferenceT], ReferenceT]:
    """Mark a `reference` with a method (self, outputs, *inputs) that puts the same results into arrays that are there.

    The method returns False, and has written nothing, where only the reference can compute them. It is marked on the
    function as in `silent`: a subclass with a reference of its own has no such method.
    """

    def marked(reference: ReferenceT) -> ReferenceT:
        reference.fill = fill  # type: ignore[attr-defined]
        return reference

    return marked


_OPS: dict[str, type[Op]] = {}


def register_op(cls: OpT) -> OpT:
    """Register an op class under its `type` (default: the class name); BackendError if the name is taken."""
    if not cls.__dict__.get("type"):
        cls.type = cls.__name__
    if cls.type in _OPS:
        raise BackendError(
            f"op type {cls.type!r} is already registered",
            where=f"{cls.__module__}.{cls.__qualname__}",
            why=f"held by {_OPS[cls.type].__module__}.{_OPS[cls.type].__qualname__}",
            fix="choose another name",
        )
    _OPS[cls.type] = cls
    return cls


class OpFacts(TypedDict, total=False):
    """Facts about a class of ops, which `Op` describes; some are of `Elementwise` or `Composite` alone."""

    type: str
    op_class: OpClass
    by_image: bool
    not_negative: bool
    reads_part: bool
    reads_shape: bool
    is_random: bool
    most_inputs: int | None
    from_optimizing: bool
    keeps_types: bool
    wide_inputs: tuple[int, ...]
    exact_parameters: tuple[int, ...]
    wide_outputs: tuple[int, ...]
    flags: tuple[str, ...]
    arity: int
    types: frozenset[DType]
    least_inputs: int
    shaped_by: tuple[int, ...]


@overload
@dataclass_transform(frozen_default=True)
def standard_op(cls: OpT, /) -> OpT: ...
@overload
def standard_op(**facts: Unpack[OpFacts]) -> Callable[[OpT], OpT]: ...
def standard_op(cls: Any = None, /, **facts: Any) -> Any:
    """Register an op of Weft's own with these facts, and declare it a frozen dataclass; a decorator with or without."""
    if cls is None:
        return lambda cls: standard_op(_with_facts(cls, facts))
    return register_op(op_dataclass(cls))


def _with_facts(cls: OpT, facts: Mapping[str, object]) -> OpT:
    for name, value in facts.items():
        if not hasattr(cls, name):
            raise TypeError(f"{cls.__name__} has no fact {name!r}")
        setattr(cls, name, value)
    return cls


def op_types() -> dict[str, type[Op]]:
    """Return the registered op classes by type."""
    return dict(_OPS)


def find_op(type_: str) -> type[Op] | None:
    """Return the op class of that type, or None."""
    return _OPS.get(type_)


def new_op(type_: str, **attributes: Any) -> Op:
    """Return an op of that type; WeftError if none is registered, as before `weft.ops` is imported."""
    found = find_op(type_)
    if found is None:
        raise WeftError(f"no {type_} op is registered", fix="import weft.ops")
    return found(**attributes)
