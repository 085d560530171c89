"""From an ONNX graph to a graph of Weft's ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, sort_nodes
from weft.core.graph.layout import Array
from weft.core.graph.limits import Limits
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.frontends.onnx.attributes import read_attribute
from weft.frontends.onnx.external import ExternalFiles
from weft.frontends.onnx.functions import expand
from weft.frontends.onnx.nodes import NodeReader
from weft.frontends.onnx.reading import Source, domain_of
from weft.frontends.onnx.schemas import ElementTypes, check_node, schema_of
from weft.frontends.onnx.tensors import declared_output, input_spec, to_array
from weft.frontends.onnx.wording import LONGEST_LIST, listing, quote

CONSTANT_FORMS = {
    "value": None,
    "value_int": "i8",
    "value_ints": "i8",
    "value_float": "f4",
    "value_floats": "f4",
}
T = TypeVar("T")


def build(source: Source, name: str | None, limits: Limits) -> Graph:
    """Return the graph of a model whose header is checked; UnsupportedOps lists all nodes that have no op."""
    if len(source.proto.graph.node) > limits.nodes:
        raise limits.exceeded("nodes", len(source.proto.graph.node), "the model", source.label)
    model = expand(source, limits)
    proto, label = model.graph, source.label
    check_structure(proto, label)
    files = ExternalFiles(source.folder)
    values = Values(proto)
    _read_constants(proto, values, files, source, limits)
    _read_inputs(proto, values, label)
    nodes = [node for node in proto.node if not is_constant(node)]
    values.types = ElementTypes(
        {k: spec.dtype for k, spec in values.graph.specs.items()}, nodes, source.opset
    )
    read = {i for node in proto.node for i in node.input} | {o.name for o in proto.output}
    opsets = {domain_of(entry.domain): entry.version for entry in model.opset_import}
    reader = NodeReader(opsets, files, values, read)
    graph = values.graph
    graph.nodes = sort_nodes(_read_nodes(proto, reader, label), graph.specs.keys() | graph.constants.keys())
    graph.outputs = _outputs(proto, values, label)
    graph.name = name or proto.name or Path(label).stem
    return graph


def is_constant(node: NodeProto) -> bool:
    """Tell whether a node is ONNX's Constant, which is no op of a graph here."""
    return node.op_type == "Constant" and domain_of(node.domain) == ""


class Values:
    """The values of the graph in the making: what importers may ask about, and add to."""

    def __init__(self, proto: GraphProto) -> None:
        names = {v.name for v in proto.input} | {t.name for t in proto.initializer}
        names.update(value for node in proto.node for value in (*node.input, *node.output))
        self._taken = dict.fromkeys(names, 0)
        self.graph = Graph("", [], [])
        self.types = ElementTypes({}, (), 0)

    def set_constant(self, name: str, value: Array) -> None:
        """Make a name a constant."""
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))

    def add_constant(self, base: str, value: Array) -> str:
        """Return the name of a new constant."""
        name = unique(base, self._taken)
        self.set_constant(name, value)
        return name

    def value(self, name: str) -> Array | None:
        """Return the value of a constant, None for everything else."""
        return self.graph.constants.get(name)

    def dtype(self, name: str) -> DType | None:
        """Return the element type of a value, None if it is not known."""
        return self.types.of(name)


def unique(base: str, taken: dict[str, int]) -> str:
    """Return a name that starts with `base`, and take it; `taken` counts how often each was asked for."""
    name = base
    while name in taken:
        taken[base] += 1
        name = f"{base}.{taken[base]}"
    taken[name] = 0
    return name


