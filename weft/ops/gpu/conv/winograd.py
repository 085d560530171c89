"""Convolution in fp32 by Winograd's minimal filtering: 3 x 3 taps with a quarter of the multiplications.

F(4 x 4, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016): a patch of 4 x 4 outputs
is a polynomial product, computed from its values at 36 points: y = A'[(G w G') * (B' x B)]A. The host transforms the
weights once, in float64. There are three launches: B' x B of every patch of 6 x 6 inputs; for each point a product of
patches x channels with channels x channels; and A' m A with bias and fused steps. Scratch memory holds 36/16 of the
input and of the output between them.

The points are 0, 5/8, -5/8, 3/2, -3/2 and infinity: with them all numbers of A and B are exact in fp32. The errors, by
norm against float64, of layers of 64 and 512 channels, measured in numpy on random normal numbers (the direct sum has
3.1e-7 and 3.8e-7):

    0, +-1, +-2, inf        1.7e-6  3.2e-6  (the usual ones)
    0, +-1, +-1/2, inf      1.7e-6  3.2e-6
    0, +-1, 1/2, -2, inf    1.1e-6  2.1e-6
    0, +-1/2, +-3/2, inf    9.4e-7  1.8e-6
    0, +-3/4, +-3/2, inf    8.2e-7  1.5e-6
    0, +-2/3, +-3/2, inf    7.6e-7  1.4e-6  (not exact)
    0, +-5/8, +-3/2, inf    7.6e-7  1.4e-6

No +-a/16, +-b/16 was better; scaling rows of B by powers of two changes nothing. An input that is infinite or NaN makes
whole patches NaN, not only the outputs whose windows read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.chooser import NEVER, Algorithm, Candidate
from weft.kernels.cost_model import Effort
from weft.kernels.device_caps import Size3
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import MAX_ELEMENTS, KernelBuilder
from weft.kernels.special import on_few_units, register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.gemm.tiles import STEP, GemmTile, legal_tiles, steps_of, tile_loads
from weft.ops.gpu.conv.problem import COMPUTED, ConvPlan, ConvProblem

POINTS = (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2))
"""The points at which polynomials are evaluated, besides infinity."""
SIDE, TAPS = 4, 3
READ = SIDE + TAPS - 1
"""Outputs, taps and inputs of a patch along an axis."""
ITEMS = 64
"""Work-items of a transform's work-group: each holds 36 vectors in registers, so larger groups would not fit well."""
LEAST = 64
"""Least input channels, output channels and patches for which it is the default."""
TRIED = 16
"""Least input channels, output channels and patches for which tuning tries it."""
WINS, MAY_WIN = 0.8, 1.6
"""Most of the direct kernel's time that it may take, by the model, to be the default, and to be tried by tuning."""
Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class WinogradTile:
    """The tile of the GEMM for each point; the GEMM's pixels are patches."""

    gemm: GemmTile


@lru_cache(maxsize=1)
def matrices() -> tuple[Matrix, Matrix, Matrix]:
    """Return A', G and B': y = A'[(G w) * (B' x)] is the correlation of READ inputs with TAPS weights.

    It is Toom and Cook's product of polynomials, transposed: A' and G evaluate at the points (at infinity that is the
    last coefficient), and B' is the transposed interpolation, with its denominators moved to G.
    """
    rows = range(READ - 1)
    others = [tuple(p for p in POINTS if p != POINTS[k]) for k in rows]
    below = [prod((POINTS[k] - p for p in others[k]), start=Fraction(1)) for k in rows]
    a = tuple((*(p**i for p in POINTS), Fraction(i == SIDE - 1)) for i in range(SIDE))
    g = tuple(tuple(POINTS[k] ** i / below[k] for i in range(TAPS)) for k in rows)
    b = tuple(_product(others[k]) for k in rows)
    return a, (*g, (*[Fraction(0)] * (TAPS - 1), Fraction(1))), (*b, _product(POINTS))


