"""Kinds of kernels that a device tests before it uses them: what each needs, what replaces it, and cases that test it.

On a driver that nobody has tried, a kernel may give wrong values or crash. Each kernel for special hardware has a
portable fallback (`SpecialKernel`); portable kernels are tested in families (`KernelFamily`), most of which have one.
Register either beside the code that launches its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, ParamSpec, TypeVar

from weft.core.graph.dtypes import DType
from weft.errors import BackendError
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.source import KernelSource

STORES_HALVES, STORES_BYTES, COMPUTES_DOUBLE = "stores halves", "stores bytes", "computes in float64"
MAPS_PLACES, EXCHANGES, READS_SIZES = "reaches elements by maps", "exchanges values", "reads sizes"
"""What kernels of any template may do, and kinds of kernels test (`SpecialKernel.trait`); `traits` finds it."""


def _no_cases() -> Sequence[SelfTestCase]:
    return ()


def _as_it_is(caps: DeviceCaps) -> DeviceCaps:
    return caps


@dataclass(frozen=True)
class SpecialKernel:
    """One kind of special kernels; `register_special` adds it.

    A child process tests it; that process imports the module that defines `cases`, or `check`.
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
    """The template of its launches."""
    marker: str = ""
    """What its cases must find in the text of a kernel, where launches of the template may be of another kind, too."""
    check: Callable[[Any], str | None] | None = None
    """Replaces the cases: takes the device's `GpuRuntime`, returns what is wrong, or None."""
    seconds: float = 1.0
    """About how long its test takes on a large GPU: the longest tests begin first."""
    forced: Callable[[DeviceCaps], DeviceCaps] = _as_it_is
    """Returns the capabilities that make its cases launch it, on any device that claims it."""
    anywhere: bool = False
    """Whether kernels of any template may be of this kind, not only those that its cases launch."""
    trait: str = ""
    """What all kernels of this kind do, and no others, if that shows: one of `traits`."""
    needs_proof: ClassVar[bool] = True
    """Whether it is not used where its test did not run."""

    @property
    def module(self) -> str:
        """Return the module that defines its test, which registers it, too."""
        return (self.check or self.cases).__module__

    @property
    def launched(self) -> frozenset[str]:
        """Return the templates that its cases must launch between them, or the test would prove nothing."""
        return frozenset(filter(None, [self.template]))

    @property
    def instead(self) -> str:
        """Return what runs in its place where that is no other kernel of the op, as the end of a sentence."""
        return ""

    def concerns(self, templates: Collection[str]) -> bool:
        """Tell whether launches of these templates, and with these traits, may be of this kind."""
        return bool(templates) and (self.is_anywhere or not self.found_by.isdisjoint(templates))

    @property
    def found_by(self) -> frozenset[str]:
        """Return the templates of its launches, or if it has a trait, that."""
        return frozenset([self.trait]) if self.trait else self.launched

    @property
    def is_anywhere(self) -> bool:
        """Tell whether any template may be of this kind: also where nothing says which are."""
        return not self.trait and (self.anywhere or not self.launched)

    def present(self, caps: DeviceCaps) -> bool:
        """Tell whether a device with these capabilities has it."""
        return self.name not in caps.without and self.claimed(caps)

    def disable(self, caps: DeviceCaps) -> DeviceCaps:
        """Return the device's capabilities without this kind."""
        return self.withdraw(caps) if self.withdraw else replace(caps, without=caps.without | {self.name})


def _on_any_device(caps: DeviceCaps) -> bool:
    return True


