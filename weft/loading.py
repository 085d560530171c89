"""`weft.load` and `weft.optimize`: from a model and the name of a device to a session or an optimised network."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from weft.config import check as check_environment
from weft.core.contract.backend import (
    BackendConfig,
    BackendCreator,
    DeviceInfo,
    ForwardType,
    MemoryMode,
    Power,
    Precision,
    Wait,
)
from weft.core.contract.backend_options import BackendOptions
from weft.core.contract.doors import door
from weft.core.contract.profile import Profiled
from weft.core.contract.session_config import member
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Limits
from weft.core.host.background import Background
from weft.core.host.shared_arrays import shared_arrays
from weft.core.passes import AnyPass, Pass, PassGroup
from weft.core.placement.debug_nodes import DebugSink, FileSink
from weft.core.placement.hints import check_hints
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.core.registry.device_choice import DeviceChoice, DeviceName
from weft.core.registry.front_ends import ReadOptions, front_ends
from weft.core.session.loader import opened
from weft.core.session.pipeline import Progress
from weft.core.session.prefetch import MOST_NODES_AT_ONCE, AtOnce, Prefetch
from weft.core.session.runtime import Runtime, default_runtime, load_optimized
from weft.core.session.session import Session
from weft.core.session.stages_ahead import optimize_stages
from weft.core.session.state import find_pairs
from weft.errors import ConfigError, InputError, WeftError, brief

if TYPE_CHECKING:
    import onnx

    from weft.frontends.builder import Network

    Model: TypeAlias = str | os.PathLike[str] | bytes | Graph | Network | onnx.ModelProto | object


@door
def load(
    model: Model | OptimizedNetwork,
    device: DeviceName | Sequence[DeviceName] = "auto",
    *,
    precision: str | Precision = Precision.HIGH,
    memory: str | MemoryMode = MemoryMode.NORMAL,
    power: str | Power = Power.NORMAL,
    fusing: bool = True,
    winograd: bool = True,
    shapes: Mapping[str, Shape] | None = None,
    fallback: str = "cpu",
    hints: Mapping[str, DeviceName] | None = None,
    debug: DebugSink | str | os.PathLike[str] | None = None,
    profile: Profiled = False,
    backend_options: BackendOptions | None = None,
    limits: Limits | Mapping[str, float] | None = None,
    passes: Sequence[AnyPass] = (),
    runtime: Runtime | None = None,
    progress: Progress | None = None,
    overflow_check: bool = True,
    wait: str | Wait = Wait.AUTO,
    state: bool | Mapping[str, str] = False,
) -> Session:
    """Return a session that runs an ONNX model (a path, bytes, a loaded model), a `Network` or a `Graph`.

    Front ends that packages add read other files and objects: see docs/add-a-front-end.md.

    `device` is a `ForwardType`, an id such as "opencl" or "vulkan:1", or a list of them in order of
    preference. `precision` is "high", "normal" or "low" (fp16 storage). `shapes` binds symbolic
    dimensions by input name; without it, the first run binds them. `fusing=False` forbids backends to compute
    several nodes in one kernel, and `winograd=False` to use Winograd's method; docs/use.md states the errors.

    Nodes that no named device supports go to the CPU with a warning. With `fallback="error"` they raise
    UnsupportedOps, and so does a node that its first device does not run. `hints` puts nodes on devices of the
    list, by name or pattern ({"head/*": "cpu"}). If that device refuses the node, the next in the list is asked;
    with `fallback="error"` the refusal is an error, even if the first device takes the node.

    `debug` is called with every output of every node in each run, or names a file that gets these records as lines
    of JSON; an exception of `debug` ends the run and is raised as it is. With `profile`, `Session.profile` says what
    the last run cost. `progress` is called after each node is prepared, with the number of nodes prepared and of all
    nodes in that device's part; an exception of `progress` stops the load and is raised as it is.

    `backend_options` holds options of the backends by id, {"vulkan": {"tuning": False}}; `weft devices --options`
    lists them, and ConfigError names those that no backend takes. `runtime` holds the session and its backends'
    contexts; by default that of the process.

    `limits` bounds what the model may cost before it runs: `Limits`, or some of them by name,
    {"nodes": 1_000_000}. A model beyond a limit is refused with ModelError, except that what constant folding
    would take beyond `folding_bytes` or `folding_seconds` is computed in every run instead.

    `passes` are rewrites of your own, `weft.extend.Pass`, which run among the standard ones: see docs/add-a-pass.md.
    PassError names a pass that fails, or whose result is not what the pass declares.

    With `overflow_check`, the first run at precision LOW looks for values beyond float16, which are float32 from then
    on, and the run is repeated with them; docs/use.md says when it looks again.

    On a machine that has not run a network yet, kernels are tested and compiled first, which takes seconds. With
    `wait="first"` the session begins with few, general kernels; a thread tests and builds better ones, which take their
    place between two runs. `Session.wait_all` waits for them, and `Report.final` says whether they are there. Results
    of both are within what the precision allows. `wait="all"` waits for all kernels, and so does a session that is
    profiled or debugged, keeps state, saves memory (LIMIT) or runs in stages. "auto" is "first" on GPUs, "all" on
    software devices.

    `state` names outputs that are inputs of the next run, such as the keys and values of a text: {"past*": "present*"}
    by input, or True for the names that exporters use. The session keeps these values, on the device where it can, and
    callers neither give nor get them; `Session.state` resets, saves and rewinds them. A cache has capacities, powers of
    two: a run that makes it longer costs no planning while there is room. ConfigError if there is no such state.

    An `OptimizedNetwork`, or the path of a saved one ("model.weft"), is loaded as it was optimised, and takes only
    the options `profile`, `backend_options`, `runtime`, `progress`, `overflow_check` and `wait`. It keeps those
    `backend_options` that it depends on (`BackendOption.saved`); options given here override them.
    """
    config, held = _config(precision, memory, power, fusing, winograd), runtime or default_runtime()
    waits = member(Wait, wait, "wait")
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress={brief(repr(progress))} cannot be called", fix="pass a function of two numbers")
    if front_ends.choose(model).optimized:
        network = front_ends.read(model, ReadOptions(backends=held.registry))
        usual = BackendConfig()
        changed = {
            "device": device != "auto",
            **{f.name: getattr(config, f.name) != getattr(usual, f.name) for f in fields(usual)},
            "shapes": bool(shapes),
            "fallback": fallback != "cpu",
            "hints": bool(hints),
            "debug": debug is not None,
            "limits": Limits.of(limits) != Limits(),
            "passes": bool(passes),
            "state": bool(state),
        }
        if any(changed.values()):
            raise ConfigError(
                "an optimised network is loaded as it is",
                where=f"options {', '.join(name for name, is_changed in changed.items() if is_changed)}",
                why="it was optimised for its devices, shapes and precision already",
                fix="leave these options out, or pass them to weft.optimize (the command `weft optimize`)",
            )
        assert isinstance(network, OptimizedNetwork)  # what `read` of such a front end returns
        return load_optimized(
            network, held, profile=profile, backend_options=backend_options, progress=progress,
            overflow_check=overflow_check, wait=waits,
        )
    most, own = Limits.of(limits), _passes(passes)
    _check_names(held.registry, device, fallback)
    kept = config.memory is not MemoryMode.LIMIT
    with _reading(model, shapes, config, most, own, resizes=kept) as prefetch:
        choices, options, host = _plan(held, device, fallback, hints, debug, config, backend_options, most, own)
        with _prepared(choices if _is_there(model) else []):
            graph = prefetch.graph()
        again = partial(_graph, model, most) if not kept and isinstance(model, (str, os.PathLike)) else None
        return Session(
            graph, choices, options, runtime=held, host=host, progress=progress, profile=profile, prefetch=prefetch,
            reread=again, overflow_check=overflow_check, wait=waits,
            state=None if state is False else find_pairs(graph, state),
        )


@door
def optimize(
    model: Model,
    device: DeviceName | Sequence[DeviceName] = "auto",
    *,
    precision: str | Precision = Precision.HIGH,
    memory: str | MemoryMode = MemoryMode.NORMAL,
    power: str | Power = Power.NORMAL,
    fusing: bool = True,
    winograd: bool = True,
    shapes: Mapping[str, Shape] | None = None,
    fallback: str = "cpu",
    hints: Mapping[str, DeviceName] | None = None,
    debug: DebugSink | str | os.PathLike[str] | None = None,
    backend_options: BackendOptions | None = None,
    limits: Limits | Mapping[str, float] | None = None,
    passes: Sequence[AnyPass] = (),
    runtime: Runtime | None = None,
) -> OptimizedNetwork:
    """Return the network rewritten, divided over the devices and optimised by their backends; see `load`.

    It can be printed, saved, and loaded by `load` or a `Runtime`. Every input shape must be known: `shapes`
    gives those that the model leaves open. Where sizes follow from values that only a run tells, it has a `tail`: the
    later stages, planned for the most elements that there can be, and what a run needs to plan others. The network
    keeps those `backend_options` that it depends on (`BackendOption.saved`), and its backends get them again at load;
    give all others to `load`.
    """
    config, held = _config(precision, memory, power, fusing, winograd), runtime or default_runtime()
    if front_ends.choose(model).optimized:
        raise ConfigError(
            "an optimised network is not optimised again",
            why="it was rewritten and divided over its devices already",
            fix="optimise the model that it was made from, or load it: weft.load takes it as it is",
        )
    most, own = Limits.of(limits), _passes(passes)
    _check_names(held.registry, device, fallback)
    with _reading(model, shapes, config, most, own, resizes=False) as prefetch:
        choices, options, host = _plan(held, device, fallback, hints, debug, config, backend_options, most, own)
        bound = prefetch.bound()
        check_hints(bound, options.hints, [c.device for c in choices])
        check_sizes(bound, lambda open_shapes: f"pass, for instance, shapes={open_shapes}")
        with opened(choices, config) as backends:
            return optimize_stages(bound, backends, options, host=host.device, prepared=prefetch.take())


def check_sizes(bound: Graph, example: Callable[[dict[str, Shape]], str]) -> None:
    """Raise InputError if sizes of inputs are not known; `example` shows how the user gives shapes."""
    left = [i for i in bound.inputs if not bound.specs[i].is_static]
    if left:
        shapes = {i: tuple(d if isinstance(d, int) else 1 for d in bound.specs[i].shape) for i in left}
        those = ", ".join(f"input {i!r} is {bound.specs[i]}" for i in left)
        raise InputError(
            "the network cannot be optimised yet",
            why=f"the sizes of {', '.join(sorted(bound.symbols()))} are not known: {those}",
            fix=example(shapes),
        )


@door
def devices() -> list[DeviceInfo]:
    """Return every device that a session can run on; `registry.absent()` and `unusable()` say why others cannot."""
    return registry.devices()


def _check_names(known: BackendRegistry, device: DeviceName | Sequence[DeviceName], fallback: str) -> None:
    """Refuse wrong names before the model is read, which may take long; `_plan` asks drivers while it is read."""
    if fallback not in ("cpu", "error"):
        raise ConfigError(f"fallback={fallback!r} is not known", fix='use "cpu" or "error"')
    known.check_names(device)


def _plan(
    runtime: Runtime,
    device: DeviceName | Sequence[DeviceName],
    fallback: str,
    hints: Mapping[str, DeviceName] | None,
    debug: DebugSink | str | os.PathLike[str] | None,
    config: BackendConfig,
    backend_options: BackendOptions | None,
    limits: Limits,
    passes: tuple[AnyPass, ...],
) -> tuple[list[DeviceChoice], OptimizerOptions, DeviceChoice]:
    """Return the devices in order, the options, and the CPU, on which debug nodes run whatever the devices are."""
    known = runtime.registry
    choices = known.choose(device, pass_over=fallback == "cpu")
    cpu = DeviceChoice(known.find(ForwardType.CPU), 0)
    if fallback == "cpu" and not any(c.device == cpu.device for c in choices):
        choices.append(cpu)
    *choices, cpu = runtime.with_options([*choices, cpu], backend_options)
    placed = resolved(known, {} if hints is None else hints)
    return choices, OptimizerOptions(config, placed, fallback, _sink(debug), limits, passes), cpu


def _passes(given: Sequence[AnyPass]) -> tuple[AnyPass, ...]:
    """Return a user's passes; ConfigError for what is no pass, and for two passes of one name."""
    if isinstance(given, (Pass, PassGroup)):
        given = (given,)
    listed = tuple(given) if isinstance(given, Iterable) else (given,)
    problems = [f"{brief(repr(each))} is no pass" for each in listed if not isinstance(each, (Pass, PassGroup))]
    names = Counter(each.name for each in listed if isinstance(each, (Pass, PassGroup)))
    problems += [f"{count} passes are called {name!r}" for name, count in names.items() if count > 1]
    if problems:
        fix = "pass a list of weft.extend.Pass, such as weft.extend.graph_pass makes of functions"
        raise ConfigError("passes= is not understood", why="; ".join(problems), fix=fix)
    return listed


