"""Linear attention on GPUs: an item for each column of a state goes through the rows."""

from __future__ import annotations

from math import prod

from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.linear_attention import LinearAttention


@gpu_op(LinearAttention)
class LinearAttentionOnGpu(GpuOp):
    """The state is kept in fp32: in fp16 every row would round it."""

    fuses_into_store = False

    def why_not(self, op: LinearAttention, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse if the tensors and the state are more buffers than the device binds."""
        buffers = sum(t is not None for t in inputs) + len(outputs) + 1
        if buffers > caps.max_buffers:
            return f"its kernel takes {buffers} buffers; the device binds {caps.max_buffers}"
        return None

    def rounds(self, op: LinearAttention, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the elements of a column times its uses in each row."""
        each = op.sizes([None if t is None else t.shape for t in inputs])
        uses = 1 + bool(each.decays or each.corrections) + each.heads // each.groups
        return each.depth * (2 + each.rows * uses) + each.rows * (1 + each.heads // each.groups)

    def launches(self, op: LinearAttention, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one item a column."""
        each = op.sizes([None if t is None else t.shape for t in inputs])
        names = ("q", "key", "v", "past", "decay", "beta")
        state = k.scratch(each.state, DType.FLOAT32)
        total = each.batch * each.groups * each.width
        writes = dict(zip(("y", "present"), outputs, strict=False))
        if not prod(outputs[0].shape):
            return
        k.launch(
            "linear_attention",
            reads={name: t for name, t in zip(names, inputs, strict=False) if t is not None},
            writes={**writes, "state": state},
            ints={
                "TOTAL": total, "WIDTH": each.width, "GROUPS": each.groups, "DEPTH": each.depth, "ROWS": each.rows,
                "EACH": each.heads // each.groups,
            },
            floats={"SCALE": op.factor(each)},
            variant={"each_element": each.decays > 1, "each_head": each.corrections > 1}, items=total,
            epilogue=False,
        )


register_family(
    "linear_attention", "linear attention",
    cases=lambda: (
        one_node(
            LinearAttention(q_num_heads=4, kv_num_heads=2),
            (2, 3, 16), (2, 3, 8), (2, 3, 12), (2, 2, 4, 6), (2, 3, 8), (2, 3, 2),
        ),
    ),
)
