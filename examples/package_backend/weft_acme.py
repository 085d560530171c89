"""A device that computes Softsign, as a package: `AcmeCreator` is announced by an entry point in pyproject.toml."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import weft
from weft.extend import HostBackend


class Acme(HostBackend):
    """The device as one part of a network sees it; tensors are numpy arrays."""


@Acme.creator("Softsign")
class Softsign(weft.Execution):
    """x / (1 + |x|)."""

    def onExecute(self, inputs: Sequence[weft.Tensor | None], outputs: Sequence[weft.Tensor]) -> None:
        """Compute into the memory of the output."""
        (x,) = (t.memory for t in inputs if t is not None)
        np.divide(x, 1 + np.abs(x), out=outputs[0].memory)


class AcmeCreator(weft.BackendCreator):
    """One device, which is always there."""

    id = "acme"
    api_version = (1, 0)

    def devices(self) -> list[weft.DeviceInfo]:
        """Return the one device."""
        return [weft.DeviceInfo("acme", 0, "Acme softener", driver="numpy", software=True)]

    def onCreate(self, info: weft.BackendInfo) -> Acme:
        """Return a backend for one part of a network."""
        return Acme(info)