def _sink(debug: object) -> DebugSink | None:
    """Return what receives debug records; ConfigError for what is neither a function nor a file that can be written."""
    if debug is None:
        return None
    if isinstance(debug, (str, os.PathLike)):
        path = Path(debug)
        why = "" if path.parent.is_dir() else f"there is no folder {path.parent}"
        why = "it is a folder" if path.is_dir() else why
        if why:
            fix = "name a file in a folder that exists"
            raise ConfigError(f"debug={str(path)!r} cannot be written", why=why, fix=fix)
        return FileSink(path)
    if not callable(debug):
        fix = "pass a function of one DebugRecord, or the path of a file"
        raise ConfigError(f"debug={brief(repr(debug))} cannot be called and is no path", fix=fix)
    sink: DebugSink = debug
    return sink


def resolved(known: BackendRegistry, hints: Mapping[str, DeviceName]) -> dict[str, str]:
    """Return hints with their devices as the order of preference calls them.

    ConfigError unless they are a mapping of names to devices.
    """
    problems: list[str] = [] if isinstance(hints, Mapping) else [f"they are a {type(hints).__name__}"]
    if not problems:
        problems += [f"{brief(repr(name))} is no name" for name in hints if not isinstance(name, str)]
        strange = [d for d in hints.values() if not isinstance(d, (str, ForwardType))]
        problems += [f"{brief(repr(d))} is no device" for d in strange]
    if problems:
        fix = 'write {name or pattern of nodes: device}: {"head/*": "cpu"}'
        raise ConfigError(f"hints={brief(repr(hints))} are not understood", why="; ".join(problems), fix=fix)
    found = {d: _device(known, d) for d in hints.values()}
    return {name: found[d] for name, d in hints.items()}