def check_structure(proto: GraphProto, label: str) -> None:
    """Raise ModelError with all of it unless the graph has nodes and outputs, and each value one origin and a name."""
    problems = [] if proto.node else ["it has no nodes"]
    problems += [] if proto.output else ["it has no outputs"]
    inputs, outputs = [i.name for i in proto.input], [o.name for o in proto.output]
    weights = [t.name for t in proto.initializer] + [s.values.name for s in proto.sparse_initializer]
    made = [o for node in proto.node for o in node.output if o]
    for kind, names in {"input": inputs, "output": outputs, "initialiser": weights}.items():
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
    proto: GraphProto, values: Values, files: ExternalFiles, source: Source, limits: Limits
) -> None:
    nbytes = 0

    def held(name: str, value: Array) -> None:
        nonlocal nbytes
        nbytes += value.nbytes
        if nbytes > limits.constant_bytes:
            what = f"the model up to constant {quote(name)}"
            raise _Beyond(limits.exceeded("constant_bytes", nbytes, what, source.label))
        values.set_constant(name, value)

    def initialiser(placed: tuple[int, TensorProto]) -> None:
        place, tensor = placed
        held(tensor.name, to_array(tensor, files, source.data.get(place)))

    def constant(node: NodeProto) -> None:
        array = _constant_value(node, files, source.opset)
        if node.output[0]:
            held(node.output[0], array)

    nodes = [node for node in proto.node if is_constant(node)]
    try:
        problems = _problems(initialiser, enumerate(proto.initializer)) + _problems(constant, nodes)
    except _Beyond as e:
        raise e.error from None
    problems += [
        f"{quote(s.values.name)}: a sparse initialiser is not supported" for s in proto.sparse_initializer
    ]
    _raise_all("constants", problems, source.label)


class _Beyond(Exception):
    """Ends the reading of constants at once, while whatever else is wrong with them is collected."""

    def __init__(self, error: ModelError) -> None:
        self.error = error


def _constant_value(node: NodeProto, files: ExternalFiles, opset: int) -> Array:
    where = f"Constant node for {quote(node.output[0]) if node.output else 'nothing'}"
    schema = schema_of("Constant", opset)
    problem = check_node(node, schema) if schema else None
    if problem is None and len(node.attribute) != 1:
        problem = f"it has {len(node.attribute)} values instead of one"
    if problem is None and node.attribute[0].name not in CONSTANT_FORMS:
        problem = f"a constant in the form {quote(node.attribute[0].name)} is not supported"
    if problem:
        raise ModelError(problem, where=where)
    value = read_attribute(node.attribute[0], files)
    return (
        value if isinstance(value, np.ndarray) else np.asarray(value, CONSTANT_FORMS[node.attribute[0].name])
    )


def _read_inputs(proto: GraphProto, values: Values, label: str) -> None:
    inputs = [value for value in proto.input if value.name not in values.graph.constants]
    named = {dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim}

    def read(value: ValueInfoProto) -> None:
        values.graph.specs[value.name] = input_spec(value, named)

    _raise_all("inputs", _problems(read, inputs), label)
    values.graph.inputs = [value.name for value in inputs]


def _problems(step: Callable[[T], None], items: Iterable[T]) -> list[str]:
    problems = []
    for item in items:
        try:
            step(item)
        except ModelError as e:
            problems.append(str(e).replace("\n ", ";"))
    return problems


def _raise_all(what: str, problems: list[str], label: str) -> None:
    if problems:
        more = len(problems) - LONGEST_LIST
        shown = problems[:LONGEST_LIST] + ([f"and {more} more"] if more > 0 else [])
        what = f"{len(problems)} of the model's {what}"
        raise ModelError(f"{what} cannot be read", where=label, why="\n    ".join(("", *shown)))


def _read_nodes(proto: GraphProto, reader: NodeReader, label: str) -> list[Node]:
    nodes: list[Node] = []
    names: dict[str, int] = {}
    for index, node in enumerate(proto.node):
        if not is_constant(node):
            made = reader.add(node, unique(node.name or f"{node.op_type}_{index}", names))
            nodes += [made] if made else []
    reader.raise_problems(label, len(proto.node))
    return nodes


def _outputs(proto: GraphProto, values: Values, label: str) -> list[str]:
    """Return the names of the outputs, and note what is declared of them; ModelError for what can be told by now."""
    graph = values.graph
    made = {o for node in graph.nodes for o in node.outputs} | graph.specs.keys()
    problems = [f"{quote(o.name)} is made by nothing" for o in proto.output if o.name not in made]
    firm = not graph.symbols()

    def declare(value: ValueInfoProto) -> None:
        declared = declared_output(value, firm)
        dtype = values.dtype(value.name)
        if dtype is not None and declared.dtype not in (None, dtype):
            problems.append(f"{quote(value.name)} is declared as {declared} and is {dtype.value}")
        graph.declared[value.name] = declared

    problems += _problems(declare, proto.output)
    if problems:
        raise ModelError(
            "some outputs of the graph are not what it declares",
            where=label,
            why=listing(problems),
            fix="export the model again: it lacks nodes, or its outputs have other types",
        )
    return [o.name for o in proto.output]
