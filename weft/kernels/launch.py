"""What an op tells a GPU to launch, independent of the API: the builder of launches, and sizes that kernels share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import log2

from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Step
from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import Array, Layout, Shape, row_major
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.chooser import Candidate, Decision
from weft.kernels.device_caps import DeviceCaps, Size3
from weft.kernels.gate import Gate
from weft.kernels.output_maps import OutputMap
from weft.kernels.source import ArgKind

PIECE = 8
"""Adjacent halves that a kernel fetches at once: 16 bytes."""
SMALL_GROUP, LARGE_GROUP = 64, 256
"""Work-group sizes of a one-dimensional loop."""
VECTOR_BYTES = 16
"""Bytes of four elements in work-group memory, where kernels that compute in fp32 keep fp32."""
SECTOR = 32
"""Bytes that GPUs fetch together: the least that is worth reading of adjacent memory."""
FOR_SHAPES = "varying_constants"
"""Kernels that read sizes when they run; `DeviceCaps.without` names them where they were found wrong."""
INDEX_MAPS = "index_maps"
"""Kernels that reach their arguments through index maps; `DeviceCaps.without` names them where they are wrong."""
FUSED_STEPS = "fused_steps"
"""Steps that a kernel computes behind others; `DeviceCaps.without` names them where the compiler rewrites them."""
SCALARS = "scalar_constants"
"""Scalars that element-wise kernels have as constants; `DeviceCaps.without` names them where zeros are wrong."""
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


def rounds_in_parts(count: int) -> int:
    """Return the rounds of an item that adds up so many elements in parts, as sums.parts.mako does."""
    return count + -(-count // 64) + -(-count // 64**2)


def tree_items(caps: DeviceCaps, most: int = 64) -> int:
    """Return the work-group size for a tree reduction: a power of two, at most `most`."""
    return int(2 ** int(log2(min(most, caps.max_local_items))))


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << (max(count, 1) - 1).bit_length()


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


Variant = Mapping[str, str | int | bool | tuple[str, ...]]
"""What changes the text of a kernel."""


@dataclass(frozen=True, eq=False, slots=True)
class LaunchRequest:
    """A launch as an op asks for it; `KernelBuilder.launch` says what the fields mean."""

    template: str
    reads: Mapping[str, Tensor]
    writes: Mapping[str, Tensor]
    ints: Mapping[str, int]
    floats: Mapping[str, float]
    variant: Variant
    grid: Size3
    local: Size3
    raw: bool
    kinds: Mapping[str, ArgKind]
    epilogue: bool
    prologue: Prologue | None
    repeatable: bool
    gate: Gate | None


class KernelBuilder(ABC):
    """Collects the launches of one node.

    Ops see this class alone. `NodeBuilder` (`weft.backends.gpu.lowering.launches.builder`) plans launches for a device;
    `dry_run` beside it only notes their templates.
    """

    caps: DeviceCaps
    sizes_change: bool = False
    """Whether the node has run for other sizes: then few kernels that serve many sizes beat the fastest one for each,
    which has to be compiled."""
    split_products: bool = False
    """Whether matrix units may compute fp32 products as sums of products of halves (`Precision.NORMAL`)."""
    winograd: bool = True
    """Whether Winograd's method may be used (`BackendConfig.winograd`)."""
    thrifty: bool = False
    """Whether memory is short (`MemoryMode.LIMIT`): then avoid algorithms that need much scratch memory."""
    stores_second_outputs: bool = False
    """Whether values before the last of the fused steps are results, too (`Fused.second_outputs`)."""

    def launch(
        self, template: str, *, reads: Mapping[str, Tensor], writes: Mapping[str, Tensor],
        ints: Mapping[str, int] | None = None, floats: Mapping[str, float] | None = None,
        variant: Variant | None = None, items: int | None = None, grid: Size3 | None = None,
        local: Size3 | None = None, raw: bool = False, kinds: Mapping[str, ArgKind] | None = None,
        epilogue: bool = True, prologue: Prologue | None = None, repeatable: bool = False,
        gate: Gate | None = None,
    ) -> None:
        """Launch `weft/shaders/<template>.mako` on `grid` work-groups of `local` work-items.

        In place of these, `items` says over how many elements a one-dimensional loop goes (`for_items`).

        `reads` and `writes` are the arguments by the names the template uses. An NC4HW4 or NHWC4 tensor becomes a c4
        argument, any other a linear one (or a raw one if `raw`: elements are moved as bits); `kinds` names the
        exceptions. `ints` and `floats` are the constants; `variant` holds what changes the text. The first of
        `writes` gets the node's fused epilogue unless `epilogue` is False. The template must apply
        a `prologue`. `repeatable` says that more items of a group may do what the last one does: nothing that an item
        stores depends on what was there. A template with a `gate` stores with `ArgWriter.store_gated`; such a launch
        has no epilogue. If all of `writes` are empty, nothing is launched.
        """
        if any(t.nbytes for t in writes.values()):
            if items is not None:
                grid, local = self.for_items(items)
            assert grid is not None and local is not None, "a launch has `items`, or `grid` and `local`"
            self.add(
                LaunchRequest(
                    template, reads, writes, ints or {}, floats or {}, variant or {}, grid, local, raw, kinds or {},
                    epilogue, prologue, repeatable, gate,
                )
            )

    @abstractmethod
    def add(self, asked: LaunchRequest) -> None:
        """Add a launch that writes something."""

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

    def turn(self) -> AbstractContextManager[None]:
        """Let launches that are one of several turns use the scratch memory of the turn before, as far as it reaches.

        Builders that are made meanwhile do so as well.
        """
        return nullcontext()

    @abstractmethod
    def shares_memory(self, inner: Tensor, outer: Tensor, first: int = 0) -> bool:
        """Tell whether `inner` already lies inside `outer`'s memory, so that nothing need be copied.

        In NC4HW4 and NHWC4 it must start `first` channel blocks after the start of `outer`.
        """

    def lies_at(self, part: Tensor, whole: Tensor, places: IndexMap) -> bool:
        """Tell whether the elements of `part` lie in `whole` as a map says, so that no kernel need move them."""
        return False

    def lies_plain(self, *tensors: Tensor, count: int = 1) -> bool:
        """Tell whether `count` adjacent elements of each tensor, the first at a multiple of it, lie together in memory.

        With a count of 1: whether each element lies at its own index.
        """
        return True

    def from_block(self, tensor: Tensor, shape: Shape, first: int) -> Tensor:
        """Return the part of a packed tensor that has a shape and begins at a channel block."""
        raise NotImplementedError("this builder plans nothing on packed tensors")

    def for_channels(self, output: Tensor, first: int, channels: int) -> tuple[KernelBuilder, Tensor]:
        """Return a builder of launches that compute some channels of the node's packed output, and that part of it.

        They begin at channel block `first`. What the builder launches gets the fused steps on these channels, and its
        constants have keys of their own. Make no choice with it.
        """
        raise NotImplementedError("this builder plans nothing on packed tensors")

    def with_keys(self, begin: str) -> KernelBuilder:
        """Return a builder whose constants have keys of their own, which begin so; by default this one.

        A constant of one key is the same at all sizes.
        """
        return self

    def for_output_map(self, output: Tensor, shape: Shape, output_map: OutputMap) -> tuple[KernelBuilder, Tensor]:
        """Return a builder of launches that compute an image of a shape (n, channels, *pixels), and that image.

        What they store there with `store4` or `store8` goes where the map says in the node's packed output, with the
        fused steps. Their constants have keys of their own. The image has no memory: launches only write it.
        """
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

    def for_items(self, total: int) -> tuple[Size3, Size3]:
        """Return grid and local size of a one-dimensional loop over `total` elements."""
        caps, local = self.caps, min(SMALL_GROUP, self.caps.max_local_items)
        if caps.has_many_units and not caps.software:
            # A large GPU starts about one work-group per clock, so a few large groups beat many small ones.
            most_items = min(LARGE_GROUP, caps.max_local_items)
            while local * 2 <= most_items and total >= 8 * local * caps.compute_units:
                local *= 2
            if self.sizes_change and local * 2 <= most_items:
                local = min(SMALL_GROUP, caps.max_local_items)  # only two sizes, as each is another kernel
        groups = -(-max(total, 1) // local)
        most = max((MAX_ELEMENTS - total) // local, 1)  # a work-item computes its next index before it compares it
        return (max(1, min(groups, self.caps.max_grid[0], most)), 1, 1), (local, 1, 1)
