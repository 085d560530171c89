"""What a device can do, and its limits: kernels are chosen by it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from weft.kernels.device_model import MODELS, DeviceModel, model_of
from weft.kernels.matrix_shapes import WARPGROUP_HALVES, MatrixShape
from weft.kernels.rates import Rates

Size3 = tuple[int, int, int]
LEAST_ITEMS, LEAST_LOCAL_MEMORY = 64, 16 << 10
"""The least work-items and bytes of a work-group that a device must have: what the smallest tiles need."""
WARPGROUP_MEMORY = 227 << 10
"""Work-group memory that kernels for warpgroups (`WARPGROUP_HALVES`) may use, in bytes; drivers report 48 KiB."""
WARPGROUP_ITEMS = 1024
"""Work-items that a warpgroup kernel may have: it is told how many registers each may use."""


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
    fp16_storage: bool = False
    int8_storage: bool = False
    doubles: bool = False
    """Whether kernels may compute in float64; otherwise they only move it, and convert it between words and f32."""
    channels_last: bool = False
    """Whether images for matrix units lie in NHWC4, not NC4HW4: what these kernels stage at once is then contiguous."""
    matrices: tuple[MatrixShape, ...] = ()
    """The products of matrices that its matrix units compute at once; `multiplies` asks for one."""
    dot8: bool = False
    """Whether one instruction multiplies four pairs of bytes and adds the products."""
    subgroup_sizes: tuple[int, ...] = ()
    """The sizes that subgroups may have, the smallest first; empty if the driver does not tell."""
    shuffles: bool = False
    """Whether work-items whose numbers differ only in the last five bits run as a subgroup and can exchange values."""
    shared_alone: int = 0
    """Bytes of work-group memory from which on a group has a unit to itself, although more would fit; 0: there is no
    such limit."""
    without: frozenset[str] = frozenset()
    """Special kernels and families, by name (`weft.kernels.special`), that failed their tests or are switched off."""
    splits_products: bool = True
    """Whether fp32 products may run on matrix units as split halves; False where tests found them wrong."""
    rounds_products: bool = True
    """Whether compilers round a product and a sum where they are told to; False where tests found them rounded once."""
    resident_groups: int = 0
    """Work-groups of any kernel that surely run at once, so that they may wait for each other; 0: unknown.

    Where fewer run at once, a chain gives up (`weft.kernels.chain.MOST_ROUNDS`), and the run is an error.
    """
    partial_barriers: bool = False
    """Whether a part of a work-group, whole subgroups, can wait for each other while the rest does something else."""
    asynchronous_copies: bool = False
    """Whether kernels copy 16 bytes at a time to work-group memory beside their other work (sm_80)."""
    compute_units: int = 1
    """1 also where the driver does not report it."""
    software: bool = False
    rates: Rates | None = field(default=None, repr=False)
    """What the device was measured to do in a time; None: estimates take it for the card that they were fitted on."""

    @property
    def model(self) -> DeviceModel:
        """Return the figures of this kind of device."""
        kind = "software" if self.software else "gpu"
        return MODELS[kind] if self.rates is None else model_of(kind, self.rates, self._units(MODELS[kind]))

    @property
    def has_many_units(self) -> bool:
        """Tell whether it reports `DeviceModel.many_units` or more; fewer may have few registers each, too."""
        return self.compute_units >= self.model.many_units

    def multiplies(self, shape: MatrixShape) -> bool:
        """Tell whether its matrix units compute products of a shape."""
        return shape in self.matrices

    def without_matrices(self, *shapes: MatrixShape) -> DeviceCaps:
        """Return the capabilities without products of some shapes."""
        return replace(self, matrices=tuple(shape for shape in self.matrices if shape not in shapes))

    def told(self) -> dict[str, object]:
        """Return what a user is told of its units (`DeviceInfo.details`): subgroups, dot products and matrices."""
        return {
            "subgroup sizes": list(self.subgroup_sizes),
            "dot products of 8 bits": self.dot8,
            "matrices": [str(shape) for shape in self.matrices],
        }

    @property
    def has_warpgroups(self) -> bool:
        """Tell whether kernels for warpgroups run, with up to WARPGROUP_MEMORY bytes and WARPGROUP_ITEMS items."""
        return self.multiplies(WARPGROUP_HALVES)

    def holds(self, local: Size3) -> bool:
        """Tell whether a work-group of these sizes is within the limits."""
        within = all(1 <= n <= most for n, most in zip(local, self.max_local_size, strict=True))
        return within and prod(local) <= self.max_local_items

    @property
    def likely_units(self) -> int:
        """Return how many compute units to keep busy: a typical number where the driver does not report it."""
        return self._units(self.model)

    def _units(self, model: DeviceModel) -> int:
        return self.compute_units if self.compute_units > 1 else model.usual_units
