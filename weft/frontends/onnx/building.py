"""From an ONNX graph to a graph of Weft's ops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, sort_nodes
from weft.core.graph.layout import Array
from weft.core.graph.limits import Limits
from weft.core.graph.tensor import TensorSpec
from weft.errors import MOST_NAMED, ModelError, Problem, listed, listing
from weft.frontends.onnx.attributes import read_attribute
from weft.frontends.onnx.bodies import expand_bodies
from weft.frontends.onnx.external import ExternalFiles
from weft.frontends.onnx.functions import expand
from weft.frontends.onnx.importers import Scope
from weft.frontends.onnx.instances import walk
from weft.frontends.onnx.nodes import Body, NodeReader
from weft.frontends.onnx.reading import Source, domain_of
from weft.frontends.onnx.schemas import ElementTypes, check_node, schema_of
from weft.frontends.onnx.tensors import TEXT, declared_output, dense_bytes, input_spec, to_array, to_dense
from weft.frontends.wording import quote
from weft.ops.shape import Identity

CONSTANT_FORMS = {
    "value": None,
    "value_int": "i8",
    "value_ints": "i8",
    "value_float": "f4",
    "value_floats": "f4",
    "sparse_value": None,
}
TEXTS = ("value_string", "value_strings")
"""The forms of a Constant that hold text. Exporters leave them in a file where nothing reads them."""
T = TypeVar("T")


def build(source: Source, name: str | None, limits: Limits) -> Graph:
    """Return the graph of a model whose header is checked; UnsupportedOps lists all nodes that have no op."""
    count = sum(1 for _ in walk(source.proto.graph.node))
    if count > limits.nodes:
        raise limits.exceeded("nodes", count, "the model", source.label)
    label = source.label
    expanded = expand_bodies(expand(source, limits), limits, label)
    model, proto = expanded.model, expanded.model.graph
    check_structure(proto, label)
    files = ExternalFiles(source.folders)
    values = Values(proto)
    _read_constants(proto, values, files, source, limits, expanded.opset_of)
    _read_inputs(proto, values, label)
    nodes = [node for node in proto.node if not is_constant(node)]
    values.types = ElementTypes({k: spec.dtype for k, spec in values.graph.specs.items()}, nodes, expanded.opset_of)
    opsets = {domain_of(entry.domain): entry.version for entry in model.opset_import}
    body = _Bodies(source, limits).read
    reader = NodeReader(opsets, files, values, _read_names(proto), expanded.opset_of, body)
    graph = values.graph
    graph.nodes = sort_nodes(_read_nodes(proto, reader, label, graph), graph.specs.keys() | graph.constants.keys())
    graph.outputs = _outputs(proto, values, label)
    _name_outputs(graph, values)
    graph.name = name or proto.name or Path(label).stem
    return graph


def is_constant(node: NodeProto) -> bool:
    """Tell whether a node is ONNX's Constant, which becomes a constant of the graph and no op."""
    return node.op_type == "Constant" and domain_of(node.domain) == ""


class Values:
    """The values of a graph in the making, which importers query and add to."""

    def __init__(self, proto: GraphProto, outer: Scope | None = None) -> None:
        self._outer = outer
        self._taken_here = defined(proto)
        read = {value for node in proto.node for value in node.input}
        self._taken = dict.fromkeys(read | self._taken_here, 0)
        self.graph = Graph("", [], [])
        self.types = ElementTypes({}, (), lambda node: 0)

    def set_constant(self, name: str, value: Array) -> None:
        """Make a name a constant."""
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))

    def add_constant(self, base: str, value: Array) -> str:
        """Return the name of a new constant."""
        name = self.fresh(base)
        self.set_constant(name, value)
        return name

    def fresh(self, base: str) -> str:
        """Reserve and return a name for a new value."""
        return unique(base, self._taken)

    def value(self, name: str) -> Array | None:
        """Return the value of a constant, None for everything else."""
        held = self.graph.constants.get(name)
        return held if held is not None or self._outer is None or name in self._taken_here else self._outer.value(name)

    def dtype(self, name: str) -> DType | None:
        """Return the element type of a value, None if it is not known."""
        return self.types.of(name)


