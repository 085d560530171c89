"""What an op tells a GPU: which templates to launch on its tensors, independent of the API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import log2, prod
from typing import Any, TypeVar

from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused, Step
from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import Array, Layout, Shape, row_major
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.errors import BackendError
from weft.kernels.chooser import Candidate, Decision, Facts, TileT, one_algorithm
from weft.kernels.device_model import MODELS, DeviceModel
from weft.kernels.source import ArgKind

Size3 = tuple[int, int, int]
PIECE = 8
"""Adjacent halves that a kernel fetches at once: 16 bytes."""
LEAST_ITEMS, LEAST_LOCAL_MEMORY = 64, 16 << 10
"""The least work-items and bytes of a work-group that a device must have: what the smallest tiles need."""
SMALL_GROUP, LARGE_GROUP = 64, 256
"""Work-group sizes of a one-dimensional loop."""
VECTOR_BYTES = 16
"""Bytes of four elements in work-group memory, where kernels that compute in fp32 keep fp32."""
SECTOR = 32
"""Bytes that GPUs fetch together: the least that is worth reading of adjacent memory."""
WARPGROUP_MEMORY = 227 << 10
"""Work-group memory that warpgroup kernels (`DeviceCaps.warpgroup_units`) may use, in bytes; drivers report 48 KiB."""
FOR_SHAPES = "varying_constants"
"""Kernels that read sizes when they run; `DeviceCaps.without` names them where they were found wrong."""
INDEX_MAPS = "index_maps"
"""Kernels that reach their arguments through index maps; `DeviceCaps.without` names them where they are wrong."""
CONV_PAIR = "conv_pair"
"""The kernel of two convolutions of single pixels; `DeviceCaps.without` names it where it is wrong."""
CONV_PROLOGUE = "conv_prologue"
"""The portable GEMM that applies element-wise steps as it loads; `DeviceCaps.without` names it where it is wrong."""
UNSTAGED_PROLOGUE = "conv_unstaged_prologue"
"""Those on matrix units without work-group memory; `DeviceCaps.without` names them where they are wrong."""
MATRIX_PROLOGUE = "conv_matrix_prologue"
"""Those that stage tiles for matrix units; `DeviceCaps.without` names them where they are wrong."""
SUM_PARTS = "sum_parts"
"""The kernel that adds partial sums from scratch memory; `DeviceCaps.without` names it where memory is short."""
MAX_ELEMENTS = 1 << 31
"""A tensor must have fewer stored elements than this: kernels index with 32 bits."""


def computed(dtype: DType) -> DType:
    """Return the type in which kernels compute with floats of a type: float64 or float32."""
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


def nested_rounds(*turns: int) -> int:
    """Return the iterations of nested loops in all; each count is of one run of that loop."""
    rounds = 0
    for each in reversed(turns):
        rounds = each * (1 + rounds)
    return rounds


def tree_items(caps: DeviceCaps, most: int = 64) -> int:
    """Return the work-group size for a tree reduction: a power of two, at most `most`."""
    return int(2 ** int(log2(min(most, caps.max_local_items))))


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << (max(count, 1) - 1).bit_length()


class WantedLayout(Enum):
    """The layout that an op wants for the activations it reads and writes.

    LINEAR: NCHW. CHANNELS: NC4HW4 or NHWC4, whichever the device prefers. EITHER: the layout of its inputs.
    ALIAS: linear, and the first output uses the first input's memory.
    """

    LINEAR = "linear"
    CHANNELS = "channels"
    EITHER = "either"
    ALIAS = "alias"


@dataclass(frozen=True, slots=True)
class DeviceCaps:
    """What a device can do, and its limits."""

    max_local_items: int = 128
    max_local_size: Size3 = (128, 128, 64)
    max_grid: Size3 = (65535, 65535, 65535)
    local_memory: int = 16384
    max_buffer_range: int = 1 << 27
    """Bytes that one kernel argument may span."""
    max_allocation: int = 1 << 30
    offset_alignment: int = 256
    """A kernel argument must start at a multiple of this many bytes."""
    max_buffers: int = 64
    """Most arguments of one kernel."""
    max_rounds: int = 0
    """Rounds of all loops together after which the driver silently ends an item's loops; 0: it has no such limit."""
    subgroup: int = 0
    """Work-items of a subgroup if they are fewer or more than `source.SUBGROUP`; 0 if the other fields say enough."""
    fp16_storage: bool = False
    int8_storage: bool = False
    doubles: bool = False
    """Kernels may compute in float64; otherwise they only move it, and convert it between words and f32."""
    channels_last: bool = False
    """Activations for matrix units use NHWC4 instead of NC4HW4: what these kernels stage at once is then contiguous."""
    matrix_units: bool = False
    """A subgroup of 32 multiplies fp16 tiles of 16 x 16 and adds them in fp32."""
    shuffles: bool = False
    """Work-items whose numbers differ only in the last five bits run as one subgroup and can exchange values."""
    warpgroup_units: bool = False
    """Four subgroups of 32 multiply fp16 matrices together, with up to WARPGROUP_MEMORY bytes (sm_90a)."""
    without: frozenset[str] = frozenset()
    """Special kernels and families, by name (`weft.kernels.special`), that failed their tests or are switched off."""
    workgroup_matrices: bool = False
    """A whole work-group multiplies fp16 matrices of many tiles; it loads and stores them by itself."""
    splits_products: bool = True
    """fp32 products may run on matrix units as split halves; False where tests found them wrong."""
    resident_groups: int = 0
    """Work-groups of any kernel that surely run at once, so that they may wait for each other; 0: unknown.

    A chain waits without a bound: where fewer run at once, it never ends.
    """
    partial_barriers: bool = False
    """Whether a part of a work-group, whole subgroups, can wait for each other while the rest does something else."""
    compute_units: int = 1
    """1 also where the driver does not report it."""
    software: bool = False

    @property
    def model(self) -> DeviceModel:
        """Return the figures of this kind of device."""
        return MODELS["software" if self.software else "gpu"]

    def holds(self, local: Size3) -> bool:
        """Tell whether a work-group of these sizes is within the limits."""
        within = all(1 <= n <= most for n, most in zip(local, self.max_local_size, strict=True))
        return within and prod(local) <= self.max_local_items

    @property
    def likely_units(self) -> int:
        """Return how many compute units to keep busy: a typical number where the driver does not report it."""
        return self.compute_units if self.compute_units > 1 else self.model.usual_units


