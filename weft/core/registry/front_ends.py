"""The registry of front ends: from the suffix of a file, or the type of an object, to what makes a graph of it.

Weft's own are inserted when it is imported. Those that installed packages announce are found by a `FrontEndFinder`,
when a model comes for which no front end is known yet.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

from weft.core.contract.check_answers import shown
from weft.core.contract.error_context import is_error
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Limits
from weft.core.registry.entries import WEFT
from weft.core.registry.foreign import own_suffix, recognise_object, recognise_path
from weft.errors import ConfigError, ModelError, WeftError, brief

if TYPE_CHECKING:
    from weft.core.registry.backend_registry import BackendRegistry

log = logging.getLogger("weft.plugins")
HELD = (str, os.PathLike, bytes, bytearray, memoryview)
"""What names or holds the bytes of a file."""


@dataclass(frozen=True)
class ReadOptions:
    """What a front end gets beside the model."""

    limits: Limits = field(default_factory=Limits)
    """What the model may cost: refuse one with more nodes, or more bytes of constants (`limits.check(graph)`)."""
    backends: BackendRegistry | None = None
    """The backends that a saved network may need; None for all that are known."""
    signature: str | None = None
    """Which of a model's signatures to read; None for the first. Only front ends that have `signatures` get one."""


@dataclass(frozen=True)
class FrontEnd:
    """What reads models of one kind.

    `read` gets a `Path` or an object, and `ReadOptions`. It returns what `makes` says, or an object that another front
    end reads, such as a `weft.Network`; it raises ModelError for what is wrong with the model. `suffixes` are those of
    its files, such as ".onnx"; "" is that of files without one. `types` are the classes of its objects, or their full
    names ("onnx.ModelProto"), so that nothing need be imported to know them; subclasses count as well.
    """

    name: str
    read: Callable[[Any, ReadOptions], object]
    suffixes: tuple[str, ...] = ()
    types: tuple[type | str, ...] = ()
    makes: type = Graph
    """`Graph`, or `OptimizedNetwork` for networks that are optimised already: they are loaded as they are."""
    signatures: bool = False
    """Whether its models may have several signatures, of which `ReadOptions.signature` names one."""

    @property
    def optimized(self) -> bool:
        """Tell whether it reads networks that are optimised already."""
        return self.makes is not Graph


class FrontEndFinder(Protocol):
    """Finds front ends of installed packages; it raises nothing."""

    def insert_installed(self, registry: FrontEndRegistry) -> None:
        """Insert what installed packages announce."""