def defined(proto: GraphProto) -> set[str]:
    """Return the values that a graph itself gives a name to: its inputs, its weights, what its nodes make."""
    made = {o for node in proto.node for o in node.output if o}
    return made | {i.name for i in proto.input} | {*_weights(proto)}


def _weights(proto: GraphProto) -> list[str]:
    return [t.name for t in proto.initializer] + [s.values.name for s in proto.sparse_initializer]


def _read_names(proto: GraphProto) -> set[str]:
    """Return all that nodes read, also those in the graphs that nodes hold, and what the graph gives back."""
    read = {o.name for o in proto.output}
    for node in walk(proto.node):
        read.update(node.input)
        read.update(o.name for a in node.attribute for o in a.g.output)
    return read


@dataclass(frozen=True)
class _Bodies:
    """Reads the graphs that nodes hold."""

    source: Source
    limits: Limits

    def read(self, proto: GraphProto, name: str, around: NodeReader) -> Body:
        """Return a graph that a node holds; its inputs have no shapes, which a run tells."""
        label = f"{self.source.label}, {name}"
        check_structure(proto, label)
        inner = replace(self.source, label=label, data={})
        values = Values(proto, around.scope)
        _read_constants(proto, values, around.files, inner, self.limits, around.opset_of)
        nodes = [node for node in proto.node if not is_constant(node)]
        here = defined(proto)
        captured = tuple(sorted(v for v in _captured(proto) if v and v not in here))
        inputs = {v.name: v for v in proto.input if v.name not in values.graph.constants}
        known = {v: declared_output(i).dtype for v, i in inputs.items() if i.type.HasField("tensor_type")}
        known |= {v: around.scope.dtype(v) for v in captured}
        known |= {k: spec.dtype for k, spec in values.graph.specs.items()}
        values.types = ElementTypes({k: t for k, t in known.items() if t is not None}, nodes, around.opset_of)
        reader = NodeReader(around.opsets, around.files, values, _read_names(proto), around.opset_of, self.read)
        graph = values.graph
        read = [
            made
            for k, node in enumerate(proto.node)
            if not is_constant(node) and (made := reader.add(node, node.name or f"{node.op_type}_{k}"))
        ]
        around.problems += [Problem(name, f": {problem}") for problem in reader.problems]
        around.refused += reader.refused
        graph.name, graph.inputs = name, list(inputs)
        if not reader.problems:
            names: dict[str, int] = {}
            read = [replace_name(node, unique(node.name, names)) for node in read]
            graph.nodes = sort_nodes(read, {*inputs, *captured, *graph.constants})
        graph.outputs = [o.name for o in proto.output]
        graph.declared = {o.name: declared_output(o) for o in proto.output if o.type.HasField("tensor_type")}
        _name_outputs(graph, values)
        return Body(graph, captured)


def _captured(proto: GraphProto) -> set[str]:
    """Return the values that a graph reads and may not define: those of its nodes, and of graphs that these hold."""
    read = {o.name for o in proto.output}
    for node in proto.node:
        read.update(node.input)
        for attribute in node.attribute:
            if attribute.type == attribute.GRAPH:
                read |= _captured(attribute.g) - defined(attribute.g)
    return read


def replace_name(node: Node, name: str) -> Node:
    """Return the node under another name."""
    return node if node.name == name else Node(name, node.op, node.inputs, node.outputs)


def unique(base: str, taken: dict[str, int]) -> str:
    """Reserve and return a name that starts with `base`; `taken` counts how often each base was asked for."""
    name = base
    while name in taken:
        taken[base] += 1
        name = f"{base}.{taken[base]}"
    taken[name] = 0
    return name


def check_structure(proto: GraphProto, label: str) -> None:
    """Raise ModelError unless the graph has outputs, and each value a name and one origin."""
    problems = [] if proto.output else ["it has no outputs"]
    inputs, outputs = [i.name for i in proto.input], [o.name for o in proto.output]
    weights = _weights(proto)
    made = [o for node in proto.node for o in node.output if o]
    for kind, names in {"input": inputs, "output": outputs, "initialiser": weights}.items():
        if kind == "input":  # a weight may be there twice with one value
            problems += [f"{kind} {quote(name)} is there {n} times" for name, n in Counter(names).items() if n > 1]
        problems += [f"an {kind} has no name"] if "" in names else []
    problems += [f"{quote(name)} is made {n} times by nodes" for name, n in Counter(made).items() if n > 1]
    given = {*inputs, *weights}
    # An input and an initialiser of one name are one value: the initialiser is its default.
    problems += [f"{quote(name)} is given and also made by a node" for name in dict.fromkeys(made) if name in given]
    for index, node in enumerate(proto.node):
        if len(node.attribute) < 2:
            continue
        counts = Counter(attribute.name for attribute in node.attribute)
        of = f"of node {quote(node.name or f'{node.op_type}_{index}')}"
        problems += [f"attribute {quote(name)} {of} is there {n} times" for name, n in counts.items() if n > 1]
    if problems:
        raise ModelError(
            "the graph is not well formed",
            where=label,
            why=listing(problems),
            fix="each value needs one origin and a name of its own: export the model again",
        )