@dataclass(frozen=True, eq=False, slots=True)
class Prologue:
    """Element-wise steps that a kernel applies to its c4 argument `on` as it loads it (`ArgWriter.fetch4`).

    `on` may also name values that the kernel computes (`Writer.apply`). An operand of a step is the running value, an
    earlier one, or the position of a tensor in `inputs`: a scalar constant, or for an argument also a constant with one
    element for each channel, or an image of one pixel.
    """

    on: str
    steps: Sequence[Step]
    inputs: Sequence[Tensor | None]


class KernelBuilder(ABC):
    """Collects the launches of one node."""

    caps: DeviceCaps
    split_products: bool = False
    """Matrix units may compute fp32 products as sums of products of halves (`Precision.NORMAL`)."""
    winograd: bool = True
    """Winograd's algorithm may be used (`BackendConfig.winograd`)."""
    thrifty: bool = False
    """Memory is short (`MemoryMode.LIMIT`): avoid algorithms that need much scratch memory."""

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
        prologue: Prologue | None = None,
        repeatable: bool = False,
    ) -> None:
        """Launch `weft/shaders/<template>.mako` on `grid` work-groups of `local` work-items.

        `reads` and `writes` are the arguments by the names the template uses. An NC4HW4 or NHWC4 tensor becomes a c4
        argument, any other a linear one (or a raw one if `raw`: elements are moved as bits); `kinds` names the
        exceptions. `ints` and `floats` are the constants; `variant` holds what changes the text. The first of
        `writes` gets the node's fused epilogue unless `epilogue` is False. The template must apply
        a `prologue`. `repeatable` says that more items of a group may do what the last one does: nothing that an item
        stores depends on what was there. If all of `writes` are empty, nothing is launched.
        """

    @abstractmethod
    def constant(
        self, key: str, make: Callable[[], Array], layout: Layout = Layout.NCHW, spec: TensorSpec | None = None
    ) -> Tensor:
        """Return a STATIC tensor with the logical array that `make` returns, stored in `layout`.

        It is uploaded once for each `key`, in its own type, and kept as long as resizes ask for it. `spec` is the shape
        and type of that array. With it, `make` is called only for the upload; without it, whenever launches are
        planned. So give it if `make` takes long.
        """

    @abstractmethod
    def scratch(self, shape: tuple[int, ...], dtype: DType, layout: Layout = Layout.NCHW) -> Tensor:
        """Return a tensor that lives while this node runs."""

    @abstractmethod
    def shares_memory(self, inner: Tensor, outer: Tensor, first: int = 0) -> bool:
        """Tell whether `inner` already lies inside `outer`'s memory, so that nothing need be copied.

        In NC4HW4 and NHWC4 it must start `first` channel blocks after the start of `outer`.
        """

    def lies_at(self, part: Tensor, whole: Tensor, places: IndexMap) -> bool:
        """Tell whether the elements of `part` lie in those of `whole` as a map says, so that none need be moved."""
        return False

    def lies_plain(self, *tensors: Tensor, count: int = 1) -> bool:
        """Tell whether `count` adjacent elements of each tensor, the first at a multiple of it, lie together in memory.

        With a count of 1: whether each element lies at its own index.
        """
        return True

    def from_block(self, tensor: Tensor, shape: Shape, first: int) -> Tensor:
        """Return the part of a packed tensor that has a shape and begins at a channel block."""
        raise NotImplementedError("this builder plans nothing on packed tensors")

    def by_steps(self, tensor: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
        """Return a tensor, the steps of its axes in memory and the place of its first element, all in elements.

        An index of that tensor is a place in memory. It needs `GpuOp.takes_place` where these are not row-major.
        """
        return tensor, row_major(tensor.shape), 0

    def choose(self, decision: Decision) -> Candidate:
        """Return the candidate that tuning found fastest for exactly this problem, else the decision's default.

        Launch what a choice decides before the next choice: tuning times those launches, and drops its answer when
        their source changes. Candidates that pack a constant differently must give it another key.
        """
        return decision.candidates[decision.default]

    def choose_tile(self, name: str, facts: Facts, tiles: Sequence[TileT], default: TileT) -> TileT:
        """Return the tile that tuning found fastest on this device for exactly this problem, else `default`.

        This is `choose` for an op with one algorithm. Tiles are frozen dataclasses, which tables on disk name by their
        `repr`; `default` need not be among them. `name` and `facts` decide the launches together with the tile, the
        element types and the fused steps.
        """
        tile: TileT = self.choose(one_algorithm(name, facts, tiles, default)).tile
        return tile

    def rows(self, tensor: Tensor) -> tuple[int, int] | None:
        """Return the row pitch and the first element of a packed tensor if its pixels are equally spaced rows.

        The pitch is in elements and holds across all images. None if the pixels are not such rows.
        """
        return None

    def is_alias(self, x: Tensor, y: Tensor) -> bool:
        """Tell whether both tensors name the same memory, so that nothing need be moved."""
        return False

    def reads_rows(self, output: Tensor) -> bool:
        """Tell whether the operands of the node's fused steps lie in memory like the output, as `rows` says."""
        return True

    def joins_channels(self, channels: int) -> bool:
        """Tell whether the node's fused steps also work on stores of four channels, out of `channels`.

        Then a linear value whose last axis has these channels may be written as NC4HW4 with one pixel an image.
        """
        return True

    def tree_items(self, most: int = 64) -> int:
        """Return the work-group size for a tree reduction: a power of two, at most `most`."""
        return tree_items(self.caps, most)

    def for_items(self, total: int, per_item: int = 1) -> tuple[Size3, Size3]:
        """Return grid and local size of a one-dimensional loop over `total` elements."""
        caps, local = self.caps, min(SMALL_GROUP, self.caps.max_local_items)
        if caps.compute_units >= caps.model.many_units and not caps.software:
            # A large GPU starts about one work-group per clock, so a few large groups beat many small ones.
            while local * 2 <= min(LARGE_GROUP, caps.max_local_items) and total >= 8 * local * caps.compute_units:
                local *= 2
        groups = -(-max(total, 1) // (local * per_item))
        most = max((MAX_ELEMENTS - total) // local, 1)  # a work-item computes its next index before it compares it
        return (max(1, min(groups, self.caps.max_grid[0], most)), 1, 1), (local, 1, 1)


class GpuOp(ABC):
    """How GPUs run one kind of op; register it with `@gpu_op(OpClass)`. One object serves all nodes."""

    wanted_layout: WantedLayout = WantedLayout.LINEAR
    packed_family: str = ""
    """For the wanted layout EITHER: the family of its kernels in NC4HW4; where its test fails, the op runs in NCHW."""
    fuses_into_store: bool = True
    """The launches end in one store, to which an epilogue can be added."""
    moves_bits: bool = False
    """Elements are moved and never computed with, so any element type works."""
    splits_constants: bool = False
    """Constants larger than a kernel argument are passed in pieces."""
    any_place: bool = False
    """Its kernels reach tensors in NCHW by the methods of `ArgWriter` alone, and ask `KernelBuilder.lies_plain` before
    they access several elements at once; so these may lie wherever an `IndexMap` says."""
    laid_inputs: int | None = None
    """How many of the first inputs come in the wanted layout, the others in NCHW; None: all."""
    integers: frozenset[DType] = frozenset()
    """Integer types that its kernels load or store, as i32."""
    floats: frozenset[DType] = frozenset()
    """Float types beyond float32 and float16 that its kernels load or store, as f32."""
    computes_double: bool = False
    """On a device that can, its kernels compute in float64 if they read or write it: their templates use `real`."""

    def why_not(
        self, op: Any, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Return why GPUs with these capabilities cannot run the node, as a sentence, or None."""
        return None

    def rounds(self, op: Any, inputs: Sequence[Tensor | None], caps: DeviceCaps) -> int:
        """Return the most iterations of all loops of a kernel that an item makes for its share of the outputs.

        Count nested loops and all passes over a line; leave out loops of a few iterations.
        A test holds it against the loops of each kernel.
        """
        return 0

    def stores_wider(self, op: Any, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Return whether the kernels can store fp32 in place of this fp16 output."""
        return False

    def fits_channels(self, op: Any, inputs: Sequence[Shape | None], output: Shape) -> bool:
        """Tell whether an op that wants EITHER can read and write NC4HW4 for these shapes."""
        return len(output) >= 3

    def reads_planar(
        self, op: Any, inputs: Sequence[TensorSpec | None], output: TensorSpec, caps: DeviceCaps, split_products: bool
    ) -> bool:
        """Tell whether an op that wants CHANNELS prefers to read its first input as NCHW rather than packed.

        It is asked if the input is NCHW and no other node reads it; `split_products` as in `KernelBuilder`.
        """
        return False

    def moved_from(
        self, op: Any, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Sequence[IndexMap] | None:
        """Return of each output where its elements lie in the first input; None unless the op only moves them."""
        return None

    def joined_at(
        self, op: Any, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Sequence[IndexMap] | None:
        """Return of each input where its elements lie in the output; None unless the op only joins them."""
        return None

    def takes_place(
        self, op: Any, position: int, shape: Shape, places: IndexMap, constant: Sequence[bool]
    ) -> bool:
        """Tell whether its kernels can reach a tensor in NCHW of which the elements lie where a map says.

        position: that of an input, or -1 for the outputs; `constant` tells of each input whether it is one.
        """
        return self.any_place

    def is_laid(self, position: int) -> bool:
        """Tell whether the input at that position comes in the wanted layout."""
        return self.laid_inputs is None or position < self.laid_inputs

    @abstractmethod
    def launches(self, op: Any, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
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
    return _found(type(op.base if isinstance(op, Fused) else op))


@cache
def _found(kind: type[Op]) -> GpuOp | None:
    return next((_GPU_OPS[c] for c in kind.__mro__ if c in _GPU_OPS), None)
