"""Convolutions of many small images on the CPU: images share calls of numpy, and no image changes another's numbers."""

from __future__ import annotations

import sys
from types import FrameType

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.graph import Graph
from weft.ops.conv import CACHE_BYTES, Conv


def convolution(images: int, group: int) -> Graph:
    net = Net()
    weights = np.random.default_rng(0).standard_normal((6, 6 // group, 3, 3)).astype(np.float32)
    x = net.input("x", images, 6, 3, 2)
    net.graph.outputs = [net.add(Conv(pads=(1, 1, 1, 1), group=group), x, net.constant(weights))]
    return net.graph


@pytest.mark.parametrize("group", [1, 2])
def test_each_image_is_as_if_it_were_alone(group: int) -> None:
    patches = 6 * 9 * 6 * 4
    images = 2 * (CACHE_BYTES // patches) + 3
    x = np.random.default_rng(1).standard_normal((images, 6, 3, 2)).astype(np.float32)
    with weft.load(convolution(images, group), "cpu") as together, weft.load(convolution(1, group), "cpu") as alone:
        (y,) = together.run(x)
        for k in (0, CACHE_BYTES // patches - 1, CACHE_BYTES // patches, images - 1):
            np.testing.assert_array_equal(y[k], alone.run(x[k : k + 1])[0][0])


def test_a_run_does_not_call_once_an_image() -> None:
    """Twenty times the images take less than twice the calls of Python functions."""

    def calls(images: int) -> int:
        with weft.load(convolution(images, 1), "cpu") as session:
            x = np.ones((images, 6, 3, 2), np.float32)
            session.run(x)
            count = 0

            def seen(frame: FrameType, event: str, argument: object) -> None:
                nonlocal count
                count += event == "call"

            sys.setprofile(seen)
            try:
                session.run(x)
            finally:
                sys.setprofile(None)
            return count

    assert calls(1000) < 2 * calls(50)
