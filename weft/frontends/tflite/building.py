"""From what a file holds to a graph of Weft's ops: each operator is read by the importer of its op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.contract.error_context import is_error
from weft.core.graph.control_op import interpret
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Declared, Graph, Names, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.graph.tensor import Dim, TensorSpec
from weft.errors import ConfigError, ModelError, Problem, UnsupportedOps, WeftError, brief, listing
from weft.frontends.raw_data import is_absurd
from weft.frontends.tflite.model import Model, Operator, Quantization, Signature, Subgraph, TensorInfo
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import BUILTIN, CUSTOM, Entry
from weft.frontends.tflite.weights import BEHIND, Costs, Weights
from weft.frontends.wording import quote

COMPLEX = (DType.COMPLEX64, DType.COMPLEX128)
STATE = "state/"
"""How the names of inputs begin that are the state of a model."""
DEEPEST = 16
"""How deep subgraphs may call each other."""
TEXT = "it works on texts, and Weft computes with numbers: do this before the network"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP", "HASHTABLE_SIZE", "LSH_PROJECTION",
         "SKIP_GRAM"),
        TEXT,
    ),
    "DELEGATE": "it is a part that was compiled for one machine: take the file before that",
    "STABLEHLO_CUSTOM_CALL": "it calls code that is not in the file",
}
"""Why Weft has no form of some builtin ops."""
_DAMAGED = (ArithmeticError, LookupError, TypeError, ValueError)
"""What an importer may raise of a node whose inputs, shapes and options contradict each other."""


@dataclass(frozen=True)
class Source:
    """A model, its weights, and what it has cost so far."""

    model: Model
    weights: Weights
    costs: Costs


@dataclass(eq=False)
class Variables:
    """The values that live from run to run, by their names; `now` is what each is at a point of the graph."""

    now: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    """The inputs of the graph that they are at its beginning."""
    initial: dict[str, Array] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)


def build(source: Source, signature: str | None, name: str) -> Graph:
    """Return the graph of a signature, by default of the first subgraph; UnsupportedOps lists all nodes without op."""
    model = source.model
    chosen = _signature(model, signature)
    subgraph = model.subgraphs[chosen.subgraph if chosen is not None else 0]
    builder = GraphBuilder(source, subgraph, Graph(name, [], []), chosen)
    builder.read_inputs()
    builder.run()
    builder.raise_problems()
    builder.write_outputs()
    graph = builder.graph
    read = {i for node in graph.nodes for i in node.inputs} | {*graph.outputs}
    graph.constants = {k: value for k, value in graph.constants.items() if k in read}
    return graph


def _signature(model: Model, name: str | None) -> Signature | None:
    """Return the signature of a name; without a name the first one of the first subgraph."""
    if name is None:
        return next((s for s in model.signatures if s.subgraph == 0), None)
    found = next((s for s in model.signatures if s.name == name), None)
    if found is None:
        names = listing([quote(s.name) for s in model.signatures], ", ") or "no signatures"
        raise ConfigError(
            f"the model has no signature {name!r}", where=model.label, why=f"it has {names}",
            fix="pass one of these as signature=, or leave it out for the first subgraph",
        )
    return found


class GraphBuilder:
    """Writes a subgraph into a graph; `inside` is the builder of the subgraph that calls it, in the same graph."""

    def __init__(
        self, source: Source, subgraph: Subgraph, graph: Graph, signature: Signature | None = None,
        inside: GraphBuilder | None = None,
    ) -> None:
        self.source, self.subgraph, self.graph = source, subgraph, graph
        self.names: Names = Names(graph) if inside is None else inside.names
        self.variables: Variables = Variables() if inside is None else inside.variables
        self.problems: list[str] = [] if inside is None else inside.problems
        self.refused: Counter[str] = Counter() if inside is None else inside.refused
        self.is_body = False
        """Whether the graph is one that an op holds, which has no state."""
        self._depth: int = 0 if inside is None else inside._depth + 1
        self._prefix = "" if inside is None else f"{subgraph.name or 'subgraph'}/"
        self._signature = signature
        self._values: dict[int, str] = {}
        """The value of each tensor that was made so far."""
        self.handles: dict[int, str] = {}
        """The variables that tensors stand for."""
        self._labels: dict[int, str] = {}
        self._real: dict[tuple[int, tuple[int, ...]], str] = {}
        self._firsts: dict[str, str] = {}
        self._lasts: dict[str, str] = {}
        """The value with channels first for one with channels last, and the other way round."""

    # -- inputs and outputs ----------------------------------------------------------------------------

    def read_inputs(self) -> None:
        """Make the subgraph's inputs those of the graph, and reserve the names of its outputs."""
        graph, chosen = self.graph, self._signature
        labels = {} if chosen is None else chosen.inputs
        problems = []
        for index in self.subgraph.inputs:
            tensor = self.subgraph.tensor(index)
            if index in self._values:
                problems.append(f"{tensor.where} is an input twice")
                continue
            name = self.names.fresh(labels.get(index) or tensor.name or f"input{index}")
            self._values[index] = self._labels[index] = name
            graph.inputs.append(name)
            if tensor.dtype_or_none in (None, *COMPLEX):
                problems.append(f"{tensor.where} does not hold real numbers")
                continue
            if is_absurd([d for d in tensor.shape if d >= 0]):
                problems.append(f"{tensor.where} has a shape that makes no sense: {tensor.shape}")
                continue
            if not self.is_body:
                graph.specs[name] = TensorSpec(self._open_shape(name, tensor), tensor.dtype)
        if problems or not self.subgraph.outputs:
            raise ModelError(
                "the graph's inputs and outputs cannot be read", where=self.source.model.label,
                why=listing(problems) or "it has no outputs", fix="convert the model again",
            )
        labels = {} if chosen is None else chosen.outputs
        for index in dict.fromkeys(self.subgraph.outputs):
            if index not in self._labels:
                name = labels.get(index) or self.subgraph.tensor(index).name or f"output{index}"
                self._labels[index] = self.names.fresh(name)

    def _open_shape(self, name: str, tensor: TensorInfo) -> tuple[Dim, ...]:
        return tuple(f"{name}.{axis}" if size is None else size for axis, size in enumerate(tensor.sizes))

    def write_outputs(self) -> None:
        """Make the subgraph's outputs those of the graph, and what becomes of its variables behind them."""
        graph = self.graph
        for index in self.subgraph.outputs:
            tensor = self.subgraph.tensor(index)
            if tensor.dtype_or_none in (None, *COMPLEX):
                raise ModelError("an output does not hold real numbers", where=tensor.where, fix="convert it without")
            value = self.raw(tensor)
            wanted = self._labels[index]
            if value != wanted or value in graph.outputs or value in graph.inputs or value in graph.constants:
                taken = {*graph.outputs, *graph.inputs, *graph.constants}
                value = self.named("Identity", value, self.names.fresh(wanted) if wanted in taken else wanted)
            graph.outputs.append(value)
            if not self.is_body:
                graph.declared[value] = Declared(tensor.dtype, tensor.sizes)
        held = self.variables
        for variable, name in {} if self.is_body else held.inputs.items():
            now = held.now[variable]
            if now == name:  # nothing changes it: it is a constant
                graph.constants[name] = held.initial.get(variable, _zeros(held.specs[variable]))
                continue
            if now in graph.outputs or now in graph.inputs or now in graph.constants:
                now = self.named("Identity", now, self.names.fresh(f"{name}/next"))
            graph.inputs.append(name)
            graph.outputs.append(now)
            graph.state[name] = now
            if variable in held.initial:
                graph.initial[name] = held.initial[variable]

    def named(self, op_type: str, value: str, name: str) -> str:
        """Add a node of one input under the name of its output, and return that."""
        self.source.costs.count_node()
        self.graph.nodes.append(Node(self.names.fresh(f"{name}/{op_type}"), new_op(op_type), (value,), (name,)))
        return name

    # -- operators -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Write all operators; what is not supported is noted in `problems`."""
        for operator in self.subgraph.operators:
            before = len(self.graph.nodes)
            try:
                self._bind(operator, self._read(operator), before)
            except WeftError as e:
                if e is self.source.costs.exceeded:
                    raise
                del self.graph.nodes[before:]
                self._note(operator, e.short + (f" [{e.where}]" if e.where else ""))

    def _note(self, operator: Operator, reason: str) -> None:
        self.problems.append(Problem(f"{self._prefix}{operator.op}_{operator.index}", f": {operator.op}: {reason}"))
        self.refused[operator.op] += 1
        for index in operator.outputs:
            if index >= 0:  # what reads it is read as well, so that all problems are told
                self._values.setdefault(index, self._label(self.subgraph.tensor(index)))

    def _read(self, operator: Operator) -> list[str]:
        entry = self._entry(operator)
        tensors = [self.subgraph.tensor(i) for i in (*operator.inputs, *operator.outputs) if i >= 0]
        if not entry.of_complex and any(t.dtype_or_none in COMPLEX for t in tensors):
            raise ModelError("complex numbers are not supported", why="Weft reads their parts and sizes alone")
        is_real = not (entry.moves and self._is_of_one_scale(operator))
        node = TFLiteNode(self, operator, is_real=is_real)
        try:
            made = entry.read(node)
        except WeftError:
            raise
        except _DAMAGED as e:
            why = f"{type(e).__name__}: {brief(str(e))}"
            raise ModelError("its inputs, shapes and options do not fit each other", why=why) from e
        except Exception as e:
            if not (operator.is_custom and is_error(e)):
                raise
            raise ModelError("its importer failed", why=f"{type(e).__name__}: {e}") from e
        values = [made] if isinstance(made, str) else list(made)
        if len(values) < len(operator.outputs):
            raise ModelError(f"it has {len(operator.outputs)} outputs, and {len(values)} are known of")
        if not is_real:
            return values
        return [
            self._quantised(node.name, value, self.subgraph.tensor(index)) if index >= 0 else value
            for index, value in zip(operator.outputs, values, strict=False)
        ]

    def _entry(self, operator: Operator) -> Entry:
        if operator.is_custom:
            if operator.op not in CUSTOM:
                fix = "weft.extend.tflite_op registers one"
                raise ModelError(f"no importer of the custom op {quote(operator.op)} is registered ({fix})")
            return CUSTOM[operator.op]
        if operator.op not in BUILTIN:
            raise ModelError(REFUSED.get(operator.op, "Weft has no such op"))
        return BUILTIN[operator.op]

    def _is_of_one_scale(self, operator: Operator) -> bool:
        """Tell whether all inputs and outputs that stand for other numbers do so alike."""
        tensors = [self.subgraph.tensor(i) for i in (*operator.inputs, *operator.outputs) if i >= 0]
        scales = [t.quantization for t in tensors if self.is_scaled(t)]
        return all(s is not None and s.is_per_tensor and s.equals(scales[0]) for s in scales)

    def _bind(self, operator: Operator, made: Sequence[str], before: int) -> None:
        """Let values be the operator's outputs; those that its own nodes make get the names of its tensors."""
        own = {o for node in self.graph.nodes[before:] for o in node.outputs}
        renamed: dict[str, str] = {}
        for index, value in zip(operator.outputs, made, strict=False):
            if index < 0:
                continue
            if index in self._values:
                raise ModelError(f"{self.subgraph.tensor(index).where} is made twice")
            if value in own and value not in renamed and value not in self._values.values():
                renamed[value] = self._label(self.subgraph.tensor(index))
            self._values[index] = renamed.get(value, value)
        if renamed:
            self.graph.nodes[before:] = [
                Node(
                    node.name, node.op, tuple(renamed.get(i, i) for i in node.inputs),
                    tuple(renamed.get(o, o) for o in node.outputs),
                )
                for node in self.graph.nodes[before:]
            ]
            for pairs in (self._firsts, self._lasts):
                for old, new in renamed.items():
                    if old in pairs:
                        pairs[new] = pairs.pop(old)
                pairs.update({k: renamed[v] for k, v in pairs.items() if v in renamed})

    def _label(self, tensor: TensorInfo) -> str:
        if tensor.index not in self._labels:
            self._labels[tensor.index] = self.names.fresh(f"{self._prefix}{tensor.name or f'tensor{tensor.index}'}")
        return self._labels[tensor.index]

    def raise_problems(self) -> None:
        """Raise UnsupportedOps if there are nodes that were not supported."""
        if self.problems:
            total, label = len(self.subgraph.operators), self.source.model.label
            raise UnsupportedOps(
                f"{len(self.problems)} of the {total} nodes of {label} are not supported", self.problems,
                fix="register the missing custom ops (weft.extend.tflite_op), or convert the model without them",
                by_op=self.refused, others=self.graph,
            )

    # -- values ----------------------------------------------------------------------------------------

    def raw(self, tensor: TensorInfo) -> str:
        """Return the value of a tensor as the file has it; ModelError if there is none."""
        if tensor.index not in self._values:
            value = self.source.weights.value(tensor, self.subgraph.index)
            if value is None and 0 not in tensor.shape:
                raise ModelError("it is read before anything makes it", where=tensor.where)
            made = np.zeros(tensor.shape, tensor.dtype.numpy) if value is None else value
            self._values[tensor.index] = self.set_constant(self._label(tensor), made)
        return self._values[tensor.index]

    def constant(self, tensor: TensorInfo) -> Array | None:
        """Return the value of a tensor that is a constant; None for another."""
        made = self._values.get(tensor.index)
        if made is not None:
            return self.graph.constants.get(made)
        return self.source.weights.value(tensor, self.subgraph.index)

    def is_scaled(self, tensor: TensorInfo) -> bool:
        """Tell whether a tensor's integers stand for other numbers."""
        dtype = tensor.dtype_or_none
        if dtype is None or not dtype.is_integer or self.scales(tensor) is None:
            return False
        return dtype.bits <= 16 or self.constant(tensor) is not None

    def scales(self, tensor: TensorInfo) -> Quantization | None:
        """Return what a tensor's integers stand for; None if they are numbers themselves."""
        if tensor.blocks is None:
            return tensor.quantization
        scale, zero, size = tensor.blocks
        scales = self.constant(self.subgraph.tensor(scale))
        zeros = None if zero <= 0 else self.constant(self.subgraph.tensor(zero))
        if scales is None or size < 1 or scales.ndim != len(tensor.shape) or (zero > 0 and zeros is None):
            raise ModelError("the scales of its blocks are not there", where=tensor.where)
        wide = scales.astype(np.float32)
        zeros = np.zeros(wide.shape, np.int64) if zeros is None else zeros.astype(np.int64)
        return Quantization(wide, zeros, len(tensor.shape) - 1, size)

    def real(self, tensor: TensorInfo) -> str:
        """Return the numbers that a tensor's integers stand for; the tensor itself if it holds no such."""
        if not self.is_scaled(tensor):
            return self.raw(tensor)
        scales = self.scales(tensor)
        assert scales is not None
        return self.real_as(tensor, scales)

    def real_as(self, tensor: TensorInfo, scales: Quantization, order: tuple[int, ...] = ()) -> str:
        """Return the numbers that integers stand for in some scales, with the axes in another order if one is given."""
        key = tensor.index, order
        if key not in self._real:
            value = self._moved_constant(tensor, order) if order else self.raw(tensor)
            axis = order.index(scales.axis) if order and not scales.is_per_tensor else scales.axis
            if order and scales.block_size:
                moved = scales.scale.transpose(order), scales.zero_point.transpose(order)
                scales = Quantization(*moved, axis, scales.block_size)
            self._real[key] = self._dequantised(self._label(tensor), value, scales, axis, tensor)
        return self._real[key]

    def _dequantised(self, label: str, value: str, scales: Quantization, axis: int, tensor: TensorInfo) -> str:
        dtype = tensor.dtype
        if dtype.bits > 32:  # the biases of networks of int16, beyond what DequantizeLinear takes
            held = self.graph.constants[value] - scales.zero_point
            return self.add_constant(f"{label}/real", (held * scales.scale.astype(np.float64)).astype(np.float32))
        zero = scales.zero_point.astype(dtype.numpy)
        inputs = [value, self._scale(label, scales)]
        if zero.any():
            inputs.append(self.add_constant(f"{label}/zero", zero.reshape(()) if scales.is_per_tensor else zero))
        attributes = {"axis": axis, "block_size": scales.block_size}
        return self.add(label, "DequantizeLinear", inputs, 1, attributes)[0]

    def _scale(self, label: str, scales: Quantization) -> str:
        scale = scales.scale.reshape(()) if scales.is_per_tensor else scales.scale
        return self.add_constant(f"{label}/scale", np.ascontiguousarray(scale, np.float32))

    def _quantised(self, name: str, value: str, tensor: TensorInfo) -> str:
        """Return the integers of an output for the numbers that they stand for."""
        scales = tensor.quantization
        if not self.is_scaled(tensor) or scales is None:
            return value
        label, zero = self._label(tensor), scales.zero_point.astype(tensor.dtype.numpy)
        zeros = self.add_constant(f"{label}/zero", zero.reshape(()) if scales.is_per_tensor else zero)
        made = self.add(
            name, "QuantizeLinear", (value, self._scale(label, scales), zeros), 1, {"axis": scales.axis}
        )[0]
        return made

    def permuted(self, node: TFLiteNode, tensor: TensorInfo, order: tuple[int, ...]) -> str:
        """Return a tensor with its axes in another order; a constant is moved here."""
        if sorted(order) != list(range(len(tensor.shape))):
            raise ModelError(f"it has {len(tensor.shape)} axes, and {len(order)} are needed", where=tensor.where)
        if self.constant(tensor) is None:
            return node.add("Transpose", self.real(tensor) if node.is_real else self.raw(tensor), perm=order)
        if node.is_real and self.is_scaled(tensor):
            scales = self.scales(tensor)
            assert scales is not None
            return self.real_as(tensor, scales, order)
        return self._moved_constant(tensor, order)

    def _moved_constant(self, tensor: TensorInfo, order: tuple[int, ...]) -> str:
        name = f"{self.raw(tensor)}/{''.join(map(str, order))}"
        if name not in self.graph.constants:
            held = self.graph.constants[self.raw(tensor)]
            self.source.costs.count_bytes(held.nbytes, tensor.where)
            self.set_constant(name, np.ascontiguousarray(held.transpose(order)))
        return name

    def set_constant(self, name: str, value: Array) -> str:
        """Make a name a constant, and return it."""
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
        return name

    def add_constant(self, base: str, value: Array) -> str:
        """Return the name of a new constant."""
        return self.set_constant(self.names.fresh(base), value)

    def add(
        self, name: str, op_type: str, inputs: Sequence[str], count: int, attributes: Mapping[str, Any]
    ) -> list[str]:
        """Add a node, and return its outputs."""
        self.source.costs.count_node()
        held = list(inputs)
        while held and not held[-1]:
            held.pop()
        node = self.names.fresh(f"{self._prefix}{name}/{op_type}")
        outputs = [self.names.fresh(f"{node}.{k}") for k in range(count)]
        op = new_op(op_type, **attributes)
        self.graph.nodes.append(Node(node, op, tuple(held), tuple(outputs)))
        return outputs

    def first(self, name: str, value: str, rank: int) -> str:
        """Return a value with channels first; one that was made of it has them so already."""
        if value not in self._firsts:
            made = self.add(name, "Transpose", (value,), 1, {"perm": (0, rank - 1, *range(1, rank - 1))})[0]
            self._firsts[value], self._lasts[made] = made, value
        return self._firsts[value]

    def last(self, name: str, value: str, rank: int) -> str:
        """Return a value with channels last; one that was made of it has them so already."""
        if value not in self._lasts:
            made = self.add(name, "Transpose", (value,), 1, {"perm": (0, *range(2, rank), 1)})[0]
            self._lasts[value], self._firsts[made] = made, value
        return self._lasts[value]

    def custom_options(self, operator: Operator) -> bytes:
        """Return the bytes of a custom op's options, in the tables or behind them."""
        table = operator.table
        offset, size = table.integer(9, "Q"), table.integer(10, "Q")
        found = self.source.model.data.bytes_at(offset, size) if offset > BEHIND else table.data(5)
        return b"" if found is None else found.tobytes()

    # -- subgraphs that operators call -----------------------------------------------------------------

    def called(self, index: int) -> Subgraph:
        """Return a subgraph of the file; ModelError if there is none, or if calls go too deep."""
        subgraphs = self.source.model.subgraphs
        if not 0 <= index < len(subgraphs):
            raise ModelError(f"it calls subgraph {index}", why=f"there are {len(subgraphs)}")
        if self._depth >= DEEPEST:
            raise ModelError(f"subgraphs call each other more than {DEEPEST} deep")
        return subgraphs[index]

    def inline(self, index: int, inputs: Sequence[str]) -> list[str]:
        """Write a subgraph into this graph for these inputs, and return its outputs."""
        callee = self.called(index)
        if len(callee.inputs) != len(inputs):
            why = f"that takes {len(callee.inputs)}"
            raise ModelError(f"it passes {len(inputs)} values to subgraph {index}", why=why)
        builder = GraphBuilder(self.source, callee, self.graph, inside=self)
        builder.is_body = self.is_body
        builder._values = dict(zip(callee.inputs, inputs, strict=True))
        builder.run()
        return [builder.raw(callee.tensor(i)) for i in callee.outputs]

    def body(self, name: str) -> GraphBuilder:
        """Return a builder of a graph that an op holds."""
        builder = GraphBuilder(self.source, self.subgraph, Graph(name, [], []))
        builder.problems, builder.refused, builder.is_body = self.problems, self.refused, True
        builder._depth, builder._prefix = self._depth + 1, f"{name}/"
        return builder

    def body_of(self, index: int, name: str) -> Graph:
        """Return a subgraph as a graph that an op holds."""
        callee = self.called(index)
        builder = self.body(name)
        builder.subgraph = callee
        builder.read_inputs()
        builder.run()
        builder.write_outputs()
        return builder.graph

    # -- state -----------------------------------------------------------------------------------------

    def read_variable(self, name: str, tensor: TensorInfo) -> str:
        """Return what a variable is now; `tensor` has its type and shape."""
        held = self.variables
        if self.is_body:
            raise ModelError("variables inside of IF and WHILE are not supported", why=f"it reads {quote(name)}")
        if name not in held.now:
            if None in tensor.sizes:
                raise ModelError("a variable of open sizes is not supported", why=f"{quote(name)} is {tensor.sizes}")
            value = self.names.fresh(f"{STATE}{name}")
            held.specs[name] = self.graph.specs[value] = TensorSpec(tensor.shape, tensor.dtype)
            held.now[name] = held.inputs[name] = value
        return held.now[name]

    def assign_variable(self, name: str, value: str) -> None:
        """Let a variable be a value from here on."""
        if self.is_body:
            raise ModelError("variables inside of IF and WHILE are not supported", why=f"it changes {quote(name)}")
        self.variables.now[name] = value

    def variable(self, tensor: TensorInfo) -> TensorInfo:
        """Return a tensor after making it a variable, if the file says that it is one."""
        if tensor.is_variable and tensor.index not in self._values:
            self._values[tensor.index] = self.read_variable(tensor.name or f"tensor{tensor.index}", tensor)
        return tensor

    def change(self, tensor: TensorInfo, value: str) -> None:
        """Let a tensor that is a variable be a value from here on; one that is not has no memory."""
        if tensor.is_variable:
            name = tensor.name or f"tensor{tensor.index}"
            # A value of its own, because the operator's output may be renamed.
            made = self.add(name, "Identity", (self._quantised(name, value, tensor),), 1, {})[0]
            self.assign_variable(name, made)
            self._values[tensor.index] = self.variables.now[name]
            self._real = {key: known for key, known in self._real.items() if key[0] != tensor.index}

    def initialise(self, index: int) -> None:
        """Set the first values of variables as a subgraph sets them, which needs no inputs."""
        callee = self.called(index)
        builder = GraphBuilder(self.source, callee, Graph(callee.name, [], []))
        builder.problems, builder.refused, builder._depth = self.problems, self.refused, self._depth + 1
        builder.run()
        held, graph = builder.variables, builder.graph
        if callee.inputs or held.inputs:
            raise ModelError(f"subgraph {index} sets the first values of variables, and reads others")
        if self.problems:
            return
        graph.outputs = list(held.now.values())
        self.variables.initial.update(zip(held.now, _values(interpret(graph, [])), strict=True))


def _values(results: Sequence[object]) -> list[Array]:
    if not all(isinstance(each, np.ndarray) for each in results):
        raise ModelError("a variable is set to what is not a tensor")
    return [np.asarray(each) for each in results]


def _zeros(spec: TensorSpec) -> Array:
    return np.zeros(spec.dims, spec.dtype.numpy)
