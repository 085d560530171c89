"""A detector in the manner of YOLOv8n, of our own: the same kinds of layers, in about the same sizes.

Convolutions with SiLU, stages whose blocks split, add and concatenate, pyramid pooling, a neck that goes up and down by
nearest-neighbour resizes, and heads for boxes and classes at three scales. It returns raw scores, one row a place.
"""

from __future__ import annotations

import torch
from torch import nn

CLASSES, BINS = 80, 16
"""Classes, and the bins of the distribution over each side of a box."""


def conv(inner: int, outer: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch norm and SiLU."""
    layer = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outer), nn.SiLU())


class Split(nn.Module):
    """A stage: halves of the channels, of which one goes through blocks; all that came by is joined."""

    def __init__(self, inner: int, outer: int, blocks: int, residual: bool) -> None:
        super().__init__()
        self.half, self.residual = outer // 2, residual
        self.first = conv(inner, outer)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(self.half, self.half, 3), conv(self.half, self.half, 3)) for _ in range(blocks)
        )
        self.last = conv((2 + blocks) * self.half, outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the joined and mixed channels."""
        halves = self.first(x).chunk(2, 1)
        parts = [halves[0], halves[1]]  # as tracers can follow
        for block in self.blocks:
            made = block(parts[-1])
            parts.append(parts[-1] + made if self.residual else made)
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """Max pools of growing windows, joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = conv(channels, channels // 2), conv(channels * 2, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the joined and mixed channels."""
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """The detector; pictures have sides that 32 divides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2), Split(32, 32, 1, True))
        self.third = nn.Sequential(conv(32, 64, 3, 2), Split(64, 64, 2, True))
        self.fourth = nn.Sequential(conv(64, 128, 3, 2), Split(128, 128, 2, True))
        self.fifth = nn.Sequential(conv(128, 256, 3, 2), Split(256, 256, 1, True), Pyramid(256))
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.up_fourth, self.up_third = Split(384, 128, 1, False), Split(192, 64, 1, False)
        self.down_third, self.down_fourth = conv(64, 64, 3, 2), conv(128, 128, 3, 2)
        self.out_fourth, self.out_fifth = Split(192, 128, 1, False), Split(384, 256, 1, False)
        self.boxes = nn.ModuleList(self._head(c, 64, 4 * BINS) for c in (64, 128, 256))
        self.scores = nn.ModuleList(self._head(c, 80, CLASSES) for c in (64, 128, 256))

    @staticmethod
    def _head(channels: int, inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(conv(channels, inner, 3), conv(inner, inner, 3), nn.Conv2d(inner, outer, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the bins of four sides, and the scores of the classes, of every place."""
        third = self.third(self.stem(x))
        fourth = self.fourth(third)
        fifth = self.fifth(fourth)
        fourth = self.up_fourth(torch.cat((self.up(fifth), fourth), 1))
        third = self.up_third(torch.cat((self.up(fourth), third), 1))
        fourth = self.out_fourth(torch.cat((self.down_third(third), fourth), 1))
        fifth = self.out_fifth(torch.cat((self.down_fourth(fourth), fifth), 1))
        found = []
        for scale, boxes, scores in zip((third, fourth, fifth), self.boxes, self.scores, strict=True):
            found.append(torch.cat((boxes(scale), scores(scale).sigmoid()), 1).flatten(2))
        return torch.cat(found, 2)
