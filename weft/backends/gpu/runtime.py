"""What the sessions on one device share: the open device, the pool of STATIC memory, verdicts and tuned choices."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from weft.backends.gpu.device.built_kernels import KERNELS_KEPT
from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.device.varying import Varying
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.memory.node_constants import NodeConstants
from weft.backends.gpu.memory.static_pool import StaticPool
from weft.backends.gpu.recording.submissions import LONGEST
from weft.backends.gpu.tuning_tables.tuning_table import TuningTable
from weft.core.contract.backend import SameNodes
from weft.core.contract.backend_options import NO_OPTIONS, Options
from weft.kernels.verdict import Verdicts

SUBMIT_SECONDS = "submit_seconds"
"""The option that sets `GpuRuntime.longest_submission`."""


@dataclass
class GpuRuntime:
    """An open device, and what its sessions share."""

    device: GpuDevice
    options: Options = NO_OPTIONS
    """The options that the device was opened with."""
    heap: DeviceHeap = field(init=False)
    static: StaticPool = field(init=False)
    notes: list[str] = field(default_factory=list)
    """Notes for every report on the device."""
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """The users that keep the device open: open backends, and leases of backends being made."""
    closed: bool = False
    left: Callable[[], None] = lambda: None
    """Called when a user has left: the creator closes a device that was opened for a while."""
    chains: bool = field(init=False)
    """Whether launches may share one: the option says so, and no chain of a session has given up."""
    rates_recalled: bool = False
    """Whether it is decided by which rates kernels are chosen; `weft.backends.gpu.tuning.rate_store` does that."""
    stop_measuring: Callable[[], object] = lambda: None
    """Ends the thread that measures the device, if one does; called before it is closed."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    """The verdicts of the self-test; `weft.backends.gpu.selftest.verdict_store` finds them."""

    def __post_init__(self) -> None:
        self.chains = bool(self.options.get("chains", True))
        pretended = self.device.profile.memory if self.device.profile is not None else 0
        self.heap = DeviceHeap(self.device, int(self.options.get("memory_limit", 0)), pretended)
        self.static = StaticPool(self.heap)
        self.device.hold_kernels(int(self.options.get("kernels_kept", KERNELS_KEPT)))
        if self.device.profile is not None:
            self.notes.append(f"the device pretends to be another: {self.device.profile}")
        self.notes += self.device.remarks

    _varying: weakref.WeakKeyDictionary[SameNodes, Varying] = field(default_factory=weakref.WeakKeyDictionary)

    def varying(self, nodes: SameNodes | None) -> Varying:
        """Return what is known of how the shapes of nodes vary that several pipelines run; nothing yet for None."""
        return Varying() if nodes is None else self._varying.setdefault(nodes, Varying())

    _constants: weakref.WeakKeyDictionary[SameNodes, NodeConstants] = field(default_factory=weakref.WeakKeyDictionary)

    def constants(self, nodes: SameNodes | None) -> NodeConstants:
        """Return the constants of nodes that several pipelines run; none yet for None."""
        return NodeConstants() if nodes is None else self._constants.setdefault(nodes, NodeConstants())

    @property
    def longest_submission(self) -> float:
        """Return about the most seconds of a submission; 0: no limit, as on a CPU, which has no watchdog."""
        given = float(self.options.get(SUBMIT_SECONDS, -1.0))
        return given if given >= 0 else 0.0 if self.device.info.software else LONGEST

    @property
    def general(self) -> bool:
        """Tell whether networks get few, general kernels, which read their sizes when they run."""
        return bool(self.options.get("general", False))

    def trust(self) -> None:
        """Use whatever the hardware claims, without a self-test."""
        self.verdicts.known = self.verdicts.recalled = True

    @cached_property
    def tuning(self) -> TuningTable:
        """Return the tuning table of the device."""
        info = replace(self.device.info, id=self.device.tuned_as or self.device.info.id)
        return TuningTable(info, proposes=bool(self.options.get("tuning", True)))

    def close(self) -> None:
        """Close the device."""
        self.closed = True
        self.stop_measuring()
        self.device.close()
        self.heap.close()


@runtime_checkable
class OpensRuntimes(Protocol):
    """A creator that opens each device as a `GpuRuntime`, as `GpuCreator` does."""

    def runtime(self, index: int, options: Options = NO_OPTIONS) -> GpuRuntime:
        """Return the runtime of a device with these options."""
        ...
