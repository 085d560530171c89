"""A convolution as a problem for the chooser, and a plan: that problem with its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout, Shape
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.chooser import Facts
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import PIECE, KernelBuilder, Prologue
from weft.kernels.matrix_shapes import HALVES
from weft.ops.gpu.conv.integers.weights import IntegerWeights
from weft.ops.gpu.conv.volumes.stack import SliceStack
from weft.ops.gpu.packing import LateWeights, Weights, as_image, part_of
from weft.ops.window import Window

COMPUTED = "its weights are computed at run time, and it packs them beforehand"
"""Why most algorithms refuse a problem whose weights are no constants."""


def divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to `most`, at least 1."""
    return max(n for n in range(1, max(min(number, most), 1) + 1) if number % n == 0)


def window_constants(window: Window) -> dict[str, int]:
    """Return a window as the constants ID, IH, IW (inputs), O. (outputs), K., S., D. (dilations), P. (pads).

    A window of fewer than three dimensions gets leading ones of size 1.
    """
    lead = 3 - window.rank
    fields = {
        "I": (window.inputs, 1), "O": (window.outputs, 1), "K": (window.kernel, 1),
        "S": (window.strides, 1), "D": (window.dilations, 1), "P": (window.begin, 0),
    }
    ints: dict[str, int] = {}
    for letter, (values, default) in fields.items():
        for axis, value in zip("DHW", (default,) * lead + values, strict=True):
            ints[f"{letter}{axis}"] = value
    return ints


