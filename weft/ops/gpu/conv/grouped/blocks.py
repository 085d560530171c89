"""Convolution in groups of whole blocks of channels on GPUs: an item computes adjacent pixels of a group's channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Layout
from weft.core.graph.tensor import Tensor
from weft.kernels.chooser import Algorithm, Candidate, Facts
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures, amount_by, time_by
from weft.kernels.launch import PIECE, SMALL_GROUP, VECTOR_BYTES
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.special import on_many_units, register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.direct import DIRECT
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, divisor
from weft.ops.gpu.packing import as_image

SLICED_GROUP = 32
"""Items of a slice: a subgroup, so that all of its items are at the same step."""
MOST_ACROSS, MOST_TAPS = 16, 12
"""Most columns of the kernel, and most taps times blocks of input channels, of one step: the kernel writes out each."""
MOST_PADDED = 1.25
"""Most blocks that all steps together load, those behind a group's last too, for each block of the group."""
AT_ONCE = 48
"""Most vectors of a step that an item loads before it uses the first: three quarters of its registers in fp32. If a
step has more, the item loads weights as it needs them."""
ADDRESSES, MOST_REGISTERS = 30, 255
"""Registers of an item besides its vectors, about, and the most that it can have."""


@dataclass(frozen=True)
class GroupedFigures(AlgorithmFigures, section="conv_grouped"):
    """What estimates of the kernel know of a device besides its rates."""

    start_us: float = field(metadata=time_by("launches"))
    """Microseconds of a launch of almost no work."""
    round_us: float = field(metadata=time_by("waits"))
    """Microseconds that an item waits in each step, besides loading and multiplying."""
    wait_us: float = field(metadata=time_by("waits"))
    """Microseconds more for each line of taps of a block, where an item loads weights as it needs them."""
    vectors: float = field(metadata=amount_by("waits"))
    """Vectors that an item loads in a microsecond."""
    unit_vectors: float = field(metadata=amount_by("cache_bytes"))
    """Vectors that the items of a unit load together in a microsecond."""


@dataclass(frozen=True, slots=True)
class GroupedTile:
    """What a work-item computes: pixels below and beside each other, of adjacent blocks of one group.

    `slices` items share it: each takes some steps along K.
    """

    rows: int
    columns: int
    blocks: int
    slices: int


TILES = tuple(
    GroupedTile(rows, columns, blocks, slices)
    for (rows, columns), blocks, slices in product(((1, 2), (2, 2), (1, 4), (1, 1)), (1, 2), (1, 2, 4, 8))
)


