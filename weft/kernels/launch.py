"""What an op says to a GPU: which templates to launch on its tensors. It names no API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import log2
from typing import Any, TypeVar

from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused
from weft.core.graph.layout import Array, Layout, Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.errors import BackendError
from weft.kernels.source import ArgKind

Size3 = tuple[int, int, int]
ChoiceT = TypeVar("ChoiceT")
"""The type of what an op lets tuning choose from."""


PIECE = 8
"""Halves that a kernel fetches at a time where they lie side by side: 16 bytes."""
SMALL_GROUP, LARGE_GROUP = 64, 256
"""Items of a group of a one-dimensional loop."""
MANY_UNITS = 32
"""Compute units of a device that small groups cannot fill fast enough."""
TYPICAL_UNITS = 16
"""For drivers that do not say how many compute units there are."""
WARPGROUP_MEMORY = 227 << 10
"""Bytes of work-group memory that warpgroups (`DeviceCaps.warpgroup_units`) may take, though drivers report 48 KiB."""
SUM_PARTS = "sum_parts"
"""The kernel that adds parts of sums from scratch memory: where memory is short, `DeviceCaps.without` names it."""
MAX_ELEMENTS = 1 << 31
"""Kernels index with 32 bits: a tensor must have fewer stored elements."""


def power_of_two(count: int) -> int:
    """Return the least power of two that is not below."""
    return 1 << (max(count, 1) - 1).bit_length()


class Placement(Enum):
    """How an op wants the activations it reads and writes to lie.

    LINEAR: as NCHW. CHANNELS: in NC4HW4 or NHWC4, as the device likes. EITHER: as its inputs lie. ALIAS: linear,
    and the first output is the first input's memory.
    """

    LINEAR = "linear"
    CHANNELS = "channels"
    EITHER = "either"
    ALIAS = "alias"


@dataclass(frozen=True, slots=True)
class DeviceCaps:
    """What a device can do; the numbers are its limits."""

    max_local_items: int = 128
    max_local_size: Size3 = (128, 128, 64)
    max_grid: Size3 = (65535, 65535, 65535)
    local_memory: int = 16384
    max_buffer_range: int = 1 << 27
    """Bytes that one kernel argument may span."""
    max_allocation: int = 1 << 30
    offset_alignment: int = 256
    """Bytes; a kernel argument may start only at multiples of it."""
    max_buffers: int = 64
    """Arguments of one kernel."""
    max_rounds: int = 0
    """How often an item may go round its loops before the driver ends them without a word; 0 if it does not."""
    subgroup: int = 0
    """Items of a subgroup, if that is known and kernels may not count on SUBGROUP; 0 if the other fields say it all."""
    fp16_storage: bool = False
    int8_storage: bool = False
    channels_last: bool = False
    """Images for matrix units lie as NHWC4 instead of NC4HW4: what these stage at a time then lies side by side."""
    matrix_units: bool = False
    """A subgroup of 32 multiplies fp16 tiles of 16 x 16 and adds them in fp32."""
    shuffles: bool = False
    """Work-items whose numbers in a group share all but the last five bits run as one and can exchange values."""
    warpgroup_units: bool = False
    """Four subgroups of 32 together multiply fp16 matrices, in up to WARPGROUP_MEMORY bytes (sm_90a)."""
    without: frozenset[str] = frozenset()
    """Special kernels (`weft.kernels.special`) that were found wrong on the device, and others not wanted, by name."""
    workgroup_matrices: bool = False
    """Whole work-groups multiply fp16 matrices of many tiles, which they load and store by themselves."""
    splits_products: bool = True
    """Products of fp32 numbers that are split into halves may run on matrix units: they were not found wrong there."""
    compute_units: int = 1
    """1 also where the driver does not say."""
    software: bool = False

    @property
    def likely_units(self) -> int:
        """Return how many compute units to fill: a typical number where the driver does not say."""
        return self.compute_units if self.compute_units > 1 else TYPICAL_UNITS


class KernelBuilder(ABC):
    """Collects the launches of one node."""

    caps: DeviceCaps
    split_products: bool = False
    """Products of fp32 may be computed on matrix units, as sums of products of halves (`Precision.NORMAL`)."""
    winograd: bool = True
    """Winograd's method may be used (`BackendConfig.winograd`)."""
    thrifty: bool = False
    """Memory is short (`MemoryMode.LIMIT`): ways that take much scratch memory are not to be gone."""

    @abstractmethod
    def launch(
        self,
        template: str,
        *,
        reads: Mapping[str, Tensor],
        writes: Mapping[str, Tensor],
        ints: Mapping[str, int] | None = None,
        floats: Mapping[str, float] | None = None,
        variant: Mapping[str, str | int | bool | tuple[str, ...]] | None = None,
        grid: Size3,
        local: Size3,
        raw: bool = False,
        kinds: Mapping[str, ArgKind] | None = None,
        epilogue: bool = True,
    ) -> None:
        """Launch `weft/shaders/<template>.mako` on `grid` work-groups of `local` items.

        `reads` and `writes` are the arguments by the names the template uses; an NC4HW4 or NHWC4 tensor is a c4
        argument, any other a linear one (a raw one if `raw`: elements are moved as bits); `kinds` says by name which
        are of another kind. `ints` and `floats` are the constants, `variant` what changes the text. The first of
        `writes` gets the node's fused epilogue unless `epilogue` is False. Nothing is launched where all of `writes`
        are empty.
        """

    @abstractmethod
    def constant(self, key: str, make: Callable[[], Array], layout: Layout = Layout.NCHW) -> Tensor:
        """Return a STATIC tensor with the logical array that `make` returns, stored in `layout`.

        It is uploaded once for each `key`, in the type it has, and kept over resizes that ask for it.
        """

    @abstractmethod
    def scratch(self, shape: tuple[int, ...], dtype: DType, layout: Layout = Layout.NCHW) -> Tensor:
        """Return a tensor that lives during this node only."""

    @abstractmethod
    def shares_memory(self, inner: Tensor, outer: Tensor, first: int = 0) -> bool:
        """Tell whether `inner` already lies where `outer` holds it, so that nothing need be copied.

        In NC4HW4 and NHWC4 that is `first` blocks of channels behind where `outer` begins.
        """

    def pick(
        self, family: str, problem: Mapping[str, int | str | bool], candidates: Sequence[ChoiceT], default: ChoiceT
    ) -> ChoiceT:
        """Return the candidate that tuning found best on this device for exactly this problem, else `default`.

        Candidates are frozen dataclasses, known on disk by their `repr`; `default` may be among them or not.
        `problem` holds all that decides the launches besides the candidate, the element types and the fused
        steps. Launch what a pick decides after it and before the next one: tuning times those launches, and
        forgets its answer when their source changes. Candidates that pack a constant differently give it
        another key.
        """
        return default

    def rows(self, tensor: Tensor) -> tuple[int, int] | None:
        """Return how the pixels of a packed tensor lie if they are rows of channels, all equally far apart.

        That is the elements from row to row, over all images, and the first element; None if they are not rows.
        """
        return None

    def is_alias(self, x: Tensor, y: Tensor) -> bool:
        """Tell whether both are the same memory under two names, so that nothing is to be moved between them."""
        return False

    def reads_rows(self, output: Tensor) -> bool:
        """Tell whether what the node's fused steps read at the places of an output lies as `rows` says, too."""
        return True

    def joins_channels(self, channels: int) -> bool:
        """Tell whether the node's fused steps can be pasted where a store has four of so many channels.

        A linear value whose last axis they are may then be written as NC4HW4 of one pixel an image.
        """
        return True

    def tree_items(self, most: int = 64) -> int:
        """Return the items of a group that adds up in a tree: a power of two, at most `most`."""
        return int(2 ** int(log2(min(most, self.caps.max_local_items))))

    def for_items(self, total: int, per_item: int = 1) -> tuple[Size3, Size3]:
        """Return grid and local size of a one-dimensional loop over `total` items."""
        caps, local = self.caps, min(SMALL_GROUP, self.caps.max_local_items)
        if caps.compute_units >= MANY_UNITS and not caps.software:
            # A large device begins about one group a clock: many small ones would come slower than they are done.
            while local * 2 <= min(LARGE_GROUP, caps.max_local_items) and total >= 8 * local * caps.compute_units:
                local *= 2
        groups = -(-max(total, 1) // (local * per_item))
        most = max((MAX_ELEMENTS - total) // local, 1)  # an item's next index is computed before it is compared
        return (max(1, min(groups, self.caps.max_grid[0], most)), 1, 1), (local, 1, 1)


class GpuOp(ABC):
    """How GPUs run one kind of op; register with `@gpu_op(OpClass)`. One object serves all nodes."""

    placement: Placement = Placement.LINEAR
    packed_family: str = ""
    """Of an op with placement EITHER, the family of its kernels in NC4HW4; where that is wrong it runs in NCHW."""
    fuses_into_store: bool = True
    """The launches end in one store to which an epilogue may be pasted."""
    moves_bits: bool = False
    """Elements are moved, never computed with: any element type will do."""
    splits_constants: bool = False
    """Constants larger than a kernel argument are handed over in pieces."""
    integers: frozenset[DType] = frozenset()
    """The types besides floats that its kernels load or store, as i32."""

    def why_not(
        self, op: Any, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Return why GPUs of these capabilities cannot run the node, as a sentence, or None."""
        return None

    def rounds(self, op: Any, inputs: Sequence[Tensor | None]) -> int:
        """Return about how often an item goes round its loops, rounded up; 0 where inputs' shapes do not decide it."""
        return 0

    def stores_wider(self, op: Any, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Return whether the kernels for these inputs and this output in fp16 can store fp32 in its place."""
        return False

    def fits_channels(self, op: Any, inputs: Sequence[Shape | None], output: Shape) -> bool:
        """Tell whether an op with placement EITHER can read and write NC4HW4 for these shapes."""
        return len(output) >= 3

    def reads_planar(
        self, op: Any, inputs: Sequence[TensorSpec | None], output: TensorSpec, caps: DeviceCaps, split_products: bool
    ) -> bool:
        """Tell whether an op with placement CHANNELS had rather read its first input as NCHW than have it packed.

        It is asked where the input lies so and no other node reads it; `split_products` as in `KernelBuilder`.
        """
        return False

    @abstractmethod
    def launches(self, op: Any, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Tell `k` what to launch. Called once a resize; the tensors' memory must not be looked at."""


_GPU_OPS: dict[type[Op], GpuOp] = {}
GpuOpT = TypeVar("GpuOpT", bound=type[GpuOp])


def gpu_op(*ops: type[Op]) -> Callable[[GpuOpT], GpuOpT]:
    """Register the decorated class as the way GPUs run these op classes and their subclasses."""

    def register(cls: GpuOpT) -> GpuOpT:
        for op in ops:
            if op in _GPU_OPS:
                raise BackendError(
                    f"{op.__name__} already has a GPU form", why=f"it is {type(_GPU_OPS[op]).__name__}"
                )
            _GPU_OPS[op] = cls()
        return cls

    return register


def find_gpu_op(op: Op) -> GpuOp | None:
    """Return how GPUs run the op (of a fused op: its base), or None."""
    base = op.base if isinstance(op, Fused) else op
    return next((_GPU_OPS[c] for c in type(base).__mro__ if c in _GPU_OPS), None)
