"""Random networks in which much follows from constants and shapes alone."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from weft.core.graph.graph import Graph


@st.composite
def constant_networks(draw: st.DrawFn) -> Graph:
    """Draw sums and products of constants, of what an input makes, and of both; shapes may be computed."""
    net = Net(draw(st.integers(0, 100)))
    x = net.input("x", draw(st.integers(1, 2)), 3, 3)
    values = [net.constant(net.random(*shape)) for shape in ((3, 3), (3, 1), ())]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["Neg", "Transpose", "Add", "Mul", "MatMul", "Shape"]))
        first = draw(st.sampled_from(values))
        second = draw(st.sampled_from([*values, x]))
        if kind == "Shape":
            made = net.add("Reshape", second, net.add("Shape", second))
        elif kind in ("Neg", "Transpose"):
            made = net.add(kind, first)
        elif kind != "MatMul":
            made = net.add(kind, first, second)
        elif min(len(net.shape(first)), len(net.shape(second))) > 1 and net.shape(first)[-1] == 3:
            made = net.add("MatMul", first, second)
        else:
            made = net.add("Exp", net.constant(np.zeros(2, np.float32)))
        values += [made] if net.shape(made)[-2:] == (3, 3) else []
    return ended(draw, net, net.add("Add", x, values[-1]))
