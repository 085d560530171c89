"""The notices that a runtime's backend contexts get when networks are loaded and unloaded (A10)."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from weft.core.contract import check_answers
from weft.core.contract.backend import BackendCreator
from weft.core.contract.backend_options import Options
from weft.core.contract.contexts import BackendContext
from weft.core.contract.error_context import blame, callback_of, caught, do_all
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.load_gate import LoadGate
from weft.errors import BackendError, said_of

log = logging.getLogger("weft.runtime")


class Notifier:
    """Owns the contexts of one runtime, and gives each network that is loaded there its id.

    Loads run inside `gate`, so that a close of the runtime waits for running loads and admits no new ones.
    """

    def __init__(self, gate: LoadGate) -> None:
        self._gate = gate
        self._ids = itertools.count(1)
        self._contexts: dict[tuple[BackendCreator, Options], BackendContext | None] = {}
        self._lock = threading.RLock()

    @contextmanager
    def loading(self, choices: Sequence[DeviceChoice]) -> Iterator[Notices]:
        """Yield the notices of a network that the block loads on these devices; ClosedError once a close has begun."""
        with self._gate.inside():
            yield Notices(next(self._ids), self._contexts_of(choices))

    def forget(self) -> None:
        """Drop the contexts, once no network is left."""
        with self._lock:
            self._contexts.clear()

    def _contexts_of(self, choices: Sequence[DeviceChoice]) -> dict[str, BackendContext]:
        """Return the contexts of these backends with these options; make those that do not exist yet."""
        with self._lock:
            for key in dict.fromkeys((c.creator, c.options) for c in choices):
                if key not in self._contexts:
                    self._contexts[key] = _context(*key)
            made = {c.creator.id: self._contexts[c.creator, c.options] for c in choices}
        return {id_: context for id_, context in made.items() if context is not None}


class Notices:
    """The notices about the network with the id `network`; its owner sends them in order.

    If a context refuses, BackendError names it.
    """

    def __init__(self, network: int, contexts: Mapping[str, BackendContext]) -> None:
        self.network = network
        self._contexts = contexts
        self._told: dict[str, BackendContext] = {}
        """The contexts that were asked about the load."""

    def silent(self) -> Notices:
        """Return notices about the same network that nobody hears."""
        return Notices(self.network, {})

    def before_load(self) -> None:
        """Ask whether the network may be loaded."""
        for id_, context in self._contexts.items():
            self._told[id_] = context
            _ask(id_, context, "before_load", self.network)

    def after_load(self) -> None:
        """Notify that it was loaded."""
        self._ask_all("after_load")

    def before_unload(self) -> None:
        """Ask whether it may be unloaded."""
        self._ask_all("before_unload")

    def after_unload(self) -> None:
        """Notify all contexts that it was unloaded; then BackendError if some could not clean up."""
        problems: list[str] = []
        do_all(partial(self._tell_gone, *each, problems) for each in self._contexts.items())
        if problems:
            raise BackendError(
                f"network {self.network} was unloaded, but not all that belongs to it could be cleaned up",
                where="Runtime",
                why="; ".join(problems),
                fix="nothing has to be done to go on; mend the contexts that are named",
            )

    def after_failure(self, what: str) -> list[Callable[[], None]]:
        """Return the steps that send an unload notice, after a failed load, to the contexts that heard of the load."""
        return [partial(self._tell_failure, *each, what) for each in self._told.items()]

    def _ask_all(self, what: str) -> None:
        for id_, context in self._contexts.items():
            _ask(id_, context, what, self.network)

    def _tell_gone(self, id_: str, context: BackendContext, problems: list[str]) -> None:
        notice = f"after_unload of {id_!r}"
        with caught(lambda e: problems.append(f"{notice} failed with {said_of(e)}")):
            if not check_answers.agreed(context.after_unload(self.network), callback_of(context, "after_unload")):
                problems.append(f"{notice} returned False")

    def _tell_failure(self, id_: str, context: BackendContext, what: str) -> None:
        failed = f"the context of {id_} failed in {what} after a failed load"
        with caught(lambda e: log.warning("%s: %s", failed, e or type(e).__name__)):
            if not check_answers.agreed(getattr(context, what)(self.network), callback_of(context, what)):
                log.warning("the context of %s returned False from %s after a failed load", id_, what)


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
