"""The runtime: where networks are loaded, with the contexts of the backends that want to know (A10)."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from weft.core.contract import check_answers
from weft.core.contract.backend import BackendCreator
from weft.core.contract.backend_options import BackendOptions, Options, Value, problems_of, taken
from weft.core.contract.contexts import BackendContext
from weft.core.contract.error_context import blame, callback_of, do_all, is_error
from weft.core.graph.layout import Array
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.registry.backend_registry import BackendRegistry, Choice, registry
from weft.core.session.load_gate import Gate
from weft.errors import BackendError, ConfigError, InputError, brief

if TYPE_CHECKING:
    from weft.core.session.arguments import Outputs
    from weft.core.session.pipeline import Progress
    from weft.core.session.session import Session

log = logging.getLogger("weft.runtime")


class Runtime:
    """Loads optimised networks and returns their ids; holds the backends' contexts as long as it lives.

    `dynamic_backend_paths` are folders with backends that this runtime alone has; they take the place of
    those in `WEFT_DYNAMIC_BACKEND_PATHS`, and an empty list turns both off. `weft.load` uses a runtime of
    the process unless it is given one.

    `backend_options` are options by backend id, {"vulkan": {"tuning": False}}, for all that is loaded here; those
    that `weft.load` is given go before them. ConfigError for what no backend takes.
    """

    def __init__(
        self,
        *,
        dynamic_backend_paths: Sequence[str | os.PathLike[str]] | None = None,
        backend_options: BackendOptions | None = None,
    ) -> None:
        given = dynamic_backend_paths
        self._own: BackendRegistry | None = registry.derive(given) if given is not None else None
        self.registry = self._own or registry
        try:
            self._options = self.registry.take_options(backend_options)
        except BaseException:
            if self._own is not None:
                self._own.close()
            raise
        self._contexts: dict[tuple[BackendCreator, Options], BackendContext | None] = {}
        self._ids = itertools.count(1)
        self._sessions: dict[int, Session] = {}
        self._known: WeakValueDictionary[int, Session] = WeakValueDictionary()
        """Every session of this runtime, those of `weft.load(runtime=...)` among them."""
        self._lock = threading.RLock()
        self._gate = Gate("the runtime")
        """Loads are inside, so that a close waits for those that run and lets in no more."""

    # -- what a user calls -----------------------------------------------------------------------------

    def load(
        self,
        network: OptimizedNetwork | str | os.PathLike[str],
        *,
        profile: bool = False,
        backend_options: BackendOptions | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Load a network, or the saved one in a file, and return its id.

        `backend_options` go before the runtime's and the network's own. ConfigError for a model that was not
        optimised (`weft.optimize` makes a network of it), and where the runtime has another value of an option that
        the network depends on.
        """
        from weft.core.session.session import Session  # a session knows the runtime, too

        if isinstance(network, (str, os.PathLike)) and Path(network).suffix != ".onnx":
            network = OptimizedNetwork.load(network, backends=self.registry)
        if not isinstance(network, OptimizedNetwork):
            raise ConfigError(
                f"a runtime does not load {check_answers.shown(network)}",
                why="it takes what weft.optimize returns, or the path of a saved network (.weft)",
                fix="runtime.load(weft.optimize(model, device, runtime=runtime)), or weft.load(model, runtime=runtime)",
            )
        with self._gate.inside():
            session = Session.of_optimized(
                network, runtime=self, profile=profile, backend_options=backend_options, progress=progress
            )
            assert session.id is not None
            with self._lock:
                self._sessions[session.id] = session
        return session.id

    def session(self, network: int) -> Session:
        """Return the session of a network that was loaded here."""
        with self._lock:
            session = self._sessions.get(network)
        if session is None:
            loaded = ", ".join(map(str, self.networks)) or "none"
            raise InputError(f"no network {network} is loaded", why=f"loaded are {loaded}", fix="load it first")
        return session

    def run(
        self, network: int, *inputs: Array | Mapping[str, Array], outputs: Outputs | None = None
    ) -> list[Array]:
        """Run a loaded network, as `Session.run` does."""
        return self.session(network).run(*inputs, outputs=outputs)

    def unload(self, network: int) -> None:
        """Unload a network; a context that refuses stops that with BackendError, and it stays loaded."""
        self.session(network).close()
        with self._lock:
            self._sessions.pop(network, None)

    @property
    def networks(self) -> list[int]:
        """Return the ids of the networks that `load` returned and nobody unloaded."""
        with self._lock:
            return list(self._sessions)

    def close(self) -> None:
        """Unload everything and drop the contexts and this runtime's own backends.

        New loads are refused with ClosedError, and those that run are waited for: a load cannot close its
        own runtime (InputError). BackendError if a context refuses to unload a network; all others are
        unloaded, and the runtime stays.
        """
        from weft.core.session.session import close_forgotten  # a session knows the runtime, too

        close_forgotten()
        errors: list[Exception] = []
        with self._gate.closing():
            with self._lock:
                sessions = list(self._known.values())
            for session in sessions:
                try:
                    session.close()
                except Exception as e:
                    if not is_error(e):
                        raise
                    errors.append(e)
            with self._lock:
                if errors and self._known:
                    raise errors[0]
                self._contexts.clear()
            if self._own is not None:
                self._own.close()
        if errors:
            raise errors[0]

    @property
    def is_open(self) -> bool:
        """Tell whether networks can be loaded: nobody has closed the runtime or is about to."""
        return self._gate.is_open

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- what sessions call ----------------------------------------------------------------------------

    def with_options(self, choices: Sequence[Choice], given: BackendOptions | None = None) -> list[Choice]:
        """Return devices with the options of this runtime, before which go those that are given."""
        own = self.registry.take_options(given)
        return [c.with_options({**self._options.get(c.creator.id, {}), **own.get(c.creator.id, {})}) for c in choices]

    def for_network(
        self,
        choices: Sequence[Choice],
        held: Mapping[str, Mapping[str, Value]],
        given: BackendOptions | None = None,
    ) -> list[Choice]:
        """Return devices with the options for a network: first those given, then its own, then the runtime's.

        `held` are the network's own by backend id, of which those count that are declared `saved`. ConfigError where a
        backend does not take one any more, or this runtime has another value and none is given.
        """
        own, problems, made = self.registry.take_options(given), list[str](), list[Choice]()
        for choice in choices:
            creator, runtimes = choice.creator, self._options.get(choice.creator.id, {})
            first, declared = own.get(creator.id, {}), {each.name: each for each in creator.options}
            kept = {
                name: value
                for name, value in held.get(creator.id, {}).items()
                if name not in first and (name not in declared or declared[name].saved)
            }
            problems += problems_of(creator, kept)
            depends = {name: kept.get(name, each.default) for name, each in declared.items() if each.saved}
            problems += [
                f"{name!r} of {creator.id!r} is {runtimes[name]!r} in this runtime, and the network was optimised "
                f"with {brief(repr(value))}"
                for name, value in depends.items()
                if name not in first and runtimes.get(name, value) != value
            ]
            if not problems:
                made.append(choice.with_options({**runtimes, **taken(creator, kept), **first}))
        if problems:
            raise ConfigError(
                "an optimised network has the backend options that it depends on",
                why="; ".join(dict.fromkeys(problems)),
                fix="optimise the model again, with this runtime, or pass the value to load, in backend_options=",
            )
        return made

    @contextmanager
    def loading(
        self, choices: Sequence[Choice], drop: Callable[[], None], loaded: Callable[[int], None]
    ) -> Iterator[int]:
        """Tell the contexts of the backends before and after what is done inside; yields the network's id.

        Then `loaded` is called with it, before a close, which waits until here, can ask what is loaded.

        Where that fails, or a context refuses, `drop` frees what was done, and those that were told of the
        network hear that it is gone again.
        """
        with self._gate.inside():
            network, told = next(self._ids), dict[str, BackendContext]()
            try:
                for id_, context in self._made(choices).items():
                    told[id_] = context
                    _ask(id_, context, "before_load", network)
                yield network
                for id_, context in told.items():
                    _ask(id_, context, "after_load", network)
            except BaseException:
                before, after = ([partial(_notify, *each, what, network) for each in told.items()] for what in UNLOADS)
                do_all([*before, drop, *after])
                raise
            loaded(network)

    def loaded(self, network: int, session: Session) -> None:
        """Know the session of a network that was loaded."""
        with self._lock:
            self._known[network] = session

    def may_unload(self, choices: Sequence[Choice], network: int) -> None:
        """Ask the contexts before an unload; BackendError if one refuses."""
        for id_, context in self._of(choices).items():
            _ask(id_, context, "before_unload", network)

    def unloaded(self, choices: Sequence[Choice], network: int) -> None:
        """Tell all contexts that a network is gone; then BackendError if one could not clean up."""
        with self._lock:
            self._sessions.pop(network, None)
            self._known.pop(network, None)
        problems: list[str] = []

        def tell(id_: str, context: BackendContext) -> None:
            try:
                if not check_answers.agreed(context.after_unload(network), callback_of(context, "after_unload")):
                    problems.append(f"after_unload of {id_!r} returned False")
            except Exception as e:
                if not is_error(e):
                    raise
                problems.append(f"after_unload of {id_!r} failed with {type(e).__name__}: {e}")

        do_all(partial(tell, *each) for each in self._of(choices).items())
        if problems:
            raise BackendError(
                f"network {network} was unloaded, but not all that belongs to it could be cleaned up",
                where=type(self).__name__,
                why="; ".join(problems),
            )

    def _made(self, choices: Sequence[Choice]) -> dict[str, BackendContext]:
        """Return the contexts of these backends with their options, making those that were never asked for."""
        with self._lock:
            for creator, options in dict.fromkeys((c.creator, c.options) for c in choices):
                if (creator, options) not in self._contexts:
                    self._contexts[creator, options] = _context(creator, options)
        return self._of(choices)

    def _of(self, choices: Sequence[Choice]) -> dict[str, BackendContext]:
        """Return the contexts that there are, by backend."""
        with self._lock:
            made = {c.creator.id: self._contexts.get((c.creator, c.options)) for c in choices}
        return {id_: context for id_, context in made.items() if context is not None}


