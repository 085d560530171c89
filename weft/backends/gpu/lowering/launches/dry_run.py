"""Find what a node would launch, without a device: nothing is rendered, compiled or uploaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, WantedLayout
from weft.kernels.launch import KernelBuilder, LaunchRequest
from weft.kernels.output_maps import OutputMap


class DryRun(KernelBuilder):
    """Notes the templates of launches and the buffers that they bind; memory is never shared."""

    def __init__(self, caps: DeviceCaps) -> None:
        self.caps = caps
        self.bound: dict[str, int] = {}
        """The most buffers of a launch, by its template."""

    def add(self, asked: LaunchRequest) -> None:
        """Note the launch."""
        bound = len(asked.reads) + len(asked.writes)
        self.bound[asked.template] = max(bound, self.bound.get(asked.template, 0))

    def constant(
        self, key: str, make: Callable[[], Array], layout: Layout = Layout.NCHW, spec: TensorSpec | None = None
    ) -> Tensor:
        """Return a tensor without memory."""
        if spec is not None:
            return Tensor(key, spec.dims, spec.dtype, layout)
        value = make()
        return Tensor(key, value.shape, DType.of(value.dtype), layout, constant=value)

    def scratch(self, shape: tuple[int, ...], dtype: DType, layout: Layout = Layout.NCHW) -> Tensor:
        """Return a tensor without memory."""
        return Tensor("scratch", shape, dtype, layout)

    def from_block(self, tensor: Tensor, shape: Shape, first: int) -> Tensor:
        """Return a tensor of that shape."""
        return replace(tensor, shape=shape)

    def for_channels(self, output: Tensor, first: int, channels: int) -> tuple[KernelBuilder, Tensor]:
        """Return this builder: templates are the same for all channels."""
        return self, self.from_block(output, (output.shape[0], channels, *output.shape[2:]), first)

    def for_output_map(self, output: Tensor, shape: Shape, output_map: OutputMap) -> tuple[KernelBuilder, Tensor]:
        """Return this builder: templates are the same wherever they store."""
        return self, replace(output, shape=shape)

    def shares_memory(self, inner: Tensor, outer: Tensor, first: int = 0) -> bool:
        """Return False, so that the copy is launched and noted."""
        return False


def launches_nothing(outputs: Sequence[Tensor]) -> bool:
    """Tell whether no output has an element: then a GPU takes the node and launches nothing, whatever its op."""
    return not any(t.nbytes for t in outputs)


def dry_run(
    op: Op, form: GpuOp, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
) -> DryRun:
    """Return what the op launches: on packed images if it runs on no others, else on NCHW."""
    layout = Layout.NC4HW4 if form.wanted_layout is WantedLayout.CHANNELS else Layout.NCHW

    def laid(tensor: Tensor | None, position: int = 0) -> Tensor | None:
        if tensor is None or tensor.constant is not None or len(tensor.shape) < 3 or not form.is_laid(position):
            return tensor
        return replace(tensor, layout=layout)

    noted = DryRun(caps)
    given = [laid(t, position) for position, t in enumerate(inputs)]
    form.launches(op, noted, given, [t for t in map(laid, outputs) if t is not None])
    return noted
