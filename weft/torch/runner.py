"""Runs a graph on tensors: weights are constants of a session, which is loaded anew when they change."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from weft.core.buffers.buffer import Buffer
from weft.core.contract.backend import Precision
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.session.load_options import LoadOptions
from weft.core.session.session import Session
from weft.errors import InputError
from weft.frontends.torch.translation import array_of
from weft.loading import load
from weft.torch.device_state import buffer_of, changed, write_back
from weft.torch.options import Options

log = logging.getLogger("weft.torch")

MOST_SETS = 32
"""Sets of weights, such as those of layers that share their code, for which sessions are kept."""
_PLAIN = frozenset((
    torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
))
"""The element types that numpy has, too."""


_version = attrgetter("_version")


def to_host(tensor: Any) -> Any:
    """Return a tensor on the CPU as an array in its memory, without a copy; a number as an array of no dimensions."""
    if not isinstance(tensor, torch.Tensor):
        return np.asarray(tensor)
    if tensor.dtype in _PLAIN and not tensor.requires_grad:
        return tensor.numpy()
    return array_of(tensor, "input")


def to_tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor in its memory."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def check_devices(tensors: Sequence[Any], where: str) -> None:
    """Raise InputError if a tensor is not in the host's memory."""
    strange = sorted({str(t.device) for t in tensors if isinstance(t, torch.Tensor) and t.device.type != "cpu"})
    if strange:
        raise InputError(
            f"tensors on {', '.join(strange)} cannot be used",
            where=where,
            why="Weft shares memory with PyTorch on the CPU only; its own devices copy from there",
            fix='keep model and inputs on the CPU, model.cpu(), and choose the device by options={"device": "vulkan"}',
        )


@dataclass
class _Loaded:
    weights: Sequence[torch.Tensor]
    """They are held, so that no other tensor gets their ids."""
    versions: list[int]
    session: Session


@dataclass
class Runner:
    """Runs one graph. `weights` are the inputs that are frozen; `changed` tells the inputs that outputs replace.

    The graph lists weights as inputs. Runs take turns, as those of a session do.
    """

    graph: Graph
    weights: Sequence[str]
    options: Options
    changed: Mapping[str, str] = field(default_factory=dict)
    """The output that is the new value of an input, by output."""
    ahead: Collection[str] = ()
    """The inputs to be written whose version PyTorch counts up before it calls the runner."""
    times_loaded: int = 0
    _sets: OrderedDict[tuple[int, ...], _Loaded] = field(default_factory=OrderedDict)
    _last: _Loaded | None = None
    """The set of the last run, which most runs have: to look one up takes longer."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        frozen = {*self.weights}
        self.inputs = [name for name in self.graph.inputs if name not in frozen]
        """The inputs of each run, in order."""
        self._written = [*self.changed.values()]
        asked = self.options.load
        self._where = (str(asked.get("device", "auto")), str(asked.get("backend_options")))
        self._is_low = LoadOptions.of(asked).precision is Precision.LOW  # there a buffer may be of another type
        self._results = [name for name in self.graph.outputs if name not in self.changed]

    def session(self, weights: Sequence[torch.Tensor]) -> Session:
        """Return the session that has these weights as they are now."""
        versions, last = [*map(_version, weights)], self._last
        if last is not None and last.versions == versions and all(map(is_, last.weights, weights)):
            return last.session
        key = tuple(map(id, weights))
        with self._lock:
            held = self._sets.get(key)
            if held is not None and held.versions == versions:
                self._sets.move_to_end(key)
                self._last = held
                return held.session
            if held is not None:
                log.info("weights of %s have changed: they are sent again", self.graph.name)
                del self._sets[key]
                held.session.close()
            while len(self._sets) >= MOST_SETS:
                self._sets.popitem(last=False)[1].session.close()
            made = _Loaded(list(weights), versions, load(self._with(weights), **self.options.load))
            self._sets[key] = self._last = made
            self.times_loaded += 1
            return made.session

    def _with(self, weights: Sequence[torch.Tensor]) -> Graph:
        """Return the graph with the weights as constants."""
        graph = self.graph.copy()
        arrays: dict[str, Array] = {
            name: array_of(tensor, name) for name, tensor in zip(self.weights, weights, strict=True)
        }
        graph.inputs = list(self.inputs)
        graph.constants |= arrays
        return graph

    def run(self, weights: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs for the inputs, in order; inputs that the graph changes are written."""
        session = self.session(weights)
        if not self.changed:
            return [to_tensor(a) for a in session.run(*map(to_host, tensors))]
        given = dict(zip(self.inputs, tensors, strict=True))
        arrays = {name: to_host(t) for name, t in given.items() if name not in self._written}
        on_host = []
        for name in self._written:
            buffer = None if self._is_low else self._buffer(given[name], session, name)
            if buffer is None:
                write_back(given[name])
                on_host.append(given[name])
            arrays[name] = to_host(given[name]) if buffer is None else buffer
        results = session.run(arrays, outputs={output: arrays[name] for output, name in self.changed.items()})
        torch.autograd.graph.increment_version(on_host)
        for name in self._written:
            if arrays[name].__class__ is Buffer:
                changed(given[name])
                if self.options.buffers == "host":
                    write_back(given[name])
        made = dict(zip(self.graph.outputs, results, strict=True))
        return [to_tensor(made[name]) for name in self._results]

    def _buffer(self, tensor: torch.Tensor, session: Session, name: str) -> Buffer | None:
        return buffer_of(tensor, session, name, self._where, int(name in self.ahead))

    @property
    def sessions(self) -> list[Session]:
        """Return the sessions that are loaded, one for each set of weights."""
        return [each.session for each in self._sets.values()]

    def close(self) -> None:
        """Close all sessions."""
        with self._lock:
            held, self._sets, self._last = self._sets, OrderedDict(), None
        for each in held.values():
            each.session.close()


