"""Rows of ops outside ONNX: the kit builds a model with the op's domain, and the front end reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import weft
from weft.core.graph import op as ops
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op
from weft.core.graph.tensor import TensorSpec
from weft_conformance import Verdict, run
from weft_conformance.cases.table import build_model, case, f32, feeds


@dataclass(frozen=True)
class Twice(Op):
    """x times a factor."""

    factor: float = 2.0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        (spec,) = inputs
        assert spec is not None
        return (spec,)

    def reference(self, *inputs: Array | None) -> Array:
        (x,) = inputs
        assert x is not None
        return np.asarray(x * np.float32(self.factor))


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ops, "_OPS", {**ops.op_types(), "acme::Twice": Twice})
    monkeypatch.setattr(Twice, "type", "acme::Twice")
    yield


@pytest.mark.usefixtures("twice")
def test_the_model_of_a_row_imports_the_domain_of_its_op() -> None:
    row = case("acme::Twice", f32(2, 3), factor=3.0)
    model = build_model(row)
    (node,) = model.graph.node
    assert (node.domain, node.op_type) == ("acme", "Twice")
    assert "acme" in {o.domain for o in model.opset_import}
    with weft.load(model, "cpu") as session:
        (y,) = session.run(feeds(row))
    np.testing.assert_array_equal(y, feeds(row)["x0"] * np.float32(3))


def test_the_model_of_a_row_of_onnx_has_one_domain() -> None:
    model = build_model(case("Relu", f32(2, 3)))
    assert [o.domain for o in model.opset_import] == [""]


@pytest.mark.usefixtures("twice")
def test_rows_of_an_op_of_ones_own_are_looked_at_besides() -> None:
    row = case("acme::Twice", f32(2, 3))
    report = run("cpu", only="creator", rows=[row])
    assert report.ok, report
    assert [f.verdict for f in report.findings if f.subject == row.id] == [Verdict.SUPPORTED]
