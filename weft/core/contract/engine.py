"""What Weft's own backends do beyond the contract: they lower whole parts, and run them in pipelines of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weft.core.contract.backend import Backend
from weft.core.contract.lowered import Lowered
from weft.core.graph.graph import Graph

if TYPE_CHECKING:
    from weft.core.session.pipeline import Pipeline


class Engine(Backend):
    """A backend that decides for a whole part at once how it runs; a plug-in is a `Backend`, which gets node by node.

    It has all callbacks of the contract as well, so that executions of users, memory that others import, and the
    conformance kit meet nothing else.
    """

    pipeline_type: ClassVar[type[Pipeline]]
    """The class of the pipelines in which it runs."""

    def why_later(self) -> str:
        """Return why any part can only run later, as `TakesLong` says of one; "" by default, and once it was said."""
        return ""

    def lower(self, graph: Graph) -> Lowered | None:
        """Return the part as it will run: layouts, views and launches; None, as by default, if it runs as it is.

        The last step of optimising, done anew for each shape; the graph is a copy. Inputs and outputs keep their names,
        shapes, types and the NCHW layout. The object that is asked need not be the one that runs the part, which gets
        what is returned here in `onLowered`.
        """
        return None

    def onLowered(self, lowered: Lowered) -> None:
        """Take over what `lower` made of the part that this object runs, before its executions are made."""
        return None