@dataclass(frozen=True)
class KernelFamily(SpecialKernel):
    """Kernels that every GPU runs. Weft tests them like special ones, because drivers get plain kernels wrong, too.

    Its cases are small, with remainders, strides and groups. A family fails as a whole. Its fallback then runs: whoever
    launches the family asks `DeviceCaps.without` first. Without a fallback, the device refuses the nodes that need the
    family, and they go to the next device (`weft.backends.gpu.lowering.support`).
    """

    claimed: Callable[[DeviceCaps], bool] = _on_any_device
    templates: tuple[str, ...] = ()
    """The templates of its launches; if none are given, the one that has the family's name."""
    fallback: str = ""
    """Its fallback, as a plural noun; empty if there is none."""
    whole: bool = True
    """Whether only this family launches these templates, so that they can be banned when the test fails."""
    seconds: float = 0.15
    needs_proof: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", self.templates or (self.name,))

    @property
    def launched(self) -> frozenset[str]:
        """Return the templates that its cases must launch between them, or the test would prove nothing."""
        return frozenset(self.templates)

    @property
    def instead(self) -> str:
        """Return the fallback, as the end of a sentence."""
        return f", {self.fallback} are" if self.fallback else ", nodes that need them go to the next device"


def on_many_units(caps: DeviceCaps) -> DeviceCaps:
    """Return the capabilities that the device would have as a GPU with many compute units to fill."""
    return replace(caps, software=False, compute_units=max(caps.compute_units, caps.model.many_units))


def on_few_units(caps: DeviceCaps) -> DeviceCaps:
    """Return the capabilities that it would have as a GPU that small problems fill, where launches cost little."""
    return replace(caps, compute_units=2)


def in_place_of(*names: str) -> Callable[[DeviceCaps], DeviceCaps]:
    """Return a function that disables these families in the capabilities, so that their fallbacks run."""
    return lambda caps: replace(caps, without=caps.without | set(names))


def traits(source: KernelSource) -> set[str]:
    """Return what a kernel does that kernels of any template may do; whether it reads sizes, its build decides."""
    types = [arg.dtype for arg in source.args]
    found = {
        STORES_HALVES: DType.FLOAT16 in types,
        STORES_BYTES: any(dtype.itemsize == 1 for dtype in types),
        COMPUTES_DOUBLE: source.computes_double,
        MAPS_PLACES: any(arg.through is not None for arg in source.args),
        EXCHANGES: bool(source.subgroup),
    }
    return {trait for trait, has in found.items() if has}


P = ParamSpec("P")
KindT = TypeVar("KindT", bound=SpecialKernel)
_FAMILIES: dict[str, KernelFamily] = {}
_SPECIAL: dict[str, SpecialKernel] = {}


def register_kernels(kind: KindT) -> KindT:
    """Add kernels that a device tests; BackendError if the name, by which `DeviceCaps.without` knows them, is taken."""
    for known, what in ((_FAMILIES, "a family of kernels"), (_SPECIAL, "a kind of special kernels")):
        if kind.name in known:
            raise BackendError(
                f"kernels {kind.name!r} cannot be registered", why=f"{what} has that name", fix="choose another name"
            )
    if isinstance(kind, KernelFamily):
        _FAMILIES[kind.name] = kind
    else:
        _SPECIAL[kind.name] = kind
    return kind


def _registering(make: Callable[P, KindT]) -> Callable[P, KindT]:
    return lambda *given, **named: register_kernels(make(*given, **named))


register_family = _registering(KernelFamily)
"""Adds and returns a family with these fields: Weft tests it on every new GPU."""
register_special = _registering(SpecialKernel)
"""Adds and returns a kind with these fields: Weft tests it where a device claims the hardware."""


def kernel_families() -> list[KernelFamily]:
    """Return the registered families in the order of their names."""
    return [_FAMILIES[name] for name in sorted(_FAMILIES)]


def wrong_templates(caps: DeviceCaps) -> frozenset[str]:
    """Return the templates that must not be launched on a device because their tests failed."""
    names = caps.without & _FAMILIES.keys()
    return frozenset(t for name in names if _FAMILIES[name].whole for t in _FAMILIES[name].templates)


def special_kernels() -> list[SpecialKernel]:
    """Return the registered kinds in the order of registration."""
    return list(_SPECIAL.values())