class FrontEndRegistry:
    """Front ends by suffix and by type; each suffix, type and name can be taken once."""

    def __init__(self, finder: FrontEndFinder | None = None) -> None:
        self.finder = finder
        self._held: dict[str, tuple[FrontEnd, str]] = {}
        self._failures: dict[str, str] = {}
        self._asked = False
        self._lock = threading.RLock()

    def insert(self, front_end: FrontEnd, *, origin: str = "register_front_end") -> None:
        """Register a front end; ConfigError if it is not one, or if another has its name, a suffix or a type."""
        with self._lock:
            problems, fix = _problems(front_end), "see docs/add-a-front-end.md for what a front end has"
            if not problems:
                problems = self._taken(front_end)
                fix = "choose other names, or remove the holder (weft.extend.front_ends.remove)"
            if problems:
                raise ConfigError(
                    f"the front end {getattr(front_end, 'name', front_end)!r} cannot be registered",
                    where=origin,
                    why="; ".join(problems),
                    fix=fix,
                )
            # A new dict: other threads may be reading the old one.
            self._held = {**self._held, front_end.name: (front_end, origin)}

    def insert_found(self, front_end: FrontEnd, origin: str) -> None:
        """Register a front end that was found in a package; if that fails, warn and note it in `failures`."""
        try:
            self.insert(front_end, origin=origin)
        except ConfigError as e:
            self.skip(origin, e.short)

    def skip(self, origin: str, reason: str) -> None:
        """Warn that the front end at `origin` is not used, and remember the reason."""
        log.warning("%s is skipped: %s", origin, brief(reason), extra={"skipped": origin})
        self._failures[origin] = brief(reason)

    def remove(self, name: str) -> None:
        """Unregister a front end by its name; ConfigError if there is none."""
        with self._lock:
            if name not in self._held:
                raise ConfigError(
                    f"there is no front end {name!r}",
                    why=f"known are {', '.join(self._held)}",
                    fix="use a name that weft.extend.front_ends.known() lists",
                )
            self._held = {k: v for k, v in self._held.items() if k != name}

    def known(self) -> dict[str, str]:
        """Return where each front end came from, by its name: "weft", a call, or an installed package."""
        self._search()
        return {name: origin for name, (_, origin) in self._held.items()}

    def registered(self) -> list[FrontEnd]:
        """Return the front ends in the order of registration; installed packages come last."""
        self._search()
        return [front_end for front_end, _ in self._held.values()]

    @property
    def failures(self) -> dict[str, str]:
        """Return why front ends of packages are not used: the reason, by where each was found."""
        self._search()
        return dict(self._failures)

    def find(self, model: object) -> FrontEnd | None:
        """Return the front end for a path or an object; None if there is none.

        What a file holds counts more than its name, where it is of a kind that Weft itself reads.
        """
        found = self._find(model)
        if found is None:
            self._search()  # waits for a thread that searches already
            found = self._find(model)
        if isinstance(model, HELD) and (found is None or self._origin(found) == WEFT):
            suffix = own_suffix(model)
            found = next((f for f, _ in self._held.values() if suffix and suffix in f.suffixes), found)
        return found

    def choose(self, model: object) -> FrontEnd:
        """Return the front end for a path or an object; ModelError, with those that are known, if there is none."""
        found = self.find(model)
        if found is not None:
            return found
        skipped = "".join(f"; {origin} was skipped: {why}" for origin, why in self._failures.items())
        foreign = recognise_path(model) if isinstance(model, (str, os.PathLike)) else recognise_object(model)
        if foreign is not None:
            if isinstance(model, (str, os.PathLike)):
                raise foreign.refusal(os.fsdecode(os.fspath(model)))
            raise foreign.refusal(type_name(type(model)), "its class says so")
        if isinstance(model, (str, os.PathLike)):
            name = brief(str(os.fspath(model)))
            raise ModelError(
                f"no front end reads {_suffix(model) or 'such a file'}",
                where=name,
                why=f"known are {self._listed(lambda f: f.suffixes)}{skipped}",
                fix="name a file of one of these, or install a package that adds a front end (docs/add-a-front-end.md)",
            )
        raise ModelError(
            f"cannot load a model from {type(model).__name__}",
            why=f"it is neither a path nor an object that a front end takes{skipped}",
            fix=f"pass the path of a model, or one of {self._listed(lambda f: f.types)}",
        )

    def read(self, model: object, options: ReadOptions | None = None) -> object:
        """Return what the front end for a path or an object makes of it, of the type that it says.

        ModelError if there is none. ModelError, naming the front end, if one of another package raises anything else
        or returns something else.
        """
        front_end = self.choose(model)
        origin = self._origin(front_end)
        given = options or ReadOptions()
        if given.signature is not None and not front_end.signatures:
            raise ConfigError(
                f"signature={given.signature!r} means nothing here", where=f"front end {front_end.name!r}",
                why="its models have one way to be called", fix="leave signature out",
            )
        result = self._read_by(front_end, model, given)
        if not isinstance(result, front_end.makes):
            other = self.find(result) if not isinstance(result, (str, os.PathLike)) else None
            if other is not None and other is not front_end:
                result = self._read_by(other, result, given)
        if not isinstance(result, front_end.makes):
            raise ModelError(
                f"the front end {front_end.name!r} did not return a network",
                where=origin,
                why=f"it returned {shown(result)}",
                fix=f"its read must return a {front_end.makes.__name__}",
            )
        if origin != WEFT and isinstance(result, Graph):
            given.limits.check(result)
        return result

    def _origin(self, front_end: FrontEnd) -> str:
        return self._held.get(front_end.name, (front_end, WEFT))[1]

    def _read_by(self, front_end: FrontEnd, model: object, options: ReadOptions) -> object:
        origin = self._origin(front_end)
        if origin == WEFT:
            return front_end.read(model, options)
        return _read_by_guest(front_end, origin, model, options)

    def _find(self, model: object) -> FrontEnd | None:
        held = [front_end for front_end, _ in self._held.values()]
        if isinstance(model, (str, os.PathLike)):
            name = PurePath(os.fsdecode(os.fspath(model))).name.lower()
            if not PurePath(name).suffix:
                return next((f for f in held if "" in f.suffixes), None)
            fits = [(len(s), f) for f in held for s in f.suffixes if s and name.endswith(s)]
            return max(fits, key=lambda pair: pair[0])[1] if fits else None
        kinds = type(model).__mro__
        for kind in kinds:
            name = type_name(kind)
            found = next((f for f in held if kind in f.types or name in f.types), None)
            if found is not None:
                return found
        return None

    def _search(self) -> None:
        """Find what packages announce, once."""
        with self._lock:
            if not self._asked and self.finder is not None:
                self._asked = True
                self.finder.insert_installed(self)

    def _taken(self, front_end: FrontEnd) -> list[str]:
        problems = []
        for other, origin in self._held.values():
            both = _keys(front_end) & _keys(other)
            if other.name == front_end.name:
                problems.append(f"the name {front_end.name!r} is taken, by one of {origin}")
            problems += [f"{each!r} is read by {other.name!r}, of {origin}" for each in sorted(both)]
        return problems

    def reads(self, front_end: FrontEnd) -> str:
        """Return what a front end reads, as people write it: ".onnx, bytes, onnx.ModelProto"."""
        return self._names(front_end, (*front_end.suffixes, *front_end.types))

    def _names(self, front_end: FrontEnd, kinds: Iterable[type | str]) -> str:
        short = self._origin(front_end) == WEFT
        return ", ".join(dict.fromkeys(_name(each, short) for each in kinds if each))

    def _listed(self, of: Callable[[FrontEnd], Iterable[type | str]]) -> str:
        lines = []
        for front_end, origin in self._held.values():
            if what := self._names(front_end, of(front_end)):
                lines.append(f"{what} ({front_end.name}{'' if origin == WEFT else f', from {origin}'})")
        return "; ".join(lines)


