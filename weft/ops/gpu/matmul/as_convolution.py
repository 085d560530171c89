"""Products with constant weights as convolutions of images of one pixel.

A row-major matrix whose columns are a multiple of four has the bytes of such images in NC4HW4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.core.graph.layout import PACK, Layout
from weft.kernels.chooser import Algorithm, Candidate
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.problem import ConvPlan
from weft.ops.gpu.matmul.few_rows import FEW_ROWS
from weft.ops.gpu.matmul.problem import ProductPlan, ProductProblem, why_not_packed


class AsConvolution(NamedTuple):
    """It has no tile of its own: the chooser of convolutions chooses one."""


class ProductAsConvolution(Algorithm[ProductProblem, ProductPlan, AsConvolution]):
    """A product with constant weights as a 1 x 1 convolution, by any algorithm of convolutions."""

    name = "product as a convolution"

    def why_not(self, problem: ProductProblem) -> str | None:
        """Refuse few rows, and matrices that do not have the bytes of images of one pixel."""
        p = problem
        reason = why_not_packed(p)
        if reason is not None:
            return reason
        if p.m <= FEW_ROWS:
            return f"it has at most {FEW_ROWS} rows"
        if p.a_steps != (p.k, 1) or p.k % PACK or p.n % PACK:
            return f"the first matrix is transposed, or its or the result's columns are no multiple of {PACK}"
        if not p.bias:
            return "what is added is not one constant number for each column"
        if not p.holds_scale:
            return "the constants' type lacks numbers for them times alpha or beta"
        return None if p.joins_channels else "a fused step reads a constant that is not one number for each column"

    def candidates(self, problem: ProductProblem) -> Sequence[Candidate]:
        """Return the only candidate."""
        return [Candidate(AsConvolution(), 1.0)]

    def launch(self, plan: ProductPlan, tile: AsConvolution) -> None:
        """Launch the algorithm that the chooser of convolutions takes, with alpha and beta in the weights."""
        p, weight = plan.problem, plan.matrix()
        bias = None if plan.c is None else plan.c.constant
        x = replace(plan.a, shape=(p.m, p.k, 1, 1), layout=Layout.NC4HW4)
        y = replace(plan.y, shape=(p.m, p.n, 1, 1), layout=Layout.NC4HW4)
        if plan.alpha != 1:
            weight = (weight.astype(np.float32) * plan.alpha).astype(weight.dtype)
        if bias is not None and plan.beta != 1:
            bias = (bias.astype(np.float32) * plan.beta).astype(bias.dtype)
        taps, shift = weight.reshape(p.n, p.k, 1, 1), None if bias is None else bias.reshape(-1)
        window = Conv(kernel_shape=(1, 1)).window(x.shape, taps.shape)
        CONVOLUTIONS.launch(ConvPlan.of(plan.k, window, x, y, taps, shift))
