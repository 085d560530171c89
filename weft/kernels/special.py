"""Kernels for special hardware: what each kind needs, what replaces it, and cases that test it.

Each such kernel has a portable fallback. On a driver that nobody has tried it may give wrong values or crash, so a
backend tests each kind by value before it uses it. Register a kind beside the GPU form of the op that launches it; the
families of portable kernels are all in `weft.ops.gpu.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import TensorSpec
from weft.errors import BackendError
from weft.kernels.device_caps import DeviceCaps

TOLERANCES = {Precision.LOW: 4e-3, Precision.NORMAL: 1e-5, Precision.HIGH: 1e-5}
"""Relative to the largest result: fp16 rounds by 5e-4; fp32 sums of a few thousand products are off by about 1e-6."""


@dataclass(frozen=True, eq=False)
class SelfTestCase:
    """A small graph with its inputs; the kernel's result must match that of the ops' references.

    Its outputs are those of the last node. Arrays have the stored types: float16 for precision LOW.
    """

    text: str
    """Its name in reports: "Conv of (2, 13, 9, 7) with (20, 13, 1, 1)"."""
    nodes: tuple[Node, ...]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]
    precision: Precision = Precision.LOW
    tolerance: float = 0.0
    """Relative to the largest value of the result; 0 for the precision's own."""
    prefer: str = ""
    """The beginning of the `repr` of the candidate to test, if the op leaves a choice to tuning."""
    before: Mapping[str, Array] | None = None
    """Inputs of other shapes for which it is made ready first, so that its kernels read what varies with the shape."""

    @property
    def allowed(self) -> float:
        """Return how far the result may be from the reference, relative to its largest value."""
        return self.tolerance or TOLERANCES[self.precision]


def one_node(
    op: Op,
    *inputs: Shape | Array | None,
    constants: Sequence[int] = (),
    precision: Precision = Precision.LOW,
    tolerance: float = 0.0,
    prefer: str = "",
) -> SelfTestCase:
    """Return the case for a single node.

    `inputs` are arrays, shapes to fill with noise of the precision's type, or None for a missing one;
    `constants` are the positions of the weights.
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
    return SelfTestCase(
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
    """Return the specs of the op's outputs."""
    given = [arrays.get(f"i{k}") for k in range(len(inputs))]
    specs = [None if a is None else TensorSpec(a.shape, DType.of(a.dtype)) for a in given]
    return op.infer(specs, [a if f"i{k}" in weights else None for k, a in enumerate(given)])


def _no_cases() -> Sequence[SelfTestCase]:
    return ()


@dataclass(frozen=True)
class SpecialKernel:
    """One kind of special kernels; `register_special` adds it.

    A child process tests it; that process imports the module that defines `claimed`.
    """

    name: str
    title: str
    """Its plural in a sentence: "convolutions on matrix units"."""
    claimed: Callable[[DeviceCaps], bool]
    """Whether the hardware claims to support it."""
    withdraw: Callable[[DeviceCaps], DeviceCaps] | None = None
    """Returns the capabilities without the one that it needs, if no other kind does; None: `without` gets its name."""
    cases: Callable[[], Sequence[SelfTestCase]] = _no_cases
    """Cases for every path of the kernel, each as small as possible: even and uneven shapes, short and long sums."""
    template: str = ""
    """The template of its launches; if no case launches it, the test would prove nothing."""
    check: Callable[[Any], str | None] | None = None
    """Replaces the cases: takes the device's `GpuRuntime`, returns what is wrong, or None."""
    seconds: float = 1.0
    """About how long its test takes on a large GPU: those that take longest begin first."""

    @property
    def module(self) -> str:
        """Return the module that registers it."""
        return self.claimed.__module__

    def present(self, caps: DeviceCaps) -> bool:
        """Tell whether a device with these capabilities has it."""
        return self.name not in caps.without and self.claimed(caps)

    def disable(self, caps: DeviceCaps) -> DeviceCaps:
        """Return the device's capabilities without this kind."""
        return self.withdraw(caps) if self.withdraw else replace(caps, without=caps.without | {self.name})


def _as_it_is(caps: DeviceCaps) -> DeviceCaps:
    return caps


@dataclass(frozen=True)
class KernelFamily(SpecialKernel):
    """Kernels that every GPU runs. Weft tests them like special ones, because drivers get plain kernels wrong, too.

    If the test fails, the fallback kernel runs; without a fallback, the device refuses the nodes that need the kernel,
    and they go to the next device.
    """

    templates: tuple[str, ...] = ()
    """Templates that its cases must launch between them."""
    fallback: str = ""
    """Its fallback, as a plural noun; empty if there is none."""
    whole: bool = True
    """Whether only this family launches these templates, so that they can be banned when the test fails."""
    forced: Callable[[DeviceCaps], DeviceCaps] = _as_it_is
    """Returns the capabilities that make its cases launch it, on any device."""
    seconds: float = 0.15


_FAMILIES: dict[str, KernelFamily] = {}
_SPECIAL: dict[str, SpecialKernel] = {}


def _check_free(name: str) -> None:
    """Raise BackendError if a family or a special kind has the name: it identifies both in `DeviceCaps.without`."""
    for registered, what in ((_FAMILIES, "a family of kernels"), (_SPECIAL, "a kind of special kernels")):
        if name in registered:
            raise BackendError(
                f"kernels {name!r} cannot be registered", why=f"{what} has that name", fix="choose another name"
            )


def register_family(family: KernelFamily) -> KernelFamily:
    """Add a family of kernels that Weft tests on every new GPU; BackendError if the name is taken."""
    _check_free(family.name)
    _FAMILIES[family.name] = family
    return family


def kernel_families() -> list[KernelFamily]:
    """Return the registered families in the order of registration."""
    return list(_FAMILIES.values())


def wrong_templates(caps: DeviceCaps) -> frozenset[str]:
    """Return the templates that must not be launched on a device because their tests failed."""
    names = caps.without & _FAMILIES.keys()
    return frozenset(t for name in names if _FAMILIES[name].whole for t in _FAMILIES[name].templates)


def register_special(kind: SpecialKernel) -> SpecialKernel:
    """Add a kind of kernels that Weft tests where a device claims the hardware; BackendError if the name is taken."""
    _check_free(kind.name)
    _SPECIAL[kind.name] = kind
    return kind


def special_kernels() -> list[SpecialKernel]:
    """Return the registered kinds in the order of registration."""
    return list(_SPECIAL.values())
