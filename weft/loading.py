"""`weft.load` and `weft.optimize`: from a model and the name of a device to a session or an optimised network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from weft.config import check as check_environment
from weft.core.contract.backend import BackendCreator, DeviceInfo, ForwardType, MemoryMode
from weft.core.contract.doors import door
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Shape
from weft.core.host.background import Background
from weft.core.host.shared_arrays import shared_arrays
from weft.core.placement.hints import check_hints
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.placement.optimizer import OptimizerOptions
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.core.registry.device_choice import DeviceChoice, DeviceName
from weft.core.registry.front_ends import ReadOptions, front_ends
from weft.core.session.load_options import LoadKeywords, LoadOptions, OptimizeKeywords, described
from weft.core.session.loader import opened
from weft.core.session.prefetch import MOST_NODES_AT_ONCE, AtOnce, Prefetch
from weft.core.session.runtime import Runtime, default_runtime, load_optimized
from weft.core.session.session import Session
from weft.core.session.stages_ahead import optimize_stages
from weft.core.session.state import state_pairs
from weft.errors import ConfigError, InputError, WeftError

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack

    from weft.frontends.builder import Network

    Model: TypeAlias = str | os.PathLike[str] | bytes | Graph | Network | onnx.ModelProto | object


@described(LoadKeywords)
@door
def load(
    model: Model | OptimizedNetwork, device: DeviceName | Sequence[DeviceName] = "auto", **options: Unpack[LoadKeywords]
) -> Session:
    """Return a session that runs an ONNX model (a path, bytes, a loaded model), a `Network` or a `Graph`.

    Front ends that packages add read other files and objects: see docs/add-a-front-end.md. `weft.LoadOptions` has the
    options, and docs/options.md lists them; ConfigError for one that is unknown, or that has a wrong value.

    The session waits for all kernels (`wait`) if it is profiled or debugged, saves memory (LIMIT) or runs in stages.
    At precision LOW, docs/guides/precision.md says when a run looks again for values beyond float16.

    An `OptimizedNetwork`, or the path of a saved one ("model.weft"), is loaded as it was optimised, and takes only
    the options `profile`, `backend_options`, `runtime`, `progress`, `overflow_check` and `wait`. It keeps those
    `backend_options` that it depends on (`BackendOption.saved`); options given here override them.
    """
    check_environment()
    asked = LoadOptions.of({"device": device, **options})
    held = asked.runtime or default_runtime()
    if front_ends.choose(model).optimized:
        network = front_ends.read(model, ReadOptions(backends=held.registry))
        if asked.fixed:
            raise ConfigError(
                "an optimised network is loaded as it is",
                where=f"options {', '.join(asked.fixed)}",
                why="it was optimised for its devices, shapes and precision already",
                fix="leave these options out, or pass them to weft.optimize (the command `weft optimize`)",
            )
        assert isinstance(network, OptimizedNetwork)  # what `read` of such a front end returns
        return load_optimized(network, held, asked)
    held.registry.check_names(asked.device)  # before the model is read, which may take long
    kept = asked.memory is not MemoryMode.LIMIT
    with _reading(model, asked, resizes=kept) as prefetch:
        choices, made, host = _plan(held, asked)
        with _prepared(choices if _is_there(model) else []):
            graph = prefetch.graph()
        again = partial(_graph, model, asked) if not kept and isinstance(model, (str, os.PathLike)) else None
        return Session(
            graph, choices, made, runtime=held, host=host, progress=asked.progress, profile=asked.profile,
            prefetch=prefetch, reread=again, overflow_check=asked.overflow_check, wait=asked.wait,
            state=state_pairs(graph, asked.state) or None,
        )


@described(OptimizeKeywords)
@door
def optimize(
    model: Model, device: DeviceName | Sequence[DeviceName] = "auto", **options: Unpack[OptimizeKeywords]
) -> OptimizedNetwork:
    """Return the network rewritten, divided over the devices and optimised by their backends; see `load`.

    It can be printed, saved, and loaded by `load` or a `Runtime`. Every input shape must be known: `shapes`
    gives those that the model leaves open. Where sizes follow from values that only a run tells, it has a `tail`: the
    later stages, planned for the most elements that there can be, and what a run needs to plan others. The network
    keeps those `backend_options` that it depends on (`BackendOption.saved`), and its backends get them again at load;
    give all others to `load`.
    """
    check_environment()
    asked = LoadOptions.of({"device": device, **options}, OptimizeKeywords, caller="weft.optimize")
    held = asked.runtime or default_runtime()
    if front_ends.choose(model).optimized:
        raise ConfigError(
            "an optimised network is not optimised again",
            why="it was rewritten and divided over its devices already",
            fix="optimise the model that it was made from, or load it: weft.load takes it as it is",
        )
    held.registry.check_names(asked.device)
    with _reading(model, asked, resizes=False) as prefetch:
        choices, made, host = _plan(held, asked)
        bound = prefetch.bound()
        check_hints(bound, made.hints, [c.device for c in choices])
        check_sizes(bound, lambda open_shapes: f"pass, for instance, shapes={open_shapes}")
        with opened(choices, asked.config) as backends:
            return optimize_stages(bound, backends, made, host=host.device, prepared=prefetch.take())


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


def _plan(runtime: Runtime, asked: LoadOptions) -> tuple[list[DeviceChoice], OptimizerOptions, DeviceChoice]:
    """Return the devices in order, the options, and the CPU, on which debug nodes run whatever the devices are."""
    known = runtime.registry
    choices = known.choose(asked.device, pass_over=asked.fallback != "error")
    cpu = DeviceChoice(known.find(ForwardType.CPU), 0)
    for each in [] if asked.fallback == "error" else [*known.choose(asked.fallback), cpu]:
        if each.device not in {c.device for c in choices}:
            choices.append(each)
    *choices, cpu = runtime.with_options([*choices, cpu], asked.backend_options)
    placed = resolved(known, asked.hints)
    return choices, OptimizerOptions(asked.config, placed, asked.fallback, asked.debug, asked.limits, asked.passes), cpu


def resolved(known: BackendRegistry, hints: Mapping[str, DeviceName]) -> dict[str, str]:
    """Return hints with their devices as the order of preference calls them."""
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
def _reading(model: Model, asked: LoadOptions, *, resizes: bool) -> Iterator[Prefetch]:
    """Read and prepare a model in a thread, because drivers take as long to list and open their devices.

    A small graph that is read already is prepared in this thread: starting another takes longer.
    """
    is_small = isinstance(model, Graph) and len(model.nodes) <= MOST_NODES_AT_ONCE
    with AtOnce() if is_small else Background(1, "weft-read") as thread:
        read = partial(_graph if asked.memory is MemoryMode.LIMIT else _lasting_graph, model, asked)
        yield Prefetch(thread, read, asked.shapes, asked.precision, asked.limits, asked.passes, resizes=resizes)


def read_once(model: Model | OptimizedNetwork, asked: LoadOptions) -> Model | OptimizedNetwork:
    """Return what several loads get in the place of a model, so that all have the same network, read once.

    In memory mode LIMIT it is the model itself, of whose file each session reads the weights that it wants.
    """
    if front_ends.choose(model).optimized:
        network = front_ends.read(model, ReadOptions(backends=(asked.runtime or default_runtime()).registry))
        assert isinstance(network, OptimizedNetwork)  # what `read` of such a front end returns
        return network
    return model if asked.memory is MemoryMode.LIMIT else _lasting_graph(model, asked)


def _graph(model: Model, asked: LoadOptions) -> Graph:
    graph = front_ends.read(model, ReadOptions(asked.limits, signature=asked.signature))
    assert isinstance(graph, Graph)  # what `read` of a front end for models returns
    return graph


def _lasting_graph(model: Model, asked: LoadOptions) -> Graph:
    """Return the graph of a model, with the weights as they are now: a caller may change arrays of his own later."""
    graph = _graph(model, asked)
    if isinstance(model, (str, os.PathLike)):
        return graph
    arrays = {name: value for name, value in graph.constants.items() if isinstance(value, np.ndarray)}
    lasting = {name: shared_arrays.lasting(value) for name, value in arrays.items()}
    if all(lasting[name] is value for name, value in arrays.items()):
        return graph
    graph = graph.copy()
    graph.constants = graph.constants | lasting
    return graph
