"""Write docs/ops.md, what each op computes and its attributes, from the op classes.

Run it when a test asks for it after a change of an op:

    python -m scripts.update_ops_page
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import weft.ops
import weft.ops.gpu  # noqa: F401  (registers their kernels)
from weft.core.graph.composite import has_parts
from weft.core.graph.op import Op, op_types
from weft.kernels.gpu_op import has_gpu_op

PAGE = Path(__file__).parents[1] / "docs" / "ops.md"
INTERNAL = {"Copy", "Debug", "Fused", "Relayout"}
"""Ops that only Weft puts into a network, and that it runs itself."""
HEAD = """\
# The ops and their attributes

What a backend may be asked to run. This page is made from the classes of the ops by
`python -m scripts.update_ops_page`; a test fails where it is out of date.

An op comes to `onCreate` and `why_not` as an object: `op.type` is its name, each attribute a field (`op.axis`), and
`op.reference(*arrays)` computes it with numpy; [add a backend](add-a-backend.md#the-reference-as-an-oracle) says how to
test with it. In C an attribute has the same name (`weft_find(node, "axis")`): a `tuple` comes as a list, a `bool` as 0
or 1, an element type as its name, and one that is `None` is not there.

- Names are ONNX's, those with `::` are Weft's own. Ops of older opsets are lifted to the newest form, so attributes
  that became inputs are inputs (`axes` of `Squeeze`, `min` and `max` of `Clip`).
- Inputs are in ONNX's order. One that is optional and missing is `None`; constants have their value in
  `Tensor.constant`. Sizes are numbers: no dimension is open any more.
- Attributes in **bold** have no default. An empty tuple means ONNX's default: `strides=()` is a stride of 1 everywhere,
  `kernel_shape=()` of `Conv` is that of the weights. `op.window(...)` of convolutions and pools gives all as numbers.
- *Rounding* says how a result may differ from the reference: `exact` not at all, `arithmetic` by a rounding or two,
  `transcendental` by a few, `reduction` by more, the longer the sum. `weft conformance` takes its tolerances from it.

- *CPU*, *OpenCL*, *Vulkan* say how Weft's own devices run it. *kernel*: by a kernel of its own, or as a view or a copy.
  *parts*: as the ops that it is made of. *no*: the node goes to the CPU, unless its value is known before the run. A
  kernel may refuse a type or an attribute: `weft inspect MODEL --device vulkan --unsupported` says so for a model.

| op | computes | attributes | rounding | CPU | OpenCL | Vulkan |
|---|---|---|---|---|---|---|
"""
TAIL = """
A `PreCompiled` node comes only to the backend that made it, in `OptimizeSubgraph`. GPU backends fuse element-wise ops
into the node before them; other backends see each op by itself.
"""


def page() -> str:
    """Return the text of the page."""
    rows = [_row(name, cls) for name, cls in sorted(op_types().items()) if _is_public(name, cls)]
    return HEAD + "\n".join(rows) + "\n" + TAIL


def _is_public(name: str, cls: type[Op]) -> bool:
    return cls.__module__.startswith("weft.") and name not in INTERNAL


def _row(name: str, cls: type[Op]) -> str:
    attributes = ", ".join(_attribute(f) for f in fields(cls))
    about = " ".join((cls.__doc__ or "").split())
    devices = " | ".join(("yes", *[_on_gpus(name, cls)] * 2))  # both APIs share one set of kernels
    return f"| `{name}` | {_plain(about)} | {attributes} | {cls.op_class} | {devices} |"


def _on_gpus(name: str, cls: type[Op]) -> str:
    """Return how GPUs run an op."""
    if has_gpu_op(cls):
        return "kernel"
    return "parts" if has_parts(name, cls) else "no"


def _attribute(field: Field[Any]) -> str:
    kind = _plain(str(field.type))
    if field.default is MISSING:
        return f"**`{field.name}`**: {kind}"
    default = field.default.value if isinstance(field.default, Enum) else field.default
    return f"`{field.name}`: {kind} = {_plain(repr(default))}"


def _plain(text: str) -> str:
    """Return text for a table cell."""
    return text.replace("|", "\\|").replace("*", "\\*")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
