"""The measurement's own arithmetic: references, products, bars. What it times needs no test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from benchmarks import (
    barrier,
    facts,
    gemm,
    gpu,
    measure,
    models,
    own,
    peers_ncnn,
    run_pieces,
    startup,
    transfers,
)
from benchmarks.apart import apart
from benchmarks.bars import bars, table
from benchmarks.gemm import Chain
from benchmarks.measure import Counts, Record, Row, build, random_inputs, relative_error
from benchmarks.minilm import minilm_l6
from benchmarks.queued import QueuedRun
from tests.helpers.run_length import is_long
from weft.core.contract.profile import Profiled


def test_error_is_of_the_worst_output_and_nan_never_passes() -> None:
    right = np.array([3.0, 4.0], np.float32)
    assert relative_error([right, right * 1.1], [right, right]) == pytest.approx(0.1, rel=1e-5)
    assert not relative_error([right, right * np.nan], [right, right]) <= 1.0
    with pytest.raises(ValueError, match="shape"):
        relative_error([right[:1]], [right])


@pytest.mark.parametrize("ahead", [0, 96])
def test_chain_is_right(ahead: int) -> None:
    pytest.importorskip("onnxruntime", reason="the chain's network is run by ONNX Runtime")
    chain = Chain.random(64, ahead)
    for launches in (1, 5):
        session = measure.onnxruntime_session(chain.model(launches))
        assert relative_error(session.run(None, {"x": chain.x}), [chain.result(launches)]) < 1e-5
    assert 0.1 < float(np.std(chain.result(5))) < 10


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("name", list(models.MODELS))
def test_torch_computes_what_the_network_says(name: str, fold: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch's side needs PyTorch")
    pytest.importorskip("onnxruntime", reason="the reference is ONNX Runtime's")
    from benchmarks.peers_torch import torch_side

    case = measure.build(name, 2, 64)
    for variant in torch_side(case).variants:
        side = torch_side(case, fold).to("cpu", torch.float32, variant)
        with torch.inference_mode():
            for _ in range(2):  # nothing that is kept may be written in place
                got = side(*(torch.from_numpy(a.copy()) for a in case.inputs.values()))
        assert relative_error([y.numpy() for y in got], case.outputs) < 1e-5


def test_inputs_suit_their_names() -> None:
    inputs = random_inputs(models.MODELS["minilm_l6"](2))
    assert inputs["attention_mask"].all() and not inputs["token_type_ids"].any()
    assert inputs["input_ids"].max() > 1000 and inputs["input_ids"].max() < 30522


def test_flops_of_a_param_file(tmp_path: Path) -> None:
    text = """7767517
