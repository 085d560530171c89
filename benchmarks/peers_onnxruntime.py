"""ONNX Runtime's side of the measurement: the CPU, all cores, array to array; its outputs are the reference."""

from __future__ import annotations

from benchmarks.measure import Case, Counts, Row, onnxruntime_session, relative_error, timed


def row(case: Case, counts: Counts) -> Row:
    """Time a network; the error is between two of its own runs."""
    found = Row(case.network, case.batch, "onnxruntime cpu", "fp32")
    session = onnxruntime_session(case.model)
    inputs = dict(case.inputs)
    found.error = relative_error(session.run(None, inputs), case.outputs)
    found.host_ms, found.host_p90_ms = timed(lambda: session.run(None, inputs), counts)
    found.more["gflop"] = case.flops / 1e9
    return found
