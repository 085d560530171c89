"""Op classes become frozen dataclasses when they are first used, not when their modules are imported.

Python writes the source of a dataclass's methods and compiles it, which takes 0.3 ms a class. There are 240 ops, and a
network uses a dozen of them: made at import, all of them were the largest part of a start.
"""

from __future__ import annotations

import inspect
import threading
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

ClassT = TypeVar("ClassT", bound=type)
_FIELDS = "__dataclass_fields__"
"""Where `dataclasses` looks up the fields of a class."""

_waiting: set[type] = set()
"""Classes that were declared and have not been used."""
_making: set[type] = set()
"""Classes that are dataclasses, or are just being made so by the thread that holds the lock."""
_lock = threading.RLock()

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Any:
        """Return a decorator that does nothing: only type checkers read it."""
        return lambda decorated: decorated


@dataclass_transform(frozen_default=True)
def op_dataclass(cls: ClassT) -> ClassT:
    """Declare a subclass of Op a frozen dataclass; its first instance, or a look at its fields, makes it one."""
    setattr(cls, _FIELDS, _MADE_ON_LOOKUP)
    _waiting.add(cls)
    return cls


def made_on_first_instance(base: ClassT) -> ClassT:
    """Have a base class make the subclasses that `op_dataclass` declared before they have instances."""

    def new(cls: type, *arguments: object, **named: object) -> object:
        make_dataclass(cls)
        return object.__new__(cls)

    base.__new__ = new  # type: ignore[assignment]
    cast("Any", base).__signature__ = _SignatureOfInit()  # `inspect` would take that of `new`
    return base


def make_dataclass(cls: type) -> None:
    """Make a class and its bases dataclasses where that was put off."""
    if _waiting.isdisjoint(cls.__mro__):
        return
    with _lock:  # no thread may use a class that another one has half made
        for each in reversed(cls.__mro__):
            if each in _waiting and each not in _making:  # `dataclass` itself looks at the signature of a class
                _making.add(each)
                dataclass(frozen=True)(each)
                _waiting.discard(each)


class _SignatureOfInit:
    """The `__signature__` of a class: how it is called, whether or not it is made yet."""

    def __get__(self, instance: object, cls: type) -> inspect.Signature:
        make_dataclass(cls)
        whole = inspect.signature(cast("Any", cls).__init__)
        return whole.replace(parameters=list(whole.parameters.values())[1:])


class _MadeOnLookup:
    """The `__dataclass_fields__` of a declared class until it is made."""

    def __get__(self, instance: object, cls: type) -> dict[str, Field[Any]]:
        make_dataclass(cls)
        found: dict[str, Field[Any]] = getattr(cls, _FIELDS)
        return found


_MADE_ON_LOOKUP = _MadeOnLookup()