4 4
Input data 0 1 data -23330=4,3,8,8,3 0=8 1=8 2=3
Convolution a 1 1 data a -23330=4,3,4,2,16 0=16 1=3 6=432
ConvolutionDepthWise b 1 1 a b -23330=4,3,4,2,16 0=16 1=3 6=144 7=16
InnerProduct c 1 1 b c -23330=4,1,10,1,1 0=10 1=1 2=1280
"""
    path = tmp_path / "small.param"
    path.write_text(text)
    assert peers_ncnn.flops(path) == 2 * (8 * 432 + 8 * 144 + 1280)


def rows() -> list[Row]:
    return [
        Row("resnet50", 1, "weft vulkan", "fp16", host_ms=0.5, device_ms=0.7, error=2e-3),
        Row("resnet50", 32, "weft vulkan", "fp16", host_ms=5.0, device_ms=4.0, error=2e-2),
        Row("resnet50", 1, "ncnn vulkan", "fp32", host_ms=3.0),
        Row("resnet50", 1, "torch graph nchw", "fp16", host_ms=1.0, device_ms=0.9, error=1e-3),
        Row("resnet50", 1, "torch graph channels-last", "fp16", host_ms=0.9, device_ms=0.8, error=1e-3),
        Row("resnet50", 1, "torch graph nchw", "tf32", host_ms=0.1, error=1e-3),
        Row("resnet50", 32, "torch graph nchw", "fp16", host_ms=3.5, device_ms=3.0, error=1e-3),
    ]


def test_bars_take_the_fastest_peer_of_the_same_class() -> None:
    found = {(b.bar, b.precision): b for b in bars(rows(), [])}
    best = found["vulkan x1, host to host, best runtime", "fp16"]
    assert (best.peer, best.its, best.ratio, best.met) == ("ncnn vulkan fp32", 3.0, 6.0, True)
    graph = found["vulkan x1, host to host, CUDA graph", "fp16"]
    assert graph.peer == "torch graph channels-last fp16" and graph.ratio == pytest.approx(1.8) and graph.met
    device = found["vulkan x32, device, CUDA graph", "fp16"]
    assert device.ratio == 0.75 and device.met is False and "NO, error 2.0e-02" in table([device])
    assert found["vulkan x1, host to host, CUDA graph", "fp32"].met is None
    alone = found["vulkan x32, host to host, best runtime", "fp16"]
    assert alone.weft and alone.ratio is None, "times of another day prove nothing by themselves"
    error = found["vulkan error by norm", "fp16"]
    assert error.network == "resnet50 x32" and error.met is False


@pytest.mark.parametrize("error", [1.1e-2, float("nan"), float("inf"), None])
def test_no_bar_is_reached_with_a_wrong_output(error: float | None) -> None:
    for wrong in range(2):
        ours, its = (error, 1e-3) if wrong == 0 else (1e-3, error)
        found = bars(
            [
                Row("resnet50", 1, "weft vulkan", "fp16", host_ms=0.5, error=ours),
                Row("resnet50", 1, "torch graph nchw", "fp16", host_ms=1.0, error=its),
                Row("resnet50", 1, "torch graph channels-last", "fp16", host_ms=2.0, error=1e-3),
            ],
            products(ours, its),
        )
        (time,) = [b for b in found if b.bar == "vulkan x1, host to host, CUDA graph" and b.precision == "fp16"]
        (product,) = [b for b in found if b.bar == "opencl product, us a launch" and b.network == "4096"]
        (accuracy,) = [b for b in found if b.bar == "vulkan error by norm"]
        (of_product,) = [b for b in found if b.bar == "opencl product, error by norm"]
        if wrong == 0:
            assert [b.met for b in (time, product, accuracy, of_product)] == [False] * 4
            assert all(b.wrong and b.wrong in table([b]) for b in (time, product))
        else:
            assert time.its == 2.0 and time.met, "a wrong peer is none"
            assert product.met is None and accuracy.met and of_product.met


def products(ours: float | None, its: float | None) -> list[dict[str, Any]]:
    figures = (("weft opencl", 200.0, ours), ("cublas", 190.0, its))
    return [{"size": 4096, "who": w, "precision": "fp16", "us": t, "error": e} for w, t, e in figures]


@dataclass
class Profile:
    """What a session with timestamps tells of a run."""

    counters: dict[tuple[str, str], float] = field(default_factory=lambda: {("device", "span"): 1e-3})
    events: tuple[Any, ...] = ()


class Wearing:
    """A session whose outputs are right until so many runs are done."""

    def __init__(self, model: onnx.ModelProto, runs: float) -> None:
        self._session = measure.onnxruntime_session(model)
        self._name = model.graph.input[0].name
        self._left = runs
        self.profile, self.report = Profile(), SimpleNamespace(notes=(), launches=())
        self.pipelines = [SimpleNamespace(backend=SimpleNamespace(recording=SimpleNamespace(tuned=7)))]

    def __enter__(self) -> Wearing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def input_arrays(self) -> dict[str, measure.Array]:
        return {i.name: np.zeros(i.shape, np.float32) for i in self._session.get_inputs()}

    def output_arrays(self) -> dict[str, measure.Array]:
        return {o.name: np.zeros(o.shape, np.float32) for o in self._session.get_outputs()}

    def run(self, given: Any, outputs: Mapping[str, measure.Array] | None = None) -> list[measure.Array]:
        self._left -= 1
        inputs = given if isinstance(given, Mapping) else {self._name: given}
        results: list[measure.Array] = self._session.run(None, dict(inputs))
        return results if self._left >= 0 else [o * np.float32(np.nan) for o in results]


@pytest.mark.parametrize("profiled", [False, True])
def test_the_last_timed_output_is_compared_too(profiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case, counts, runs = build("squeezenet1_1", 1, 32), Counts(1, 3, 1.0, 0.0), [math.inf, math.inf]

    def load(model: onnx.ModelProto, device: str, *, profile: Profiled = False, **_: Any) -> Wearing:
        return Wearing(model, runs[profile == "span"])

    monkeypatch.setattr("weft.load", load)
    right = own.row(case, "vulkan", "high", counts)
    assert right.error == 0 and right.more["tuned"] == 7
    runs[profiled] = 3
    error = own.row(case, "vulkan", "high", counts).error
    assert error is not None and math.isnan(error)


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_last_timed_products_are_compared(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [math.inf, math.inf]

    def load(model: onnx.ModelProto, *_: Any, **__: Any) -> Wearing:
        return Wearing(model, runs[len(model.graph.node) > 3])

    monkeypatch.setattr("weft.load", load)
    record = Record({})
    gemm.measure(64, ["opencl"], False, Counts(1, 2, 1.0, 0.0), record)
    runs[wrong] = 5
    gemm.measure(64, ["opencl"], False, Counts(1, 2, 1.0, 0.0), record)
    assert record.gemm[0]["error"] < 1e-5 and math.isnan(record.gemm[1]["error"])


def test_products_have_bars_and_the_table_has_them_all() -> None:
    found = bars(rows(), products(1e-3, 1e-3))
    (product,) = [b for b in found if b.network == "4096" and b.bar == "opencl product, us a launch"]
    assert product.ratio == 0.95 and product.met
    assert len(table(found).splitlines()) == 2 + len(found)


def test_a_row_that_fails_is_listed_and_the_file_is_always_whole(tmp_path: Path) -> None:
    import json

    path = tmp_path / "r.json"
    record = Record({"date": "today", "versions": {}}, path)
    record.attempt("a peer", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    record.add(rows()[0])
    found = json.loads(path.read_text())
    assert found["absent"] == {"a peer": "ZeroDivisionError: division by zero"} and len(found["rows"]) == 1
    record.add(Row("resnet50", 1, "weft opencl", "fp16", host_ms=1.0))
    assert list(gpu._wrong_outputs(record)) == ["no time counts of resnet50 x1 weft opencl fp16: no error known"]
    late = Record({}, None, budget=-1.0)
    late.attempt("more", lambda: pytest.fail("the time is up"))
    assert "were given" in late.absent["more"]


@pytest.mark.long
def test_transfers_have_a_row_for_every_way_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    """Each checks its results, at a size that OpenCL sends in chunks; a device that is not there is named."""
    sizes = ["--batch", "8", "--iterations", "2", "--threads", "1,3"]
    transfers.main(["--devices", "opencl,vulkan,opencl:99", *sizes])
    shown = capsys.readouterr().out
    for row in ("np.copyto", "1 thread ", "3 threads"):
        assert shown.count(f"\n{row}") == 2, shown
    counts = {"numpy's, float32": 8, "numpy's, float16": 4, "session's, float32": 4, "session's, float16": 4}
    for kind, count in counts.items():
        assert shown.count(f"\n{kind} ") == count, shown
    assert "opencl:99: NoDevice" in shown or "opencl:99: there is no" in shown, shown


def test_what_cannot_be_told_of_a_transfer_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    found = [transfers.Row("np.copyto", 0.9, 43.0, 60.0), transfers.Row("1 thread", 0.0, 63.0, 86.0)]
    for span, remark in ((54.0, "took no longer than the launches"), (float("nan"), "tells no times")):
        transfers.show("vulkan", found, span, 19_000_000)
        shown = capsys.readouterr().out
        first, second = (line.split() for line in shown.splitlines()[3:5])
        assert first[-2:] == ["-", "-"] and "nan" not in shown and remark in shown
        assert second[3] == "-" and (second[-2] == "9.000") == (span == 54.0)
    transfers.show("vulkan", found, 40.0, 19_000_000)
    assert "\n-:" not in capsys.readouterr().out


def test_starts_have_empty_caches_and_then_those_of_the_first(tmp_path: Path) -> None:
    image = models.squeezenet1_1(1, image=32, width=0.1, classes=4)
    path = tmp_path / "small.onnx"
    path.write_bytes(image.SerializeToString())
    count = 2 if is_long() else 1
    found = startup.measure(path, "cpu", "high", count)
    assert len(found.first) == len(found.second) == count and found.name.startswith("numpy")
    assert all(0 < t["load"] < t["start"] and t["selftest"] == 0 for t in (*found.first, *found.second))
    missing = startup.measure(path, "opencl:99", "high", 1)
    assert "99" in missing.failed and missing.met is None
    assert len(startup.table([found, missing]).splitlines()) == 5


def test_a_language_model_starts_with_a_prompt_and_a_word(tmp_path: Path) -> None:
    path = tmp_path / "tiny-genai.onnx"
    startup.write_model("tiny-genai", 224, path)
    found = startup.measure(path, "cpu", "low", 1)
    assert not found.failed and found.bars[0] == startup.FIRST_TEXT
    assert all(0 < t["word"] < t["all"] for t in (*found.first, *found.second))
    assert "| < 5 |" in startup.table([found])


def test_a_trial_of_starts_has_no_bars() -> None:
    times = dict.fromkeys(("import", "start", "load", "selftest", "run", "all"), 90.0)
    found = startup.Start("vulkan", "low", first=[times], second=[times])
    shown = startup.table([found], bars=False)
    assert "bars" not in shown and "met" not in shown and "NO" not in shown and "| 90.00 |" in shown
    assert "| bars |" in startup.table([found]) and "| NO |" in startup.table([found])


def test_a_start_sees_no_cache_and_no_choices_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEFT_SELFTEST", "WEFT_TUNING", "WEFT_CACHE", "WEFT_NO_COMPILER"):
        monkeypatch.setenv(name, "0")
    found = startup.environment(tmp_path)
    assert [name for name in found if name.startswith("WEFT_")] == ["WEFT_CACHE_DIR"]
    assert all(Path(found[name]).is_relative_to(tmp_path) and not any(Path(found[name]).glob("[!.]*"))
               for name in startup.FOLDERS)


def test_the_bars_of_a_start() -> None:
    first, second = {"start": startup.FIRST - 1}, {"start": startup.SECOND + 1}
    assert startup.Start("vulkan", "low", first=[first], second=[second]).met is False
    assert startup.Start("vulkan", "low", first=[first], second=[{"start": 0.5}]).met is True


def test_a_run_whose_time_was_too_short_goes_on_where_it_ended(tmp_path: Path) -> None:
    path, ran = tmp_path / "run.json", list[str]()

    def measured(record: Record, network: str, who: str, wait: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            ran.append(f"{network} {who}")
            record.add(Row(network, 1, who, "fp32", host_ms=1.0))
            record._budget -= wait

        return run

    first = Record({"date": "today", "source": "x"}, path, budget=1e6)
    first.part("a x1", measured(first, "a", "weft vulkan"))
    first.part("c x1", lambda: first.attempt("c x1 torch", lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    first.part("b x1", measured(first, "b", "weft vulkan", wait=2e6))
    first.part("a x1 tinygrad", measured(first, "a", "tinygrad opencl"))
    assert first.done == ["a x1"] and "a x1 tinygrad" in first.absent
    with pytest.raises(ValueError, match="its source was 'x', and is 'y'"):
        Record({"source": "y"}).resume(path)
    second = Record({"source": "x"}, tmp_path / "again.json")
    second.resume(path)
    assert "c x1 torch" in second.absent, "what failed is listed still, and may be tried again"
    for network in "ab":
        second.part(f"{network} x1", measured(second, network, "weft vulkan"))
    second.part("a x1 tinygrad", measured(second, "a", "tinygrad opencl"))
    assert ran == ["a weft vulkan", "b weft vulkan", "b weft vulkan", "a tinygrad opencl"]
    assert [row.part for row in second.rows] == ["a x1", "b x1", "a x1 tinygrad"]
    assert second.facts["resumed"]["date"] == "today"


def test_a_run_says_which_choices_it_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    seen = [facts.tuning()]
    (tmp_path / "tuning").mkdir()
    for content in ("{}", "{ }"):
        (tmp_path / "tuning" / "card.json").write_text(content)
        (tmp_path / "tuning" / "tmpx.part").write_text(content)
        seen.append(facts.tuning())
    monkeypatch.setenv("WEFT_TUNING", "0")
    seen.append(facts.tuning())
    assert len(set(seen)) == 4
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.delenv("WEFT_TUNING")
    assert facts.tuning() == seen[0]
    found = gpu._facts()
    assert found["tuning"] == seen[0]
    assert {"WEFT_CACHE": "0", "WEFT_CACHE_DIR": str(tmp_path)}.items() <= found["environment"].items()
    path = tmp_path / "run.json"
    Record({"tuning": seen[1]}, path).write()
    with pytest.raises(ValueError, match="its tuning was"):
        Record({"tuning": seen[2]}).resume(path)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--precision", "foo"], ["--networks", "nope"], ["--batch", "0"], ["--batch", "x"], ["--devices", "cuda"],
        ["--peers", "torch,tf"], ["--json", "/proc/nope/x.json"], ["--json", "/"],
    ],
    ids=" ".join,
)
def test_wrong_options_are_said_before_anything_is_measured(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for parse in (gpu.parse, startup.parse):
        with pytest.raises(SystemExit):
            parse(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_a_trial_is_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="the reference is ONNX Runtime's")
    assert gpu.parse([]).batch == [1, 16, 32] and gpu.parse(["--quick", "--batch", "8"]).batch == [8]
    monkeypatch.setattr(models, "MODELS", dict(models.MODELS))
    command = ["gpu", "--quick", "--networks", "minilm_l6", "--devices", "opencl", "--precision", "high", "--peers", ""]
    monkeypatch.setattr("sys.argv", [*command, "--no-gemm", "--seconds", "0.1"])
    gpu.main()
    shown = capsys.readouterr().out
    batches = [line.split()[4] for line in shown.splitlines() if "weft opencl" in line]
    assert batches == ["x1", "x2"] and "input_ids 2x64" in shown and "there are no bars" in shown
    assert measure.model_of("minilm_l6", 2).graph.input[0].type.tensor_type.shape.dim[1].dim_value == 64


@pytest.mark.parametrize("batch", [1, 2])
def test_torch_computes_the_encoder_of_a_trial(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch's side needs PyTorch")
    pytest.importorskip("onnxruntime", reason="the reference is ONNX Runtime's")
    from benchmarks.peers_torch import torch_side

    monkeypatch.setitem(models.MODELS, "minilm_l6", partial(minilm_l6, sequence=64, sizes=gpu.TRIAL))
    case = measure.build("minilm_l6", batch)
    side = torch_side(case)
    with torch.inference_mode():
        got = side.to("cpu", torch.float32, side.variants[0])(*map(torch.from_numpy, case.inputs.values()))
    assert relative_error([y.numpy() for y in got], case.outputs) < 1e-5


def test_a_run_that_cannot_be_gone_on_with_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[")
    for path in (tmp_path / "none.json", tmp_path / "bad.json"):
        with pytest.raises(SystemExit, match="cannot be gone on with"):
            gpu._resume(Record({}), path)


def test_a_peer_apart_answers_raises_or_takes_too_long() -> None:
    assert apart(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        apart(divmod, 7, 0)
    with pytest.raises(TimeoutError):
        apart(time.sleep, 60.0, seconds=0.1)


def test_opencl_is_timed_in_the_queue() -> None:
    case = build("squeezenet1_1", 2, 32)
    with weft.load(case.model, "opencl", fallback="error") as session:
        right = session.run(case.inputs)
        queued = QueuedRun(session)
        spent = [queued.milliseconds() for _ in range(2)]
        assert relative_error(queued.outputs(), right) == 0.0
    assert all(each is not None and each > 0 for each in spent)


def test_a_barrier_of_all_groups_passes_values_on(capsys: pytest.CaptureFixture[str]) -> None:
    barrier.main(["--levels", "3"])
    said = capsys.readouterr().out
    assert said.count("us a level, a software device: means nothing") == 6  # three ways on each API, all values right


@pytest.mark.long
def test_the_pieces_of_a_run_have_a_row_for_every_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pieces, "SHAPES", {"small": ((1, 3, 16, 16), 2, 4)})
    monkeypatch.setattr(run_pieces, "COPIES", (1 << 20,))
    transfers.main(["--pieces", "--devices", "vulkan", "--seconds", "0"])
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if line.startswith(("results", "in reach", "the session's"))]
    assert len(rows) == 9 and all(len(row.split()) > len(run_pieces.PIECES) for row in rows), shown
    assert sum(line.startswith(("upload", "stream", "download")) for line in shown.splitlines()) == 3, shown