def _device(known: BackendRegistry, name: DeviceName) -> str:
    """Return the device of a hint as the order of preference calls it; if there is none, what the user wrote."""
    try:
        return known.choose(name)[0].device
    except WeftError:
        return name.name if isinstance(name, ForwardType) else str(name)


def _is_there(model: Model) -> bool:
    """Tell whether a model's file exists: the error of a wrong path should not wait for a device."""
    return not isinstance(model, (str, os.PathLike)) or Path(model).exists()


@contextmanager
def _prepared(choices: Sequence[DeviceChoice]) -> Iterator[None]:
    """Open devices in threads while the block runs, because GPU drivers take as long as reading a model."""
    slow = [c for c in choices if type(c.creator).onPrepare is not BackendCreator.onPrepare]
    with Background(len(slow), "weft-open") as threads:
        opened = [threads.submit(_prepare, c) for c in slow]
        yield
        for each in opened:
            each.result()  # which raises what ends the program, such as SystemExit


def _prepare(choice: DeviceChoice) -> None:
    """Open a device."""
    with suppress(Exception):  # `onCreate` meets the error again, and reports it
        choice.prepare()


@contextmanager
def _reading(
    model: Model,
    shapes: Mapping[str, Shape] | None,
    config: BackendConfig,
    limits: Limits,
    own: tuple[AnyPass, ...],
    *,
    resizes: bool,
) -> Iterator[Prefetch]:
    """Read and prepare a model in a thread, because drivers take as long to list and open their devices.

    A small graph that is read already is prepared in this thread: starting another takes longer.
    """
    is_small = isinstance(model, Graph) and len(model.nodes) <= MOST_NODES_AT_ONCE
    with AtOnce() if is_small else Background(1, "weft-read") as thread:
        read = partial(_graph if config.memory is MemoryMode.LIMIT else _lasting_graph, model, limits)
        yield Prefetch(thread, read, shapes, config.precision, limits, own, resizes=resizes)


