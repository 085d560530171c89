"""Which element-wise steps a GPU kernel takes over as it stores: its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op, is_of_channels
from weft.backends.gpu.lowering.support import why_not
from weft.core.graph.described import described
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused, Step, pick_operands
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.op import Op
from weft.core.graph.symbolic import has_open_size, shape_text
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.passes.fuse import MOST_STEPS, merge
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import WantedLayout, find_gpu_op
from weft.ops.elementwise import Elementwise
from weft.ops.unary import Cast


def why_not_joined(
    graph: Graph, base: Node, step: Node, inside: frozenset[int], is_custom: IsCustom, most_buffers: int
) -> str | None:
    """Return why `step` does not join the epilogue of `base`, which makes its operands at the positions `inside`.

    None if it joins: every other operand is a scalar constant, a value of the result's shape, or a constant along the
    channels (if the kernel works in NC4HW4), over the last axes (if in NCHW) or over any neighbouring axes (if the base
    is element-wise, or its kernels store elements at any place). A cast from fp16 to fp32 joins if the base's kernels
    can store fp32.
    """
    op, first = step.op, None if is_custom(base.op) else find_gpu_op(base.op)
    if first is None or is_custom(op):
        return "one of them is custom, and its creator launches what it likes"
    if not isinstance(op, Elementwise):
        return f"{op.type} is not element-wise"
    if not first.fuses_into_store:
        return f"the kernels of {base_op(base.op).type} store their results without steps"
    # A value that is read twice is bound twice.
    read = [i for i in (*base.inputs, *(i for k, i in enumerate(step.inputs) if k not in inside)) if i]
    if len(read) + len(base.outputs) > most_buffers:
        return f"one kernel would read and write more than the {most_buffers} buffers that the device binds"
    result, before = graph.specs[step.outputs[0]], graph.specs[base.outputs[0]]
    if _widens(before, result):
        inputs = [graph.specs[i] for i in base.inputs if i]
        stores = isinstance(op, Cast) and first.stores_wider(base.op, inputs, before)
        return None if stores else f"the kernels of {base_op(base.op).type} do not store {result.dtype.value}"
    double = result.dtype is DType.FLOAT64
    if double != any(graph.specs[i].dtype is DType.FLOAT64 for i in (*base.inputs, *base.outputs) if i):
        return f"{op.type if double else base_op(base.op).type} alone computes in float64"
    if double and not first.computes_double:
        return f"the kernels of {base_op(base.op).type} do not compute in float64"
    if result != before:
        if has_open_size((*result.shape, *before.shape)):  # a text with numbers would hold for these alone
            return "its result has another shape than what it reads"
        return f"its result is {result}, and what it reads is {before}"
    if not result.dtype.is_float or op.expression(tuple(bool(i) for i in step.inputs)) is None:
        return f"{op.type} of {result.dtype.value} has no expression that a kernel could apply as it stores"
    for k, name in enumerate(step.inputs):
        if name and not type_fits(graph, name, result.dtype):
            return f"its operand {name!r} is {graph.specs[name].dtype.value}, not {result.dtype.value}"
        if name and k not in inside and not _operand_fits(graph, base_op(base.op), name, result.dims):
            kind = "a constant" if name in graph.constants else "a value"
            return f"its operand {name!r}, {kind} of shape {shape_text(graph.specs[name].dims)}, would be broadcast"
    return None


def join_steps(
    graph: Graph, names: Names, base: Node, node: Node, values: Mapping[str, int], is_custom: IsCustom,
    most_buffers: int,
) -> Node | str:
    """Return a node that computes `base`, then `node`, which may have steps itself; or why there is none.

    `values` numbers what `base` makes and `node` may read.
    """
    alone, steps = taken_apart(described(graph, node)[0], node.op, node.inputs, names.fresh)
    alone.specs |= {name: graph.specs[name] for name in (*base.inputs, *base.outputs, *values) if name}
    number = len(base.op.steps) if isinstance(base.op, Fused) else 0
    if number + len(steps) > MOST_STEPS:
        return f"a kernel takes over at most {MOST_STEPS} steps"
    known = dict(values)
    for step in steps:
        inside = frozenset(k for k, name in enumerate(step.inputs) if name in known)
        if (reason := why_not_joined(alone, base, step, inside, is_custom, most_buffers)) is not None:
            return reason
        base = merge(base, step, known)
        known[step.outputs[0]] = (number := number + 1)
    return replace(base, outputs=node.outputs)


def why_not_fused(inputs: Sequence[Tensor | None], op: Fused, caps: DeviceCaps) -> str | None:
    """Return why a device does not run a fused node, as a sentence, or None: it must be one that fusing could make.

    `Fused.infer` has checked that the inputs fit the node.
    """
    if op.second_outputs:
        return "a device itself decides, as it plans the network, which second outputs a kernel stores"
    graph, nodes = taken_apart(inputs, op)
    base = nodes[0]
    spec = graph.specs[base.outputs[0]]
    if spec.dtype is DType.FLOAT64 and not caps.doubles:
        return f"the device does not compute in float64; {op.steps[0].op.type} does"
    reason = why_not(inputs[: op.arity], [Tensor("made", spec.dims, spec.dtype)], op.base, caps)
    if reason is not None:
        return reason
    values = {node.outputs[0]: number for number, node in enumerate(nodes)}
    for step, node in zip(op.steps, nodes[1:], strict=True):
        inside = frozenset(k for k, i in enumerate(step.operands) if i < 0)
        apart = why_not_joined(graph, base, node, inside, lambda op: False, caps.max_buffers)
        if apart is not None:
            return f"{step.op.type} cannot be part of {op.base.type} with these operands: {apart}"
        base = merge(base, node, values)
    return None


def taken_apart(
    inputs: Sequence[Tensor | None], op: Op, names: Sequence[str] = (), fresh: Callable[[str], str] = str
) -> tuple[Graph, list[Node]]:
    """Return the nodes of which a node is made, and a graph with the specs and constants of their values.

    `names` are the names of the inputs, by default in0, in1 ...; `fresh` gives new names to the values made.
    """
    names = names or ["" if t is None else f"in{k}" for k, t in enumerate(inputs)]
    steps, arity = (op.steps, op.arity) if isinstance(op, Fused) else ((), len(names))
    graph = Graph("fused", [n for n in names if n], [])
    for name, tensor in zip(names, inputs, strict=True):
        if tensor is not None:
            graph.specs[name] = TensorSpec(tensor.shape, tensor.dtype)
            if tensor.constant is not None:
                graph.constants[name] = tensor.constant
    nodes = [Node("base", base_op(op), tuple(names[:arity]), (fresh("made"),))]
    infer_node(graph, nodes[0])
    for number, step in enumerate(steps):
        read = tuple(pick_operands(step, number, names, [node.outputs[0] for node in nodes]))
        nodes.append(Node(f"step.{number}", step.op, read, (fresh(f"step.{number}"),)))
        infer_node(graph, nodes[-1])
    return graph, nodes


def _widens(before: TensorSpec, after: TensorSpec) -> bool:
    return before.dtype is DType.FLOAT16 and after.dtype is DType.FLOAT32 and before.dims == after.dims


def type_fits(graph: Graph, name: str, wanted: DType) -> bool:
    """Tell whether a kernel can read an operand beside values of a type: constants may have another float type."""
    dtype = graph.specs[name].dtype
    return dtype is wanted or (name in graph.constants and dtype.is_float and DType.FLOAT64 not in (dtype, wanted))


def _operand_fits(graph: Graph, base: Op, name: str, shape: tuple[int, ...]) -> bool:
    dims = graph.specs[name].dims
    if name not in graph.constants:
        return dims == shape
    if graph.specs[name].size == 1:
        return True
    if len(dims) > len(shape):
        return False
    form = find_gpu_op(base)
    if not base.is_elementwise and (form is None or form.wanted_layout is not WantedLayout.LINEAR):
        return dims != shape and is_of_channels(dims, shape)
    full = (1,) * (len(shape) - len(dims)) + dims
    axes = [a for a, d in enumerate(full) if d != 1]
    # Tiles of products load the operands of their steps themselves, at the column alone.
    anywhere = base.is_elementwise or (form is not None and form.any_place)
    first, end = axes[0], axes[-1] + 1 if anywhere else len(shape)
    return full[first:end] == shape[first:end]


def bound_buffers(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> int:
    """Return the most buffers that a kernel binds; scalar constants are none."""
    read = [i for i in inputs if i and not (i in graph.constants and graph.specs[i].size == 1)]
    return len(read) + len(outputs)


def moved_operands(step: Step, by: int) -> Step:
    """Return a step whose operands that are inputs have positions that are greater by so many."""
    return Step(step.op, tuple(i if i < 0 else i + by for i in step.operands))
