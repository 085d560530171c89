"""The test suite of the `onnx` package (`onnx.backend.test`), run through `weft.onnx_backend`.

Its cases are in the wheel: those of single nodes, and small networks that PyTorch exported. The `real` ones,
which have to be downloaded, are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, SequenceProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.version_converter import convert_version

from weft import onnx_backend
from weft.conformance.report import ConformanceReport, Finding, Verdict, is_sentence
from weft.core.contract.error_context import ends_program
from weft.core.graph.layout import Array
from weft.errors import ModelError
from weft.frontends.onnx.reading import OLDEST_OPSET

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
CHECK = "onnx suite"
AT_RUN_TIME = ("computed at run time", "must be constant")
"""How Weft says that a shape follows from what is fed."""

DISPUTED = dict.fromkeys(
    ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    "the suite aligns the corners of an output that is not rounded to whole pixels (2.4 for 2); the text of the op "
    "means the length of the output, and onnxruntime computes what Weft does",
)
"""Cases whose expected outputs Weft does not follow, and why. They are named in the notes and not counted."""


@dataclass(frozen=True, eq=False)
class SuiteCase:
    """A case: a model with inputs and expected outputs; `folder` is where they lie, None if they are at hand."""

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
    does not take the model, and wrong otherwise. Models of opsets before Weft's oldest are converted, and
    inputs that give a shape are made constants, where it takes that; the finding says so. With `one_per_op`,
    only the first case of each op is run. Refused nodes are not run elsewhere.
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


@cache
def suite_cases() -> Sequence[SuiteCase]:
    """Return all cases, by kind and name. ONNX computes those of nodes, which takes some seconds."""
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
    """Return the verdict on a case as it is or, where only that stands in the way, in a form that Weft takes."""
    model, how = case.model(), ""
    try:
        if any(o.version < OLDEST_OPSET for o in model.opset_import if not o.domain):
            model, how = convert_version(model, OLDEST_OPSET), f"converted to opset {OLDEST_OPSET}"
        data = list(case.data(model))
    except Exception as e:  # onnx's converter is C++ and says nowhere what it raises
        return Verdict.REFUSED, f"onnx does not convert it to opset {OLDEST_OPSET}: {' '.join(str(e).split())[:300]}"
    first = verdict, message = _attempt(case, model, data, device, precision)
    # What gives a shape, Weft must know before the run; the cases feed it as they feed everything.
    for fed in (1, 0):
        if verdict is not Verdict.REFUSED or not any(t in message for t in AT_RUN_TIME) or len(data) != 1:
            break
        fixed, inputs = _with_constants(model, data[0][0], fed)
        verdict, message = _attempt(case, fixed, [(inputs, data[0][1])], device, precision)
        how = f"inputs from the {fed + 1}. on as constants"
    return (verdict, message or how) if verdict is not Verdict.REFUSED else first


def _attempt(
    case: SuiteCase, model: ModelProto, data: Sequence[tuple[list[Any], list[Any]]], device: str, precision: str
) -> tuple[Verdict, str]:
    try:
        with onnx_backend.prepare(model, device, precision=precision) as prepared:
            for inputs, expected in data:
                problem = _difference(prepared.run(inputs), expected, case)
                if problem:
                    return Verdict.WRONG, problem
            ran = any(prepared.session.report.nodes_by_device.values())
    except ModelError as e:
        reason = " ".join(f"{e.what} {e.why}".split())
        return (Verdict.REFUSED if is_sentence(reason) else Verdict.NO_REASON), reason
    except BaseException as e:  # whatever else is raised is a finding, and the next case is run
        if ends_program(e):
            raise
        return Verdict.WRONG, f"{type(e).__name__}: {' '.join(str(e).split())[:500]}"
    return (Verdict.SUPPORTED if ran else Verdict.NOTHING), ""


def _with_constants(model: ModelProto, inputs: Sequence[Any], fed: int) -> tuple[ModelProto, list[Any]]:
    """Return the model with its inputs from number `fed` on as constants, and those that are left to feed."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    arrays = [(value.name, np.asarray(array)) for value, array in zip(model.graph.input, inputs, strict=True)]
    fixed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays[fed:])
    return fixed, [array for _, array in arrays[:fed]]


def _difference(actual: Sequence[Any], expected: Sequence[Any], case: SuiteCase) -> str:
    """Return how the outputs differ from what is expected; "" if they do not."""
    if len(actual) != len(expected):
        return f"{len(actual)} outputs instead of {len(expected)}"
    for k, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        theirs = np.asarray(theirs)
        if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            return f"output {k} is {mine.dtype}{list(mine.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        if not np.allclose(mine, theirs, case.rtol, case.atol, equal_nan=True):
            return f"output {k} differs: {_worst(mine, theirs)}"
    return ""


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
        if declared[k].type.HasField("sequence_type"):
            values.append(numpy_helper.to_list(SequenceProto.FromString(data)))
        else:
            values.append(numpy_helper.to_array(TensorProto.FromString(data)))
    return values
