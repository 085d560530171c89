"""A backend in one file: a matrix engine that multiplies and rectifies, and says why it does nothing else.

Weft finds it in a folder, if it is named <vendor>_<name>_backend.py there:
    cp two_ops_backend.py backends/acme_twoops_backend.py
    weft inspect model.onnx --device twoops+cpu --backend-path $PWD/backends
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft import DType, Execution, Op, Tensor
from weft.extend import HostBackend

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]


class TwoOps(HostBackend):
    """The engine as one part of a network sees it; HostBackend manages its tensors, which are numpy arrays."""

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        """Refuse types that the engine does not have, then ops without a creator, then ask the creator."""
        for t in (*inputs, *outputs):
            if t is not None and t.dtype is not DType.FLOAT32:
                return f"the engine computes in float32 alone; {t.name!r} is {t.dtype.value}"
        return super().why_not(inputs, outputs, op)


@TwoOps.creator("MatMul")
class MatMul(Execution):
    """A product of two matrices."""

    @staticmethod
    def why_not(inputs: Inputs, outputs: Outputs, op: Op, backend: TwoOps) -> str | None:
        """Accept matrices, and no stacks of them."""
        ranks = [len(t.shape) for t in inputs if t is not None]
        return None if ranks == [2, 2] else f"the engine multiplies matrices; these have {ranks} dimensions"

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Multiply into the memory of the output."""
        a, b = (t.memory for t in inputs if t is not None)
        np.matmul(a, b, out=outputs[0].memory)


@TwoOps.creator("Relu")
class Relu(Execution):
    """What is below zero becomes zero."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Rectify into the memory of the output."""
        (x,) = (t.memory for t in inputs if t is not None)
        np.maximum(x, 0, out=outputs[0].memory)


def GetBackendId() -> str:
    """Return the id by which users name the device."""
    return "twoops"


def GetVersion() -> tuple[int, int]:
    """Return the version of Weft's backend interface that this was written for."""
    return (1, 0)


def BackendFactory() -> type[TwoOps]:
    """Return the class: one device, which is always there. A weft.BackendCreator can say more."""
    return TwoOps
