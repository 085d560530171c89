"""Find the first nodes of a network that should run on micro-batches, while the host copies the rest of the batch.

Copying a large input can take as long as the network itself. Nodes that treat each image by itself need not wait for
all of it: they are recorded once for each micro-batch, and each recording is submitted when its images are there.
Deeper nodes have too few pixels in a micro-batch to fill the device, so they run on the whole batch. So do nodes behind
others that take as long for a micro-batch as the copy of the rest (`cover_the_copy`): to divide them hides no more, and
each kernel leaves units idle at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.lowering.layout.layouts import IsCustom, base_op
from weft.backends.gpu.memory.slots import Region, Spot, value_bytes
from weft.backends.gpu.recording.chunked_upload import least
from weft.backends.gpu.recording.micro_batches import WHOLE_BATCH, MicroBatches
from weft.core.contract.lowered import ValueView, root_of
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Node, depths
from weft.core.graph.layout import PACK
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.device_model import AlgorithmFigures, amount_by
from weft.kernels.gpu_op import find_gpu_op
from weft.ops.concat import Concat
from weft.ops.elementwise import Elementwise

COUNT = 2
"""Micro-batches of a batch: more of them hide more of the copy, but each costs a launch for every node that runs on it.
Four were as fast as two on Vulkan and slower on OpenCL (benchmarks/NOTES.md)."""
LEAST_IMAGES = 2
"""Least images of a micro-batch."""


@dataclass(frozen=True)
class MicroBatchFigures(AlgorithmFigures, section="micro_batches"):
    """When a micro-batch is enough work."""

    pixels: int
    """A micro-batch must have at least so many pixels for each unit."""
    copied: float = field(metadata=amount_by("uploads"))
    """Bytes of an input that reach the device in a microsecond for sure, the host's copy and conversion included."""


def find_micro_batches(
    graph: Graph, views: Mapping[str, ValueView], is_custom: IsCustom, device: GpuDevice
) -> MicroBatches:
    """Return which nodes should run on micro-batches, of a part of the network whose layouts are assigned.

    `graph.nodes` are in the order of their depths.
    """
    if len(graph.inputs) != 1 or value_bytes(graph, graph.inputs[0]) < least(device):
        return WHOLE_BATCH
    dims = graph.specs[graph.inputs[0]].dims
    images = dims[0] if len(dims) > 2 else 0
    if images % COUNT or images < COUNT * LEAST_IMAGES:
        return WHOLE_BATCH
    finder = _Finder(graph, frozenset(graph.outputs), views, is_custom, device, images, COUNT)
    depth, nodes = depths(graph), list[str]()
    last = 0
    for level, found in groupby(graph.nodes, key=lambda node: depth[node.outputs[0]]):
        here = list(found)
        if not all(map(finder.belongs, here)):
            break
        last = level
        nodes += [node.outputs[0] for node in here]
    return MicroBatches(graph.inputs[0], COUNT, last, frozenset(nodes)) if nodes else WHOLE_BATCH


def cover_the_copy(micro_batches: MicroBatches, graph: Graph, us: float, device: GpuDevice) -> bool:
    """Tell whether nodes that take so many microseconds for one micro-batch hide the copy of all others."""
    nbytes, count = value_bytes(graph, micro_batches.input), micro_batches.count
    return us * device.caps.model.of(MicroBatchFigures).copied >= nbytes * (count - 1) / count


@dataclass(frozen=True)
class _Finder:
    graph: Graph
    results: frozenset[str]
    views: Mapping[str, ValueView]
    is_custom: IsCustom
    device: GpuDevice
    images: int
    count: int

    def belongs(self, node: Node) -> bool:
        """Tell whether a node treats each image by itself, and a micro-batch of its output fills the device."""
        base, specs, constants = base_op(node.op), self.graph.specs, self.graph.constants
        if not (base.by_image or _is_joint(base)) or self.is_custom(node.op) or find_gpu_op(node.op) is None:
            return False
        outputs = [o for o in node.outputs if o]
        values = [i for i in node.inputs if i and i not in constants] + outputs
        # A run may have callers' memory for its results; what runs before it is bound to the session's own.
        if any(root_of(self.views, o) in self.results for o in outputs) or not all(map(self._divides, values)):
            return False
        rank = len(specs[outputs[0]].dims)
        weights = self._weights(node)
        if any(i and i not in constants for i in node.inputs[1:weights]):
            return False  # a kernel needs all of computed weights, even if they have as many rows as there are images
        operands = (constants[i] for i in node.inputs[weights:] if i in constants)
        if any(c.ndim >= rank and c.shape[0] != 1 for c in operands):
            return False  # a constant for each image
        pixels = prod(specs[outputs[0]].dims[2:]) * self.images // self.count
        return pixels >= self.device.caps.model.of(MicroBatchFigures).pixels * self.device.caps.likely_units

    def _weights(self, node: Node) -> int:
        """Return how many of the first inputs are the image and weights; what follows has the layout of the values."""
        if _is_joint(base_op(node.op)):
            return 0
        return node.op.arity if isinstance(node.op, Fused) else len(node.inputs)

    def _divides(self, name: str) -> bool:
        """Tell whether the micro-batches of a value begin at offsets that can be bound to kernels."""
        view, root = self.views.get(name), root_of(self.views, name)
        if view is not None and not view.places.is_identity:
            return False
        dims = self.graph.specs[name].dims, self.graph.specs[root].dims
        if any(len(d) < 2 or d[0] != self.images for d in dims):
            return False
        return value_bytes(self.graph, root) // self.count % self.device.caps.offset_alignment == 0


def _is_joint(op: Op) -> bool:
    """Tell whether image i of the result follows from image i of every input that has images."""
    return isinstance(op, Elementwise) or (isinstance(op, Concat) and op.axis == 1)


def micro_batch_of(tensor: Tensor, number: int, count: int) -> Tensor:
    """Return the images of a tensor in micro-batch `number` of `count`, as a tensor in the same memory."""
    region: Region | Spot = tensor.memory
    images = tensor.shape[0] // count
    if region.blocks:
        size = images * region.blocks * PACK * prod(tensor.shape[2:]) * tensor.dtype.itemsize
    else:
        size = tensor.nbytes // count
    memory = replace(region, start=number * size, length=size)
    return replace(tensor, shape=(images, *tensor.shape[1:]), memory=memory)
