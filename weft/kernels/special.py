"""Kernels for special hardware: what each kind needs, how to do without it, and cases that show it right.

Such a kernel has a portable twin and may be wrong, or worse, on a driver that nobody has tried, so a backend tests
each kind by value before it uses it. Register a kind beside the GPU form of the op that launches it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.errors import BackendError
from weft.kernels.launch import DeviceCaps

TOLERANCES = {Precision.LOW: 4e-3, Precision.NORMAL: 1e-5, Precision.HIGH: 1e-5}
"""Of the largest result: fp16 rounds it by 5e-4, sums in fp32 of a few thousand products are off by about 1e-6."""


@dataclass(frozen=True, eq=False)
class Case:
    """A small graph with its inputs: what a kernel makes of it must be what the ops' references make of it.

    Its outputs are those of the last node. Arrays have the types that are stored: float16 for precision LOW.
    """

    text: str
    """How a report names it: "Conv of (2, 13, 9, 7) with (20, 13, 1, 1)"."""
    nodes: tuple[Node, ...]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]
    precision: Precision = Precision.LOW
    tolerance: float = 0.0
    """Of the largest value of the result; 0 for that of the precision."""
    prefer: str = ""
    """How the candidate begins, as text, that is taken where an op leaves a choice to tuning."""

    @property
    def allowed(self) -> float:
        """Return how far the result may be from the reference, as a part of its largest value."""
        return self.tolerance or TOLERANCES[self.precision]


def one_node(
    op: Op,
    *inputs: Shape | Array | None,
    constants: Sequence[int] = (),
    precision: Precision = Precision.LOW,
    tolerance: float = 0.0,
    prefer: str = "",
) -> Case:
    """Return the case of a single node.

    `inputs` are arrays, shapes to be filled with noise of the precision's type, or None for a missing one;
    `constants` are the places of those that are weights.
    """
    rng = np.random.default_rng(0)
    kind = np.float16 if precision is Precision.LOW else np.float32
    arrays = {
        f"i{k}": given if isinstance(given, np.ndarray) else rng.standard_normal(given).astype(kind)
        for k, given in enumerate(inputs)
        if given is not None
    }
    weights = {f"i{k}" for k in constants}
    outputs = tuple(f"y{k}" for k in range(len(_specs(op, inputs, arrays, weights))))
    node = Node("case", op, tuple("" if i is None else f"i{k}" for k, i in enumerate(inputs)), outputs)
    return Case(
        f"{op.type} of {' with '.join(str(a.shape) for a in arrays.values())}",
        (node,),
        {name: a for name, a in arrays.items() if name not in weights},
        {name: a for name, a in arrays.items() if name in weights},
        precision,
        tolerance,
        prefer,
    )


def _specs(
    op: Op, inputs: Sequence[object], arrays: Mapping[str, Array], weights: Collection[str]
) -> Sequence[TensorSpec]:
    """Return the specs of an op's outputs for inputs of which some are missing, and some weights."""
    given = [arrays.get(f"i{k}") for k in range(len(inputs))]
    specs = [None if a is None else TensorSpec(a.shape, DType.of(a.dtype)) for a in given]
    return op.infer(specs, [a if f"i{k}" in weights else None for k, a in enumerate(given)])


def _no_cases() -> Sequence[Case]:
    return ()


@dataclass(frozen=True)
class SpecialKernel:
    """One kind of kernels for special hardware; `register_special` makes it known.

    It is tested in a process of its own, which imports the module that `present` is written in.
    """

    name: str
    title: str
    """Its plural in a sentence: "convolutions on matrix units"."""
    present: Callable[[DeviceCaps], bool]
    """Whether the hardware claims to have what it takes."""
    disable: Callable[[DeviceCaps], DeviceCaps]
    """Returns the capabilities of a device that does without."""
    cases: Callable[[], Sequence[Case]] = _no_cases
    """Uneven and even shapes, short and long sums: every path of the kernel, each as small as it can be."""
    template: str = ""
    """The template of its launches: cases of which none launches it would prove nothing."""
    check: Callable[[Any], str | None] | None = None
    """What tests it in place of the cases: gets the device's `GpuRuntime`, returns what is wrong, or None."""
    seconds: float = 1.0
    """About what its test takes on a large GPU, by which processes share the tests."""

    @property
    def module(self) -> str:
        """Return the module that registers it."""
        return self.present.__module__


def _as_it_is(caps: DeviceCaps) -> DeviceCaps:
    return caps


@dataclass(frozen=True)
class KernelFamily(SpecialKernel):
    """Kernels that every GPU runs: tested like special ones, since drivers err on plain kernels, too.

    Where they are wrong, their plainer twin runs; where there is none, the nodes that need them are refused, and go
    to the next device.
    """

    templates: tuple[str, ...] = ()
    """What its cases must launch between them."""
    twin: str = ""
    """What runs in its place, in the plural; empty if nothing does."""
    whole: bool = True
    """Whether these templates are launched for this family alone, so that one that is wrong is never launched."""
    forced: Callable[[DeviceCaps], DeviceCaps] = _as_it_is
    """Returns the capabilities with which its cases launch it, on any device."""
    seconds: float = 0.15


_FAMILIES: dict[str, KernelFamily] = {}


def register_family(family: KernelFamily) -> KernelFamily:
    """Have the kernels of a family tested on every GPU that is seen for the first time; a taken name is refused."""
    if family.name in _FAMILIES or family.name in _SPECIAL:
        raise BackendError(f"kernels {family.name!r} are registered already", fix="choose another name")
    _FAMILIES[family.name] = family
    return family


def forget_family(name: str) -> None:
    """Undo `register_family`."""
    _FAMILIES.pop(name, None)


def kernel_families() -> list[KernelFamily]:
    """Return the registered families in the order of registration."""
    return list(_FAMILIES.values())


def wrong_templates(caps: DeviceCaps) -> frozenset[str]:
    """Return the templates that are not launched on a device, since its tests found them wrong."""
    names = caps.without & _FAMILIES.keys()
    return frozenset(t for name in names if _FAMILIES[name].whole for t in _FAMILIES[name].templates)


_SPECIAL: dict[str, SpecialKernel] = {}


def register_special(kind: SpecialKernel) -> SpecialKernel:
    """Have every device that claims the hardware tested for a kind of kernels; a taken name is refused."""
    if kind.name in _SPECIAL:
        raise BackendError(f"special kernels {kind.name!r} are registered already", fix="choose another name")
    _SPECIAL[kind.name] = kind
    return kind


def forget_special(name: str) -> None:
    """Undo `register_special`."""
    _SPECIAL.pop(name, None)


def special_kernels() -> list[SpecialKernel]:
    """Return the registered kinds in the order of registration."""
    return list(_SPECIAL.values())
