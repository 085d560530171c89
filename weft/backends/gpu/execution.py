"""The execution of a node on a GPU: its launches, made at each resize, and its constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.device.kernel_builds import Builds
from weft.backends.gpu.lowering.launch_builder import NodeBuilder, PlannedLaunch
from weft.backends.gpu.lowering.layouts import base_inputs, base_op
from weft.backends.gpu.memory.slots import Placement
from weft.backends.gpu.recording.batch_split import part_of
from weft.backends.gpu.recording.recording import PipelineRecording
from weft.backends.gpu.tuning.tunables import Choices, Pick
from weft.backends.gpu.tuning.tuning_table import NodeChoices, TuningTable
from weft.core.contract.backend import Recorded, StorageType
from weft.core.contract.profile import Work
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout, to_storage
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import find_gpu_op


@dataclass(frozen=True, slots=True)
class Workplace:
    """What the executions of one pipeline work with; they do not know the backend object."""

    device: GpuDevice
    placement: Placement
    recording: PipelineRecording
    builds: Builds
    tuning: TuningTable | None = None
    """What decides where ops leave something open; None: their defaults."""
    split_products: bool = False
    """See `KernelBuilder.split_products`."""
    thrifty: bool = False
    """See `KernelBuilder.thrifty`."""
    winograd: bool = True
    """See `KernelBuilder.winograd`."""


class GpuExecution(Recorded):
    """A node whose launches become part of the backend's recording."""

    any_shape = True

    def __init__(self, op: Op, place: Workplace, label: str) -> None:
        self.op, self.label = op, label
        self._place = place
        self._constants: dict[str, Tensor] = {}
        self._used: set[str] = set()
        self.picks: list[Pick] = []
        """What the op left to tuning at the last resize."""
        self.planned: tuple[Sequence[Tensor | None], Sequence[Tensor]] = ((), ())
        """The inputs and outputs that these are about: some images, for a node that runs on parts of the batch."""

    @property
    def split_products(self) -> bool:
        """Return what the op's `KernelBuilder` says of that."""
        return self._place.split_products

    def onResize(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Choose and render the kernels, have them built, and hand their launches to the backend."""
        self._used.clear()
        self._place.builds.add(self.label, [launch.build for launch in self._planned(inputs, outputs)])
        if self._place.recording.profiling is not None:
            self._place.recording.work[self.label] = Work.of(self.label, self.op, inputs, outputs)
        self._place.recording.tuned += sum(len(pick.launches) for pick in self.picks if pick.made)
        for key in self._constants.keys() - self._used:
            self._place.placement.release(self._constants.pop(key), StorageType.STATIC)

    def _planned(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> list[PlannedLaunch]:
        """Return the launches, which the recording has now: those of a node of the front once for each part."""
        recording = self._place.recording
        front = recording.front
        if self.label not in front.nodes:
            self.planned = inputs, outputs
            launches = self.launches(inputs, outputs)
            recording.launches += launches
            return launches
        every, picks = list[PlannedLaunch](), list[Pick]()
        for part in range(front.parts):
            some = [t if t is None or t.constant is not None else part_of(t, part, front.parts) for t in inputs]
            self.planned = some, [part_of(t, part, front.parts) for t in outputs]
            launches = self.launches(*self.planned)
            recording.ahead.setdefault(part, []).extend(launches)
            every, picks = every + launches, picks + self.picks
        self.picks = picks
        return every

    def launches(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> list[PlannedLaunch]:
        """Return the launches for these shapes; a choice whose kernels changed since it was tuned is not taken."""
        choices = NodeChoices(self._place.tuning) if self._place.tuning is not None else None
        builder = self.plan(inputs, outputs, choices)
        while choices is not None and not choices.stand(builder.picks):
            self._used.clear()
            builder = self.plan(inputs, outputs, choices)
        self.picks = builder.picks
        return builder.launched

    def plan(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], choices: Choices | None
    ) -> NodeBuilder:
        """Return the node's launches and picks, with its constants uploaded; nothing is built yet."""
        form = find_gpu_op(self.op)
        assert form is not None
        place = self._place
        builder = NodeBuilder(
            place.device, place.placement, self.op, self.label, inputs, self.constant, choices,
            place.split_products, place.thrifty, place.winograd,
        )  # fmt: skip
        form.launches(base_op(self.op), builder, base_inputs(self.op, inputs), outputs)
        for scratch in builder.scratches:
            place.placement.release(scratch, StorageType.DYNAMIC)
        return builder

    def constant(self, key: str, make: Callable[[], Array], layout: Layout) -> Tensor:
        """Return the uploaded constant of that key; one that a resize does not ask for is freed after it."""
        key = f"{key}.{layout.value}"
        self._used.add(key)
        if key not in self._constants:
            value = make()
            tensor = Tensor(f"{self.label}.{key}", value.shape, DType.of(value.dtype), layout)
            region = self._place.placement.acquire(tensor, StorageType.STATIC)
            self._place.device.upload(region.slot.buffer, region.slot.offset, to_storage(value, layout))
            tensor.memory = region
            self._constants[key] = tensor
        return self._constants[key]

    def close(self) -> None:
        """Free the constants."""
        for tensor in self._constants.values():
            self._place.placement.release(tensor, StorageType.STATIC)
        self._constants = {}