def _read_constants(
    proto: GraphProto,
    values: Values,
    files: ExternalFiles,
    source: Source,
    limits: Limits,
    opset_of: Callable[[NodeProto], int],
) -> None:
    nbytes, read = 0, _read_names(proto)

    def count(name: str, more: int) -> None:
        nonlocal nbytes
        nbytes += more
        if nbytes > limits.constant_bytes:
            what = f"the model up to constant {quote(name)}"
            raise _Beyond(limits.exceeded("constant_bytes", nbytes, what, source.label))

    def keep(name: str, value: Array) -> None:
        before = values.graph.constants.get(name)
        if before is not None and not _same(before, value):
            raise ModelError(f"initialiser {quote(name)} is there twice, with two values")
        values.set_constant(name, value)

    def initialiser(placed: tuple[int, TensorProto]) -> None:
        place, tensor = placed
        if tensor.data_type == TensorProto.STRING and tensor.name not in read:
            return
        value = to_array(tensor, files, source.data.get(place))
        count(tensor.name, value.nbytes)
        keep(tensor.name, value)

    def sparse(tensor: SparseTensorProto) -> None:
        count(tensor.values.name, dense_bytes(tensor))
        keep(tensor.values.name, to_dense(tensor, files))

    def constant(node: NodeProto) -> None:
        name = node.output[0] if node.output else ""
        given = _constant_attribute(node, opset_of(node))
        if given.name in TEXTS and name not in read:
            return
        if given.name == "sparse_value":
            count(name, dense_bytes(given.sparse_tensor))
        value = _constant_value(given, files)
        if name:
            count(name, 0 if given.name == "sparse_value" else value.nbytes)
            keep(name, value)

    nodes = [node for node in proto.node if is_constant(node)]
    try:
        problems = _problems(initialiser, enumerate(proto.initializer))
        problems += _problems(sparse, proto.sparse_initializer)
        problems += _problems(constant, nodes)
    except _Beyond as e:
        raise e.error from None
    _raise_all("constants", problems, source.label)


_TENSOR = re.compile(r"tensor ('[^']*')(.*)", re.S)
"""Where something is wrong with a tensor."""


class _Beyond(Exception):
    """Ends the reading of constants at once; all other problems with constants are collected."""

    def __init__(self, error: ModelError) -> None:
        self.error = error


