"""The layers of a network in the making that compute something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.core.graph.op import Op
from weft.errors import ModelError
from weft.frontends.builder.slots import InputSlot, Layer, OutputSlot

if TYPE_CHECKING:
    from weft.frontends.builder.network import Network
    from weft.frontends.builder.signatures import Signature


class OpLayer(Layer):
    """An op with its slots, as many as ONNX gives it; `outputs` of a Split follow from its attributes."""

    def __init__(self, network: Network, name: str, op: Op) -> None:
        super().__init__(network, name)
        self._op = op
        self._grow_inputs(self._fixed_inputs)
        self.grow_outputs(1)

    # -- the op ----------------------------------------------------------------------------------------

    @property
    def op(self) -> Op:
        """The op; to change attributes set `dataclasses.replace(layer.op, ...)`, or any op with such slots."""
        return self._op

    @op.setter
    def op(self, op: Op) -> None:
        most = signature(op).most_inputs
        used = max((s.index + 1 for s in self._inputs if s.source), default=0)
        if used > most:
            raise ModelError(
                f"{self.name!r} cannot become {op.type}",
                why=f"{used} of its inputs are connected and {op.type} has at most {most}",
                fix="disconnect the surplus inputs",
            )
        old, self._op = self._op, op
        self.network.touch()
        if self._used_outputs > self._most_outputs:
            why = f"output {self._used_outputs - 1} is read and {op.type} has {self._most_outputs} output(s)"
            self._op = old
            self.network.touch()
            raise ModelError(f"{self.name!r} cannot become {op.type}", why=why, fix="connect what reads it elsewhere")
        del self._inputs[max(used, self._fixed_inputs) :]
        self._grow_inputs(self._fixed_inputs)
        del self._outputs[max(self._used_outputs, self._made_outputs) :]

    def replace(self, op: str | Op, **attributes: object) -> None:
        """Replace the op; slots stay connected."""
        self.op = self.network.make_op(op, attributes)

    @property
    def completed_op(self) -> Op:
        """Return the op, with the number of its node's outputs where the op has a field for it."""
        count = getattr(self._op, "outputs", None)
        if not isinstance(count, int):
            return self._op
        parts: object = getattr(self._op, "num_outputs", None)
        if not count and (parts or any(s.source for s in self._inputs[1:])):
            return self._op  # another field or an input tells a Split its parts
        needed = max(count, self._used_outputs) or len(self._outputs)
        changed: Op = self._op if needed == count else replace(self._op, outputs=needed)  # type: ignore[call-arg]
        return changed

    @property
    def kind(self) -> str:
        """Return in words what the layer is."""
        return f"{self._op.type} layer"

    # -- its slots -------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """Return what is known of the inputs and outputs of the op."""
        return signature(self._op)

    @property
    def outputs(self) -> tuple[OutputSlot, ...]:
        """Return the output slots: what the op makes, and optional ones that were asked for."""
        self.grow_outputs(self._made_outputs)
        return tuple(self._outputs)

    @property
    def made_slots(self) -> Sequence[OutputSlot]:
        """Return the output slots made so far, without asking what the op makes."""
        return self._outputs

    @property
    def _fixed_inputs(self) -> int:
        known = self.signature
        return len(known.inputs) if known.most_inputs == len(known.inputs) else known.least_inputs

    @property
    def _used_outputs(self) -> int:
        return max((s.index + 1 for s in self._outputs if s.is_read), default=0)

    @property
    def _made_outputs(self) -> int:
        """Return how many outputs the op makes; at least one."""
        for name in ("outputs", "num_outputs"):
            count = getattr(self._op, name, None)
            if isinstance(count, int) and count:
                return count
        known = self.signature
        if known.most_outputs == known.least_outputs:
            return known.least_outputs
        return self.network.inference().counts.get(self, known.least_outputs)

    @property
    def _most_outputs(self) -> int:
        """Return how many outputs may be asked for."""
        if getattr(self._op, "num_outputs", 0):
            return self._made_outputs
        if hasattr(self._op, "outputs"):
            return self.signature.most_outputs
        if self.signature.is_known or self in self.network.inference().counts:
            return self._made_outputs
        return self.signature.most_outputs

    def input(self, index: int | str = 0) -> InputSlot:
        """Return an input slot by index or by ONNX's name of it; make it if it does not exist yet.

        ModelError if the op has no such input.
        """
        known = self.signature
        names = {label: k for k, label in reversed(list(enumerate(known.inputs)))}
        place = index if isinstance(index, int) else names.get(index, -1)
        if not 0 <= place < known.most_inputs:
            shown = f": {', '.join(known.inputs)}" if known.inputs else ""
            raise ModelError(
                f"{self.name!r} ({self._op.type}) has no input {index!r}",
                why=f"it has {len(self._inputs)} input(s){shown}",
                fix="use one of its inputs",
            )
        self._grow_inputs(place + 1)
        return self._inputs[place]

    def output(self, index: int = 0) -> OutputSlot:
        """Return an output slot; an optional one is made when it is asked for. ModelError if there is none."""
        if index >= len(self.outputs) and index < self._most_outputs:
            self.grow_outputs(index + 1)
            self.network.touch()
        if not 0 <= index < len(self._outputs):
            raise ModelError(
                f"{self.name!r} ({self._op.type}) has no output {index}",
                why=f"it has {len(self._outputs)} output(s)",
                fix="use one of its outputs",
            )
        return self._outputs[index]

    def _grow_inputs(self, count: int) -> None:
        self._inputs += [InputSlot(self, k) for k in range(len(self._inputs), count)]

    def grow_outputs(self, count: int) -> None:
        """Make the output slots up to that number."""
        self._outputs += [OutputSlot(self, k) for k in range(len(self._outputs), count)]

    def required(self) -> Sequence[InputSlot]:
        """Return the input slots that must be connected and are not."""
        known = self.signature
        # A variadic input may have no gap. The inputs of an unknown op may be optional.
        repeats = known.is_known and known.most_inputs > len(known.inputs)
        last = max((s.index for s in self._inputs if s.source), default=0) if repeats else 0
        empty = [s for s in self._inputs if s.source is None]
        return [s for s in empty if known.needs(s.index) or s.index < last]


def signature(op: Op) -> Signature:
    """Return the signature of an op; onnx is loaded with the first."""
    from weft.frontends.builder.signatures import (
        signature_of,  # late: onnx takes longer to import than all of Weft
    )

    return signature_of(op.type)
