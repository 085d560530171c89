"""The runtime: it loads networks, and owns the contexts of the backends (A10)."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft.core.contract import check_answers
from weft.core.contract.backend_options import BackendOptions, Value, problems_of, taken
from weft.core.contract.doors import door
from weft.core.contract.error_context import caught
from weft.core.contract.not_copied import NotCopied
from weft.core.host import shutdown
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.core.registry.device_choice import DeviceChoice
from weft.core.registry.front_ends import ReadOptions, front_ends
from weft.core.saved.network_file import check_backends
from weft.core.session.arguments import Input, Outputs
from weft.core.session.load_gate import LoadGate
from weft.core.session.load_options import LoadOptions, RuntimeKeywords, described
from weft.core.session.loader import close_forgotten
from weft.core.session.notices import Notifier
from weft.core.session.session import Session
from weft.errors import ConfigError, InputError, ModelError, brief

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Runtime(NotCopied):
    """Loads optimised networks and returns their ids; keeps the backends' contexts as long as it lives.

    `dynamic_backend_paths` are folders with backends for this runtime alone; they replace those in
    `WEFT_DYNAMIC_BACKEND_PATHS`, and an empty list turns both off. `weft.load` uses a runtime of the process unless it
    is given one.

    `backend_options` are options by backend id, {"vulkan": {"tuning": False}}, for everything that is loaded here;
    options given to `weft.load` override them. ConfigError for an option that no backend takes.
    """

    _noun = "runtime"
    _in_a_worker = "make a runtime in each process, and load the networks there: weft.Runtime().load('model.weft')"
    _a_second = "share it, which any thread may, or make another: weft.Runtime()"

    @door
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
        self._sessions: dict[int, Session] = {}
        self._lock = threading.Lock()
        self._gate = LoadGate("the runtime")
        self.notifier = Notifier(self._gate)

    # -- what a user calls -----------------------------------------------------------------------------

    @described(RuntimeKeywords)
    @door
    def load(self, network: OptimizedNetwork | str | os.PathLike[str], **options: Unpack[RuntimeKeywords]) -> int:
        """Load a network, or the saved one in a file, and return its id.

        The options are those of `weft.load`. `backend_options` override the runtime's and the network's own.
        ConfigError for a model that is not optimised (`weft.optimize` does that), and if the runtime has another value
        of an option that the network depends on.
        """
        asked = LoadOptions.of(dict(options), RuntimeKeywords, caller="Runtime.load")
        front_end = front_ends.find(network)
        if front_end is None or not front_end.optimized:
            raise ConfigError(
                f"a runtime does not load {check_answers.shown(network)}",
                why="it takes what weft.optimize returns, or the path of a saved network (.weft)",
                fix="runtime.load(weft.optimize(model, device, runtime=runtime)), or weft.load(model, runtime=runtime)",
            )
        made = front_ends.read(network, ReadOptions(backends=self.registry))
        assert isinstance(made, OptimizedNetwork)  # what `read` of such a front end returns
        with self._gate.inside():
            session = load_optimized(made, self, asked)
            assert session.id is not None
            with self._lock:
                self._sessions[session.id] = session
        return session.id

    def session(self, network: int) -> Session:
        """Return the session of a network that was loaded here."""
        sessions = self._loaded()
        if network not in sessions:
            loaded = ", ".join(map(str, sessions)) or "none"
            raise InputError(f"no network {network} is loaded", why=f"loaded are {loaded}", fix="load it first")
        return sessions[network]

    @door
    def run(self, network: int, *inputs: Input | Mapping[str, Input], outputs: Outputs | None = None) -> list[Any]:
        """Run a loaded network, as `Session.run` does."""
        return self.session(network).run(*inputs, outputs=outputs)

    @door
    def unload(self, network: int) -> None:
        """Unload a network; BackendError if a context refuses, and the network stays loaded."""
        self.session(network).close()

    @property
    def networks(self) -> list[int]:
        """Return the ids of the networks that `load` returned and that were not unloaded."""
        return list(self._loaded())

    def _loaded(self) -> dict[int, Session]:
        """Return the sessions of the networks that `load` returned, without the closed ones."""
        with self._lock:
            self._sessions = {network: s for network, s in self._sessions.items() if not s.is_closed}
            return dict(self._sessions)

    @door
    def close(self) -> None:
        """Unload everything, and drop the contexts and this runtime's own backends.

        It waits for running loads and refuses new ones with ClosedError; a load cannot close its own runtime
        (InputError). BackendError if a context refuses to unload a network: the other networks are unloaded, and the
        runtime stays open.
        """
        close_forgotten()
        errors: list[Exception] = []
        with self._gate.closing():
            mine = [s for s in shutdown.still_open(Session) if s.runtime is self and s.id is not None]
            for session in mine:
                with caught(errors.append):
                    session.close()
            if errors and not all(session.is_closed for session in mine):
                raise errors[0]
            self.notifier.forget()
            if self._own is not None:
                self._own.close()
        if errors:
            raise errors[0]

    @property
    def is_open(self) -> bool:
        """Tell whether networks can be loaded: the runtime is neither closed nor closing."""
        return self._gate.is_open

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- options ---------------------------------------------------------------------------------------

    def with_options(self, choices: Sequence[DeviceChoice], given: BackendOptions | None = None) -> list[DeviceChoice]:
        """Return devices with the options of this runtime, which given ones override."""
        own = self.registry.take_options(given)
        return [c.with_options({**self._options.get(c.creator.id, {}), **own.get(c.creator.id, {})}) for c in choices]

    def for_network(
        self,
        choices: Sequence[DeviceChoice],
        held: Mapping[str, Mapping[str, Value]],
        given: BackendOptions | None = None,
    ) -> list[DeviceChoice]:
        """Return devices with the options for a network: given ones override its own, and these the runtime's.

        `held` are the network's own by backend id; only those declared `saved` count. ConfigError if a backend does not
        take one any more, or if this runtime has another value and none is given.
        """
        own, problems, made = self.registry.take_options(given), list[str](), list[DeviceChoice]()
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


def load_optimized(network: OptimizedNetwork, runtime: Runtime, asked: LoadOptions) -> Session:
    """Return a session that runs an optimised network on the devices that it was optimised for.

    Its `backend_options` override those of the network and those of the runtime. BackendError if a backend has another
    version now, ModelError if the network has no weights.
    """
    if not network.weights:
        raise ModelError(
            f"network {network.graph.name!r} has no weights and cannot be loaded",
            why="in memory mode LIMIT, Session.optimized keeps no weights",
            fix="load what weft.optimize returns",
        )
    check_backends("the optimised network", network.versions, (), runtime.registry)
    devices = dict.fromkeys((*network.devices, *(p.device for stage in network.stages for p in stage.parts)))
    found = [runtime.registry.choose(network.named.get(d, d))[0] for d in devices]
    moved = {d: c.device for d, c in zip(devices, found, strict=True) if d in network.named and d != c.device}
    network = network.on(moved) if moved else network
    if not found or [c.device for c in found] != [moved.get(d, d) for d in devices]:
        names = ", ".join(map(repr, devices)) or "none"
        raise ModelError(
            f"network {network.graph.name!r} does not name its devices as an optimised network does",
            why=f"it names {names}",
            fix="optimise the model again",
        )
    choices = runtime.for_network(found, network.backend_options, asked.backend_options)
    options = OptimizerOptions(network.config) if network.tail is None else network.tail.options
    return Session(
        network.interface, choices, options, runtime=runtime, progress=asked.progress, profile=asked.profile,
        fixed=network, overflow_check=asked.overflow_check, wait=asked.wait,
    )


_default: Runtime | None = None
_default_lock = threading.Lock()


def default_runtime() -> Runtime:
    """Return the runtime of the process, which the first call makes."""
    global _default
    with _default_lock:
        if _default is None or not _default.is_open:
            _default = Runtime()
        return _default
