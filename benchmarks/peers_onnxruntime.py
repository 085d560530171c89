"""ONNX Runtime's side of the measurement: the CPU, all cores, array to array; its outputs are the reference."""

from __future__ import annotations

from benchmarks.measure import Counts, Row, Workload, onnxruntime_session


def row(case: Workload, counts: Counts) -> Row:
    """Time a network; the error is between some of its own runs."""
    found = Row(case.network, case.batch, "onnxruntime cpu", "fp32")
    session = onnxruntime_session(case.model)
    inputs = dict(case.inputs)
    found.compare(session.run(None, inputs), case)
    found.compare(found.time(lambda: session.run(None, inputs), counts), case)
    if case.flops:
        found.more["gflop"] = case.flops / 1e9
    return found
