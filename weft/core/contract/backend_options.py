"""Options of a backend: what its creator declares, and the values that a user gives."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import BackendError, ConfigError, brief

if TYPE_CHECKING:
    from weft.core.contract.backend import BackendCreator

Value = bool | int | float | str
"""The types of an option's value."""
BackendOptions = Mapping[Any, Mapping[str, object]]
"""What a user gives: values by option name, for each backend by its id or forward type."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
LIST_THEM = "`weft devices --options` lists what each backend takes"


@dataclass(frozen=True, slots=True)
class BackendOption:
    """One option of a backend, as its creator declares it in `BackendCreator.options`.

    Its type is that of `default`: bool, int, float or str. `choices` lists all valid values, if they can be
    listed; `least` is the smallest number; `check` raises ConfigError for a value that makes no sense otherwise,
    whether or not a network uses the backend. `doc` is one sentence for `weft devices --options`.
    Set `saved` if an optimised network depends on the value: the network then keeps it, also in a file, and is
    loaded with it. A file may come from a stranger, so do not save memory limits, caches or anything else that the
    loading user should decide.
    """

    name: str
    default: Value
    doc: str
    choices: tuple[Value, ...] = ()
    least: float | None = None
    saved: bool = False
    check: Callable[[Value], object] | None = None

    @property
    def kind(self) -> type[Value]:
        """Return the type of the values."""
        return type(self.default)

    @property
    def takes(self) -> str:
        """Return in words which values the option takes."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        least = "" if self.least is None else f" from {self.least} on"
        return {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}[self.kind] + least

    def value(self, given: object) -> Value | None:
        """Return a given value in the option's type, or None if the option does not take it."""
        made: Value | None = None
        if self.kind is bool:
            made = bool(given) if isinstance(given, (bool, np.bool_)) else None
        elif self.kind is str:
            made = given if isinstance(given, str) else None
        elif isinstance(given, (bool, np.bool_)):
            made = None
        elif self.kind is int:
            made = int(given) if isinstance(given, Integral) else None
        elif isinstance(given, Real):
            made = float(given) if math.isfinite(given) else None
        if made is None or (self.choices and made not in self.choices):
            return None
        too_small = self.least is not None and not isinstance(made, str) and made < self.least
        return None if too_small else made

    def parse(self, text: str) -> object:
        """Return the meaning of a command-line text; the text itself if it has no meaning in this type."""
        if self.kind is bool:
            return _WORDS.get(text.strip().lower(), text)
        try:
            return self.kind(text)
        except ValueError:
            return text

    def problem(self) -> str | None:
        """Return what is wrong with the declaration, or None."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            return f"{self.name!r} is no name for an option: write small letters, digits and _"
        if self.kind not in (bool, int, float, str):
            return f"the default of {self.name!r} is of type {self.kind.__name__}, not bool, int, float or str"
        if not isinstance(self.doc, str) or not self.doc.strip():
            return f"{self.name!r} has no doc"
        if not isinstance(self.saved, bool):
            return f"saved of {self.name!r} is {brief(repr(self.saved))}, not True or False"
        if self.check is not None and not callable(self.check):
            return f"check of {self.name!r} is {brief(repr(self.check))}, which is no function"
        return None if self.value(self.default) is not None else f"{self.name!r} does not take its own default"


class Options(Mapping[str, Value]):
    """Immutable values by name, hashable so that they can be keys, such as of opened devices."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Options({self._values})"


NO_OPTIONS = Options()


def check_declared(creator: BackendCreator) -> None:
    """Raise BackendError unless a creator declares a list of options with distinct names."""
    given: object = creator.options
    problems: list[str] = []
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        problems.append(f"options is {brief(repr(given))}, which is not a list of BackendOption")
    else:
        for each in given:
            wrong = each.problem() if isinstance(each, BackendOption) else f"{brief(repr(each))} is not a BackendOption"
            problems += [wrong] if wrong else []
        names = [each.name for each in given if isinstance(each, BackendOption)]
        problems += [f"{name!r} is declared twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if problems:
        raise BackendError(
            "a backend declares its options wrongly",
            where=type(creator).__name__,
            why="; ".join(problems),
            fix='write options = (weft.BackendOption("name", default, "What it does."),)',
        )


def defaults(creator: BackendCreator) -> Options:
    """Return the default values of a creator's options."""
    return Options({each.name: each.default for each in creator.options})


def kept_by_networks(creator: BackendCreator, values: Mapping[str, Value]) -> Options:
    """Return the options that an optimised network keeps: declared `saved`, and not at their defaults."""
    depends = {each.name: each.default for each in creator.options if each.saved}
    return Options({k: v for k, v in values.items() if k in depends and depends[k] != v})


def problems_of(creator: BackendCreator, given: object) -> list[str]:
    """Return what is wrong with the values given for one backend; ConfigError if an option's own check raises it."""
    if not isinstance(given, Mapping):
        return [f"{creator.id!r} has {brief(repr(given))}, which is not a dict of values by name"]
    known = {each.name: each for each in creator.options}
    problems = []
    for name, value in given.items():
        option = known.get(name) if isinstance(name, str) else None
        if option is None:
            near = get_close_matches(str(name), known, 1)
            has = f"it has {', '.join(known)}" if known else "it has none"
            meant = f"; did you mean {near[0]!r}?" if near else ""
            problems.append(f"{creator.id!r} has no option {name!r}: {has}{meant}")
        elif (typed := option.value(value)) is None:
            problems.append(f"{name!r} of {creator.id!r} takes {option.takes}, not {brief(repr(value))}")
        elif option.check is not None:
            option.check(typed)
    return problems


def taken(creator: BackendCreator, given: Mapping[str, object]) -> dict[str, Value]:
    """Return the values for one backend in their types; ConfigError lists all that are wrong."""
    problems = problems_of(creator, given)
    if problems:
        raise wrong_options(problems)
    return {each.name: _of(each, given[each.name]) for each in creator.options if each.name in given}


def _of(option: BackendOption, given: object) -> Value:
    value = option.value(given)
    assert value is not None
    return value


def wrong_options(problems: Sequence[str]) -> ConfigError:
    """Return the error for options that no backend takes."""
    return ConfigError("backend options are not understood", why="; ".join(problems), fix=LIST_THEM)
