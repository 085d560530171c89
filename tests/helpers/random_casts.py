"""Random chains of casts to wider and narrower types, and of what reads them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph

FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
TYPES = (*FLOATS, *FLOATS, DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.BOOL)


@st.composite
def cast_chains(draw: st.DrawFn) -> Graph:
    """Draw casts of casts, and tests for infinity and NaN of what they make."""
    net = Net(draw(st.integers(0, 100)))
    values = [net.input("x", 2, 3, dtype=draw(st.sampled_from([*FLOATS, DType.INT8, DType.INT32])))]
    for _ in range(draw(st.integers(3, 7))):
        x = values[-1] if draw(st.integers(0, 2)) else draw(st.sampled_from(values))
        dtype = net.graph.specs[x].dtype
        kind = draw(st.sampled_from(["Cast", "Cast", "Cast", "IsNaN", "Neg"]))
        if kind == "Cast" or not dtype.is_float:
            to = draw(st.sampled_from(FLOATS if dtype.is_float else TYPES))
            values.append(net.add("Cast", x, to=to))
        else:
            values.append(net.add(kind, x))
    return ended(draw, net, values[-1])
