"""Inputs and constants of a network in the making, and the slots by which all layers are joined.

An output slot feeds any number of input slots; an input slot reads one output slot, its source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.tensor import TensorSpec
from weft.core.host.fitted import to_array
from weft.errors import ModelError

if TYPE_CHECKING:
    from weft.frontends.builder.network import Network


class OutputSlot:
    """An output of a layer. Made by its layer: `layer.output(0)`."""

    def __init__(self, layer: Layer, index: int) -> None:
        self.layer, self.index = layer, index
        self.value_name: str | None = None
        """The value's name in the graph: None to name it after the layer, "" if it has none while unread."""
        self._targets: list[InputSlot] = []

    @property
    def targets(self) -> tuple[InputSlot, ...]:
        """Return the input slots that read it."""
        return tuple(self._targets)

    @property
    def spec(self) -> TensorSpec | None:
        """Return shape and type as far as they follow from the network's inputs; None where they do not.

        A str in the shape is a symbolic dimension of an input, or stands for a size that depends on one.
        """
        return self.layer.network.inference().specs.get(self)

    @property
    def is_read(self) -> bool:
        """Tell whether a layer reads it, or it is an output of the network."""
        return bool(self._targets) or any(s is self for s in self.layer.network.outputs.values())

    def connect(self, target: InputSlot) -> None:
        """Make an input slot read this; ModelError if it has a source already, or is of another network."""
        target.connect(self)

    def redirect(self, to: Layer | OutputSlot) -> None:
        """Make all that reads this slot read another one: input slots and outputs of the network."""
        other = output_of(to)
        self.layer.network.check_own(other)
        for target in self.targets:
            target.disconnect()
            target.connect(other)
        self.layer.network.move_outputs(self, other)

    def __repr__(self) -> str:
        return f"output {self.index} of {self.layer.name!r}"


class InputSlot:
    """An input of a layer. Made by its layer: `layer.input(0)`."""

    def __init__(self, layer: Layer, index: int) -> None:
        self.layer, self.index = layer, index
        self._source: OutputSlot | None = None

    @property
    def source(self) -> OutputSlot | None:
        """Return the output slot that it reads, None while it is not connected."""
        return self._source

    def connect(self, source: Layer | OutputSlot) -> None:
        """Read an output slot (or the only one of a layer); ModelError if this slot has a source already."""
        slot = output_of(source)
        network = self.layer.network
        network.check_own(slot)
        if self._source is not None:
            raise ModelError(
                f"{self!r} has a source already",
                where=f"network {network.name!r}",
                why=f"it reads {self._source!r}; an input slot has exactly one source",
                fix="disconnect it first",
            )
        self._source = slot
        slot._targets.append(self)
        network.touch()

    def disconnect(self) -> None:
        """Disconnect this slot, if it is connected."""
        if self._source is not None:
            self._source._targets.remove(self)
            self._source = None
            self.layer.network.touch()

    def __repr__(self) -> str:
        return f"input {self.index} of {self.layer.name!r}"


class Layer:
    """What all layers have: a name, slots, and a network that they belong to."""

    def __init__(self, network: Network, name: str) -> None:
        self._network: Network | None = network
        self._name = name
        self._inputs: list[InputSlot] = []
        self._outputs: list[OutputSlot] = []

    @property
    def network(self) -> Network:
        """Return the network; ModelError if the layer was removed from it."""
        if self._network is None:
            raise ModelError(f"{self._name!r} was removed from its network", fix="add a layer anew")
        return self._network

    @property
    def name(self) -> str:
        """The name; setting it renames the layer. A name that is taken is refused."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self.network.rename(self, name)
        self._name = name

    @property
    def inputs(self) -> tuple[InputSlot, ...]:
        """Return the input slots; a variadic input has the slots that it got so far."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[OutputSlot, ...]:
        """Return the output slots."""
        return tuple(self._outputs)

    def input(self, index: int | str = 0) -> InputSlot:
        """Return an input slot by index or by ONNX's name of it; ModelError if there is none."""
        raise ModelError(f"{self.name!r} has no inputs", why=f"it is {self.kind}", fix="use its output: output(0)")

    def output(self, index: int = 0) -> OutputSlot:
        """Return an output slot; ModelError if there is none of that number."""
        if not 0 <= index < len(self.outputs):
            raise ModelError(
                f"{self.name!r} has no output {index}",
                why=f"{self.kind} has {len(self.outputs)}",
                fix="use one of its outputs",
            )
        return self._outputs[index]

    @property
    def kind(self) -> str:
        """Return in words what the layer is."""
        return "a layer"

    def remove(self, *, join: bool = False) -> None:
        """Remove the layer from the network; slots that read it are left without a source.

        With `join`, slots that read its first output read the source of its first input instead.
        """
        network = self.network
        source = self._inputs[0].source if self._inputs else None
        if join:
            if source is None:
                raise ModelError(
                    f"{self.name!r} cannot be removed with join=True",
                    why="its first input has no source",
                    fix="connect its first input, or remove it without join",
                )
            self.outputs[0].redirect(source)
        for slot in self._inputs:
            slot.disconnect()
        for out in self._outputs:
            for target in out.targets:
                target.disconnect()
        network.forget(self)
        self._network = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self._name!r}>"


class InputLayer(Layer):
    """An input of the network; it has one output slot."""

    def __init__(self, network: Network, name: str, spec: TensorSpec) -> None:
        super().__init__(network, name)
        self._spec = spec
        self._outputs = [OutputSlot(self, 0)]

    @property
    def spec(self) -> TensorSpec:
        """The shape and type of what is fed; it may be set."""
        return self._spec

    @spec.setter
    def spec(self, spec: TensorSpec) -> None:
        self._spec = spec
        self.network.touch()

    @property
    def kind(self) -> str:
        """Return in words what the layer is."""
        return "an input"


class ConstantLayer(Layer):
    """A constant; it has one output slot."""

    def __init__(self, network: Network, name: str, value: Array) -> None:
        super().__init__(network, name)
        self._value = checked(value)
        self._outputs = [OutputSlot(self, 0)]

    @property
    def value(self) -> Array:
        """The array; it may be set, also to one of another shape."""
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = checked(value)
        self.network.touch()

    @property
    def kind(self) -> str:
        """Return in words what the layer is."""
        return "a constant"


def output_of(source: Layer | OutputSlot) -> OutputSlot:
    """Return an output slot as it is, and the only one of a layer; ModelError if the layer has several."""
    if isinstance(source, OutputSlot):
        return source
    if not isinstance(source, Layer):
        raise ModelError(
            f"{type(source).__name__} {str(source)[:60]} is no output slot",
            fix="pass a layer, not its name, or layer.output(k)",
        )
    if len(source.outputs) != 1:
        many = f"{source.name!r} has {len(source.outputs)} outputs"
        raise ModelError(many, fix="say which one: layer.output(0), layer.output(1) ...")
    return source.outputs[0]


def checked(value: Any) -> Array:
    """Return an array of a type that Weft knows; ModelError if it is of another."""
    array, problem = to_array(value)
    if problem:
        raise ModelError(
            f"{type(value).__name__} {str(value)[:60]} is no array",
            why=f"it {problem}",
            fix="pass an array of numbers or booleans",
        )
    DType.of(array.dtype)
    return array
