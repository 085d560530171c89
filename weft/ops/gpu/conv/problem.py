"""What decides how a convolution is computed, and the tensors that it is about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import Tensor
from weft.kernels.algorithms import Facts
from weft.kernels.launch import PIECE, DeviceCaps, KernelBuilder
from weft.ops.window import Window


def window_constants(window: Window) -> dict[str, int]:
    """Return a window as the constants ID, IH, IW (inputs), O. (outputs), K., S., D. (dilations), P. (pads).

    Where there are fewer than three dimensions the leading ones have size 1.
    """
    lead = 3 - window.rank
    fields = {
        "I": (window.inputs, 1), "O": (window.outputs, 1), "K": (window.kernel, 1),
        "S": (window.strides, 1), "D": (window.dilations, 1), "P": (window.begin, 0),
    }  # fmt: skip
    ints: dict[str, int] = {}
    for letter, (values, default) in fields.items():
        for axis, value in zip("DHW", (default,) * lead + values, strict=True):
            ints[f"{letter}{axis}"] = value
    return ints


@dataclass(frozen=True)
class ConvProblem:
    """The facts of a convolution that its kernel is chosen by: sizes, element types, how tensors lie, the device."""

    images: int
    channels_in: int
    """Those that an output sees: the input's, divided by the groups."""
    channels_out: int
    window: Window
    """The geometry; of a convolution that pools as it loads, the pool's."""
    group: int
    read: DType
    written: DType
    weights: DType
    bias: bool
    layout: Layout
    """Of the output."""
    caps: DeviceCaps
    planar: bool = False
    """Whether the image lies as NCHW, not in blocks of four channels."""
    pooled: int = 0
    """The places of the window whose largest is taken as the kernel loads; 0 if there is no such pool."""
    rows: bool = False
    """Whether pixels of the image lie as rows of channels, equally far apart (`KernelBuilder.rows`)."""
    read_pieces: bool = False
    """Whether 16 bytes of channels can be read at a time."""
    written_pieces: bool = False
    """Whether 16 bytes of channels can be written at a time."""
    rows_added: bool = True
    """Whether what fused steps add lies as rows of channels (`KernelBuilder.reads_rows`)."""
    split_products: bool = False
    """See `KernelBuilder.split_products`."""
    winograd: bool = True
    """See `KernelBuilder.winograd`."""
    thrifty: bool = False
    """See `KernelBuilder.thrifty`."""
    piece: int = 0
    """The blocks of output channels that are computed, of weights too large for one argument; 0: all."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        sizes = self.images, self.channels_in, self.channels_out, self.window.inputs, self.window.kernel
        return hash((*sizes, self.group, self.read, self.piece, self.split_products))

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
    def whole(self) -> bool:
        """Tell whether all output channels are computed."""
        return self.count == self.blocks

    @property
    def blocks_in(self) -> int:
        """Return the blocks of four input channels."""
        return -(-self.channels_in // PACK)

    @cached_property
    def depth(self) -> int:
        """Return the products of a sum, with input channels in whole blocks."""
        return self.taps * self.blocks_in * PACK

    @property
    def ungrouped(self) -> bool:
        """Tell whether each output sees all input channels, of an image of up to two dimensions."""
        return self.group == 1 and self.window.rank <= 2

    @property
    def pointwise(self) -> bool:
        """Tell whether an output reads the one pixel at its own place."""
        return self.window.is_pointwise

    @property
    def in_fp32(self) -> bool:
        """Tell whether all that is stored is fp32."""
        return self.read is self.written is self.weights is DType.FLOAT32

    @property
    def loads_vectors(self) -> bool:
        """Tell whether four channels of a pixel are loaded as one vector, as they lie."""
        return not self.planar and not self.pooled

    @cached_property
    def constants(self) -> dict[str, int]:
        """Return the window as a kernel's constants; not to be changed."""
        return window_constants(self.window)

    @property
    def reading(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how the GEMM loads four channels, if not as one vector: what changes its text, and constants."""
        if self.pooled:
            return {"pooled": self.pooled}, {}
        return ({"planar": 1}, {"CI": self.channels_in}) if self.planar else ({}, {})

    def facts_by_blocks(self) -> Facts:
        """Return what tuning tables find problems of the portable kernels by."""
        reading, channels = self.reading
        sizes = {"N": self.images, "C4": self.blocks_in, "COUNT": self.count, "bias": self.bias}
        return {**self.constants, **sizes, **reading, **channels}

    def facts_by_channels(self) -> Facts:
        """Return what tuning tables find problems of matrix units by."""
        sizes = {"N": self.images, "CI": self.channels_in, "CO": self.channels_out, "bias": self.bias}
        return {**self.constants, **sizes}


@dataclass(frozen=True)
class ConvPlan:
    """A convolution's problem with its tensors."""

    k: KernelBuilder
    problem: ConvProblem
    x: Tensor
    y: Tensor
    weight: Array
    """(co, ci, *kernel); of a group its own input channels."""
    bias: Array | None
    first: int = 0
    """The first block of output channels that is computed."""

    @classmethod
    def of(
        cls,
        k: KernelBuilder,
        window: Window,
        x: Tensor,
        y: Tensor,
        weight: Array,
        bias: Array | None,
        *,
        group: int = 1,
        pooled: int = 0,
    ) -> ConvPlan:
        """Return the plan of a convolution by its geometry, or that of the pool that it computes as it loads."""
        # Nothing but matrix units asks how pixels lie.
        looks = k.caps.matrix_units and x.layout.packed and group == 1
        rows = k.rows(x) if looks else None
        problem = ConvProblem(
            x.shape[0], weight.shape[1], y.shape[1], window, group, x.dtype, y.dtype, DType.of(weight.dtype),
            bias is not None, y.layout, k.caps, not x.layout.packed, pooled,
            rows=rows is not None,
            read_pieces=looks and _lies_in_pieces(x, rows),
            written_pieces=looks and _lies_in_pieces(y, k.rows(y)),
            rows_added=not looks or k.reads_rows(y),
            split_products=k.split_products, winograd=k.winograd, thrifty=k.thrifty,
        )  # fmt: skip
        return cls(k, problem, x, y, weight, bias)

    def part(self, first: int, count: int) -> ConvPlan:
        """Return the plan of some blocks of output channels."""
        piece = 0 if count == self.problem.blocks else count
        return replace(self, problem=replace(self.problem, piece=piece), first=first)

    def bias_vector(self) -> dict[str, Tensor]:
        """Return the bias as a c4 constant, under its argument's name; nothing if there is none."""
        if self.bias is None:
            return {}
        value = self.bias
        return {"b": self.k.constant("bias", lambda: value.reshape(1, -1, 1), Layout.NC4HW4)}

    def lies_in_pieces(self, tensor: Tensor) -> bool:
        """Tell whether pixels lie as rows of channels in whole pieces, so that 16 bytes can be moved at a time."""
        return _lies_in_pieces(tensor, self.k.rows(tensor))


def _lies_in_pieces(tensor: Tensor, rows: tuple[int, int] | None) -> bool:
    return rows is not None and all(n % PIECE == 0 for n in (tensor.shape[1], *rows))


def pieces(problem: ConvProblem, nbytes_per_block: int) -> list[tuple[int, int]]:
    """Return (first, count) of output blocks such that each piece's weights fit one kernel argument."""
    most = max(problem.caps.max_buffer_range // max(nbytes_per_block, 1), 1)
    return [(b, min(most, problem.blocks - b)) for b in range(0, problem.blocks, most)]