@dataclass(frozen=True, slots=True)
class StepOfK:
    """A step along K: blocks of input channels, and of each so many lines and columns of the kernel."""

    deep: int
    lines: int
    wide: int

    @classmethod
    def of(cls, problem: ConvProblem) -> StepOfK:
        """Return the largest step within what may be written out that divides the kernel.

        It takes all blocks of a group, or so many that few blocks of the last step lie behind the group's last.
        """
        *_, height, width = 1, *problem.window.kernel
        wide = divisor(width, MOST_ACROSS)
        lines = divisor(height, MOST_TAPS // wide)
        blocks, most = problem.blocks_in, max(MOST_TAPS // (wide * lines), 1)
        if blocks <= most:
            return cls(blocks, lines, wide)
        fitting = (d for d in (8, 4, 2) if d <= most and -(-blocks // d) * d <= MOST_PADDED * blocks)
        return cls(next(fitting, 1), lines, wide)

    def count(self, problem: ConvProblem) -> int:
        """Return the steps of one output."""
        return -(-problem.blocks_in // self.deep) * problem.taps // (self.lines * self.wide)


def blocks_of_group(problem: ConvProblem) -> int:
    """Return the blocks of output channels of a group."""
    return problem.channels_out // problem.group // PACK


def why_not_grouped(problem: ConvProblem) -> str | None:
    """Return why a convolution has no groups whose channels are whole blocks, or has three dimensions."""
    if problem.group == 1 or problem.window.rank > 2:
        return "it has one group or three dimensions"
    if problem.channels_in % PACK or problem.channels_out // problem.group % PACK:
        return "its groups share blocks of four channels"
    return None


def facts_of_grouped(problem: ConvProblem) -> Facts:
    """Return the facts by which tuning tables find a problem.

    How a view of channels is aligned decides which kernels on matrix units may compute a group (`one_by_one.py`).
    """
    sizes = {"N": problem.images, "C4": problem.blocks_in, "COUNT": problem.blocks, "GROUP": problem.group}
    found: Facts = {**problem.constants, **sizes, "bias": problem.bias}
    if not (problem.caps.multiplies(HALVES) and problem.read is DType.FLOAT16):
        return found
    of_group = problem.channels_out // problem.group
    lies = ("x", problem.channels_in, problem.read_pieces), ("y", of_group, problem.written_pieces)
    return {**found, **{f"{name}_pieces": False for name, n, whole in lies if whole is not (n % PIECE == 0)}}


def items_of(problem: ConvProblem, tile: GroupedTile) -> int:
    """Return the tiles of the output: the work-items of one slice."""
    *_, height, width = 1, *problem.window.outputs
    pixels = -(-height // tile.rows) * -(-width // tile.columns)
    return problem.images * pixels * problem.blocks // tile.blocks


def legal_tiles(problem: ConvProblem) -> list[GroupedTile]:
    """Return the tiles that divide a group's blocks, are no larger than the image, and leave each slice a step."""
    caps, steps, blocks = problem.caps, StepOfK.of(problem).count(problem), blocks_of_group(problem)
    *_, height, width = 1, *problem.window.outputs
    return [
        t for t in TILES
        if t.rows <= height and t.columns <= width and blocks % t.blocks == 0 and _has_room(caps, t)
        and t.slices <= steps
        # A CPU takes turns with the slices, and its compiler is slow.
        and not (caps.software and t.slices * t.blocks > 1)
    ]


def _has_room(caps: DeviceCaps, tile: GroupedTile) -> bool:
    if tile.slices == 1:
        return True
    sums = (tile.slices - 1) * tile.rows * tile.columns * tile.blocks * SLICED_GROUP * VECTOR_BYTES
    return caps.holds((SLICED_GROUP, tile.slices, 1)) and sums <= caps.local_memory


def vectors_of_step(problem: ConvProblem, step: StepOfK, tile: GroupedTile) -> tuple[int, int]:
    """Return the vectors of four elements that an item loads in a step, of pixels and of weights."""
    window = problem.constants
    rows, columns = (
        len({o * window[f"S{axis}"] + tap * window[f"D{axis}"] for o in range(pixels) for tap in range(taps)})
        for axis, pixels, taps in (("H", tile.rows, step.lines), ("W", tile.columns, step.wide))
    )
    return step.deep * rows * columns, step.deep * PACK * tile.blocks * step.lines * step.wide


def loads_at_once(problem: ConvProblem, step: StepOfK, tile: GroupedTile) -> bool:
    """Tell whether an item loads all of a step before it uses the first."""
    return sum(vectors_of_step(problem, step, tile)) <= AT_ONCE


def microseconds(problem: ConvProblem, tile: GroupedTile) -> float:
    """Return about how long a launch takes: what an item does one after the other, and what a unit loads in all.

    `benchmarks/grouped_tiles.py` compares this with measured times.
    """
    caps, step = problem.caps, StepOfK.of(problem)
    model, own = caps.model, caps.model.of(GroupedFigures)
    pixels, weights = vectors_of_step(problem, step, tile)
    steps = -(-step.count(problem) // tile.slices)
    outputs = tile.rows * tile.columns * tile.blocks
    products = PACK * PACK * outputs * step.deep * step.lines * step.wide
    items = SLICED_GROUP * tile.slices if tile.slices > 1 else SMALL_GROUP
    groups = -(-items_of(problem, tile) * tile.slices // items)
    on_a_unit = -(-groups // caps.likely_units)
    at_once = loads_at_once(problem, step, tile)
    held = weights if at_once else PACK * tile.blocks * step.wide
    registers = min(PACK * outputs + _registers(problem) * (pixels + held) + ADDRESSES, MOST_REGISTERS)
    resident = model.side_by_side(items, registers)
    waves = -(-on_a_unit // max(resident, 1))
    waits = 0 if at_once else step.deep * step.lines
    multiplying = (steps * products + (tile.slices - 1) * outputs) / model.item_products
    waiting = steps * (own.round_us + own.wait_us * waits + (pixels + weights) / own.vectors)
    shared = on_a_unit * items * steps * (pixels + weights) / own.unit_vectors
    return own.start_us + waves * (waiting + multiplying) + shared


def _registers(problem: ConvProblem) -> int:
    """Return the registers of a vector that was loaded: in fp16 two numbers share one."""
    return PACK * problem.read.itemsize // 4


class GroupedConv(Algorithm[ConvProblem, ConvPlan, GroupedTile]):
    """The kernel that loads whole blocks of a group's channels, all of a step at once."""

    name = "conv_grouped"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse weights beyond the range of one argument."""
        if self.name in problem.caps.without:
            return "its self-test failed on this device"
        nbytes = problem.channels_out * problem.channels_in * problem.taps * problem.weights.itemsize
        if nbytes > problem.caps.max_buffer_range:
            return "its weights exceed what one kernel argument may span"
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles by their estimated times, in microseconds."""
        times = {tile: microseconds(problem, tile) for tile in legal_tiles(problem)}
        return [Candidate(tile, times[tile]) for tile in sorted(times, key=times.__getitem__)]

    def launch(self, plan: ConvPlan, tile: GroupedTile) -> None:
        """Launch the kernel."""
        k, p = plan.k, plan.problem
        window, step, total = p.constants, StepOfK.of(p), items_of(p, tile)
        grid, local = k.for_items(total)
        if tile.slices > 1:
            grid = min(-(-total // SLICED_GROUP), k.caps.max_grid[0]), 1, 1
            local = SLICED_GROUP, tile.slices, 1
        ints = {name: window[name] for name in ("IH", "IW", "OH", "OW", "PH", "PW")}
        ints |= {"TILES_H": -(-window["OH"] // tile.rows), "TILES_W": -(-window["OW"] // tile.columns)}
        ints |= {"BLOCKS": p.blocks, "IN_BLOCKS": p.blocks_in, "OUT_BLOCKS": blocks_of_group(p), "TOTAL": total}
        k.launch(
            "conv_grouped",
            reads={"x": plan.x, "w": _packed(plan), **plan.bias_vector()},
            writes={"y": plan.y},
            ints=ints,
            variant={
                **{name.lower(): window[name] for name in ("KH", "KW", "SH", "SW", "DH", "DW")},
                "rows": tile.rows, "columns": tile.columns, "blocks": tile.blocks, "slices": tile.slices,
                "deep": step.deep, "lines": step.lines, "wide": step.wide,
                "ragged": p.blocks_in % step.deep > 0,
                "at_once": loads_at_once(p, step, tile),
            },
            grid=grid, local=local,
        )


def _packed(plan: ConvPlan) -> Tensor:
    """Return the weights as vectors [input channel of a group][tap][block of output channels]."""
    shape = 1, plan.problem.channels_out, plan.problem.channels_in * plan.problem.taps
    return as_image(plan.k, "grouped", plan.weights, shape, Layout.NHWC4)


_TILE = "GroupedTile(rows={}, columns={}, blocks={}, slices={})"
register_family(
    "conv_grouped", "convolutions in groups of whole blocks",
    cases=lambda: (
        conv_with(
            (2, 24, 9, 10), (48, 8, 3, 3), group=3, strides=(2, 1), pads=(1, 0, 1, 2),
            prefer=_TILE.format(2, 2, 2, 2),
        ),
        conv_with(
            (1, 64, 7, 5), (32, 32, 5, 5), group=2, dilations=(1, 2), pads=(2, 4, 2, 4),
            prefer=_TILE.format(1, 2, 1, 8),
        ),
        conv_with((1, 136, 21), (48, 68, 1), group=2, bias=False, prefer=_TILE.format(1, 1, 1, 1)),
    ),
    fallback=DIRECT, forced=on_many_units, seconds=0.45,
)
