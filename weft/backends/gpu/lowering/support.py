"""Why a GPU does not take a node: the checks that all ops share, then the op's own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.backends.gpu.lowering.launches.dry_run import dry_run, launches_nothing
from weft.backends.gpu.lowering.layout.layouts import base_inputs, base_op
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout, storage_size
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import LEAST_ITEMS, LEAST_LOCAL_MEMORY, DeviceCaps
from weft.kernels.gpu_op import GpuOp, WantedLayout, find_gpu_op
from weft.kernels.launch import MAX_ELEMENTS
from weft.kernels.special import wrong_templates
from weft.ops.elementwise import Elementwise

LAYOUTS = "relayout"
"""The kernel that converts layouts before and after a node that wants its own."""
MOST_AXES = 8
MOST_COMPARED = 64
MOST_BOUND = 8
"""No kernel binds more buffers, but for steps that are fused with it and for ops that look themselves."""
STORED = (DType.FLOAT32, DType.FLOAT16)


class Asked:
    """What a device was asked before: layers are alike, and of most nodes it need not be asked again.

    A node with constants of more than `MOST_COMPARED` elements is asked about each time.
    """

    def __init__(self) -> None:
        self._caps: DeviceCaps | None = None
        self._taken = set[object]()

    def why_not(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op, caps: DeviceCaps
    ) -> str | None:
        """Return what `why_not` returns."""
        if caps is not self._caps:
            self._caps, self._taken = caps, set()
        key = _problem(inputs, outputs, op)
        if key is not None and key in self._taken:
            return None
        reason = why_not(inputs, outputs, op, caps)
        if reason is None and key is not None:
            self._taken.add(key)
        return reason


def _problem(inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> object:
    facts: list[object] = [op]
    for t in (*inputs, *outputs):
        known = None if t is None else t.constant
        if known is not None and (known.size > MOST_COMPARED or known.dtype == object):
            return None
        facts.append(t and (t.shape, t.dtype, t.layout, None if known is None else known.tobytes()))
    try:
        hash(key := (len(inputs), *facts))
    except TypeError:  # an attribute, such as a graph, has no hash
        return None
    return key


def why_not(inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op, caps: DeviceCaps) -> str | None:
    """Return the reason as a sentence, or None if the device can run the node."""
    form = find_gpu_op(op)
    if form is None:
        shapes = [None if t is None else t.shape for t in inputs]
        constants = [None if t is None else t.constant for t in inputs]
        return op.why_whole(shapes, constants, [t.shape for t in outputs]) or f"{op.type} has no GPU kernel"
    if caps.max_local_items < LEAST_ITEMS:
        return f"the device's work-groups hold {caps.max_local_items} items; GPU kernels need {LEAST_ITEMS}"
    if caps.local_memory < LEAST_LOCAL_MEMORY:
        return f"the device's work-groups have {caps.local_memory} bytes; GPU kernels need {LEAST_LOCAL_MEMORY}"
    tensors = [t for t in (*inputs, *outputs) if t is not None]
    for t in tensors:
        reason = _element_reason(t, form, caps)
        if reason:
            return reason
        if len(t.shape) > MOST_AXES:
            return f"{t.name!r} has rank {len(t.shape)}; GPU kernels take up to {MOST_AXES}"
        if t.constant is not None and form.splits_constants:
            continue
        elements = _stored(t, form)
        needed = elements * t.dtype.itemsize + 16
        if needed > caps.max_buffer_range:
            return f"{t.name!r} takes {needed} bytes and a kernel argument may span {caps.max_buffer_range}"
        if elements >= MAX_ELEMENTS:
            return f"{t.name!r} has {elements} elements; kernels count in 32 bits"
    if isinstance(base_op(op), Elementwise) and len(tensors) > caps.max_buffers:
        return f"its kernel reads and writes {len(tensors)} values and the device binds {caps.max_buffers} buffers"
    if outputs and launches_nothing(outputs):
        return None
    reason = form.why_not(op, inputs, outputs, caps)
    if reason is None and caps.max_rounds:
        rounds = form.rounds(base_op(op), base_inputs(op, inputs), caps) + 1
        rounds *= -(-max(prod(t.shape) for t in outputs) // (caps.max_grid[0] * LEAST_ITEMS))
        if rounds > caps.max_rounds:
            reason = f"its kernel may loop {rounds} times; the driver silently ends loops after {caps.max_rounds} times"
    return reason or _launch_reason(inputs, outputs, op, form, caps)


def _launch_reason(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op, form: GpuOp, caps: DeviceCaps
) -> str | None:
    """Return the reason if the device cannot run what the node would launch.

    That is a kernel that the self-test found wrong, which has no fallback here, or one with more buffers than the
    device binds. Most devices have neither, and no node is planned for the question.
    """
    wrong = wrong_templates(caps)
    if not wrong and caps.max_buffers >= MOST_BOUND:
        return None
    bound = dry_run(base_op(op), form, base_inputs(op, inputs), outputs, caps).bound
    needed = {*bound, LAYOUTS} if form.wanted_layout is WantedLayout.CHANNELS else {*bound}
    found = sorted(needed & wrong)
    if found:
        return f"it needs kernels that the self-test found wrong on this device: {', '.join(found)}"
    for template, count in bound.items():
        if count > caps.max_buffers:
            return f"its kernel {template!r} takes {count} buffers; the device binds {caps.max_buffers}"
    return None


def _stored(tensor: Tensor, form: GpuOp) -> int:
    """Return the elements of a tensor in the larger of the layouts that the op may give it."""
    packed = form.wanted_layout in (WantedLayout.CHANNELS, WantedLayout.EITHER) and tensor.constant is None
    layouts = (Layout.NCHW, Layout.NC4HW4) if packed else (Layout.NCHW,)
    return max(storage_size(tensor.shape, layout) for layout in layouts)


def _element_reason(tensor: Tensor, form: GpuOp, caps: DeviceCaps) -> str | None:
    dtype = tensor.dtype
    if dtype.itemsize == 2 and not caps.fp16_storage:
        return "the device has no 16-bit storage"
    taken = dtype in STORED or dtype in form.integers or dtype in form.floats or form.moves_bits
    if dtype is DType.FLOAT64 and form.computes_double and not taken:
        if caps.doubles:
            return None
        return f"the device does not compute in float64; {tensor.name!r} is {dtype.value}"
    plain = tensor.constant is not None and not dtype.is_complex and dtype is not DType.FLOAT64
    if taken or plain:
        if dtype.itemsize == 1 and tensor.constant is None and not caps.int8_storage:
            return "the device has no 8-bit storage"
        return None
    return f"GPU kernels of this op compute in float32; {tensor.name!r} is {dtype.value}"
