"""Which constants of a pipeline's kernels change with its shapes.

The first shape gets kernels in which every constant is known, so a network of one shape runs as fast as it can. When
the shape changes, kernels read the constants that its open dimensions change, and hardly more, when they run
(`GpuDevice.compile_for_shapes`). Shapes that follow need no new kernels.

What changes shows when the launches of two shapes are compared. One dimension may be alike in both, so a session also
plans one in which every open dimension has another size, at the first new shape (`GpuPipeline.show`).

What is known holds for the nodes of one network, and is shared by the pipelines that run the same nodes for other sizes
(`SameNodes`). Other networks on the device do not share it: one that never changes its shape would get slower kernels
because another one did, and how fast it is would depend on what was loaded before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from weft.core.graph.graph import Graph
from weft.kernels.source import KernelSource

Values = Mapping[str, int | float]
Sizes = tuple[tuple[int | str, ...], ...]
"""The shapes of a part's inputs."""
NONE: frozenset[str] = frozenset()


def sizes_of(graph: Graph) -> Sizes:
    """Return the shapes of a part's inputs."""
    return tuple(graph.specs[name].shape for name in graph.inputs)


class LaunchLike(Protocol):
    """A launch that is planned, as `PlannedLaunch` is."""

    @property
    def label(self) -> str:
        """Return what tells the launch from others of its network: its node, and the template."""
        ...

    @property
    def source(self) -> KernelSource:
        """Return the kernel."""
        ...

    @property
    def values(self) -> Values:
        """Return its constants."""
        ...


class Varying:
    """The names of constants that differed between two shapes at one launch, by the template of the kernel.

    Other kernels of the template have those constants, too: a layer that gets another tile at a new shape needs no
    two shapes more to show what varies.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Values] = {}
        """The constants of the last shape, by label; launches with one label are numbered."""
        self._names: dict[str, frozenset[str]] = {}
        self._taken: dict[str, frozenset[str]] = {}
        """The candidates that were taken at any shape, by what tells a choice from others (`Builds.took`)."""
        self._sizes: Sizes | None = None
        self._change = False

    @property
    def knows_a_shape(self) -> bool:
        """Tell whether the launches of a shape were noted."""
        return bool(self._last)

    def knows_others(self, sizes: Sizes) -> bool:
        """Tell whether the launches of other sizes were noted; the same sizes come again in other types."""
        return self._change or self._sizes not in (None, sizes)

    def note(self, launches: Iterable[LaunchLike], sizes: Sizes) -> None:
        """Compare the launches of a shape with the launches of the last one, before any kernel is built for it.

        These may be of one pipeline of several, each of which has its own labels. A constant that a launch did not have
        at the last shape, such as the size of an axis that a batch of one lacks, counts as one that differs.
        """
        self._change = self.knows_others(sizes)
        self._sizes = sizes
        counts = dict[str, int]()
        for launch in launches:
            number = counts[launch.label] = counts.get(launch.label, -1) + 1
            key, values = (launch.label, number), launch.values
            before = self._last.get(key, values)
            self._last[key] = values
            if before != values:
                names = {name for name, value in values.items() if before.get(name) != value}
                template = launch.source.entry
                self._names[template] = self._names.get(template, NONE) | names

    def took(self, choice: str, candidate: str) -> None:
        """Note which candidate was taken for a choice."""
        self._taken[choice] = self._taken.get(choice, NONE) | {candidate}

    def taken(self, choice: str) -> frozenset[str]:
        """Return the candidates that were taken for a choice at the shapes so far: their kernels exist already."""
        return self._taken.get(choice, NONE)

    def of(self, source: KernelSource) -> frozenset[str]:
        """Return the constants of a kernel that vary; none while there was one shape.

        If any do, so do all by which items walk through the work: kernels are hardly faster for knowing them, small
        shapes may have the same by chance, such as one tile, and layers that differ in them share a kernel.
        """
        names = self._names.get(source.entry, NONE)
        return names | source.walk if names else NONE
