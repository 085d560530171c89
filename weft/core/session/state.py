"""State: values that live from run to run, such as the keys and values of a text."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from weft.core.buffers.device_memory import DeviceMemory
from weft.core.contract.backend import Backend
from weft.core.contract.error_context import do_all
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array, Shape
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.placement.capacity import Axes, is_padded
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.errors import ConfigError, InputError, listing

if TYPE_CHECKING:
    from weft.core.session.session import Session

KNOWN = {
    "past_key_values*": "present*", "past*": "present*", "*_in": "*_out", "*_cache": "*_cache_out",
    "in_cache*": "out_cache*", "cache*": "new_cache*", "*.cache*": "*.new_cache*", "*cache*": "new_*cache*",
    "state": "stateN", "state*": "next_state*", "input_state*": "output_state*", "state_in*": "state_out*",
    "hidden*": "new_hidden*", "h": "hn", "c": "cn", "h*": "hn*", "c*": "cn*", "h0": "hn", "c0": "cn", "h_0": "h_n",
    "c_0": "c_n",
}  # fmt: skip
"""How exporters name a state: the input, and the output that is the next run's input."""
StatePairs = Mapping[str, str]


@dataclass(frozen=True)
class SavedState:
    """The values of a state at one moment, by the names of its inputs, without what is behind them."""

    length: int
    values: Mapping[str, Array] = field(repr=False)


@dataclass
class _Held:
    """One value: on the host, or on a device."""

    spec: TensorSpec
    array: Array | None = None
    device: str = ""
    tensor: Tensor | None = None


def _first(value: Array, count: int, rows: int) -> Array:
    """Return a value with `count` of its rows, which are the axis that has so many; a value of a fixed shape whole."""
    axes = [k for k, n in enumerate(value.shape) if n == rows]
    return value[(*[slice(None)] * axes[-1], slice(0, count))] if axes else value


def find_pairs(graph: Graph, asked: object) -> dict[str, str]:
    """Return the outputs that become inputs of the next run, by input, for what a caller passes as `state`.

    True finds the names that exporters use; a mapping of names or patterns ({"past*": "present*"}) says them. A star
    stands for the same characters in both. ConfigError if there is none, or if two of a pair have other types or ranks.
    """
    patterns = KNOWN if asked is True else asked
    named = isinstance(patterns, Mapping) and all(isinstance(t, str) for pair in patterns.items() for t in pair)
    if not patterns or not isinstance(patterns, Mapping) or not named:
        raise ConfigError(
            f"state={asked!r} names no inputs and outputs",
            fix='pass state=True, or {"past*": "present*"}: the inputs, and the outputs that they are in the next run',
        )
    outputs, found = {*graph.outputs}, dict[str, str]()
    alike = [n for n in graph.nodes if n.op.type == "Identity" and asked is True]
    passed_on = {(n.inputs[0], n.outputs[0]) for n in alike}
    for given, made in patterns.items():
        for name in graph.inputs:
            output = _matched(given, made, name)
            if output == name or (name, output) in passed_on:  # as the caches of an encoder, which callers pass
                continue
            if output in outputs and output not in found.values() and name not in found:
                found[name] = output
        if asked is not True and not any(fnmatch.fnmatchcase(name, given) for name in found):
            raise _no_pair(graph, f"no input {given!r} has an output {made!r}")
    if not found:
        raise _no_pair(graph, "no input and output have names that exporters use for a state")
    for name, output in found.items():
        declared = graph.declared.get(output)
        if declared is not None and declared.shape is not None and len(declared.shape) != len(graph.specs[name].shape):
            raise _no_pair(graph, f"{output!r} has another rank than {name!r}")
    return found


def state_pairs(graph: Graph, asked: bool | Mapping[str, str]) -> dict[str, str]:
    """Return the inputs that live from run to run, with their outputs: the model's own, and those a caller asks for."""
    if asked is False or (asked is True and graph.state):
        return dict(graph.state)
    return {**graph.state, **find_pairs(graph, asked)}


