"""The runtime: where networks are loaded, with the contexts of the backends that want to know (A10)."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from weft.core.backend import BackendCreator
from weft.core.blame import blame
from weft.core.contexts import BackendContext
from weft.core.layout import Array
from weft.core.optimized import OptimizedNetwork
from weft.core.registry import BackendRegistry, registry
from weft.errors import BackendError, ClosedError, InputError

if TYPE_CHECKING:
    from weft.core.arrays import Outputs
    from weft.core.pipeline import Progress
    from weft.core.session import Session

log = logging.getLogger("weft.runtime")


class Runtime:
    """Loads optimised networks and returns their ids; holds the backends' contexts as long as it lives.

    `dynamic_backend_paths` are folders with backends that this runtime alone has; they take the place of
    those in `WEFT_DYNAMIC_BACKEND_PATHS`, and an empty list turns both off. `weft.load` uses a runtime of
    the process unless it is given one.
    """

    def __init__(self, *, dynamic_backend_paths: Sequence[str | os.PathLike[str]] | None = None) -> None:
        given = dynamic_backend_paths
        self._own: BackendRegistry | None = registry.derive(given) if given is not None else None
        self.registry = self._own or registry
        self._contexts: dict[BackendCreator, BackendContext | None] = {}
        self._ids = itertools.count(1)
        self._sessions: dict[int, Session] = {}
        self._known: WeakValueDictionary[int, Session] = WeakValueDictionary()
        """Every session of this runtime, those of `weft.load(runtime=...)` among them."""
        self._lock = threading.RLock()
        self._closed = False

    # -- what a user calls -----------------------------------------------------------------------------

    def load(self, network: OptimizedNetwork, *, profile: bool = False, progress: Progress | None = None) -> int:
        """Load a network and return its id."""
        from weft.core.session import Session  # a session knows the runtime, too

        session = Session.of_optimized(network, runtime=self, profile=profile, progress=progress)
        assert session.id is not None
        with self._lock:
            self._sessions[session.id] = session
        return session.id

    def session(self, network: int) -> Session:
        """Return the session of a network that was loaded here."""
        session = self._sessions.get(network)
        if session is None:
            loaded = ", ".join(map(str, self._sessions)) or "none"
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
        return list(self._sessions)

    def close(self) -> None:
        """Unload everything and drop the contexts and this runtime's own backends.

        BackendError if a context refuses to unload a network; all others are unloaded, and the runtime stays.
        """
        from weft.core.session import close_forgotten  # a session knows the runtime, too

        close_forgotten()
        errors: list[Exception] = []
        for session in list(self._known.values()):
            try:
                session.close()
            except Exception as e:
                errors.append(e)
        if errors and self._known:
            raise errors[0]
        self._contexts.clear()
        if self._own is not None:
            self._own.close()
        self._closed = True
        if errors:
            raise errors[0]

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- what sessions call ----------------------------------------------------------------------------

    @contextmanager
    def loading(self, creators: Sequence[BackendCreator], drop: Callable[[], None]) -> Iterator[int]:
        """Tell the contexts of the backends before and after what is done inside; yields the network's id.

        Where that fails, or a context refuses, `drop` frees what was done, and those that were told of the
        network hear that it is gone again.
        """
        if self._closed:
            raise ClosedError("the runtime is closed", fix="make another")
        network, told = next(self._ids), dict[str, BackendContext]()
        try:
            for id_, context in self._made(creators).items():
                told[id_] = context
                _ask(id_, context, "before_load", network)
            yield network
            for id_, context in told.items():
                _ask(id_, context, "after_load", network)
        except BaseException:
            self._notify(told, "before_unload", network)
            drop()
            self._notify(told, "after_unload", network)
            raise

    def loaded(self, network: int, session: Session) -> None:
        """Know the session of a network that was loaded."""
        self._known[network] = session

    def may_unload(self, creators: Sequence[BackendCreator], network: int) -> None:
        """Ask the contexts before an unload; BackendError if one refuses."""
        for id_, context in self._of(creators).items():
            _ask(id_, context, "before_unload", network)

    def unloaded(self, creators: Sequence[BackendCreator], network: int) -> None:
        """Tell all contexts that a network is gone; then BackendError if one could not clean up."""
        self._sessions.pop(network, None)
        self._known.pop(network, None)
        problems = []
        for id_, context in self._of(creators).items():
            try:
                if context.after_unload(network) is False:
                    problems.append(f"after_unload of {id_!r} returned False")
            except Exception as e:
                problems.append(f"after_unload of {id_!r} failed with {type(e).__name__}: {e}")
        if problems:
            raise BackendError(
                f"network {network} was unloaded, but not all that belongs to it could be cleaned up",
                where=type(self).__name__,
                why="; ".join(problems),
            )

    def _made(self, creators: Sequence[BackendCreator]) -> dict[str, BackendContext]:
        """Return the contexts of these backends, making those that were never asked for."""
        with self._lock:
            for creator in dict.fromkeys(creators):
                if creator not in self._contexts:
                    with blame(creator.id, "the backend could not make its context"):
                        self._contexts[creator] = creator.create_context()
        return self._of(creators)

    def _of(self, creators: Sequence[BackendCreator]) -> dict[str, BackendContext]:
        """Return the contexts that there are, by backend."""
        with self._lock:
            made = {c.id: self._contexts.get(c) for c in creators}
        return {id_: context for id_, context in made.items() if context is not None}

    @staticmethod
    def _notify(told: Mapping[str, BackendContext], what: str, network: int) -> None:
        for id_, context in told.items():
            try:
                getattr(context, what)(network)
            except Exception as e:
                log.warning("the context of %s failed in %s after a failed load: %s", id_, what, e)


def _ask(id_: str, context: BackendContext, what: str, network: int) -> None:
    with blame(id_, f"the backend's context failed in {what} of network {network}"):
        answer = getattr(context, what)(network)
    if answer is False:
        verb = "unload" if "unload" in what else "load"
        raise BackendError(
            f"backend {id_!r} refused to {verb} network {network}",
            where=f"{type(context).__name__}.{what}",
            why="it returned False",
            fix="the backend's own documentation says why",
        )


_default: Runtime | None = None


def default_runtime() -> Runtime:
    """Return the runtime of the process, made when it is first asked for."""
    global _default
    if _default is None or _default._closed:
        _default = Runtime()
    return _default
