"""Makes op classes frozen dataclasses whose methods nobody compiles.

Python writes the source of a dataclass's methods and compiles it, which takes 0.4 ms a class. There are 290 op classes:
that was the largest part of a start. Here all have methods that are made from the names of the attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from inspect import Parameter, Signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

ClassT = TypeVar("ClassT", bound=type)
_FIELDS = "__dataclass_fields__"
"""Where `dataclasses` looks up the fields of a class."""

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Any:
        """Return a decorator that does nothing: only type checkers read it."""
        return lambda decorated: decorated


class Frozen:
    """Something whose attributes are given once, as it is made."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


@dataclass_transform(frozen_default=True)
def op_dataclass(cls: ClassT) -> ClassT:
    """Make a subclass of Op a frozen dataclass; its attributes have immutable defaults, or none."""
    kinds = {name: kind for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)}
    body = {"__annotations__": kinds, "__doc__": cls.__doc__ or cls.__name__}
    body |= {name: value for name, value in vars(cls).items() if name in kinds}
    # Made frozen, a class gets two compiled methods, which it has from Op.
    own = fields(dataclass(init=False, repr=False, eq=False)(type(cls.__name__, (), body))) if kinds else ()
    known = [f for base in reversed(cls.__mro__) for f in vars(base).get(_FIELDS, {}).values()]
    setattr(cls, _FIELDS, {f.name: f for f in (*known, *own)})
    methods = {"__init__": _init(cls), **_comparing(tuple(f.name for f in fields(cls)))}
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _init(cls: type) -> Callable[..., None]:
    """Return what takes the attributes."""
    defaults = {f.name: f.default for f in fields(cls)}
    required = [name for name, value in defaults.items() if value is MISSING]
    places = tuple(f.name for f in fields(cls) if not f.kw_only)

    def init(self: object, *given: object, **named: object) -> None:
        values = defaults.copy()
        values.update(zip(places, given, strict=False))
        values.update(named)
        twice = [name for name in places[: len(given)] if name in named]
        missing = [name for name in required if values[name] is MISSING]
        if len(values) > len(defaults) or len(given) > len(places) or twice or missing:
            wrong = [f"unknown: {name!r}" for name in values if name not in defaults]
            wrong += [f"given twice: {name!r}" for name in twice] + [f"missing: {name!r}" for name in missing]
            wrong += [f"more than {len(places)} given"] * (len(given) > len(places))
            raise TypeError(f"{cls.__name__}({', '.join(defaults)}) has other arguments: {'; '.join(wrong)}")
        vars(self).update(values)

    shown = {name: Parameter.empty if value is MISSING else value for name, value in defaults.items()}
    shown["self"] = Parameter.empty
    taken = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=shown[name]) for name in ("self", *places)]
    others = [Parameter(f.name, Parameter.KEYWORD_ONLY, default=shown[f.name]) for f in fields(cls) if f.kw_only]
    init.__signature__ = Signature([*taken, *others])  # type: ignore[attr-defined]
    return init


def _comparing(names: tuple[str, ...]) -> dict[str, Callable[..., object]]:
    """Return what compares, hashes and prints the attributes of these names."""
    get: Callable[[object], object] = attrgetter(*names) if names else lambda op: ()

    def equal(self: object, other: object) -> bool:
        return get(self) == get(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: object) -> int:
        return hash(get(self))

    def printed(self: object) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({inner})"

    return {"__eq__": equal, "__hash__": hashed, "__repr__": printed}