def _graph(model: Model, limits: Limits) -> Graph:
    graph = front_ends.read(model, ReadOptions(limits))
    assert isinstance(graph, Graph)  # what `read` of a front end for models returns
    return graph


def _lasting_graph(model: Model, limits: Limits) -> Graph:
    """Return the graph of a model, with the weights as they are now: a caller may change arrays of his own later."""
    graph = _graph(model, limits)
    if isinstance(model, (str, os.PathLike)):
        return graph
    arrays = {name: value for name, value in graph.constants.items() if isinstance(value, np.ndarray)}
    lasting = {name: shared_arrays.lasting(value) for name, value in arrays.items()}
    if all(lasting[name] is value for name, value in arrays.items()):
        return graph
    graph = graph.copy()
    graph.constants = graph.constants | lasting
    return graph


def _config(
    precision: str | Precision, memory: str | MemoryMode, power: str | Power, fusing: bool, winograd: bool
) -> BackendConfig:
    check_environment()
    for name, value in {"fusing": fusing, "winograd": winograd}.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(f"{name}={brief(repr(value))} is neither on nor off", fix=f"pass {name}=True or False")
    return BackendConfig(
        member(MemoryMode, memory, "memory"),
        member(Precision, precision, "precision"),
        member(Power, power, "power"),
        bool(fusing),
        bool(winograd),
    )