def _product(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the product of all x - root, from the lowest to that of x ** (READ - 1)."""
    found = [Fraction(1)]
    for root in roots:
        found = [low - root * high for low, high in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return (*found, *[Fraction(0)] * (READ - len(found)))


def as_text(matrix: Matrix) -> tuple[str, ...]:
    """Return the rows as templates read them."""
    return tuple(" ".join(repr(float(x)) for x in row) for row in matrix)


def transform_weights(weight: Array) -> Array:
    """Return weights (co, ci, 3, 3) at the points, (36, ci, co), computed in float64."""
    g = np.array(matrices()[1], np.float64)
    both = np.kron(g, g)  # (points, taps)
    co, ci = weight.shape[:2]
    return (both @ weight.reshape(co * ci, -1).T.astype(np.float64)).reshape(-1, co, ci).transpose(0, 2, 1)


def pack_weights(weight: Array) -> Array:
    """Return transformed weights as vectors [point][ci block][co block][4 ci][4 co], ci blocks in whole steps."""
    co, ci = weight.shape[:2]
    blocks_in, blocks_out = _steps(ci) * STEP, -(-co // PACK)
    full = np.zeros((READ * READ, blocks_in * PACK, blocks_out * PACK), np.float32)
    full[:, :ci, :co] = transform_weights(weight)
    vectors = full.reshape(-1, blocks_in, PACK, blocks_out, PACK).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(vectors).reshape(-1)


def _steps(channels: int) -> int:
    return -(-channels // (PACK * STEP))


@dataclass(frozen=True)
class WinogradFigures(AlgorithmFigures, section="conv_winograd"):
    """When the method pays."""

    products_per_float: int
    """Products that an fp32 kernel computes in the time in which it reads or writes a float."""
    products_per_launch: int
    """Products that a unit computes in the time of the two extra launches of the method."""


def patches_of(problem: ConvProblem) -> tuple[int, int, int]:
    """Return the number of patches: images, down and across."""
    oh, ow = problem.window.outputs
    return problem.images, -(-oh // SIDE), -(-ow // SIDE)


def share(problem: ConvProblem) -> float:
    """Return its time as a share of the direct kernel's, by a simple model of a large GPU.

    The model adds up the products, in whole tiles of 32 patches, at the direct kernel's rate; the floats that the
    transforms and the GEMM move, including weights; and two launches.
    """
    ci, co, known = problem.channels_in, problem.channels_out, problem.caps.model.of(WinogradFigures)
    patches, pixels = prod(patches_of(problem)), problem.pixels
    products = READ * READ * -(-patches // 32) * 32 * ci * co
    moved = (2 * READ * READ * patches + pixels) * (ci + co) + READ * READ * ci * co
    direct = TAPS * TAPS * pixels * ci * co
    launches = known.products_per_launch * problem.caps.likely_units
    return float((products + known.products_per_float * moved + launches) / direct)


def choose_tile(problem: ConvProblem, tiles: Sequence[WinogradTile]) -> WinogradTile | None:
    """Return the first tile that gives each compute unit two work-groups, else the last.

    None if the method would gain little: small problems spend their time on launches and on reading weights. On
    devices with fewer compute units than `DeviceModel.many_units`, only tuning chooses it: on software devices it was
    not faster when measured, and small GPUs may lack registers for 36 vectors an item.
    """
    caps = problem.caps
    if not tiles or caps.software or not caps.has_many_units:
        return None
    patches = prod(patches_of(problem))
    if min(problem.channels_in, problem.channels_out, patches) < LEAST or share(problem) > WINS:
        return None
    for tile in tiles:
        groups = READ * READ * -(-patches // tile.gemm.rows) * -(-problem.blocks // tile.gemm.columns)
        if groups >= 2 * caps.compute_units:
            return tile
    return tiles[-1]


class WinogradConv(Algorithm[ConvProblem, ConvPlan, WinogradTile]):
    """F(4 x 4, 3 x 3)."""

    name = "conv_winograd"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse all but 3 x 3 taps in fp32 with stride 1, what options rule out, and problems with too little work.

        The two scratch tensors take at most an eighth of device memory, of which drivers allocate a fourth at once.
        """
        window = problem.window
        if self.name in problem.caps.without:
            return "its self-test failed on this device"
        if not problem.winograd:
            return "the option `winograd` is off"
        if problem.computed:
            return COMPUTED
        if problem.thrifty:
            return "it takes much scratch memory, and memory is limited"
        if not problem.in_fp32:
            return "its rounding is too coarse for fp16"
        plain = problem.ungrouped and window.kernel == (TAPS, TAPS) and {*window.strides, *window.dilations} == {1}
        if not plain or not problem.loads_vectors or not problem.whole:
            return "it is for 3 x 3 taps with stride 1 on packed images"
        ci, co, patches = problem.channels_in, problem.channels_out, prod(patches_of(problem))
        rows = max(patches, co + PACK)
        largest = READ * READ * rows * (max(ci, co) + STEP * PACK)
        bounds = problem.caps.max_buffer_range, problem.caps.max_allocation // 4
        if largest >= MAX_ELEMENTS or largest * 4 > min(bounds) or problem.caps.max_grid[2] < READ * READ:
            return "its scratch memory or its grid exceeds the device's limits"
        if min(ci, co, patches) < TRIED or share(problem) > MAY_WIN:
            return "it has too little work for three launches"
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles of the GEMM without slices of K; without a clear gain by the model, only for tuning.

        The cost is divided by WINS, because the model may be off by as much as it must win by.
        """
        tiles = [WinogradTile(tile) for tile in legal_tiles(problem.caps, steps_of(problem)) if tile.lz == 1]
        best = choose_tile(problem, tiles)
        if best is None:
            return [Candidate(tile, NEVER) for tile in tiles]
        cost = share(problem) / WINS
        return [Candidate(tile, cost) for tile in dict.fromkeys([best, *tiles])]

    def effort(self, problem: ConvProblem, tile: WinogradTile) -> Effort | None:
        """Return the work of the GEMM, and what the transforms move; None where only tuning may take it.

        That is on small GPUs, and on CPUs that were not measured.
        """
        p, gemm = problem, tile.gemm
        if not p.caps.has_many_units and (not p.caps.software or p.caps.rates is None):
            return None
        patches, steps, points = prod(patches_of(p)), _steps(p.channels_in), READ * READ
        rows, columns = gemm.rows, PACK * gemm.columns
        down, across = -(-patches // rows), -(-p.blocks // gemm.columns)
        values = 2 * patches * (p.channels_in + p.channels_out) + p.channels_in * p.channels_out
        read = points * (down * p.channels_out + across * patches) * PACK * STEP * steps
        return Effort(
            groups=points * down * across, items=gemm.items, registers=gemm.registers,
            shared=gemm.shared_bytes(2), rows=rows, columns=columns, rounds=steps, depth=PACK * STEP, slices=1,
            read=4 * read, moved=p.moved + 4 * points * values, loads=tile_loads(gemm), launches=3,
        )

    def launch(self, plan: ConvPlan, tile: WinogradTile) -> None:
        """Launch the three kernels."""
        launch_winograd(plan, tile)


def _loop(k: KernelBuilder, total: int) -> tuple[Size3, Size3]:
    """Return the grid and the work-group size of a transform."""
    local = min(ITEMS, k.caps.max_local_items)
    return (min(-(-total // local), k.caps.max_grid[0]), 1, 1), (local, 1, 1)


def launch_winograd(plan: ConvPlan, tile: WinogradTile) -> None:
    """Launch the three kernels."""
    k, p = plan.k, plan.problem
    images, down, across = patches_of(p)
    patches, blocks = images * down * across, p.blocks_in
    (ih, iw), (oh, ow), (ph, pw) = p.window.inputs, p.window.outputs, p.window.begin
    a, _, b = matrices()
    v = k.scratch((READ * READ * blocks * patches * PACK,), DType.FLOAT32)
    m = k.scratch((READ * READ * p.blocks * patches * PACK,), DType.FLOAT32)
    shared = {"PATCHES": patches, "TH": down, "TW": across}
    total = -(-blocks // 4) * 4 * patches
    grid, local = _loop(k, total)
    k.launch(
        "conv_winograd_input", reads={"x": plan.x}, writes={"v": v}, kinds={"v": "fours"}, epilogue=False,
        ints={**shared, "IH": ih, "IW": iw, "PH": ph, "PW": pw, "STEP": SIDE, "BLOCKS": blocks, "TOTAL": total},
        variant={"rows": as_text(b)}, grid=grid, local=local,
    )
    _launch_products(plan, tile.gemm, v, m, patches)
    total = -(-p.blocks // 4) * 4 * patches
    grid, local = _loop(k, total)
    k.launch(
        "conv_winograd_output", reads={"m": m, **plan.bias_vector()}, writes={"y": plan.y}, kinds={"m": "fours"},
        ints={**shared, "OH": oh, "OW": ow, "BLOCKS": p.blocks, "TOTAL": total},
        variant={"rows": as_text(a)}, grid=grid, local=local,
    )


def _launch_products(plan: ConvPlan, tile: GemmTile, v: Tensor, m: Tensor, patches: int) -> None:
    """Launch a GEMM for each point: patches times output channels, over input channels."""
    k, p = plan.k, plan.problem
    rows = -(-patches // tile.rows)
    spec = TensorSpec((READ * READ * _steps(p.channels_in) * STEP * PACK * p.blocks * PACK,), DType.FLOAT32)
    weights = k.constant("winograd", plan.packing(pack_weights), spec=spec)
    k.launch(
        "conv_winograd_gemm", reads={"v": v, "w": weights}, writes={"m": m},
        ints={
            "C4": p.blocks_in, "STEPS": _steps(p.channels_in), "COUNT": p.blocks, "PATCHES": patches, "TILES": rows,
        },
        variant={**tile.variant, "buffers": tile.buffers(k.caps), "copied": False},
        kinds=dict.fromkeys("vwm", "fours"), epilogue=False,
        grid=(min(rows, k.caps.max_grid[0]), -(-p.blocks // tile.columns), READ * READ),
        local=(tile.lx, tile.ly, tile.lz),
    )


register_family(
    "conv_winograd", "convolutions by Winograd's method",
    cases=lambda: (conv_with((1, 65, 15, 17), (67, 65, 3, 3), pads=(1, 1, 1, 1), prefer="WinogradTile("),),
    templates=("conv_winograd_input", "conv_winograd_gemm", "conv_winograd_output"),
    fallback="tiled convolutions", forced=on_few_units, seconds=0.45,
)
