"""The memory of a pipeline's tensors: slots, which the views of one root share (contract M5 to M8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from weft.backends.gpu.device.device import Binding, GpuBuffer
from weft.core.contract.backend import StorageType
from weft.core.contract.lowered import ValueView, root_of
from weft.core.graph.graph import Graph, depths
from weft.core.graph.index_map import IDENTITY, IndexMap
from weft.core.graph.layout import PACK, Layout, storage_size
from weft.core.graph.tensor import Tensor
from weft.core.memory.buffer_manager import BufferManager, Slot
from weft.kernels.template import PLACE

SMALLEST = 16
"""Bytes of the smallest slot: even an empty tensor has an address, and drivers bind no empty range."""

CONSTANT, SCRATCH = "constant", "scratch"
"""The first part of the root of a constant, and of scratch memory."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a tensor will lie: a `Region` of a root that has no memory yet.

    The root of a value is its own name, or that of the value that it is a view of (`ValueView`).
    """

    root: Hashable
    first: int = 0
    blocks: int = 0
    start: int = 0
    length: int = 0
    places: IndexMap = IDENTITY

    @classmethod
    def of(cls, name: str, views: Mapping[str, ValueView]) -> Spot:
        """Return where a value will lie."""
        view = views.get(name)
        return cls(name) if view is None else cls(view.root, view.first, view.blocks, places=view.places)

    @classmethod
    def of_constant(cls, key: str) -> Spot:
        """Return where a constant of that key will lie, which its node made."""
        return cls((CONSTANT, key))

    @classmethod
    def of_scratch(cls, number: int) -> Spot:
        """Return where scratch memory of that number will lie, which its node asked for."""
        return cls((SCRATCH, number))

    @property
    def is_constant(self) -> bool:
        """Tell whether a constant will lie there."""
        return isinstance(self.root, tuple) and self.root[0] == CONSTANT

    def on(self, slot: Slot) -> Region:
        """Return the region at this spot, once the root has a slot."""
        return Region(slot, self.first, self.blocks, self.start, self.length, self.places)


@dataclass(eq=False, slots=True)
class Region:
    """The memory of one tensor: a slot, or some channel blocks of one (`first` of `blocks`; 0: all of it).

    For some images of a batch: `length` bytes from byte `start` on, with all channel blocks; 0 is the whole slot.
    `places` says where its elements lie in the slot.
    """

    slot: Slot
    first: int = 0
    blocks: int = 0
    start: int = 0
    length: int = 0
    places: IndexMap = IDENTITY

    @property
    def spot(self) -> Spot:
        """Return the region as a spot, for planning."""
        return Spot(self.slot, self.first, self.blocks, self.start, self.length, self.places)

    def binding(self) -> Binding:
        """Return the bytes of the whole slot, or of these images; valid only after the plan is made."""
        return Binding(self.slot.buffer, self.slot.offset + self.start, self.length or self.slot.nbytes)


def is_packed(tensor: Tensor) -> bool:
    """Tell whether kernels access the tensor in blocks of four channels; a tensor without channels is linear."""
    return tensor.layout.packed and len(tensor.shape) >= 2


def touched(tensor: Tensor, bound: Binding | None = None) -> Binding:
    """Return the bytes of the tensor's slot, and which of its channel blocks belong to the tensor.

    `bound` is what the tensor is bound to, if that is known.
    """
    region: Region = tensor.memory
    whole = region.binding() if bound is None else bound
    if not region.blocks:
        return whole
    return replace(whole, blocks=(region.first, region.first + -(-tensor.shape[1] // PACK)))


@dataclass
class Slots:
    """Gives the tensors of one pipeline their regions; a slot shared by views lives from the first to the last of them.

    There may be a time between when none of them is in use: parts of a value that were copied may be joined again, and
    what joins them lies in the value itself.
    Nodes of one dependency level run in parallel, so slots that die in a level, and scratch, are released after it.
    Levels that run on micro-batches run repeatedly, so slots that die in them are released after all of them.
    """

    manager: BufferManager
    views: Mapping[str, ValueView] = field(default_factory=dict)
    _root_bytes: dict[str, int] = field(default_factory=dict)
    _sharers: Mapping[str, int] = field(default_factory=dict)
    """How many values lie in the slot of a root, itself included."""
    _roots: dict[str, tuple[Slot, int]] = field(default_factory=dict)
    """The slots of roots, and how many of their values were not released yet, whether they are acquired or will be."""
    _depth: dict[str, int] = field(default_factory=dict)
    _held: int = -1
    """The last level that runs on micro-batches."""
    _level: int = 0
    _dying: list[Slot] = field(default_factory=list)

    def follow(self, graph: Graph, views: Mapping[str, ValueView], last_divided: int = -1) -> None:
        """Set the values, views and levels of a rewritten network, and the last level that runs on micro-batches."""
        self.views, self._depth, self._held = views, depths(graph), last_divided
        self._root_bytes = {v.root: value_bytes(graph, v.root) for v in views.values()}
        inside = Counter(v.root for v in views.values())
        self._sharers = {root: 1 + count for root, count in inside.items()}

    def begin(self) -> None:
        """Begin a plan."""
        self._level = 0
        self.manager.begin()

    def root_name(self, tensor: Tensor) -> str:
        """Return the name of the value whose memory holds the tensor."""
        return root_of(self.views, tensor.name)

    def acquire(self, tensor: Tensor, storage: StorageType) -> Region:
        """Return a region for the tensor."""
        if self._depth.get(tensor.name, self._level) != self._level:
            self._level = self._depth[tensor.name]
            if self._level > self._held:
                self.bury()
        view = self.views.get(tensor.name)
        root = self.root_name(tensor)
        if storage.stays or root not in self._root_bytes:
            return Region(self.manager.acquire(max(tensor.nbytes, SMALLEST), storage))
        if root not in self._roots:
            slot = self.manager.acquire(max(self._root_bytes[root], SMALLEST), storage)
            self._roots[root] = slot, self._sharers[root]
        slot, _ = self._roots[root]
        return Region(slot) if view is None else Region(slot, view.first, view.blocks, places=view.places)

    def adopt(self, tensor: Tensor, source: Tensor) -> bool:
        """Let a tensor and its views use the memory of a tensor of another object.

        False if one of them is part of another value's memory. An output that lies in an input which has the source's
        memory is not.
        """
        region: Region = source.memory
        root = self.root_name(tensor)
        if root != tensor.name and self.views[tensor.name] == ValueView(root):
            held = self._roots.get(root)
            if held is not None and held[0] is region.slot:
                tensor.memory = Region(region.slot)
                return True
        if root != tensor.name or region.blocks or not region.places.is_identity:
            return False
        if tensor.name in self._root_bytes:
            self._roots[tensor.name] = region.slot, self._sharers[tensor.name]
        tensor.memory = Region(region.slot)
        return True

    def is_whole(self, tensor: Tensor) -> bool:
        """Tell whether the tensor fills its slot and is not a view of another tensor's memory."""
        region: Region = tensor.memory
        return (
            self.root_name(tensor) == tensor.name
            and not region.blocks
            and region.slot.nbytes <= _room(tensor)
        )

    def settle(self, tensor: Tensor, buffer: GpuBuffer) -> None:
        """Place a tensor that `is_whole`, and its views, in a buffer of at least its size."""
        region: Region = tensor.memory
        self.manager.place(region.slot, buffer)

    def release(self, tensor: Tensor, storage: StorageType) -> None:
        """Release a region; the slot is released with its last view."""
        region: Region = tensor.memory
        root = self.root_name(tensor)
        if not storage.stays and root in self._roots:
            slot, left = self._roots[root]
            self._roots[root] = slot, left - 1
            if left > 1:
                return
        after_level = storage is StorageType.DYNAMIC and self._depth
        if after_level or (not storage.stays and self._level <= self._held):
            self._dying.append(region.slot)
        else:
            self.manager.release(region.slot)

    def bury(self) -> None:
        """Release the slots that died in the previous level."""
        for slot in self._dying:
            self.manager.release(slot)
        self._dying = []

    def allocate(self) -> None:
        """Make the plan."""
        self.bury()
        self.manager.allocate()

    def clear(self) -> None:
        """Free everything except STATIC memory."""
        self.manager.clear()
        self._roots.clear()
        self._dying = []


def _room(tensor: Tensor) -> int:
    return max(tensor.nbytes, SMALLEST)


def value_bytes(graph: Graph, name: str) -> int:
    """Return the bytes that a value of a graph takes in its layout."""
    spec = graph.specs[name]
    return storage_size(spec.dims, graph.layouts.get(name, Layout.NCHW)) * spec.dtype.itemsize


def place_constants(tensor: Tensor, name: str) -> Mapping[str, int]:
    """Return the constants by which a kernel addresses a c4 argument, in the order of `template.PLACE`."""
    region: Region | Spot = tensor.memory
    _, c, *rest = tensor.shape
    places, blocks = prod(rest), region.blocks or -(-c // PACK)
    block_step, pixel_step = (1, blocks) if tensor.layout is Layout.NHWC4 else (places, 1)
    values = (blocks * places, block_step, pixel_step, region.first * block_step, c)
    return {f"{name}_{part}": value for part, value in zip(PLACE, values, strict=True)}
