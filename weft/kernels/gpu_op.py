"""How GPUs run an op: its launches, the layout that it wants, and the registry of all such ops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused
from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.errors import BackendError
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder

Inputs = Sequence[Tensor | None]
"""What a node reads, by position; None for a missing optional input."""
Outputs = Sequence[Tensor]
"""What a node writes, by position."""


class WantedLayout(Enum):
    """The layout that an op wants for the activations it reads and writes.

    LINEAR: NCHW. CHANNELS: NC4HW4 or NHWC4, whichever the device prefers. EITHER: the layout of its inputs.
    ALIAS: linear, and the first output uses the first input's memory.
    """

    LINEAR = "linear"
    CHANNELS = "channels"
    EITHER = "either"
    ALIAS = "alias"


class GpuOp(ABC):
    """How GPUs run one kind of op; register it with `@gpu_op(OpClass)`. One object serves all nodes."""

    wanted_layout: WantedLayout = WantedLayout.LINEAR
    packed_family: str = ""
    """For the wanted layout EITHER: the family of its kernels in NC4HW4; where its test fails, the op runs in NCHW."""
    fuses_into_store: bool = True
    """Whether the launches end in one store, to which an epilogue can be added."""
    moves_bits: bool = False
    """Whether kernels only move elements and never compute with them, so that any element type works."""
    splits_constants: bool = False
    """Whether constants larger than a kernel argument are passed in pieces."""
    any_place: bool = False
    """Whether the elements of tensors in NCHW may lie wherever an `IndexMap` says. The kernels must reach them by the
    methods of `ArgWriter` alone, and ask `KernelBuilder.lies_plain` before they access several at once."""
    stores_by_place: bool = False
    """Whether the index at which kernels store is a place in memory (`KernelBuilder.by_steps`): what steps read beside
    must lie as the result does."""
    laid_inputs: int | None = None
    """How many of the first inputs come in the wanted layout, the others in NCHW; None: all."""
    loads_by_element: bool = False
    """Whether all kernels reach floats by the methods of `ArgWriter` alone, which convert what is stored as int8."""
    integers: frozenset[DType] = frozenset()
    """Integer types that its kernels load or store, as i32."""
    floats: frozenset[DType] = frozenset()
    """Float types beyond float32 and float16 that its kernels load or store, as f32."""
    computes_double: bool = False
    """Whether its kernels compute in float64 if they read or write it, on a device that can: templates use `real`."""

    def why_not(self, op: Any, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Return why GPUs with these capabilities cannot run the node, as a sentence, or None."""
        return None

    def rounds(self, op: Any, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the most iterations of all loops of a kernel that an item makes for its share of the outputs.

        Count nested loops and all passes over a line; leave out loops of a few iterations.
        A test holds it against the loops of each kernel.
        """
        return 0

    def stores_wider(self, op: Any, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Return whether the kernels can store fp32 in place of this fp16 output."""
        return False

    def takes_integers(
        self, op: Any, inputs: Inputs, outputs: Outputs, read: Sequence[bool], caps: DeviceCaps
    ) -> bool:
        """Tell whether its kernels reach floats that are stored as int8 (`Arg.grid`).

        `read` tells which inputs are stored so; the output, and what fused steps read, may be. The tensors are
        described before any is stored so.
        """
        return self.loads_by_element

    def fits_channels(self, op: Any, inputs: Inputs, outputs: Outputs) -> bool:
        """Tell whether an op that wants EITHER can read and write NC4HW4 for these shapes and constants."""
        return len(outputs[0].shape) >= 3

    def reads_planar(
        self, op: Any, inputs: Sequence[TensorSpec | None], output: TensorSpec, caps: DeviceCaps, split_products: bool
    ) -> bool:
        """Tell whether an op that wants CHANNELS prefers to read its first input as NCHW rather than packed.

        It is asked if the input is NCHW and no other node reads it; `split_products` as in `KernelBuilder`.
        """
        return False

    def moved_from(self, op: Any, inputs: Inputs, outputs: Outputs) -> Sequence[IndexMap] | None:
        """Return of each output where its elements lie in the first input; None unless the op only moves them."""
        return None

    def joined_at(self, op: Any, inputs: Inputs, outputs: Outputs) -> Sequence[IndexMap] | None:
        """Return of each input where its elements lie in the output; None unless the op only joins them."""
        return None

    def takes_place(self, op: Any, position: int, shape: Shape, places: IndexMap, constant: Sequence[bool]) -> bool:
        """Tell whether its kernels can reach a tensor in NCHW of which the elements lie where a map says.

        position: that of an input, or -1 for the outputs; `constant` tells of each input whether it is one.
        """
        return self.any_place

    def is_laid(self, position: int) -> bool:
        """Tell whether the input at that position comes in the wanted layout."""
        return self.laid_inputs is None or position < self.laid_inputs

    @abstractmethod
    def launches(self, op: Any, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Tell `k` what to launch; the tensors' memory must not be accessed.

        Called any number of times, also without a device, so what it tells may follow from its arguments alone.
        """
_GPU_OPS: dict[type[Op], GpuOp] = {}
GpuOpT = TypeVar("GpuOpT", bound=type[GpuOp])


def gpu_op(*ops: type[Op]) -> Callable[[GpuOpT], GpuOpT]:
    """Register the decorated class as the way GPUs run these op classes and their subclasses."""

    def register(cls: GpuOpT) -> GpuOpT:
        for op in ops:
            if op in _GPU_OPS:
                raise BackendError(
                    f"{op.__name__} already has a GPU form",
                    why=f"it is {type(_GPU_OPS[op]).__name__}",
                    fix="register the form for a subclass of the op",
                )
            _GPU_OPS[op] = cls()
        _found.cache_clear()
        return cls

    return register


def find_gpu_op(op: Op) -> GpuOp | None:
    """Return how GPUs run the op (of a fused op: its base), or None."""
    # Of abstract classes, `isinstance` takes far longer, and a resize asks a thousand times.
    return _found(type(op.base if type(op) is Fused else op))


def has_gpu_op(kind: type[Op]) -> bool:
    """Tell whether GPUs run an op by kernels of its own."""
    return _found(kind) is not None


@cache
def _found(kind: type[Op]) -> GpuOp | None:
    return next((_GPU_OPS[c] for c in kind.__mro__ if c in _GPU_OPS), None)
