"""Networks whose sizes only a run tells, and control flow, on every device against ONNX Runtime."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import weft
from weft.core.graph.graph import Graph
from weft.core.session import rests
from weft.errors import InputError, ModelError

DEVICES = ["cpu", "opencl", "vulkan"]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Shapes = dict[str, tuple[Any, ...]]


def info(name: str, shape: tuple[Any, ...] | None = None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def make(
    nodes: list[NodeProto], inputs: list[onnx.ValueInfoProto], outputs: Mapping[str, int], **constants: Any
) -> ModelProto:
    """Return a model; the outputs' shapes are not declared."""
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "net", inputs, [info(n, None, t) for n, t in outputs.items()], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def f32(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Return a node; inputs and outputs are names with spaces between, "-" is a missing one."""
    given = ["" if i == "-" else i for i in inputs.split()]
    return helper.make_node(op, given, outputs.split(), name=outputs.split()[0], **attributes)


def check(model: ModelProto, device: str, *feeds: dict[str, Any], on: dict[str, str] | None = None) -> None:
    """Compare runs with those of ONNX Runtime; `on` says where nodes must run, all others on the device."""
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with weft.load(model, device) as session:
        for fed in feeds:
            for mine, expected in zip(session.run(fed), theirs.run(None, fed), strict=True):
                assert (mine.shape, mine.dtype) == (expected.shape, expected.dtype)
                np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)
            wanted = on or {}
            astray = {n: d for n, d in session.report.placement.items() if d != wanted.get(n, device)}
            assert not astray


def scores(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(shape, np.float32)


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_zero_is_gathered(device: str) -> None:
    nodes = [
        node("Greater", "x least", "mask"),
        node("NonZero", "mask", "at"),
        node("Transpose", "at", "places"),
        node("GatherND", "x places", "found"),
        node("Mul", "found found", "y"),
    ]
    model = make(nodes, [info("x", (3, 4))], {"y": FLOAT, "at": INT64}, least=np.float32(0.5))
    check(model, device, *({"x": scores(k, 3, 4)} for k in range(3)), {"x": np.zeros((3, 4), np.float32)})


def detector() -> ModelProto:
    """Return the head of a detector: the best boxes, those that do not overlap, what lies in them, and a product."""
    nodes = [
        node("TopK", "scores k", "best order"),
        node("Gather", "boxes order", "candidates", axis=0),
        node("Unsqueeze", "candidates zero", "boxes3"),
        node("Unsqueeze", "best zeros", "scores3"),
        node("NonMaxSuppression", "boxes3 scores3 most overlap least", "rows"),
        node("Gather", "rows two", "kept", axis=1),
        node("Squeeze", "kept one", "kept1"),
        node("Gather", "candidates kept1", "rois", axis=0),
        node("Shape", "kept1", "many"),
        node("ConstantOfShape", "many", "images", value=helper.make_tensor("v", INT64, [1], [0])),
        node("RoiAlign", "map rois images", "crops", output_height=3, output_width=3, sampling_ratio=2),
        node("Flatten", "crops", "flat"),
        node("MatMul", "flat weights", "y"),
        node("Gather", "best kept1", "confidences"),
    ]
    inputs = [info("boxes", (50, 4)), info("scores", (50,)), info("map", (1, 4, 16, 16))]
    weights = np.random.default_rng(1).standard_normal((36, 5)).astype(np.float32)
    return make(
        nodes, inputs, {"y": FLOAT, "rois": FLOAT, "confidences": FLOAT}, k=np.array([20]), zero=np.array([0]),
        zeros=np.array([0, 1]), most=np.array([8]), overlap=np.array([0.4], np.float32),
        least=np.array([0.6], np.float32), two=np.array([2]), one=np.array([1]), weights=weights,
    )


def boxes(seed: int) -> np.ndarray[Any, Any]:
    low = scores(seed, 50, 2) * 9
    return np.concatenate([low, low + 1 + 5 * scores(seed + 1, 50, 2)], 1)


@pytest.mark.parametrize("device", DEVICES)
def test_the_head_of_a_detector(device: str) -> None:
    feeds = [
        {"boxes": boxes(k), "scores": scores(k + 7, 50), "map": scores(k, 1, 4, 16, 16)} for k in range(3)
    ]
    check(detector(), device, *feeds)


def head_of_two_stages() -> ModelProto:
    """Return a detector whose boxes are looked at again: features, classes, those that are sure, and their best."""
    nodes = [
        node("NonMaxSuppression", "boxes scores most overlap least", "rows"),
        node("Gather", "rows two", "kept", axis=1),
        node("Gather", "flat kept", "rois", axis=0),
        node("Sub", "kept kept", "images"),
        node("RoiAlign", "map rois images", "crops", output_height=4, output_width=4, sampling_ratio=2),
        node("Conv", "crops filters", "features", pads=[1, 1, 1, 1]),
        node("Relu", "features", "active"),
        node("MaxPool", "active", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "pooled", "means"),
        node("Flatten", "means", "vectors"),
        node("Gemm", "vectors weights bias", "logits"),
        node("LayerNormalization", "logits scale", "even"),
        node("Softmax", "even", "chances"),
        node("ArgMax", "chances", "classes", axis=1, keepdims=0),
        node("ReduceMax", "chances", "best", axes=[1], keepdims=0),
        node("ReduceSum", "chances zero", "sums", keepdims=0),
        node("Greater", "best half", "sure"),
        node("Compress", "rois sure", "sure_rois", axis=0),
        node("NonZero", "sure", "places"),
        node("Unsqueeze", "sure_rois zero", "again"),
        node("Compress", "best sure", "sure_best", axis=0),
        node("Unsqueeze", "sure_best both", "scores_again"),
        node("NonMaxSuppression", "again scores_again most overlap", "last"),
        node("Shape", "sure_rois", "count"),
    ]
    rng = np.random.default_rng(3)
    inputs = [info("boxes", (1, 50, 4)), info("flat", (50, 4)), info("scores", (1, 1, 50)), info("map", (1, 4, 16, 16))]
    outputs = {"chances": FLOAT, "classes": INT64, "sums": FLOAT, "places": INT64, "sure_rois": FLOAT, "last": INT64}
    return make(
        nodes, inputs, {**outputs, "count": INT64}, two=np.array(2), zero=np.array([0]), both=np.array([0, 1]),
        most=np.array([8]), overlap=f32([0.4]), least=f32([0.6]), half=f32(0.4),
        filters=f32(rng.standard_normal((6, 4, 3, 3))), weights=f32(rng.standard_normal((6, 5))),
        bias=f32(rng.standard_normal(5)), scale=f32(np.ones(5)),
    )


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_later_stages_of_a_detector_get_no_boxes(device: str) -> None:
    """Run with some boxes, with none, and with some again: no stage may leave the device."""
    feeds = []
    for seed, share in ((1, 1.0), (2, 0.5), (3, 1.0)):
        flat = boxes(seed)
        given = {"boxes": flat[None], "flat": flat, "map": scores(seed, 1, 4, 16, 16)}
        feeds.append({**given, "scores": scores(seed + 7, 1, 1, 50) * np.float32(share)})
    check(head_of_two_stages(), device, *feeds)


@pytest.mark.parametrize("device", DEVICES)
def test_a_shape_follows_from_a_value(device: str) -> None:
    nodes = [
        node("ReduceMax", "n", "last", keepdims=0),
        node("Add", "last one", "end"),
        node("Range", "zero end one", "numbers"),
        node("Cast", "numbers", "floats", to=FLOAT),
        node("Mul", "floats x", "y"),
        node("TopK", "x n", "best at"),
    ]
    inputs = [info("n", (1,), INT64), info("x", (1,))]
    model = make(nodes, inputs, {"y": FLOAT, "at": INT64}, zero=np.int64(0), one=np.int64(1))
    own = {"x": np.array([2], np.float32)}
    with weft.load(model, device) as session:
        for n in (1, 0, 1):
            y, at = session.run({"n": np.array([n]), **own})
            np.testing.assert_array_equal(y, np.arange(n + 1) * 2.0)
            assert at.shape == (n,)


BRANCHES = {
    "then_branch": helper.make_graph(
        [node("Add", "x weight", "sum"), node("Relu", "sum", "out")], "then", [], [info("out")]
    ),
    "else_branch": helper.make_graph([node("Slice", "x begin end", "out")], "else", [], [info("out")]),
}


@pytest.mark.parametrize("device", DEVICES)
def test_a_condition_that_a_run_tells(device: str) -> None:
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "positive"),
        node("If", "positive", "chosen", **BRANCHES),
        node("Neg", "chosen", "y"),
    ]
    constants = {
        "zero": np.float32(0),
        "weight": f32([1, 2, 3]),
        "begin": np.array([1]),
        "end": np.array([3]),
    }
    model = make(nodes, [info("x", (3,))], {"y": FLOAT}, **constants)
    check(model, device, *({"x": f32(x)} for x in ([1, 2, 3], [-1, -2, -3], [3, 2, 1])))


def test_a_condition_that_follows_from_shapes_is_planned() -> None:
    nodes = [
        node("Size", "x", "size"),
        node("Equal", "size three", "fits"),
        node("If", "fits", "chosen", **BRANCHES),
        node("Neg", "chosen", "y"),
    ]
    constants = {"three": np.int64(3), "weight": np.float32(1), "begin": np.array([1]), "end": np.array([3])}
    model = make(nodes, [info("x", ("n",))], {"y": FLOAT}, **constants)
    check(model, "cpu", {"x": scores(0, 3)}, {"x": scores(0, 5)})
    assert [n.op.type for n in weft.optimize(model, "cpu", shapes={"x": (5,)}).graph.nodes] == [
        "Slice",
        "Neg",
    ]


def test_names_in_bodies_are_those_of_other_values_outside() -> None:
    then = helper.make_graph(
        [node("Neg", "x", "t"), node("Mul", "t c", "other")], "then", [], [info("other", (2,))],
        [numpy_helper.from_array(f32([3, 4]), "c")],
    )
    other = helper.make_graph([node("Identity", "x", "other")], "other", [], [info("other", (2,))])
    body = helper.make_graph(
        [
            node("Identity", "going", "on"),
            node("Add", "held begin.0", "next"),
            node("Add", "next 0/number", "row"),
        ],
        "body",
        [info("step", (), INT64), info("going", (), BOOL), info("held", (2,))],
        [info("on", (), BOOL), info("next", (2,)), info("row", (2,))],
    )
    nodes = [
        node("Exp", "x", "r/t"),
        node("Sin", "x", "r/c"),
        node("Cos", "x", "begin.0"),
        node("Neg", "x", "0/number"),
        node("If", "yes", "r", then_branch=then, else_branch=other),
        node("Loop", "count yes r", "long all", body=body),
        node("Sum", "r r/t r/c long", "y"),
    ]
    model = make(nodes, [info("x", (2,))], {"y": FLOAT, "all": FLOAT}, yes=np.array(True), count=np.int64(2))
    check(model, "cpu", {"x": f32([0, 1])})


def loop(device: str, condition: bool, **feeds: Any) -> None:
    """Run a loop that grows a value, reads one around it, and stacks what each iteration makes."""
    body = helper.make_graph(
        [
            node("Concat", "held piece", "longer", axis=0),
            node("ReduceSum", "longer", "total", keepdims=0),
            node("Mul", "total scale", "made"),
            node("Less", "made limit", "fits") if condition else node("Identity", "going", "fits"),
        ],
        "body",
        [info("step", (), INT64), info("going", (), BOOL), info("held", ("n",))],
        [info("fits", (), BOOL), info("longer", ("m",)), info("made", ())],
    )
    read = "count - piece" if condition else "count yes piece"
    nodes = [node("Relu", "x", "piece"), node("Loop", read, "long all", body=body)]
    inputs = [info("x", (2,)), *([] if "count" not in feeds else [info("count", (), INT64)])]
    constants = {"scale": np.float32(0.5), "limit": np.float32(9), "yes": np.array(True)}
    if "count" not in feeds:
        constants["count"] = np.int64(3)
    model = make(nodes, inputs, {"long": FLOAT, "all": FLOAT}, **constants)
    unrolled = "count" not in feeds and not condition
    on = {} if unrolled else {"long": "session"}
    check(model, device, feeds, {**feeds, "x": feeds["x"] * 2}, on=on)


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_that_a_run_ends(device: str) -> None:
    loop(device, True, x=f32([1, 2]), count=np.array(9))


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_of_known_length_is_planned_whole(device: str) -> None:
    loop(device, False, x=f32([1, 2]))


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_a_scan_runs_its_body_for_each_slice(device: str) -> None:
    body = helper.make_graph(
        [node("Add", "state slice", "sum"), node("Mul", "sum scale", "made")],
        "body",
        [info("state", (2,)), info("slice", (2,))],
        [info("sum", (2,)), info("made", (2,))],
    )
    scan = node(
        "Scan", "x xs", "last all", body=body, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[1],
    )
    model = make(
        [scan], [info("x", (2,)), info("xs", (2, 3))], {"last": FLOAT, "all": FLOAT}, scale=np.float32(2)
    )
    check(model, device, {"x": scores(0, 2), "xs": scores(1, 2, 3)}, on={"last": "session"})


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_between_tensors(device: str) -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("SplitToSequence", "r lengths", "pieces", axis=0),
        node("SequenceAt", "pieces first", "piece"),
        node("Neg", "piece", "negative"),
        node("SequenceInsert", "pieces negative", "more"),
        node("ConcatFromSequence", "more", "joined", axis=0),
        node("Abs", "joined", "y"),
    ]
    model = make(nodes, [info("x", (5, 2))], {"y": FLOAT}, lengths=np.array([2, 3]), first=np.int64(1))
    own = dict.fromkeys(("pieces", "piece", "more", "joined"), "session")
    check(model, device, {"x": scores(0, 5, 2)}, on=own)


def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each later stage that is planned adds the types of its ops."""
    from weft.core.session import stage_loader

    planned: list[str] = []
    divide: Any = vars(stage_loader)["divide"]

    def noted(graph: Any, *arguments: Any, **named: Any) -> Any:
        planned.append(" ".join(n.op.type for n in graph.nodes))
        return divide(graph, *arguments, **named)

    monkeypatch.setattr(stage_loader, "divide", noted)
    return planned


def counted(size: int) -> dict[str, Any]:
    """Return an input of 40 numbers of which so many are not 0."""
    x = np.zeros(40, np.float32)
    x[np.random.default_rng(size).permutation(40)[:size]] = np.arange(size) - 3.5
    return {"x": x}


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_a_stage_that_keeps_rows_apart_serves_all_counts_of_a_size_class(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        node("NonZero", "x", "at"),
        node("Transpose", "at", "rows"),
        node("GatherND", "x rows", "values"),
        node("Unsqueeze", "values one", "column"),
        node("MatMul", "column weights", "features"),
        node("Softmax", "features", "y", axis=-1),
    ]
    weights = np.random.default_rng(0).standard_normal((1, 3)).astype(np.float32)
    outputs = {"y": FLOAT, "values": FLOAT}
    model = make(nodes, [info("x", (40,))], outputs, one=np.array([1]), weights=weights)
    planned = plans(monkeypatch)
    check(model, device, *map(counted, (9, 12, 11, 10, 17, 13, 24, 1, 40)))
    if device == "cpu":
        assert len(planned) == 5, planned  # for 12, 24, 16, 1 and 48 rows
    else:
        assert len(planned) == 3, planned  # for 48 rows ahead of the runs, and for what came twice: 12 and 24


@pytest.mark.parametrize(
    ("op", "more"),
    [("ReduceSum", {"keepdims": 0}), ("CumSum", {}), ("Softmax", {"axis": 0}), ("Size", {}), ("TopK", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_stage_that_mixes_rows_is_planned_for_each_count(
    op: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = {"CumSum": "values zero", "TopK": "values two"}.get(op, "values")
    nodes = [
        node("NonZero", "x", "at"),
        node("Transpose", "at", "rows"),
        node("GatherND", "x rows", "values"),
        node(op, read, "y z" if op == "TopK" else "y", **more),
    ]
    made = {"y": INT64 if op == "Size" else FLOAT}
    model = make(nodes, [info("x", (40,))], made, zero=np.array(0), two=np.array([2]))
    planned = plans(monkeypatch)
    check(model, "cpu", *map(counted, (9, 12, 9, 11)))
    assert len(planned) == 3


def test_a_stage_that_fits_one_count_alone_is_planned_for_it() -> None:
    nodes = [
        node("NonZero", "x", "at"),
        node("Transpose", "at", "rows"),
        node("Split", "rows parts", "first second", axis=0),
    ]
    model = make(nodes, [info("x", (40,))], {"first": INT64, "second": INT64}, parts=np.array([2, 1]))
    check(model, "cpu", counted(3))
    with weft.load(model, "cpu") as session, pytest.raises(ModelError, match=r"parts of \(2, 1\)"):
        session.run(counted(4))


def test_an_output_of_an_early_stage_is_kept_to_the_last() -> None:
    nodes = [
        node("Relu", "x", "early"),
        node("NonZero", "x", "at"),
        node("Transpose", "at", "rows"),
        node("GatherND", "x rows", "values"),
        node("ReduceSum", "values", "y", keepdims=0),
        node("Exp", "values", "z"),
    ]
    for outputs in ({"early": FLOAT, "y": FLOAT}, {"early": FLOAT, "z": FLOAT}):
        check(make(nodes, [info("x", (40,))], outputs), "cpu", counted(9))


def test_outputs_are_written_where_they_fit_and_submit_keeps_its_inputs() -> None:
    model = make([node("NonZero", "x", "at"), node("Gather", "x at", "y")], [info("x", (4,))], {"y": FLOAT})
    with weft.load(model, "cpu") as session:
        x = f32([0, 5, 0, 7])
        target = np.zeros((1, 2), np.float32)
        (y,) = session.run(x, outputs=[target])
        assert y is target and y.tolist() == [[5, 7]]
        with pytest.raises(InputError, match="do not fit"):
            session.run(x, outputs=[np.zeros((1, 3), np.float32)])
        session.submit(x)
        x[:] = 0
        assert session.wait()[0].tolist() == [[5, 7]]


@pytest.mark.parametrize("precision", ["high", "low"])
def test_sequences_and_optionals_come_in_and_go_out(precision: Literal["high", "low"]) -> None:
    nodes = [
        node("OptionalHasElement", "held", "there"),
        node("SequenceAt", "pieces first", "piece"),
        node("Neg", "piece", "negative"),
        node("SequenceInsert", "pieces negative", "more"),
    ]
    kind = helper.make_tensor_type_proto(FLOAT, None)
    pieces = helper.make_value_info("pieces", helper.make_sequence_type_proto(kind))
    held = helper.make_value_info("held", helper.make_optional_type_proto(kind))
    model = make(nodes, [pieces, held], {"there": BOOL}, first=np.int64(0))
    model.graph.output.append(helper.make_value_info("more", helper.make_sequence_type_proto(kind)))
    with weft.load(model, "cpu", precision=precision) as loaded:
        session: Any = loaded
        there, more = session.run({"pieces": [f32([1, 2]), f32([3])], "held": None})
        assert not there and [each.tolist() for each in more] == [[1, 2], [3], [-1, -2]]
        assert session.run({"pieces": [f32([5])], "held": f32([1])})[0]
        given = [f32([1, 2]), f32([3])]
        session.submit({"pieces": given, "held": None})
        given[0][:], given[1] = 0, f32([9])  # the caller may change what it gave to `submit`
        there, more = session.wait()
        assert not there and [each.tolist() for each in more] == [[1, 2], [3], [-1, -2]]
        with pytest.raises(InputError, match="at place 1 has element type"):
            session.run({"pieces": [f32([5]), np.array(["a"])], "held": None})


def test_what_a_session_keeps_of_bodies_does_not_grow_with_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of the size plans anew, and so makes new constants for the body of the loop."""
    monkeypatch.setattr("weft.core.session.plans.MOST_PLANS", 2)
    monkeypatch.setattr(rests, "MOST_RESTS", 4)
    monkeypatch.setattr(rests, "MOST_BODIES", 4)
    body = helper.make_graph(
        [node("Identity", "going", "on"), node("Add", "held size", "next")],
        "body",
        [info("step", (), INT64), info("going", (), BOOL), info("held", ("n",))],
        [info("on", (), BOOL), info("next", ("n",))],
    )
    nodes = [
        node("NonZero", "x", "at"),
        node("Shape", "at", "shape"),
        node("Cast", "shape", "size", to=FLOAT),
        node("Loop", "count - start", "y", body=body),
    ]
    model = make(nodes, [info("x", (5,)), info("count", (), INT64)], {"y": FLOAT}, start=f32([0, 0]))
    graphs = list[int]()
    with weft.load(model, "cpu") as session:
        for _ in range(12):
            for n in (3, 4, 5):
                (y,) = session.run({"x": f32(np.arange(5) < n), "count": np.array(2)})
                np.testing.assert_array_equal(y, f32([2, 2 * n]))
            gc.collect()
            graphs.append(sum(isinstance(each, Graph) for each in gc.get_objects()))
    assert graphs[-1] == graphs[5]


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_without_iterations_stacks_nothing_of_the_shape_that_its_body_makes(device: str) -> None:
    """ONNX Runtime, without a declared shape, makes one axis of what it then calls unknown."""
    body = helper.make_graph(
        [
            node("Mul", "held x", "next"), node("Relu", "next", "made"), node("Identity", "going", "on"),
            node("Reshape", "next form", "turned"), node("Shape", "table", "sizes"),
            node("Expand", "held sizes", "wide"),
        ],
        "body",
        [info("step", (), INT64), info("going", (), BOOL), info("held")],
        [info("on", (), BOOL), info("next"), info("made"), info("turned"), info("wide")],
    )
    nodes = [node("Loop", "count - x", "last all turns wides", body=body)]
    inputs = [info("x", (3,)), info("count", (), INT64), info("form", (2,), INT64), info("table", ("n", 3))]
    model = make(nodes, inputs, {"last": FLOAT, "all": FLOAT, "turns": FLOAT, "wides": FLOAT})
    fed = {"x": f32([1, 2, 3]), "form": np.array([3, 1]), "table": np.zeros((40, 3), np.float32)}
    with weft.load(model, device) as session:
        for count in (2, 0):
            made = session.run({**fed, "count": np.array(count)})
            assert [each.shape for each in made] == [(3,), (count, 3), (count, 3, 1), (count, 40, 3)]
            assert {each.dtype for each in made} == {np.dtype(np.float32)}


@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_a_scan_of_nothing_stacks_nothing_of_the_shape_that_its_body_makes(batch: tuple[int, ...]) -> None:
    body = helper.make_graph(
        [node("Add", "held row", "next"), node("Unsqueeze", "next place", "made")],
        "body", [info("held"), info("row")], [info("next"), info("made")],
        [numpy_helper.from_array(np.array([1]), "place")],
    )
    graph = weft.frontends.onnx.load(
        make([node("Scan", "x xs", "last all", body=body, num_scan_inputs=1)], [info("x", (4,)), info("xs", ("t", 4))],
             {"last": FLOAT, "all": FLOAT})
    )
    op: Any = graph.nodes[0].op
    scan = replace(op, batched=bool(batch))
    _, made = scan.reference(np.zeros((*batch, 4), np.float32), np.zeros((*batch, 0, 4), np.float32))
    assert (made.shape, made.dtype) == ((*batch, 0, 4, 1), np.float32)


def test_a_loop_without_iterations_whose_body_tells_no_shape_says_what_to_do() -> None:
    body = helper.make_graph(
        [node("NonZero", "held", "places"), node("Identity", "held", "next"), node("Identity", "going", "on")],
        "body",
        [info("step", (), INT64), info("going", (), BOOL), info("held")],
        [info("on", (), BOOL), info("next"), info("places", None, INT64)],
    )
    nodes = [node("Loop", "count - x", "last all", body=body)]
    model = make(nodes, [info("x", (100,)), info("count", (), INT64)], {"last": FLOAT, "all": INT64})
    with (
        weft.load(model, "cpu") as session,
        pytest.raises(ModelError, match=r"'places'(?s:.*)next: export the model with the shapes of the body's outputs"),
    ):
        session.run({"x": np.zeros(100, np.float32), "count": np.array(0)})