def _matched(given: str, made: str, name: str) -> str:
    """Return the output for an input of a pattern; "" if the name is not of the pattern."""
    found = re.fullmatch("(.*)".join(map(re.escape, given.split("*"))), name)
    if found is None:
        return ""
    parts = iter(found.groups())
    return re.sub(r"\*", lambda _: next(parts, ""), made)


def _no_pair(graph: Graph, why: str) -> ConfigError:
    return ConfigError(
        "the network has no such state", where=f"network {graph.name!r}", why=why,
        fix=f"name one of its inputs ({listing(graph.inputs, ', ', most=8)}) and outputs "
        f"({listing(graph.outputs, ', ', most=8)}): state={{input: output}}",
    )


@dataclass(eq=False)
class StateStore:
    """Holds the values of a session's state: on the device whose part keeps them, else on the host.

    `open_backend` opens a backend of a device, whose memory holds the values there.
    """

    pairs: StatePairs
    open_backend: Callable[[str], Backend]
    declared: Mapping[str, TensorSpec]
    """The inputs as the model declares them."""
    initial: Mapping[str, Array] = field(default_factory=dict)
    """What values are at first, by input; zeros where it says nothing."""
    length: int = 0
    rows: int = 0
    """By how much the last run made it longer."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _pending: Mapping[str, Array] = field(default_factory=dict)
    """Values that were restored before there was a network."""
    _memories: dict[str, DeviceMemory] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all values, at their capacities."""
        return sum(held.spec.size * held.spec.dtype.itemsize for held in self._held.values())

    @property
    def has_pending(self) -> bool:
        """Tell whether values were restored that have no room yet."""
        return bool(self._pending)

    def fits(self, network: OptimizedNetwork, graph: Graph) -> bool:
        """Tell whether all values are where a network wants them."""
        return not self._pending and all(
            name in self._held and (self._held[name].device, self._held[name].spec) == place
            for name, place in self._places(network, graph).items()
        )

    def _places(self, network: OptimizedNetwork, graph: Graph) -> dict[str, tuple[str, TensorSpec]]:
        kept = network.state
        return {
            name: (kept[name].device, kept[name].spec) if name in kept else ("", graph.specs[name])
            for name in self.pairs
        }

    def check_fixed(self, graph: Graph, inputs: Mapping[str, Axes]) -> None:
        """Raise InputError if a state with rows would get another size than that which grows, such as another batch."""
        for name, held in self._held.items() if self.length else ():
            sizes = zip(held.spec.dims, graph.specs[name].dims, inputs[name], strict=True)
            if any(old != new and not is_padded(axis) for old, new, axis in sizes):
                raise InputError(
                    f"the state {name!r} has other sizes than this run",
                    why=f"it is {held.spec}, with {self.length} rows, and the inputs want {graph.specs[name]}",
                    fix="reset the state first, or use a session for each batch",
                )

    def move(self, network: OptimizedNetwork, graph: Graph, inputs: Mapping[str, Axes]) -> None:
        """Put all values where a network wants them; nothing may use their memory. `inputs` are their axes."""
        for name, value in self._pending.items():
            self._check_value(name, value, graph.specs[name].dims, inputs[name])
        values, self._pending = {**self.save(inputs).values, **self._pending}, {}
        self.release()
        try:
            for name, (device, spec) in self._places(network, graph).items():
                if device:
                    self._held[name] = _Held(spec, device=device, tensor=self._memory(device).make(name, spec))
                else:
                    self._held[name] = _Held(spec, np.zeros(spec.dims, spec.dtype.numpy))
                if name in values or name in self.initial:
                    self.write(name, values[name] if name in values else self.initial[name])
        except BaseException:
            self.release()
            self._pending = values  # the next run takes them
            raise

    def _check_declared(self, name: str, value: Array) -> None:
        """Raise InputError if a value has another size than the model declares."""
        sizes = self.declared[name].shape
        pairs = zip(sizes, value.shape, strict=False)
        if value.ndim != len(sizes) or any(isinstance(d, int) and d != n for d, n in pairs):
            raise InputError(
                "the saved state does not fit",
                why=f"{name!r} is {value.shape}, and the model has {self.declared[name]}",
                fix="restore what a session of the same model has saved",
            )

    def _check_value(self, name: str, value: Array, dims: Shape, axes: Axes) -> None:
        """Raise InputError if a restored value has other sizes than an input, or not the rows of its length."""
        rank = value.ndim == len(dims)
        wanted = tuple(self.length if is_padded(a) else d for d, a in zip(dims, axes, strict=True))
        if not rank or value.shape != wanted:
            raise InputError(
                "the saved state does not fit",
                why=f"{name!r} is {value.shape}, and with {self.length} rows it is {wanted}",
                fix="restore what a session of the same model, with the same batch, has saved, or reset the state",
            )

    def _memory(self, device: str) -> DeviceMemory:
        if device not in self._memories:
            self._memories[device] = DeviceMemory(self.open_backend(device))
        return self._memories[device]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the values on devices, by input."""
        return {name: held.tensor for name, held in self._held.items() if held.tensor is not None}

    @property
    def arrays(self) -> dict[str, Array]:
        """Return the values on the host, by input: what runs are fed."""
        return {name: held.array for name, held in self._held.items() if held.array is not None}

    def leave(self, names: Sequence[str]) -> None:
        """Move values to the host, because no part keeps them."""
        for name in names:
            held = self._held[name]
            if held.tensor is not None:
                memory = self._memories[held.device]
                held.array = memory.read(held.tensor)
                memory.release(held.tensor)
                held.tensor = None

    def take(self, made: Mapping[str, Array]) -> None:
        """Take what a run made of the values on the host."""
        for name, held in self._held.items():
            if held.array is not None:
                held.array = made[self.pairs[name]]

    def undo(self, arrays: Mapping[str, Array]) -> None:
        """Undo the last run, which is repeated; `arrays` are those on the host before it.

        What devices keep is as it will be: a repeated run writes the same rows.
        """
        self.length, self.rows = self.length - self.rows, 0
        for name, array in arrays.items():
            self._held[name].array = array

    def read(self, name: str) -> Array:
        """Return a value at its capacity."""
        held = self._held[name]
        if held.tensor is not None:
            return self._memories[held.device].read(held.tensor)
        assert held.array is not None
        return held.array

    def write(self, name: str, value: Array) -> None:
        """Set the first elements of a value, and zeros behind them."""
        held = self._held[name]
        whole = np.zeros(held.spec.dims, held.spec.dtype.numpy)
        whole[tuple(slice(0, n) for n in value.shape)] = value[tuple(slice(0, n) for n in whole.shape)]
        if held.tensor is not None:
            self._memories[held.device].write(held.tensor, whole)
        else:
            held.array = whole

    def save(self, inputs: Mapping[str, Axes]) -> SavedState:
        """Return the live part of all values; `inputs` are the axes that they have."""
        values = dict(self._pending)
        for name in self._held:
            value, axes = self.read(name), inputs[name]
            index = tuple(
                slice(0, self.length if any(not isinstance(p, int) for p in axis) else None) for axis in axes
            )
            values[name] = np.array(value[index])
        return SavedState(self.length, values)

    def restore(self, saved: SavedState, inputs: Mapping[str, Axes]) -> None:
        """Set all values to those of another moment; InputError if they are of another state, or of another model.

        `inputs` are the axes that values have. What has no room waits for the network of the next run.
        """
        if not isinstance(saved, SavedState):
            raise InputError(f"{type(saved).__name__} is no saved state", fix="pass what state.save() returned")
        if saved.values.keys() != self.pairs.keys() and (saved.values or saved.length):
            raise InputError(
                "the saved state is not one of this network",
                why=f"it has {listing(sorted(saved.values), ', ', most=8) or 'no values'}",
                fix="restore what a session of the same model, with the same state, has saved",
            )
        for name, value in saved.values.items():
            self._check_declared(name, value)
        before, self.length, self.rows = self.length, saved.length, 0
        held = {name: each.spec.dims for name, each in self._held.items()}
        room = all(
            value.ndim == len(held.get(name, ())) and all(n <= d for n, d in zip(value.shape, held[name], strict=True))
            for name, value in saved.values.items()
        )
        if not (self._held and room):
            self._pending = dict(saved.values)
            return
        try:
            for name, value in saved.values.items():
                self._check_value(name, value, held[name], inputs[name])
        except InputError:
            self.length = before
            raise
        self._pending = {}
        for name in self._held:
            self.write(name, saved.values.get(name, np.zeros([0] * len(held[name]), np.float32)))

    def rewind(self, length: int, inputs: Mapping[str, Axes]) -> None:
        """Forget what is behind a length; InputError if there is less. `inputs` are the axes that values have."""
        if not isinstance(length, (int, np.integer)) or not 0 <= length <= self.length:
            raise InputError(
                f"the state cannot be rewound to {length!r} rows", why=f"it has {self.length}",
                fix="give a whole number from 0 to that",
            )
        if length == self.length:
            return
        before, self.length, self.rows = self.length, int(length), 0
        # What is forgotten may not be finite, and then it is no padding.
        if self._pending:
            self._pending = {name: _first(value, self.length, before) for name, value in self._pending.items()}
            return
        kept = self.save(inputs)
        for name in self._held:
            self.write(name, kept.values[name])

    def reset(self) -> None:
        """Set all values to what they are at first, and the length to 0."""
        for name, held in self._held.items():
            empty = np.zeros([0] * len(held.spec.dims), held.spec.dtype.numpy)
            self.write(name, self.initial.get(name, empty))
        self.length, self.rows, self._pending = 0, 0, {}

    def release(self) -> None:
        """Free the memory of all values."""
        held, self._held = self._held, {}
        do_all(partial(self._memories[h.device].release, h.tensor) for h in held.values() if h.tensor is not None)

    def close(self) -> None:
        """Free everything."""
        do_all([self.release, *(memory.close for memory in self._memories.values())])
        self._memories = {}


T = TypeVar("T")


class State:
    """The values of a session that live from run to run; `Session.state` returns it.

    A cache grows by the rows of each run, on the device where that keeps it. Its `length` counts them.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __repr__(self) -> str:
        return f"State(length={self.length})"

    @property
    def length(self) -> int:
        """Return how many rows the cache has; 0 for a state that does not grow."""
        return self._session.with_state(lambda store, _: store.length, values=False)

    @property
    def nbytes(self) -> int:
        """Return the bytes that the values take, at their capacities; 0 before there is a plan."""
        return self._session.with_state(lambda store, _: store.nbytes, values=False)

    def reset(self) -> None:
        """Forget all: the next run begins as the first one did, mostly with zeros, and with a cache of no rows."""
        self._session.with_state(lambda store, _: store.reset())

    def rewind(self, length: int) -> None:
        """Forget all rows of the cache from `length` on; InputError if it has no more than that many."""
        self._session.with_state(lambda store, axes: store.rewind(length, axes))

    def save(self) -> SavedState:
        """Return a copy of all values on the host, to `restore` them later or in another session of the same model."""
        return self._session.with_state(lambda store, axes: store.save(axes))

    def restore(self, saved: SavedState) -> None:
        """Set all values to those that `save` returned; InputError if they are of another state or model."""
        self._session.with_state(lambda store, axes: store.restore(saved, axes))