def _suffix(model: str | os.PathLike[str]) -> str:
    return PurePath(os.fsdecode(os.fspath(model))).suffix


def type_name(each: type | str) -> str:
    """Return the full name of a class, "onnx.ModelProto", by which a front end may register it."""
    return each if isinstance(each, str) else f"{each.__module__}.{each.__qualname__}"


def _keys(front_end: FrontEnd) -> set[str]:
    """Return what a front end claims for itself: its suffixes, and its types by their full names."""
    return {*front_end.suffixes, *map(type_name, front_end.types)}


def _name(each: type | str, short: bool) -> str:
    """Return a suffix as it is, and a class by its full name, or as users import it: "weft.Network", "bytes"."""
    name = type_name(each).removeprefix("builtins.")
    first, *rest = name.split(".")
    return f"{first}.{rest[-1]}" if short and first and rest else name


def _problems(front_end: object) -> list[str]:
    """Return what is wrong with what should be a front end."""
    if not isinstance(front_end, FrontEnd):
        return [f"{shown(front_end)} is no FrontEnd"]
    suffixes, types = front_end.suffixes, front_end.types
    if not all(isinstance(each, tuple) for each in (suffixes, types)):
        return ["suffixes and types must be tuples"]
    problems = [] if isinstance(front_end.name, str) and front_end.name else ["it has no name"]
    problems += [] if callable(front_end.read) else [f"read is {shown(front_end.read)} and cannot be called"]
    wrong = [s for s in suffixes if not isinstance(s, str) or (s and (s[0] != "." or len(s) < 2 or s != s.lower()))]
    problems += [f"{each!r} is no suffix; write it as '.xyz', in small letters" for each in wrong]
    strange = [each for each in types if not isinstance(each, (type, str))]
    problems += [f"{shown(each)} is neither a class nor its name" for each in strange]
    return problems if suffixes or types else [*problems, "it reads neither a suffix nor a type"]


def _read_by_guest(front_end: FrontEnd, origin: str, model: object, options: ReadOptions) -> object:
    """Return what a front end of another package makes of a model; ModelError for what it raises, if no WeftError."""
    importlib.import_module("weft.ops")  # late, as `weft.load` does it; it registers the ops
    path = Path(os.fsdecode(os.fspath(model))) if isinstance(model, (str, os.PathLike)) else None
    try:
        return front_end.read(path or model, options)
    except WeftError:
        raise
    except Exception as e:
        if not is_error(e):
            raise
        raise ModelError(
            f"the front end {front_end.name!r} failed to read {'the file' if path else f'a {type(model).__name__}'}",
            where=f"{brief(str(model))}, {origin}" if path else origin,
            why=f"{type(e).__name__}: {e}",
            fix="check that the model is one that this front end reads, or report this to its package",
        ) from e


front_ends = FrontEndRegistry()
"""The registry that every part of Weft uses."""


def register_front_end(front_end: FrontEnd) -> None:
    """Register a front end for this program; a suffix, type or name that is taken is refused, naming the holder."""
    front_ends.insert(front_end)