def _same(before: Array, now: Array) -> bool:
    """Tell whether two arrays hold the same bytes."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    first, second = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (before, now))
    return np.array_equal(first, second)


def _constant_attribute(node: NodeProto, opset: int) -> AttributeProto:
    """Return the attribute that holds the value of a Constant; ModelError if it has none, or several."""
    where = f"Constant node for {quote(node.output[0]) if node.output else 'nothing'}"
    schema = schema_of("Constant", opset)
    problem = check_node(node, schema) if schema else None
    if problem is None and len(node.attribute) != 1:
        problem = f"it has {len(node.attribute)} values instead of one"
    if problem is None and node.attribute[0].name not in (*CONSTANT_FORMS, *TEXTS):
        problem = f"a constant in the form {quote(node.attribute[0].name)} is not supported"
    if problem:
        raise ModelError(problem, where=where)
    given: AttributeProto = node.attribute[0]
    return given


def _constant_value(given: AttributeProto, files: ExternalFiles) -> Array:
    if given.name in TEXTS:
        raise ModelError(f"a constant in the form {quote(given.name)} is not supported", fix=TEXT)
    if given.name == "sparse_value":
        return to_dense(given.sparse_tensor, files)
    value = read_attribute(given, files)
    return value if isinstance(value, np.ndarray) else np.asarray(value, CONSTANT_FORMS[given.name])


def _read_inputs(proto: GraphProto, values: Values, label: str) -> None:
    inputs = [value for value in proto.input if value.name not in values.graph.constants]
    named = {dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim}

    def read(value: ValueInfoProto) -> None:
        values.graph.specs[value.name] = input_spec(value, named)

    _raise_all("inputs", _problems(read, inputs), label)
    values.graph.inputs = [value.name for value in inputs]
    values.graph.defaults = frozenset(value.name for value in proto.input) - {*values.graph.inputs}


def _problems(step: Callable[[T], None], items: Iterable[T]) -> list[ModelError]:
    """Return what is wrong with items."""
    problems = []
    for item in items:
        try:
            step(item)
        except ModelError as e:
            problems.append(e)
    return problems


def _raise_all(what: str, problems: list[ModelError], label: str) -> None:
    if problems:
        why, fix = "\n    ".join(("", *listed(_lines(problems)))), "export the model again, without what is named here"
        raise ModelError(f"{len(problems)} of the model's {what} cannot be read", where=label, why=why, fix=fix)


def _lines(problems: Iterable[ModelError]) -> list[str]:
    """Return what is wrong, in one line for all tensors of which the same is said."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for e in problems:
        found = _TENSOR.fullmatch(e.where)
        name, rest = found.groups() if found else ("", e.where)
        alike.setdefault((e.short, rest, e.fix), []).append(name)
    return [short + _place(names, rest) + (f": {fix}" if fix else "") for (short, rest, fix), names in alike.items()]


def _place(names: Sequence[str], rest: str) -> str:
    """Return where a problem is, for a line of a message: at most `MOST_NAMED` tensors, and the rest."""
    more = len(names) - MOST_NAMED
    tensors = ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    where = (f"tensor {tensors}" if names[0] else "") + rest
    return f" [{where}]" if where else ""


def _read_nodes(proto: GraphProto, reader: NodeReader, label: str, graph: Graph) -> list[Node]:
    nodes: list[Node] = []
    names: dict[str, int] = {}
    for index, node in enumerate(proto.node):
        if not is_constant(node):
            made = reader.add(node, unique(node.name or f"{node.op_type}_{index}", names))
            nodes += [made] if made else []
    others = graph.copy()
    others.nodes = nodes
    reader.raise_problems(label, _count_nodes(proto), others)
    return nodes


def _count_nodes(proto: GraphProto) -> int:
    """Return the number of nodes of a graph, with those of the graphs that its nodes hold."""
    held = (a.g for node in proto.node for a in node.attribute if a.type == a.GRAPH)
    return len(proto.node) + sum(map(_count_nodes, held))


def _name_outputs(graph: Graph, values: Values) -> None:
    """Give an output that repeats another one, as exporters write it, a name of its own."""
    seen, taken = set[str](), {node.name: 0 for node in graph.nodes}
    for place, output in enumerate(graph.outputs):
        if output in seen:
            name = values.fresh(output)
            graph.nodes.append(Node(unique(name, taken), Identity(), (output,), (name,)))
            graph.outputs[place] = name
            if output in graph.declared:
                graph.declared[name] = graph.declared[output]
        seen.add(output)


def _outputs(proto: GraphProto, values: Values, label: str) -> list[str]:
    """Return the names of the outputs, and note their declarations; ModelError for those known to be wrong already."""
    graph = values.graph
    made = {o for node in graph.nodes for o in node.outputs} | graph.specs.keys()
    problems = [f"{quote(o.name)} is made by nothing" for o in proto.output if o.name not in made]

    def declare(value: ValueInfoProto) -> None:
        declared = declared_output(value)
        dtype = values.dtype(value.name)
        if dtype is not None and declared.dtype not in (None, dtype):
            problems.append(f"{quote(value.name)} is declared as {declared} and is {dtype.value}")
        graph.declared[value.name] = declared

    problems += _lines(_problems(declare, proto.output))
    if problems:
        raise ModelError(
            "some outputs of the graph are not what it declares",
            where=label,
            why=listing(problems),
            fix="export the model again: it lacks nodes, or its outputs have other types",
        )
    return [o.name for o in proto.output]
