"""The test suite of the `onnx` package (`onnx.backend.test`), run through `weft.onnx_backend`.

Its cases are in the wheel: those of single nodes, and small networks that PyTorch exported. The `real` ones,
which have to be downloaded, are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.version_converter import convert_version

from weft import onnx_backend
from weft.core.contract.error_context import ends_program
from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import bind
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget, Limits
from weft.core.placement.optimizer import OptimizerOptions, divide
from weft.core.placement.prepare import PreparedNetwork, prepare_network
from weft.core.placement.stage_split import split
from weft.core.registry.backend_registry import registry
from weft.core.session.loader import opened
from weft.errors import ModelError
from weft.frontends.onnx import load as load_onnx
from weft.frontends.onnx.reading import OLDEST_OPSET
from weft_conformance.cases.table import tolerance
from weft_conformance.report import ConformanceReport, Finding, Verdict, is_sentence

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
CHECK = "onnx suite"
DISPUTED = {
    **dict.fromkeys(
        ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
        "the suite aligns the corners of an output that is not rounded to whole pixels (2.4 for 2); the text of the op "
        "means the length of the output, and onnxruntime computes what Weft does",
    ),
    **dict.fromkeys(
        [f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")],
        "the numbers that are drawn are those of numpy's generator; ONNX leaves the generator open",
    ),
    **dict.fromkeys(
        ("test_dft_inverse", "test_dft_inverse_opset19"),
        "where sums of terms up to 47 cancel, the suite allows an error of 1e-7; its own numbers are off by 1.5e-6, "
        "and those of GPUs, which sum in float32, by 4e-6",
    ),
}
"""Cases whose expected outputs Weft disagrees with, and why. The notes name them; they are not counted."""


@dataclass(frozen=True, eq=False)
class SuiteCase:
    """A case: a model with inputs and expected outputs, in a `folder` or, if that is None, in memory."""

    name: str
    kind: str
    rtol: float
    atol: float
    folder: Path | None
    at_hand: Any

    def model(self) -> ModelProto:
        """Return the model."""
        found: ModelProto = self.at_hand.model if self.folder is None else onnx.load(self.folder / "model.onnx")
        return found

    @cached_property
    def converted(self) -> tuple[ModelProto, str]:
        """Return the model, converted if its opset is before Weft's oldest, and what was done; ModelError."""
        model = self.model()
        if not any(o.version < OLDEST_OPSET for o in model.opset_import if not o.domain):
            return model, ""
        try:
            return convert_version(model, OLDEST_OPSET), f"converted to opset {OLDEST_OPSET}"
        except Exception as e:  # onnx's converter is C++ and does not document what it raises
            raise ModelError(
                f"onnx does not convert it to opset {OLDEST_OPSET}", why=" ".join(str(e).split())[:300]
            ) from e

    def data(self, model: ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        """Give inputs and expected outputs: arrays, or lists of them for sequences."""
        if self.folder is None:
            for inputs, outputs in self.at_hand.data_sets:
                yield [_plain(i) for i in inputs], [_plain(o) for o in outputs]
            return
        graph = model.graph
        for data in sorted(self.folder.glob("test_data_set*")):
            yield _read(data, "input", graph.input), _read(data, "output", graph.output)


def run_onnx_suite(
    device: str, only: str = "", *, precision: str = "high", one_per_op: bool = False
) -> ConformanceReport:
    """Return what became of each case whose name contains `only` on the device.

    A case is supported if its outputs are within ONNX's tolerances, refused if Weft says before the run why it
    does not take the model, and wrong otherwise. Models of opsets before Weft's oldest are
    converted; the finding says so. With `one_per_op`, only the first case of each op is run. Refused nodes are not
    run elsewhere.
    """
    findings: list[Finding] = []
    notes: list[str] = []
    seen: set[str] = set()
    for case in suite_cases():
        if only not in case.name:
            continue
        if case.name in DISPUTED:
            notes.append(f"{case.name} is left out: {DISPUTED[case.name]}")
            continue
        if one_per_op:
            new = {n.op_type for n in case.model().graph.node} - seen
            if not new:
                continue
            seen |= new
        verdict, message = _verdict(case, device, precision)
        findings.append(Finding(CHECK, f"{case.kind}/{case.name}", verdict, message))
    return ConformanceReport(device, precision, tuple(findings), tuple(notes))


def refusals_of_suite(devices: Sequence[str], only: str = "") -> dict[str, dict[str, str]]:
    """Return by device, of each case whose name contains `only` that the device refuses, the reason; nothing is run.

    Each network is read and prepared once, and then each device is asked about its nodes. Inputs that decide shapes
    have their values of the case. What waits for sizes that only a run tells is not asked about.
    """
    found: dict[str, dict[str, str]] = {device: {} for device in devices}
    options = OptimizerOptions(fallback="error")
    with ExitStack() as closing:
        backends = {d: closing.enter_context(opened(registry.choose(d), options.config)) for d in devices}
        for case in suite_cases():
            if only not in case.name or case.name in DISPUTED:
                continue
            try:
                prepared = _prepared(case)
            except ModelError as e:
                for reasons in found.values():
                    reasons[case.name] = _reason(e)
                continue
            for device, asked in backends.items():
                try:
                    divide(prepared.graph, asked, options, prepared=prepared)
                except ModelError as e:
                    found[device][case.name] = _reason(e)
    return found


def _prepared(case: SuiteCase) -> PreparedNetwork:
    """Return what can be planned of a case before a run; ModelError if there is no such part of its model."""
    model, _ = case.converted
    graph = load_onnx(model)
    if graph.symbols():
        graph = bind(graph, {name: value.shape for name, value in _first_inputs(case, model).items()})
    stage = split(bind(graph, {}), Budget(Limits()))
    if stage.wanted:
        known = {name: value for name, value in _first_inputs(case, model).items() if name in stage.wanted}
        graph = graph.copy()
        graph.constants |= known
        graph.inputs = [name for name in graph.inputs if name not in known]
        stage = split(bind(graph, {}), Budget(Limits()))
    return prepare_network(stage.graph, Precision.HIGH)


def _first_inputs(case: SuiteCase, model: ModelProto) -> dict[str, Array]:
    """Return the tensors among the inputs of a case's first data."""
    inputs, _ = next(case.data(model))
    named = zip((i.name for i in model.graph.input), inputs, strict=False)
    return {name: np.asarray(value) for name, value in named if isinstance(value, (np.ndarray, np.generic))}


@cache
def suite_cases() -> Sequence[SuiteCase]:
    """Return all cases, by kind and name. ONNX generates those of nodes, which takes some seconds."""
    found = []
    for kind in KINDS:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            cases = load_model_tests(kind=kind)
        for case in sorted(cases, key=lambda c: str(c.name)):
            folder = Path(case.model_dir) if case.model_dir else None
            found.append(SuiteCase(case.name, kind, case.rtol, case.atol, folder, case))
    return found


def _verdict(case: SuiteCase, device: str, precision: str) -> tuple[Verdict, str]:
    """Return the verdict on a case as it is or, of an opset before the oldest, converted."""
    try:
        model, how = case.converted
    except ModelError as e:
        return Verdict.REFUSED, _reason(e)
    verdict, message = _attempt(case, model, list(case.data(model)), device, precision)
    return verdict, message or how


def _reason(error: ModelError) -> str:
    return " ".join(f"{error.what} {error.why}".split())


def _attempt(
    case: SuiteCase, model: ModelProto, data: Sequence[tuple[list[Any], list[Any]]], device: str, precision: str
) -> tuple[Verdict, str]:
    try:
        with onnx_backend.prepare(model, device, precision=precision) as prepared:
            for inputs, expected in data:
                problem = _difference(prepared.run(inputs), expected, case)
                if problem:
                    return Verdict.WRONG, problem
            report = prepared.session.report
            # What the session runs itself, such as sequences, runs on the CPU, whatever the device is.
            ran = any(report.nodes_by_device.values()) or (device.startswith("cpu") and bool(report.placement))
    except ModelError as e:
        reason = _reason(e)
        return (Verdict.REFUSED if is_sentence(reason) else Verdict.NO_REASON), reason
    except BaseException as e:  # any other exception is a finding, and the next case is run
        if ends_program(e):
            raise
        return Verdict.WRONG, f"{type(e).__name__}: {' '.join(str(e).split())[:500]}"
    return (Verdict.SUPPORTED if ran else Verdict.NOTHING), ""


def _difference(actual: Sequence[Any], expected: Sequence[Any], case: SuiteCase) -> str:
    """Return how the outputs differ from what is expected; "" if they do not."""
    if len(actual) != len(expected):
        return f"{len(actual)} outputs instead of {len(expected)}"
    for k, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        if isinstance(mine, list) and isinstance(theirs, list):
            problem = _difference(mine, theirs, case)
            if problem:
                return f"in output {k}, {problem}"
            continue
        if mine is None or isinstance(mine, list) or theirs is None:
            if (mine is None) != (theirs is None) or isinstance(mine, list):
                return f"output {k} is {type(mine).__name__} instead of {type(theirs).__name__}"
            continue
        theirs = np.asarray(theirs)
        if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            return f"output {k} is {mine.dtype}{list(mine.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        if not np.allclose(mine, theirs, *_tolerance(case, theirs.dtype), equal_nan=True):
            return f"output {k} differs: {_worst(mine, theirs)}"
    return ""


def _tolerance(case: SuiteCase, dtype: np.dtype) -> tuple[float, float]:
    """Return (rtol, atol): those of the case, or of the op table for bfloat16.

    The suite asks for 0.1% there, too, of numbers that lie 0.4% and more apart: how its own evaluator rounds between
    steps would decide.
    """
    if dtype == DType.BFLOAT16.numpy:
        return tolerance(DType.BFLOAT16, "reduction")
    return case.rtol, case.atol


def _worst(mine: Array, theirs: Array) -> str:
    with np.errstate(all="ignore"):
        apart = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
    apart[~((mine == theirs) | np.isfinite(apart))] = np.inf
    place = tuple(int(i) for i in np.unravel_index(int(np.nanargmax(apart)), apart.shape))
    return f"{mine[place]!r} instead of {theirs[place]!r} at {list(place)}"


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _read(folder: Path, what: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    values: list[Any] = []
    for k in range(len(list(folder.glob(f"{what}_*.pb")))):
        data = (folder / f"{what}_{k}.pb").read_bytes()
        if declared[k].type.HasField("optional_type"):
            values.append(numpy_helper.to_optional(OptionalProto.FromString(data)))
        elif declared[k].type.HasField("sequence_type"):
            values.append(numpy_helper.to_list(SequenceProto.FromString(data)))
        else:
            values.append(numpy_helper.to_array(TensorProto.FromString(data)))
    return values
