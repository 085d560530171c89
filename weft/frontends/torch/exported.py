"""Programs of `torch.export` as graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Limits
from weft.errors import ModelError
from weft.frontends.torch.builder import Value
from weft.frontends.torch.rules import table
from weft.frontends.torch.translation import Translation, array_of, dtype_of

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def read(program: ExportedProgram, limits: Limits) -> Graph:
    """Return the graph of an exported program; UnsupportedOps with all nodes that Weft has no form for."""
    program = undecomposed(program)
    made = translated(program)
    held, names = program.state_dict | program.constants, {name: target for target, name in made.weights.items()}
    made.graph.state = {name: output for output, name in made.changed.items()}
    made.graph.initial = {name: array_of(held[names[name]], name).copy() for name in made.graph.state}
    limits.check(made.graph)
    return made.graph


@dataclass
class Translated:
    """A program as a graph."""

    graph: Graph
    weights: dict[str, str]
    """The input for each weight and buffer that is one, by its name in the model."""
    changed: dict[str, str]
    """The output that is the next value of a buffer, by output."""
    results: list[tuple[str, Any]]
    """What the model returns: ("output", its number among those that replace no buffer) or ("value", itself)."""
    given: list[tuple[str | None, Any]]
    """What the model is called with: the input's name, or None and the value that it must have."""


def translated(program: ExportedProgram, *, frozen: bool = True) -> Translated:
    """Return a program as a graph, in which weights are constants; they are inputs if they are not `frozen`.

    Buffers that the model changes are inputs in any case, and their new values outputs.
    """
    signature, module = program.graph_signature, program.graph_module
    nodes = [*program.graph.nodes]
    translation = Translation("the exported program")
    builder, held = translation.builder, program.state_dict | program.constants
    builder.graph.name = "exported"
    kinds = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
    changed = {spec.target for spec in signature.output_specs if spec.kind.name == "BUFFER_MUTATION"}
    inputs, weights, constants = [], {}, dict[int, Value]()
    for node in nodes:
        if node.op != "placeholder":
            continue
        spec = kinds[node.name]
        kind = spec.kind.name
        if kind == "USER_INPUT":
            inputs.append(node)
        elif kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise ModelError(f"the program has an input that is {kind.lower()}", where=node.name,
                             fix="export a model whose inputs are tensors and numbers")
        elif spec.target in changed or (not frozen and kind != "CONSTANT_TENSOR"):
            weights[spec.target] = node
        elif id(tensor := held[spec.target]) in constants:
            translation.values[node] = constants[id(tensor)]
        else:
            array = array_of(tensor, spec.target)
            translation.values[node] = constants[id(tensor)] = builder.constant(array, spec.target)
    add_inputs(translation, [*inputs, *weights.values()], {
        node: f"{target}.state" if target in changed else target for target, node in weights.items()
    })
    translation.add(nodes, lambda name: attribute(module, name))
    translation.raise_refused(len(nodes))
    by_name = {node.name: value for node, value in translation.values.items()}
    names = {target: by_name[node.name].name for target, node in weights.items()}
    outputs, results, written = _results(program, by_name)
    graph = builder.finish(outputs)
    given: list[tuple[str | None, Any]] = [
        (value.name, None) if isinstance(value := by_name[spec.arg.name], Value) else (None, value)
        for spec in signature.input_specs if spec.kind.name == "USER_INPUT"
    ]
    return Translated(graph, names, {o: names[t] for o, t in written.items()}, results, given)


def attribute(module: Any, name: str) -> Any:
    """Return the attribute of a module that a node names, "layer.weight"."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


def undecomposed(program: ExportedProgram) -> ExportedProgram:
    """Return the program without ops that write into their inputs, and with others in the table's ops.

    What the table has stays whole: attention, recurrent layers, norms.
    """
    known = table()
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    ops = [op for op in calls if hasattr(op, "_schema")]
    if all(str(op) in known and not op._schema.is_mutable for op in ops):
        return program
    return program.run_decompositions(decompositions())


def decompositions() -> dict[Any, Any]:
    """Return torch's decompositions of the ops that the table lacks."""
    from torch.export import default_decompositions

    known = table()
    return {op: made for op, made in default_decompositions().items() if str(op) not in known}


def add_inputs(
    translation: Translation, nodes: Sequence[torch.fx.Node], names: Mapping[torch.fx.Node, str] | None = None
) -> None:
    """Make inputs of the graph of placeholders, under their names or others: of tensors, and of sizes of none.

    A size that a tensor has is read from it. Where sizes are open, their names are torch's: "s77".
    """
    builder = translation.builder
    sizes: dict[str, tuple[Value, int]] = {}
    numbers = []
    for node in nodes:
        meta = node.meta.get("val")
        if hasattr(meta, "shape") and hasattr(meta, "dtype"):
            shape = [d if isinstance(d, int) else str(d) for d in meta.shape]
            name = (names or {}).get(node, node.name)
            value = translation.values[node] = builder.input(name, shape, dtype_of(meta.dtype))
            for axis, size in enumerate(shape):
                if isinstance(size, str):
                    sizes.setdefault(size, (value, axis))
        else:
            numbers.append((node, meta))
    for node, meta in numbers:
        if meta is None or isinstance(meta, (bool, int, float, str)):
            translation.values[node] = meta
        elif str(meta) in sizes:
            builder.begin(node.name, node.name, [])
            translation.values[node] = builder.size(*sizes[str(meta)])
        else:
            dtype = {"SymFloat": DType.FLOAT32, "SymBool": DType.BOOL}.get(type(meta).__name__, DType.INT64)
            translation.values[node] = builder.input(node.name, (), dtype)


def _results(
    program: ExportedProgram, by_name: dict[str, Any]
) -> tuple[dict[str, Value], list[tuple[str, Any]], dict[str, str]]:
    """Return the outputs by name, what the model returns, and the buffers that outputs replace, by output.

    Outputs are called as the model's dict calls them, else "output", or "output0", "output1" ...
    """
    paths = iter(_paths(program))
    outputs: dict[str, Value] = {}
    results: list[tuple[str, Any]] = []
    written: dict[str, str] = {}
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", None)
        value: Any = by_name.get(name) if name else getattr(spec.arg, "value", None)
        if spec.kind.name == "BUFFER_MUTATION":
            written[f"{spec.target}.new"] = spec.target
            outputs[f"{spec.target}.new"] = value
        elif spec.kind.name != "USER_OUTPUT":
            raise ModelError(f"the program has an output that is {spec.kind.name.lower()}", where=str(name),
                             fix="export a model that returns new tensors, and leaves its inputs as they are")
        elif isinstance(value, Value):
            label = next(paths)
            results.append(("output", len(outputs) - len(written)))
            outputs[label] = value
        else:
            next(paths)
            results.append(("value", value))
    return outputs, results, written


def _paths(program: ExportedProgram) -> list[str]:
    """Return a name for each result that the model returns, of where it is in what the model returns."""
    from torch.utils import _pytree as trees

    spec = program.call_spec.out_spec
    if spec is None:
        return []
    leaves, _ = trees.tree_flatten_with_path(trees.tree_unflatten([*range(spec.num_leaves)], spec))
    names = []
    for number, (path, _) in enumerate(leaves):
        keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        is_named = any(not key.isdigit() for key in keys)
        names.append(".".join(keys) if is_named else "output" if len(leaves) == 1 else f"output{number}")
    return names
