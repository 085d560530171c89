"""The plan of a whole network for certain sizes, and what it takes of callers."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.tensor import SequenceSpec, TensorSpec
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.session.arguments import (
    Forms,
    Given,
    Outputs,
    half_outputs,
    take_outputs,
    take_planned,
    take_planned_outputs,
)
from weft.core.session.capacities import RoomyPlan
from weft.core.session.plans import Plan
from weft.core.session.rests import Rest
from weft.core.session.run import MakeBuffer, Step

_NO_NAMES: frozenset[str] = frozenset()


@dataclass(eq=False)
class NetworkPlan(Plan):
    """How a whole network runs for certain sizes, or its first stage."""

    shapes: Hashable = None
    """The shapes of the inputs, and the values of those that decide shapes."""
    divided: OptimizedNetwork | None = None
    """The network before backends lower their parts; None if it is for capacities."""
    bound: Graph | None = None
    """The model with these sizes; None if they change from run to run."""
    steps: Sequence[Step] = ()
    """What a run does behind what is loaded."""
    rest: Rest | None = None
    """What waits for values of a run, if the network is a first stage."""
    narrowable: frozenset[str] = frozenset()
    """The inputs and outputs that it can take and give in fp16, though the model has fp32."""
    wanted: frozenset[str] = frozenset()
    """The inputs and outputs for which there were fp16 arrays when it was planned."""
    forms: Forms | None = None
    """The arrays that it takes as they come; None if inputs are sequences."""
    given: Forms | None = None
    """The arrays for outputs that it takes as they come; None if later stages give the outputs."""
    half_outputs: frozenset[str] = frozenset()
    """The outputs that it gives in fp16, though the model has fp32."""
    reads_late: bool = False
    """Whether an input may be read after an output was written: several parts or stages run."""
    values: Mapping[str, Array] = field(default_factory=dict)
    """The inputs that decide shapes, with the values that it was made for."""
    roomy: RoomyPlan | None = None
    """The capacities that it was made for, if it holds for all sizes up to them."""

    def take(
        self, asked: Graph, inputs: Sequence[Any], outputs: Outputs | None, deciding: Collection[str]
    ) -> dict[str, Given] | None:
        """Return the inputs by name if it takes them, and gives the outputs, as they come; else None.

        `asked` are the inputs and outputs as callers see them, `deciding` the inputs that decide shapes. Most runs ask
        the plan of the last one, so this makes few calls.
        """
        planned = None if self.forms is None else take_planned(self.forms, inputs)
        if planned is None or (deciding and not are_values(self.values, {i: planned[i] for i in deciding})):
            return None
        halves = _NO_NAMES if outputs is None else half_outputs(asked, outputs) & self.narrowable
        return planned if halves == self.half_outputs else None

    def targets(
        self, asked: Graph, outputs: Outputs | None, numbers: Sequence[int], make: MakeBuffer, *,
        halves: frozenset[str], converted: frozenset[str] = _NO_NAMES,
    ) -> list[Given | None]:
        """Return what a caller gives for the outputs, in order; an empty list if what is loaded fills none of it.

        `halves` are outputs that may be given in fp16, though they are float32 by now; the arrays of `converted` are in
        the smallest type, whatever the run gives.
        """
        if outputs is None or self.rest is not None:
            return []
        if self.roomy is not None:  # they are copied to when the run has ended
            take_outputs(asked, self.roomy.live_specs(asked.outputs, numbers), outputs)
            return []
        planned = None if self.given is None or converted else take_planned_outputs(self.given, outputs)
        if planned is not None:
            return planned
        network = self.executable.network
        assert network is not None
        specs = {o: network.graph.specs[o] for o in asked.outputs}
        specs |= {o: self.travelling(o, specs[o]) for o in converted}
        wide = halves - self.narrowable
        specs |= {o: TensorSpec(specs[o].shape, DType.FLOAT16) for o in wide & half_outputs(asked, outputs)}
        return take_outputs(asked, specs, outputs, narrowable=self.narrowable, make=partial(make, specs))

    def travelling(self, name: str, spec: TensorSpec) -> TensorSpec:
        """Return the spec of an input or output in the smallest type in which it can travel."""
        return TensorSpec(spec.shape, DType.FLOAT16) if name in self.narrowable else spec


def forms_of(names: Sequence[str], specs: Mapping[str, TensorSpec], half: frozenset[str]) -> Forms | None:
    """Return the forms of arrays with these names, in fp16 for names in `half`; None if some are sequences."""
    if any(isinstance(specs[i], SequenceSpec) for i in names):
        return None
    return [(i, (DType.FLOAT16 if i in half else specs[i].dtype).numpy, specs[i].dims) for i in names]


def are_values(known: Mapping[str, Array], given: Mapping[str, Array]) -> bool:
    """Tell whether arrays are those that a plan was made for."""
    return known.keys() == given.keys() and all(np.array_equal(known[i], a) for i, a in given.items())
