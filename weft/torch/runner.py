"""Runs a graph on tensors: weights are constants of a session, which is loaded anew when they change."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.session.session import Session
from weft.errors import InputError
from weft.frontends.torch.translation import array_of
from weft.loading import load

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
    options: Mapping[str, Any]
    changed: Mapping[str, str] = field(default_factory=dict)
    """The output that is the new value of an input, by output."""
    times_loaded: int = 0
    _sets: OrderedDict[tuple[int, ...], _Loaded] = field(default_factory=OrderedDict)
    _last: _Loaded | None = None
    """The set of the last run, which most runs have: to look one up takes longer."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        frozen = {*self.weights}
        self.inputs = [name for name in self.graph.inputs if name not in frozen]
        """The inputs of each run, in order."""
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
            made = _Loaded(list(weights), versions, load(self._with(weights), **self.options))
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
        arrays = [to_host(t) for t in tensors]
        if not self.changed:
            return [to_tensor(a) for a in session.run(*arrays)]
        of_name = dict(zip(self.inputs, zip(tensors, arrays, strict=True), strict=True))
        written = {output: of_name[name][1] for output, name in self.changed.items()}
        results = session.run(*arrays, outputs=written)
        torch.autograd.graph.increment_version([of_name[name][0] for name in self.changed.values()])
        made = dict(zip(self.graph.outputs, results, strict=True))
        return [to_tensor(made[name]) for name in self._results]

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


