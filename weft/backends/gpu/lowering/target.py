"""What a part of a network is lowered for: an open device and the user's configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.device.kernel_builds import Builds
from weft.backends.gpu.device.varying import sizes_of
from weft.backends.gpu.lowering.layout.layouts import IsCustom, packed_layout, splits_products
from weft.backends.gpu.lowering.rewrites.store_quantised import stores_integers
from weft.backends.gpu.recording.launches import PlannedLaunch
from weft.backends.gpu.tuning_tables.tuning_table import TuningTable
from weft.core.contract.session_config import BackendConfig, MemoryMode
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import FUSED_STEPS, INDEX_MAPS, SCALARS
from weft.kernels.verdict import Verdicts


@dataclass(frozen=True)
class Target:
    """What launches are planned for: an open device and the user's configuration."""

    device: GpuDevice
    tuning: TuningTable | None = None
    """The table that decides the choices that ops leave open; None: their defaults."""
    config: BackendConfig = field(default_factory=BackendConfig)
    is_custom: IsCustom = lambda op: False
    profiled: bool = False
    """Whether each run takes the device's times."""
    builds: Builds | None = field(default=None, compare=False)
    """Builds kernels while later nodes are planned; None: kernels are built when they are bound."""
    chains: bool = False
    """Whether small launches may share one (`weft.backends.gpu.lowering.launches.chains`)."""
    verdicts: Verdicts | None = field(default=None, compare=False)
    """Which kernels are to be tested before they are built; None: none."""
    general: bool = False
    """Whether kernels are to be few rather than fast."""
    watch: Callable[[Sequence[PlannedLaunch]], None] | None = field(default=None, compare=False)
    """Is shown the launches of each node as they are planned; what it raises ends the planning."""

    @property
    def caps(self) -> DeviceCaps:
        """Return what the device can do."""
        return self.device.caps

    @property
    def maps_indices(self) -> bool:
        """Tell whether kernels may load and store through index maps."""
        return INDEX_MAPS not in self.device.caps.without

    @property
    def steps_are_right(self) -> bool:
        """Tell whether kernels compute fused steps, and scalars in them, as the nodes say."""
        return self.device.caps.without.isdisjoint({FUSED_STEPS, SCALARS})

    @property
    def fusing(self) -> bool:
        """Tell whether kernels may compute what other nodes compute: the user allows it, and it is right here."""
        return self.config.fusing and self.steps_are_right

    @property
    def split_products(self) -> bool:
        """Tell whether matrix units may multiply fp32 as sums of halves."""
        return splits_products(self.device.caps, self.config.precision)

    @property
    def packed_layout(self) -> Layout:
        """Return the layout of packed images."""
        return packed_layout(self.device.caps, self.config.precision)

    def layout_of(self, graph: Graph) -> Layout:
        """Return the layout of packed images of a part: those of integers lie as for matrix units at any precision."""
        rounded = self.caps.channels_last and self.caps.dot8 and stores_integers(graph)
        return Layout.NHWC4 if rounded else self.packed_layout

    @property
    def thrifty(self) -> bool:
        """Tell whether memory is short."""
        return self.config.memory is MemoryMode.LIMIT

    def forms_chains(self, graph: Graph) -> bool:
        """Tell whether small launches share one: not where sizes change, for a chain's kernel knows them all."""
        changes = self.builds is not None and self.builds.sizes_change(sizes_of(graph))
        return self.chains and self.device.caps.resident_groups > 0 and not changes

    def earlier(self, graph: Graph) -> Callable[[str], frozenset[str]] | None:
        """Return what tells, of a choice, the candidates of earlier shapes; None at the first one.

        Kernels are then few rather than the fastest for each size.
        """
        if self.builds is None or not self.builds.sizes_change(sizes_of(graph)):
            return None
        return self.builds.taken

    @property
    def begins_early(self) -> bool:
        """Tell whether the first nodes may run on micro-batches."""
        return self.device.computes_ahead and not self.thrifty and not self.profiled
