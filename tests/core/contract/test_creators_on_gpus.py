"""M4 on the GPU backends: a creator takes one op of one API, and leaves the rest alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

import weft
from tests.helpers.convolutions import convolution
from tests.helpers.nets import feeds
from weft.backends.opencl.backend import OpenCLBackend
from weft.backends.vulkan.backend import VulkanBackend
from weft.core.graph.tensor import Tensor

BACKENDS = {"opencl": OpenCLBackend, "vulkan": VulkanBackend}
Tensors = Sequence[Tensor | None]


class NotingRelu(weft.Execution):
    """Stand in for Relu and note that it ran; its output is not looked at."""

    ran: ClassVar[list[str]] = []

    def __init__(self, inputs: Tensors, outputs: Sequence[Tensor], op: Any, backend: weft.Backend) -> None:
        self.backend = backend

    def onResize(self, inputs: Tensors, outputs: Sequence[Tensor]) -> None:
        """Prepare nothing."""

    def onExecute(self, inputs: Tensors, outputs: Sequence[Tensor]) -> None:
        """Note that it ran."""
        NotingRelu.ran.append(self.backend.info.id)


@pytest.fixture(params=BACKENDS)
def special(request: pytest.FixtureRequest) -> Iterator[str]:
    backend = BACKENDS[request.param]
    backend.creator("Relu")(NotingRelu)
    NotingRelu.ran.clear()
    yield request.param
    backend._creators.pop("Relu")


def test_M4_a_creator_on_one_gpu_backend_is_used_there_and_nowhere_else(special: str) -> None:
    other = next(name for name in BACKENDS if name != special)
    graph = convolution(1, 3, 5, 6, 3, 1, 1)
    with weft.load(graph, device=special, fallback="error") as session:
        session.run(feeds(graph))
        assert NotingRelu.ran == [special]
        assert "relu" in session.report.placement, "nothing fuses an op that has a creator of its own"
    with weft.load(graph, device=other, fallback="error") as session:
        got = session.run(feeds(graph))[0]
        assert NotingRelu.ran == [special]
    want = weft.load(graph, device="cpu").run(feeds(graph))[0]
    np.testing.assert_allclose(got, want, 1e-4, 1e-4)
