"""A U-Net of our own, for pictures: two convolutions a level, down by max pools, up by transposed convolutions.

As O. Ronneberger, P. Fischer and T. Brox describe it (U-Net: Convolutional Networks for Biomedical Image Segmentation,
2015), with padding, batch norms and half of their channels.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

CHANNELS = (32, 64, 128, 256, 512)
CLASSES = 2


def pair(inner: int, outer: int) -> nn.Sequential:
    """Return two convolutions with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (inner, outer):
        layers += [nn.Conv2d(channels, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """The network; pictures have sides that 16 divides."""

    def __init__(self) -> None:
        super().__init__()
        levels = list(pairwise(CHANNELS))
        self.first = pair(3, CHANNELS[0])
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(pair(inner, outer) for inner, outer in levels)
        self.up = nn.ModuleList(nn.ConvTranspose2d(outer, inner, 2, 2) for inner, outer in reversed(levels))
        self.joined = nn.ModuleList(pair(outer, inner) for inner, outer in reversed(levels))
        self.last = nn.Conv2d(CHANNELS[0], CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes of every pixel."""
        passed = [self.first(x)]
        for level in self.down:
            passed.append(level(self.pool(passed[-1])))
        x = passed.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat((passed.pop(), up(x)), 1))
        return self.last(x)