UNLOADS = ("before_unload", "after_unload")


def _notify(id_: str, context: BackendContext, what: str, network: int) -> None:
    """Tell a context that a load failed; an error of it is logged."""
    try:
        answer: object = getattr(context, what)(network)
        if not check_answers.agreed(answer, callback_of(context, what)):
            log.warning("the context of %s returned False from %s after a failed load", id_, what)
    except Exception as e:
        if not is_error(e):
            raise
        log.warning("the context of %s failed in %s after a failed load: %s", id_, what, e or type(e).__name__)


def _context(creator: BackendCreator, options: Options) -> BackendContext | None:
    callback = callback_of(creator, "create_context")
    with blame(creator.id, "the backend could not make its context", callback=callback):
        made = creator.create_context()
        context = check_answers.optional(made, BackendContext, f"{creator.id}: {callback}", "a BackendContext")
        if context is not None:
            context.options = options
    return context


def _ask(id_: str, context: BackendContext, what: str, network: int) -> None:
    callback = callback_of(context, what)
    with blame(id_, f"the backend's context failed in {what} of network {network}", callback=callback):
        answer = getattr(context, what)(network)
    if not check_answers.agreed(answer, f"{id_}: {callback}"):
        verb = "unload" if "unload" in what else "load"
        raise BackendError(
            f"backend {id_!r} refused to {verb} network {network}",
            where=f"{type(context).__name__}.{what}",
            why="it returned False",
            fix="the backend's own documentation says why",
        )


_default: Runtime | None = None
_default_lock = threading.Lock()


def default_runtime() -> Runtime:
    """Return the runtime of the process, made when it is first asked for."""
    global _default
    with _default_lock:
        if _default is None or not _default.is_open:
            _default = Runtime()
        return _default
