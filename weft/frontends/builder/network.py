"""`Network`: a network that is built by hand, or one that was parsed and is edited, before it is optimised.

    net = Network("adder")
    x, y = net.add_input("x", (2, 6)), net.add_input("y", (2, 6))
    net.add_output("z", net.add_layer("Add", x, y))

Layers have slots. An output slot feeds any number of input slots; an input slot has exactly one source.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weft.core.contract.doors import door
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.limits import Limits
from weft.core.graph.op import Op
from weft.core.graph.tensor import Dim, TensorSpec
from weft.core.graph.validate import validate
from weft.core.registry.front_ends import ReadOptions, front_ends
from weft.errors import ConfigError, ModelError
from weft.frontends.builder.conversion import describe, near, to_graph
from weft.frontends.builder.inference import Inference, infer
from weft.frontends.builder.layers import OpLayer
from weft.frontends.builder.literals import array_of
from weft.frontends.builder.slots import ConstantLayer, InputLayer, InputSlot, Layer, OutputSlot, output_of

if TYPE_CHECKING:
    import onnx

Source = Layer | OutputSlot | Any
"""What a layer may read: an output slot, a layer with one output, or an array, which becomes a constant."""


class Network:
    """Layers and what joins them. `weft.load` and `weft.optimize` take one as they take a file."""

    def __init__(self, name: str = "network") -> None:
        self.name = name
        self._inputs: dict[str, InputLayer] = {}
        self._constants: dict[str, ConstantLayer] = {}
        self._layers: dict[str, OpLayer] = {}
        self._outputs: dict[str, OutputSlot | None] = {}
        self._inference: Inference | None = None
        self.state: dict[str, str] = {}
        """The inputs that a session keeps from run to run, with the outputs that they become."""
        self.initial: dict[str, Array] = {}
        """What such inputs are before the first run; the others are zeros."""

    # -- what is in it -----------------------------------------------------------------------------------

    @property
    def inputs(self) -> Mapping[str, InputLayer]:
        """Return the inputs by name, in order."""
        return MappingProxyType(self._inputs)

    @property
    def constants(self) -> Mapping[str, ConstantLayer]:
        """Return the constants by name."""
        return MappingProxyType(self._constants)

    @property
    def layers(self) -> Mapping[str, OpLayer]:
        """Return the layers that compute something, by name, in the order in which they were added."""
        return MappingProxyType(self._layers)

    @property
    def outputs(self) -> Mapping[str, OutputSlot | None]:
        """Return the outputs by name, in order: the slot that each shows, None where that was removed."""
        return MappingProxyType(self._outputs)

    def layer(self, name: str) -> OpLayer:
        """Return the layer of that name; ModelError, with names that resemble it, if there is none."""
        if name in self._layers:
            return self._layers[name]
        fix = "it is an input: see inputs" if name in self._inputs else ""
        fix = "it is a constant: see constants" if name in self._constants else fix
        raise ModelError(f"network {self.name!r} has no layer {name!r}{near(name, self._layers)}", fix=fix)

    # -- building ----------------------------------------------------------------------------------------

    def add_input(self, name: str, shape: Sequence[Dim], dtype: object = "float32") -> InputLayer:
        """Add an input. A str in the shape is a symbolic dimension, bound when the network is loaded."""
        self._check_free(name, is_value=True)
        element = dtype if isinstance(dtype, DType) else DType.of(dtype)
        self._inputs[name] = InputLayer(self, name, TensorSpec(_checked_shape(name, shape), element))
        self.touch()
        return self._inputs[name]

    def add_constant(self, value: Any, name: str = "") -> ConstantLayer:
        """Add a constant with the value of an array, which `weft.load` and `weft.optimize` take as it is then."""
        name = self._name(name, "constant", is_value=True)
        self._constants[name] = ConstantLayer(self, name, value)
        self.touch()
        return self._constants[name]

    def add_layer(self, op: str | Op, *sources: Source | None, name: str = "", **attributes: object) -> OpLayer:
        """Add a layer: an op, or the ONNX name of one with its attributes as keywords.

        `sources` are connected to its inputs, in order; None leaves one out. A Python number or list gets the
        element type that fits the op and its other inputs. ModelError if there is no such op, or its attributes,
        or so many inputs.
        """
        made = self.make_op(op, attributes)
        name = self._name(name, made.type.rpartition("::")[2].lower())
        layer = OpLayer(self, name, made)
        # Check everything before adding anything, so that a refused layer leaves nothing behind.
        targets = [(layer.input(k), source) for k, source in enumerate(sources) if source is not None]
        read: list[OutputSlot | Array] = []
        for target, source in targets:
            if isinstance(source, (Layer, OutputSlot)):
                self.check_own(slot := output_of(source))
                read.append(slot)
            else:
                read.append(array_of(source, layer, target.index, sources))
        self._layers[name] = layer
        for (target, _), given in zip(targets, read, strict=True):
            target.connect(given if isinstance(given, OutputSlot) else self.add_constant(given))
        self.touch()
        return layer

    def add_output(self, name: str, source: Layer | OutputSlot) -> None:
        """Show a slot as an output under that name; also one inside the network, which other layers read.

        An output whose layer was removed may be added again, and keeps its position.
        """
        slot = output_of(source)
        self.check_own(slot)
        held = self._outputs.get(name)
        if held is not None:
            raise ModelError(f"there is an output {name!r} already", why=f"it shows {held!r}", fix="remove it first")
        given = self._inputs.get(name) or self._constants.get(name)
        if not name or (given is not None and given is not slot.layer):
            why = f"{name!r} is the name of {given.kind}" if given else "an output needs a name"
            raise ModelError(f"an output cannot be called {name!r}", why=why, fix="choose another name")
        self._outputs[name] = slot
        self.touch()

    def remove_output(self, name: str) -> None:
        """Remove an output; the layer that makes it stays."""
        if name not in self._outputs:
            raise ModelError(
                f"network {self.name!r} has no output {name!r}{near(name, self._outputs)}",
                fix="use a name that network.outputs lists",
            )
        del self._outputs[name]
        self.touch()

    def make_op(self, op: str | Op, attributes: Mapping[str, object]) -> Op:
        """Return an op as it is, or the one of that type with those attributes; ModelError if there is none."""
        if isinstance(op, str):
            return _op_of(op, attributes)
        if not isinstance(op, Op):
            raise ModelError(f"{op!r} is no op", fix="pass the ONNX name of an op, or an object of an Op class")
        if attributes:
            raise ModelError(
                f"{op.type} is given as an object, which has its attributes",
                why=f"also given: {', '.join(attributes)}",
                fix="use dataclasses.replace on the op",
            )
        return op

    # -- editing -----------------------------------------------------------------------------------------

    def insert_after(self, source: Layer | OutputSlot, op: str | Op, name: str = "", **attributes: object) -> OpLayer:
        """Add a layer that reads a slot; what read the slot, outputs included, reads the layer instead."""
        slot = output_of(source)
        self.check_own(slot)
        readers = slot.targets
        layer = self.add_layer(op, slot, name=name, **attributes)
        _move(readers, layer)
        self.move_outputs(slot, layer.outputs[0])
        return layer

    def insert_before(self, target: InputSlot, op: str | Op, name: str = "", **attributes: object) -> OpLayer:
        """Add a layer between an input slot and its source; other readers of the source stay as they are."""
        if target.source is None:
            raise ModelError(
                f"nothing can be inserted before {target!r}",
                why="it has no source",
                fix="connect it to a source first",
            )
        self.check_own(target.source)
        layer = self.add_layer(op, target.source, name=name, **attributes)
        _move([target], layer)
        return layer

    # -- for slots and layers ----------------------------------------------------------------------------

    def touch(self) -> None:
        """Forget what was inferred, because something changed."""
        self._inference = None

    def inference(self) -> Inference:
        """Return what is known of shapes and types."""
        if self._inference is None:
            given, constants = list(self._inputs.values()), list(self._constants.values())
            self._inference = infer(given, constants, list(self._layers.values()))
        return self._inference

    def check_own(self, slot: OutputSlot) -> None:
        """Raise ModelError if a slot belongs to another network."""
        if slot.layer.network is not self:
            raise ModelError(
                f"{slot!r} belongs to another network",
                where=f"network {self.name!r}",
                why=f"it is of network {slot.layer.network.name!r}",
                fix="add the layer to the network that reads it",
            )

    def rename(self, layer: Layer, name: str) -> None:
        """Enter a layer under another name; ModelError if that is taken."""
        if name == layer.name:
            return
        self._check_free(name, is_value=not isinstance(layer, OpLayer))
        for held in (self._inputs, self._constants, self._layers):
            entries = list(held.items())
            if any(v is layer for _, v in entries):
                held.clear()
                held.update((name if v is layer else k, v) for k, v in entries)  # type: ignore[misc]
        self.touch()

    def forget(self, layer: Layer) -> None:
        """Drop a layer whose slots are unconnected already; its outputs are left without a source."""
        for held in (self._inputs, self._constants, self._layers):
            if held.get(layer.name) is layer:
                del held[layer.name]
        for name, slot in self._outputs.items():
            if slot is not None and slot.layer is layer:
                self._outputs[name] = None
        self.touch()

    def move_outputs(self, source: OutputSlot, target: OutputSlot) -> None:
        """Show a slot where another was shown."""
        for name, slot in self._outputs.items():
            if slot is source:
                self._outputs[name] = target
        self.touch()

    def _name(self, name: str, base: str, *, is_value: bool = False) -> str:
        if name:
            self._check_free(name, is_value=is_value)
            return name
        taken = self._inputs.keys() | self._constants.keys() | self._layers.keys() | self._outputs.keys()
        k = 0
        while (made := f"{base}{k}") in taken:
            k += 1
        return made

    def _check_free(self, name: str, *, is_value: bool = False) -> None:
        """Raise ModelError if a layer has that name or, for an input or a constant, an output."""
        holder = self._inputs.get(name) or self._constants.get(name) or self._layers.get(name)
        why = f"{holder.kind} of network {self.name!r} has that name" if holder else ""
        if is_value and name in self._outputs:
            why = f"an output of network {self.name!r} has that name"
        if not isinstance(name, str) or not name:
            why = "a name is a text that is not empty"
        if why:
            raise ModelError(f"{name!r} cannot be the name of another layer", why=why, fix="choose another name")

    # -- to and from graphs --------------------------------------------------------------------------------

    @classmethod
    def from_graph(cls, graph: Graph) -> Network:
        """Return a network that can be edited, with the names and the weights of a graph."""
        validate(graph)
        if graph.layouts:
            raise ModelError(
                f"graph {graph.name!r} cannot be edited",
                why="a backend has laid it out already",
                fix="edit the graph of the model, before it is optimised",
            )
        net = cls(graph.name)
        for name in graph.inputs:
            spec = graph.specs[name]
            net.add_input(name, spec.shape, spec.dtype)
        for name, value in graph.constants.items():
            net.add_constant(value, name)
        slots: dict[str, OutputSlot] = {i: held.outputs[0] for i, held in (net._inputs | net._constants).items()}
        for node in graph.nodes:
            # Do not check the node's name: values and nodes of a graph may share names.
            layer = net._layers[node.name] = OpLayer(net, node.name, node.op)
            layer.grow_outputs(len(node.outputs))
            for slot, name in zip(layer.made_slots, node.outputs, strict=False):
                slot.value_name = name
                slots[name] = slot
            for k, name in enumerate(node.inputs):
                if name:
                    layer.input(k).connect(slots[name])
        net._outputs = {name: slots[name] for name in graph.outputs}
        net.state, net.initial = dict(graph.state), dict(graph.initial)
        net.touch()
        return net

    def to_graph(self) -> Graph:
        """Return the graph; ModelError with all that is wrong: inputs that are not connected, cycles ..."""
        return to_graph(self)

    def __str__(self) -> str:
        return describe(self)


@door
def parse(
    model: str | os.PathLike[str] | bytes | Graph | onnx.ModelProto | object,
    *,
    name: str | None = None,
    limits: Limits | Mapping[str, float] | None = None,
) -> Network:
    """Return a network that can be edited: an ONNX model (a path, bytes, a loaded model) or a `Graph`.

    It takes whatever else a front end reads, too. `name` is the network's, by default that of the model. `limits`
    bounds what the model may cost; see `weft.load`.
    """
    graph = front_ends.read(model, ReadOptions(Limits.of(limits)))
    if not isinstance(graph, Graph):
        why = "it was rewritten and divided over its devices already"
        raise ModelError("an optimised network cannot be edited", why=why, fix="parse the model that it was made from")
    if name is not None:
        graph = graph.copy()
        graph.name = name
    return Network.from_graph(graph)


def _move(targets: Iterable[InputSlot], layer: OpLayer) -> None:
    for target in targets:
        target.disconnect()
        target.connect(layer.outputs[0])


def _checked_shape(name: str, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return a shape with Python's ints as its numbers; ModelError if it is no shape."""
    is_list = isinstance(shape, Iterable) and not isinstance(shape, (str, Mapping))
    dims = tuple(shape) if is_list else ()
    if not is_list or not all(_is_size(d) or (isinstance(d, str) and d) for d in dims):
        raise ModelError(
            f"{shape!r} is not a shape for input {name!r}",
            why="a shape is a list of dimensions, and a dimension is an int from 0 on, or a name",
            fix="write, for instance, ('n', 3, 224, 224)" if is_list else f"write ({shape!r},)",
        )
    return tuple(d if isinstance(d, str) else int(d) for d in dims)


def _is_size(dim: object) -> bool:
    return isinstance(dim, Integral) and not isinstance(dim, bool) and int(dim) >= 0


def _op_of(op_type: str, attributes: Mapping[str, object]) -> Op:
    try:
        from weft.frontends.builder.signatures import (
            op_of,  # late: onnx takes longer to import than all of Weft
        )
    except ModuleNotFoundError as e:
        why = f"the Python package {e.name!r} is not installed"
        raise ConfigError("ops cannot be found by their names", why=why, fix="pip install onnx") from e
    return op_of(op_type, attributes)
