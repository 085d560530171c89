"""U-Nets of our own, for pictures and volumes: two convolutions a level, down by max pools, up by transposed ones.

As O. Ronneberger, P. Fischer and T. Brox describe it (U-Net: Convolutional Networks for Biomedical Image Segmentation,
2015), with padding, batch norms and half of their channels.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

CHANNELS = (32, 64, 128, 256, 512)
CLASSES = 2


class UNet(nn.Module):
    """The network for pictures of three channels; their sides are multiples of 16."""

    inputs = 3
    convolution: type[nn.Module] = nn.Conv2d
    norm: type[nn.Module] = nn.BatchNorm2d
    pool: type[nn.Module] = nn.MaxPool2d
    transposed: type[nn.Module] = nn.ConvTranspose2d

    def __init__(self) -> None:
        super().__init__()
        levels = list(pairwise(CHANNELS))
        self.first = self._pair(self.inputs, CHANNELS[0])
        self.halved = self.pool(2)
        self.down = nn.ModuleList(self._pair(inner, outer) for inner, outer in levels)
        self.up = nn.ModuleList(self.transposed(outer, inner, 2, 2) for inner, outer in reversed(levels))
        self.joined = nn.ModuleList(self._pair(outer, inner) for inner, outer in reversed(levels))
        self.last = self.convolution(CHANNELS[0], CLASSES, 1)

    def _pair(self, inner: int, outer: int) -> nn.Sequential:
        """Return two convolutions with batch norm and ReLU."""
        layers: list[nn.Module] = []
        for channels in (inner, outer):
            layers += [self.convolution(channels, outer, 3, 1, 1, bias=False), self.norm(outer), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes of every pixel."""
        passed = [self.first(x)]
        for level in self.down:
            passed.append(level(self.halved(passed[-1])))
        x = passed.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat((passed.pop(), up(x)), 1))
        return self.last(x)


class VolumeUNet(UNet):
    """The network for volumes of one channel."""

    inputs = 1
    convolution = nn.Conv3d
    norm = nn.BatchNorm3d
    pool = nn.MaxPool3d
    transposed = nn.ConvTranspose3d