@dataclass(frozen=True)
class ConvProblem:
    """The facts that decide a convolution's kernel: sizes, element types, layouts, the device."""

    images: int
    channels_in: int
    """Input channels of one output: those of the input, divided by the groups."""
    channels_out: int
    window: Window
    """The geometry; for a convolution that pools as it loads, that of the pool."""
    group: int
    read: DType
    written: DType
    weights: DType
    bias: bool
    layout: Layout
    """The output's layout."""
    caps: DeviceCaps
    planar: bool = False
    """Whether the image is stored as NCHW, not in blocks of four channels."""
    pooled: int = 0
    """Pixels of the window of a max pool that the kernel computes as it loads; 0 if there is none."""
    prologue_steps: int = 0
    """Element-wise steps that the kernel applies as it loads; 0 if there are none."""
    rows: bool = False
    """Whether the image's pixels are rows of channels, equally far apart (`KernelBuilder.rows`)."""
    read_pieces: bool = False
    """Whether 16 bytes of channels can be read at a time; of groups, in each of them."""
    written_pieces: bool = False
    """Whether 16 bytes of channels can be written at a time."""
    rows_added: bool = True
    """Whether the operands of fused steps are rows of channels, too (`KernelBuilder.reads_rows`)."""
    stores_second_outputs: bool = False
    """See `KernelBuilder.stores_second_outputs`."""
    subpixel_channels: int = 0
    """Channels of each sub-pixel, if output channels are stored as such (`weft.kernels.output_maps`); else 0."""
    pairs: bool = False
    """Whether output channels are stored as half as many, one for each two (`weft.kernels.output_maps.Pairs`)."""
    slices: int = 0
    """Slices of the volume that its images are slices of, or are; 0 if they come from none."""
    stacked: int = 0
    """Slices that are stacked in the channels of an image (`SliceStack`); 0 if its channels are the volume's."""
    split_products: bool = False
    """See `KernelBuilder.split_products`."""
    winograd: bool = True
    """See `KernelBuilder.winograd`."""
    thrifty: bool = False
    """See `KernelBuilder.thrifty`."""
    piece: int = 0
    """Blocks of output channels in this launch, if the weights are too large for one argument; 0: all."""
    computed: bool = False
    """Whether the weights are computed at run time, so that each run packs them."""
    bias_computed: bool = False
    """The same of the bias."""

    @classmethod
    def foreseen(
        cls, x: Shape, weight: Shape, window: Window, dtype: DType, layout: Layout, caps: DeviceCaps, *, rows: bool
    ) -> ConvProblem:
        """Return the problem of a convolution in one group before layouts are known; `rows`: pixels are rows then."""
        return cls(
            images=x[0],
            channels_in=weight[1],
            channels_out=weight[0],
            window=window,
            group=1,
            read=dtype,
            written=dtype,
            weights=dtype,
            bias=True,
            layout=layout,
            caps=caps,
            rows=rows,
            read_pieces=rows and x[1] % PIECE == 0,
            written_pieces=rows and weight[0] % PIECE == 0,
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        sizes = self.images, self.channels_in, self.channels_out, self.window.inputs, self.window.kernel
        return hash((*sizes, self.group, self.read, self.piece, self.split_products, self.stacked))

    @cached_property
    def pixels(self) -> int:
        """Return the pixels of all outputs."""
        return self.images * prod(self.window.outputs)

    @cached_property
    def taps(self) -> int:
        """Return the taps of an output's window."""
        return 1 if self.pooled else prod(self.window.kernel)

    @property
    def blocks(self) -> int:
        """Return the blocks of four output channels."""
        return -(-self.channels_out // PACK)

    @property
    def count(self) -> int:
        """Return the blocks of output channels that are computed."""
        return self.piece or self.blocks

    @property
    def channels(self) -> int:
        """Return the output channels of this piece, or all of them."""
        return min(self.channels_out, self.piece * PACK) if self.piece else self.channels_out

    @property
    def whole(self) -> bool:
        """Tell whether all output channels are computed."""
        return self.count == self.blocks

    @property
    def blocks_in(self) -> int:
        """Return the blocks of four input channels."""
        return -(-self.channels_in // PACK)

    @cached_property
    def depth(self) -> int:
        """Return the products of one sum (K of the GEMM), with input channels in whole blocks."""
        return self.taps * self.blocks_in * PACK

    @property
    def ungrouped(self) -> bool:
        """Tell whether there is one group, and the image has up to two dimensions."""
        return self.group == 1 and self.window.rank <= 2

    @property
    def pointwise(self) -> bool:
        """Tell whether each output reads only the pixel at its own position."""
        return self.window.is_pointwise

    @property
    def in_fp32(self) -> bool:
        """Tell whether image, weights and output are fp32."""
        return self.read is self.written is self.weights is DType.FLOAT32

    @property
    def loads_vectors(self) -> bool:
        """Tell whether the kernel finds four channels of a pixel as one vector in memory."""
        return not self.planar and not self.pooled

    @cached_property
    def constants(self) -> dict[str, int]:
        """Return the window as a kernel's constants; do not change the dict."""
        return window_constants(self.window)

    @property
    def reading(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how the GEMM loads four channels, if not as one vector: variant and constants."""
        if self.pooled:
            return {"pooled": self.pooled}, {}
        return ({"planar": 1}, {"CI": self.channels_in}) if self.planar else ({}, {})

    @cached_property
    def moved(self) -> int:
        """Return the bytes of the image, the weights and the output, each counted once."""
        image = self.images * self.channels_in * prod(self.window.inputs)
        return self.read.itemsize * (image + self.channels * (self.pixels + self.depth))

    def tiles(self, rows: int, columns: int) -> int:
        """Return how many tiles of so many pixels and output channels cover the output."""
        return -(-self.pixels // rows) * -(-self.channels_out // columns)

    def staged(self, rows: int, columns: int, depth: int) -> int:
        """Return the bytes of operands that tiles of so many pixels and output channels read, `depth` along K."""
        times = -(-self.pixels // rows) * self.channels + -(-self.channels // columns) * self.pixels
        return self.read.itemsize * times * depth

    def stepped(self, rows: int, parts: int) -> int:
        """Return the bytes of a tile of so many pixels to which a group applies the prologue."""
        read = 2 if self.images > 1 else 1  # rows may be of several images, so each reads the values of its own, too
        return read * self.read.itemsize * rows * self.depth // parts if self.prologue_steps else 0

    @property
    def many_images(self) -> dict[str, bool]:
        """Return the variant of a kernel on matrix units whose prologue may read another value for each image."""
        return {"many": True} if self.prologue_steps and self.images > 1 else {}

    def facts_by_blocks(self) -> Facts:
        """Return the facts by which tuning tables find problems of the portable kernels."""
        reading, channels = self.reading
        if self.prologue_steps:
            reading = {**reading, "prologue": self.prologue_steps}
        sizes = {"N": self.images, "C4": self.blocks_in, "COUNT": self.count, "bias": self.bias}
        return {**self.constants, **sizes, **reading, **channels, **self._stored}

    def facts_by_channels(self) -> Facts:
        """Return the facts by which tuning tables find problems of matrix units."""
        sizes = {"N": self.images, "CI": self.channels_in, "CO": self.channels_out, "bias": self.bias}
        steps = {"prologue": self.prologue_steps} if self.prologue_steps else {}
        return {**self.constants, **sizes, **steps, **self._stored}

    @property
    def _stored(self) -> dict[str, int]:
        """Return what sets it apart from a problem that reads and stores images as they are."""
        known = {
            "subpixels": self.subpixel_channels, "pairs": self.pairs, "slices": self.slices, "stacked": self.stacked,
        }
        return {name: count for name, count in known.items() if count}

    @property
    def has_output_map(self) -> bool:
        """Tell whether its pixels and channels are not those of its output: it is stored by `store4` or `store8`."""
        return bool(self._stored)


@dataclass(frozen=True)
class ConvPlan:
    """A convolution's problem with its tensors."""

    k: KernelBuilder
    problem: ConvProblem
    x: Tensor
    y: Tensor
    weights: Weights
    """(co, ci, *kernel), where ci counts the input channels of one group."""
    bias: Weights | None
    first: int = 0
    """The first block of output channels that is computed."""
    prologue: Prologue | None = None
    """The steps that the kernel applies as it loads."""
    stack: SliceStack | None = None
    """What `x` is, if nobody has written it yet."""
    integers: IntegerWeights | None = None
    """The weights, if these and the image are integers."""

    @classmethod
    def of(
        cls,
        k: KernelBuilder,
        window: Window,
        x: Tensor,
        y: Tensor,
        weight: Weights,
        bias: Weights | None,
        *,
        group: int = 1,
        pooled: int = 0,
        prologue: Prologue | None = None,
        subpixel_channels: int = 0,
        pairs: bool = False,
        slices: int = 0,
        stacked: int = 0,
        integers: IntegerWeights | None = None,
    ) -> ConvPlan:
        """Return the plan of a convolution; `window` is that of the pool if it pools as it loads."""
        if isinstance(weight, LateWeights):
            k = k.with_keys(weight.order)
        # Only kernels for matrix units ask how pixels are stored.
        looks = k.caps.multiplies(HALVES) and x.layout.packed
        rows = k.rows(x) if looks else None
        dtype = weight.dtype if isinstance(weight, Tensor) else DType.of(weight.dtype)
        problem = ConvProblem(
            images=x.shape[0],
            channels_in=weight.shape[1],
            channels_out=y.shape[1],
            window=window,
            group=group,
            read=x.dtype,
            written=y.dtype,
            weights=dtype,
            bias=bias is not None,
            layout=y.layout,
            caps=k.caps,
            planar=not x.layout.packed,
            pooled=pooled,
            prologue_steps=0 if prologue is None else len(prologue.steps),
            rows=rows is not None,
            read_pieces=looks and _lies_in_pieces(x.shape[1] // group, rows),
            written_pieces=looks and _lies_in_pieces(subpixel_channels or y.shape[1] // group, k.rows(y)),
            rows_added=not looks or k.reads_rows(y),
            stores_second_outputs=k.stores_second_outputs,
            subpixel_channels=subpixel_channels,
            pairs=pairs,
            slices=slices,
            stacked=stacked,
            split_products=k.split_products,
            winograd=k.winograd,
            thrifty=k.thrifty,
            computed=isinstance(weight, Tensor),
            bias_computed=isinstance(bias, Tensor),
        )
        return cls(k, problem, x, y, weight, bias, prologue=prologue, integers=integers)

    @property
    def weight(self) -> Array | LateWeights:
        """Return the constant weights."""
        assert not isinstance(self.weights, Tensor), "a kernel that packs weights beforehand was asked for others"
        return self.weights

    def packing(self, pack: Callable[..., Array], *more: Any) -> Callable[[], Array]:
        """Return what packs the constant weights, by a function of them and of what else is given."""
        weight = self.weight
        if isinstance(weight, LateWeights):
            late = weight
            return lambda: pack(late.make(), *more)
        return partial(pack, weight, *more)

    def filters(self, key: str, first: int, count: int, layout: Layout = Layout.NC4HW4) -> Tensor:
        """Return the weights of some output channels as the c4 image (1, channels, products of an output)."""
        shape = (1, count, self.problem.channels_in * self.problem.taps)
        weights = self.weights
        part = weights if isinstance(weights, Tensor) else part_of(weights, slice(first, first + count))
        return as_image(self.k, key, part, shape, layout)

    def part(self, first: int, count: int) -> ConvPlan:
        """Return the plan of some blocks of output channels."""
        piece = 0 if count == self.problem.blocks else count
        return replace(self, problem=replace(self.problem, piece=piece), first=first)

    def bias_vector(self) -> dict[str, Tensor]:
        """Return the bias as a c4 image of one pixel under its argument's name, or an empty dict."""
        if self.bias is None:
            return {}
        return {"b": as_image(self.k, "bias", self.bias, (1, self.problem.channels_out, 1), Layout.NC4HW4)}

    def lies_in_pieces(self, tensor: Tensor) -> bool:
        """Tell whether pixels are rows of channels in whole pieces, so that kernels can move 16 bytes at a time."""
        return _lies_in_pieces(tensor.shape[1], self.k.rows(tensor))


def _lies_in_pieces(channels: int, rows: tuple[int, int] | None) -> bool:
    """Tell whether rows of so many channels, or each group of so many in them, are whole pieces."""
    return rows is not None and all(n % PIECE == 0 for n in (channels, *rows))


def on_matrix_units(caps: DeviceCaps, dtype: DType, split_products: bool) -> bool:
    """Tell whether convolutions of images of this type run on matrix units."""
    return split_products or (caps.multiplies(HALVES) and dtype is DType.FLOAT16)


def vectors_spec(elements: int, dtype: DType) -> TensorSpec:
    """Return the spec of the logical array whose NC4HW4 form is so many elements in a row, a multiple of four."""
    return TensorSpec((1, PACK, elements // PACK), dtype)


def pieces(problem: ConvProblem, nbytes_per_block: int) -> list[tuple[int, int]]:
    """Return (first, count) of output blocks such that each piece's weights fit one kernel argument."""
    most = max(problem.caps.max_buffer_range // max(nbytes_per_block, 1), 1)
    return [(b, min(most, problem.blocks - b)) for b in range(0, problem.blocks, most)]


def why_not_empty(x: Tensor | None) -> str | None:
    """Return why an input cannot be read: it has no elements, and kernels take the nearest one of what they skip."""
    return f"{x.name!r} has no elements to read" if x is not None and not prod(x.shape) else None


def why_not_computed(weight: Tensor | None, caps: DeviceCaps) -> str | None:
    """Return why weights that are computed at run time cannot be packed: they exceed one kernel argument."""
    if weight is None or weight.constant is not None:
        return None
    first, second, *kernel = weight.shape
    rounded = [-(-size // PACK) * PACK for size in (first, second)]
    nbytes = (prod((*rounded, *kernel)) + 4 * PACK * rounded[0]) * weight.dtype.itemsize
    if nbytes <= caps.max_buffer_range:
        return None
    most = caps.max_buffer_range
    return f"its weights are computed at run time and take {nbytes} bytes packed; a kernel argument may span {most}"
