"""State: values that live from run to run, on every device, and sizes that grow."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from benchmarks.decoders import TINY, decoder, empty_caches, feeds
from tests.helpers.texts import Reference, close
from weft.core.session.state import SavedState
from weft.errors import ConfigError, InputError, OutOfMemory

DEVICES = ("cpu", "opencl", "vulkan")
F = TensorProto.FLOAT
ROWS, WIDTH = 5, 3


@pytest.fixture
def plans(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], int]]:
    """Return what counts the networks that were planned since the last call."""
    caplog.set_level(logging.INFO, "weft.session")

    def count() -> int:
        found = sum("planned in" in record.getMessage() for record in caplog.records)
        caplog.clear()
        return found

    yield count


TEXT = [np.arange(7)[None], *([[w]] for w in (3, 1, 4)), np.arange(40, 45)[None], *([[w]] for w in (1, 5))]


@pytest.mark.parametrize("form", ["genai", "genai4", "optimum"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_text_keeps_its_caches_on_the_device(device: str, form: str, plans: Callable[[], int]) -> None:
    reference = Reference(form)
    with weft.load(decoder("tiny", form), device, state=True, fallback="error") as session:
        assert session.outputs == ["logits"] and not any("past" in name for name in session.inputs)
        for step, words in enumerate(TEXT):
            words = np.array(words, np.int64)
            given = reference.feeds(words)
            (logits,) = session.run(given)
            assert close(logits, reference.run(words))
            assert session.state.length == reference.length
            assert plans() == (1 if step < 2 else 0)  # a prompt, and one word
        assert {*session.report.nodes_by_device} == {device}
        assert "past_sequence_length up to 256, sequence_length 1," in session.report.plan
        assert not any("copied" in note for note in session.report.notes)
        saved = session.state.save()
    wanted = reference.caches
    assert saved.length == reference.length and saved.values.keys() == wanted.keys()
    for name, value in saved.values.items():
        assert close(value.astype(np.float32), wanted[name].astype(np.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_callers_caches_that_grow_are_planned_once(device: str, plans: Callable[[], int]) -> None:
    reference = Reference("genai")
    with weft.load(decoder("tiny", "genai"), device, fallback="error") as session:
        caches, counts = empty_caches(TINY), []
        for words in (np.arange(5)[None], *([[w]] for w in range(9))):
            words = np.array(words, np.int64)
            logits, *made = session.run({**reference.feeds(words), **caches})
            assert close(logits, reference.run(words))
            caches = dict(zip(caches, made, strict=True))
            assert all(made.shape == reference.caches[name].shape for name, made in caches.items())
            counts.append(plans())
        assert sum(counts[5:]) == 0
        fresh, caches = Reference("genai"), empty_caches(TINY)
        for words in (np.arange(3)[None], np.array([[1]]), np.array([[2]])):  # another text
            logits, *made = session.run({**fresh.feeds(words), **caches})
            caches = dict(zip(caches, made, strict=True))
            assert close(logits, fresh.run(words))
            assert plans() == int(words.size == 3)


def test_a_state_is_reset_rewound_saved_and_restored() -> None:
    words = [np.array([[w]], np.int64) for w in (2, 7, 1, 8)]
    model, reference = decoder("tiny", "genai"), Reference("genai")
    every = [reference.feeds(each) | {"_": reference.run(each)} for each in words]
    wanted = [each.pop("_") for each in every]
    with weft.load(model, "cpu", state=True) as session, weft.load(model, "cpu", state=True) as other:
        assert [close(session.run(each)[0], w) for each, w in zip(every, wanted, strict=True)] == [True] * 4
        session.state.rewind(2)
        assert close(session.run(every[2])[0], wanted[2])
        saved = session.state.save()
        assert close(session.run(every[3])[0], wanted[3])
        session.state.reset()
        assert session.state.length == 0 and close(session.run(every[0])[0], wanted[0])
        for each in (session, other):  # also where nothing has run yet
            each.state.restore(saved)
            assert each.state.length == 3 and close(each.run(every[3])[0], wanted[3])
        for length in (9, 2.5, "1"):
            with pytest.raises(InputError, match="cannot be rewound to"):
                session.state.rewind(length)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="is no saved state"):
            session.state.restore(None)  # type: ignore[arg-type]
        assert "length=4" in repr(session.state)


def test_a_cache_grows_beyond_its_capacity(plans: Callable[[], int]) -> None:
    reference = Reference("genai")
    with weft.load(decoder("tiny", "genai"), "cpu", state=True) as session:
        for count in (250, 1, 1, 1):
            words = np.arange(count)[None] % TINY.vocabulary
            (logits,) = session.run(reference.feeds(words))
            assert close(logits, reference.run(words))
        before = session.state.nbytes
        for count in (240, 1, 12, 1):  # the table of places ends at 512
            words = np.arange(count)[None] % TINY.vocabulary
            (logits,) = session.run(reference.feeds(words))
            assert close(logits, reference.run(words))
        assert session.state.nbytes > before


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_rows_that_are_not_finite_are_forgotten_with_the_others(device: str) -> None:
    x = np.ones((1, 1, WIDTH), np.float32)
    with weft.load(square(), device, state=True) as session:
        for forget in (session.state.reset, lambda: session.state.rewind(1)):
            session.run(x)
            session.run(x * np.nan)
            forget()
            rows = session.state.length + 1
            assert np.array_equal(session.run(x)[0], np.full((1, WIDTH, WIDTH), rows))


def test_a_state_that_does_not_fit_is_not_restored() -> None:
    x = np.ones((1, 300, WIDTH), np.float32)
    with weft.load(square(), "cpu", state=True) as long, weft.load(square(), "cpu", state=True) as short:
        long.run(x)
        short.run(x[:, :2])
        saved = long.state.save()
        short.state.restore(saved)  # beyond its capacity
        assert np.array_equal(short.run(x[:, :1])[0], np.full((1, WIDTH, WIDTH), 301))
        short.state.restore(saved)
        short.state.rewind(5)
        assert np.array_equal(short.run(x[:, :1])[0], np.full((1, WIDTH, WIDTH), 6))
        (name,) = saved.values
        for wrong in (
            SavedState(5, saved.values), SavedState(300, {}), SavedState(300, {name: np.ones((2, 300, WIDTH))}),
            SavedState(2, {name: np.ones((1, 2, WIDTH + 1))}),
        ):  # fmt: skip
            with pytest.raises(InputError, match="saved state"):
                short.state.restore(wrong)
                short.run(x[:, :1])
            short.state.reset()


def test_a_state_of_another_model_is_refused_at_once() -> None:
    """Before the first run and after it; what was there stays."""
    x = np.ones((1, 2, WIDTH), np.float32)
    with weft.load(square(), "cpu", state=True) as session:
        session.run(x)
        (name,) = session.state.save().values
        session.state.reset()
        wrong = [SavedState(5, {name: np.ones(s, np.float32)}) for s in ((1, 5, WIDTH + 1), (1, 300, 2), (5, WIDTH))]
        for _ in range(2):
            for saved in wrong:
                with pytest.raises(InputError, match=r"(?s)the saved state does not fit.*and the model has"):
                    session.state.restore(saved)
            assert np.array_equal(session.run(x)[0], np.full((1, WIDTH, WIDTH), 2))
            session.state.rewind(0)
        assert session.state.length == 0
    with weft.load(square(), "cpu", state=True) as fresh, pytest.raises(InputError, match="and the model has"):
        fresh.state.restore(wrong[0])


def test_an_input_that_only_sounds_like_a_length_may_be_longer() -> None:
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["frames"], ["sum"]),
        helper.make_node("Mul", ["present", "sum"], ["y0"]),
    ]
    model = _model(nodes, ["y0"])
    model.graph.input.append(helper.make_tensor_value_info("frames", F, ("total_frames",)))
    x = np.ones((1, 2, WIDTH), np.float32)
    with weft.load(model, "cpu", state=True) as session:
        for count, rows in ((300, 2), (300, 4), (7, 6)):
            (y,) = session.run({"x": x, "frames": np.ones(count, np.float32)})
            assert np.array_equal(y, np.full((1, rows, WIDTH), count))


# -- ops along a size that grows ------------------------------------------------------------------------------


def cache_network(op: str, extra: Sequence[Any] = (), *, outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    """Return a network that puts rows behind a cache and computes an op of all rows."""
    names, weights = ["all"], []
    for k, value in enumerate(extra):
        weights.append(numpy_helper.from_array(np.asarray(value, np.int64 if op != "Add" else np.float32), f"c{k}"))
        names.append(f"c{k}")
    made = [f"y{k}" for k in range(outputs)]
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
        helper.make_node("Identity", ["all"], ["present"]),
        helper.make_node(op, names, made, **attributes),
    ]
    return _model(nodes, made, weights)


def _model(nodes: list[Any], made: Sequence[str], weights: Sequence[Any] = ()) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "cache", [value("x", F, (1, "new", WIDTH)), value("past", F, (1, "old", WIDTH))],
        [*(helper.make_empty_tensor_value_info(name) for name in made), value("present", F, (1, "all", WIDTH))],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def square() -> onnx.ModelProto:
    """Return a network whose keys and values are the rows themselves."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("Transpose", ["present"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["turned", "present"], ["y0"]),
    ]
    return _model(nodes, ["y0"])


def positions() -> onnx.ModelProto:
    """Return a network that adds to each row its place from the end, which it computes of the shape."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("Shape", ["present"], ["shape"], start=1, end=2),
        helper.make_node("Squeeze", ["shape"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["at"]),
        helper.make_node("Sub", ["count", "at"], ["back"]),
        helper.make_node("Cast", ["back"], ["numbers"], to=F),
        helper.make_node("Reshape", ["numbers", "column"], ["rows"]),
        helper.make_node("Mul", ["present", "rows"], ["y0"]),
    ]
    numbers = {"zero": 0, "one": 1, "column": [-1, 1]}
    weights = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in numbers.items()]
    return _model(nodes, ["y0"], weights)


ALONG = {
    **{f"Reduce{kind}": cache_network(f"Reduce{kind}", [[1]]) for kind in ("Sum", "Mean", "Max", "Min", "Prod")},
    **{f"Reduce{kind}": cache_network(f"Reduce{kind}", [[1, 2]]) for kind in ("L1", "L2", "LogSumExp", "SumSquare")},
    "all axes": cache_network("ReduceMean", keepdims=0),
    "softmax": cache_network("Softmax", axis=1),
    "softmax of rows": cache_network("Softmax", axis=2),
    "log softmax": cache_network("LogSoftmax", axis=1),
    "argmax": cache_network("ArgMax", axis=1),
    "running sum": cache_network("CumSum", [1]),
    "running sum from the end": cache_network("CumSum", [1], reverse=1),
    "last row": cache_network("Gather", [-1], axis=1),
    "last two rows": cache_network("Slice", [[-2], [2**62], [1]]),
    "all but the last": cache_network("Slice", [[0], [-1], [1]]),
    "every second": cache_network("Slice", [[0], [2**62], [1], [2]]),
    "reversed": cache_network("Slice", [[-1], [-(2**62)], [1], [-1]]),
    "turned": cache_network("Transpose", perm=[1, 2, 0]),
    "rows as a matrix": cache_network("Reshape", [[-1, WIDTH]]),
    "as one row": cache_network("Reshape", [[1, -1]]),
    "behind itself": cache_network("Expand", [[2, 1, 1, 1]]),
    "triangle": cache_network("Trilu"),
    "split": cache_network("Split", [[1, 2]], axis=2, outputs=2),
    "product": square(),
    "positions": positions(),
}  # fmt: skip


@pytest.mark.parametrize("what", ALONG)
def test_ops_see_no_padding(what: str) -> None:
    """Each run agrees with ONNX Runtime, whose cache has no padding, also when several rows come at once."""
    model = ALONG[what]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    past = np.zeros((1, 0, WIDTH), np.float32)
    with weft.load(model, "cpu", state={"past": "present"}) as ours:
        for count in (3, 1, 1, 2, 1):
            x = rng.uniform(-2, 2, (1, count, WIDTH)).astype(np.float32)
            *wanted, past = session.run(None, {"x": x, "past": past})
            got = ours.run(x)
            for a, b in zip(got, wanted, strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_network_that_needs_the_numbers_is_refused() -> None:
    model = cache_network("TopK", [[1]], outputs=2, axis=1)
    with (
        weft.load(model, "cpu", state={"past": "present"}) as session,
        pytest.raises(ConfigError, match="cannot keep this state") as e,
    ):
        session.run(np.ones((1, 2, WIDTH), np.float32))
    assert "TopK computes along a size that grows" in str(e.value)


def test_a_state_of_fixed_shape_is_fed_back() -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["x", "h"], ["sum"]), helper.make_node("Tanh", ["sum"], ["h_new"])]
    graph = helper.make_graph(nodes, "g", [value("x", F, (2,)), value("h", F, (2,))], [value("h_new", F, (2,))])
    graph.output.append(value("sum", F, (2,)))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    h = np.zeros(2, np.float32)
    with weft.load(model, "cpu", state={"h": "h_new"}) as session:
        for k in range(3):
            x = np.array([k, 1], np.float32)
            (total,) = session.run(x)
            np.testing.assert_allclose(total, x + h, rtol=1e-6)
            h = np.tanh(x + h)
        assert session.state.length == 0
        session.state.reset()
        np.testing.assert_allclose(session.run(x)[0], x)


@pytest.mark.parametrize("form", ["genai", "optimum"])
def test_several_texts_at_once(form: str) -> None:
    rng = np.random.default_rng(3)
    reference, again = Reference(form, batch=2), Reference(form, batch=1)
    with weft.load(decoder("tiny", form), "cpu", state=True) as session:
        # ONNX Runtime's attention takes several rows behind a past for one text alone.
        for count in (4, 1, 20, 1) if form == "optimum" else (4, 1, 1, 1):
            words = rng.integers(0, TINY.vocabulary, (2, count))
            assert close(session.run(reference.feeds(words))[0], reference.run(words))
        with pytest.raises(InputError, match="has other sizes than this run"):
            session.run(feeds(TINY, form, words[:1], reference.length))
        session.state.reset()
        assert close(session.run(again.feeds(words[:1]))[0], again.run(words[:1]))


@pytest.mark.parametrize("form", ["genai", "optimum"])
def test_a_mask_of_another_length_is_refused(form: str) -> None:
    reference = Reference(form)
    with weft.load(decoder("tiny", form), "cpu", state=True) as session:
        words = np.array([[1, 2, 3]], np.int64)
        if form == "optimum":  # it needs a network to know what fits
            session.run(reference.feeds(words))
            session.state.reset()
        for length in (2, 5):
            given = reference.feeds(words) | {"attention_mask": np.ones((1, length), np.int64)}
            with pytest.raises(InputError, match="do not fit the length of the state"):
                session.run(given)
        session.run(reference.feeds(words))
        reference.run(words)
        word = reference.feeds(words[:, :1])
        for length in (3, 5):
            with pytest.raises(InputError, match="do not fit the length of the state"):
                session.run(word | {"attention_mask": np.ones((1, length), np.int64)})
        with pytest.raises(InputError, match="the arrays for the outputs do not fit"):
            session.run(word, outputs=[np.zeros((1, 2, TINY.vocabulary), np.float32)])
        assert session.state.length == 3
        made = np.zeros((1, 1, TINY.vocabulary), np.float32)
        (logits,) = session.run(word, outputs=[made])
        assert logits is made and close(logits, reference.run(words[:, :1]))


def test_a_mask_of_ones_and_a_large_number_is_a_mask() -> None:
    nodes = [
        helper.make_node("Cast", ["mask"], ["shown"], to=F),
        helper.make_node("Sub", ["one", "shown"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "lowest"], ["bias"]),
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("Transpose", ["present"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["scores"]),
        helper.make_node("Add", ["scores", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"]),
        helper.make_node("MatMul", ["shares", "present"], ["y0"]),
    ]
    weights = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("one", 1), ("lowest", -1e9))]
    model = _model(nodes, ["y0"], weights)
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.INT64, (1, "n")))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng, past = np.random.default_rng(0), np.zeros((1, 0, WIDTH), np.float32)
    mask = np.zeros((1, 0), np.int64)
    with weft.load(model, "cpu", state=True) as ours:
        for count in (5, 1, 1, 3):
            x = rng.standard_normal((1, count, WIDTH)).astype(np.float32)
            mask = np.concatenate([mask, np.array([[0] * (count > 4) + [1] * (count - (count > 4))])], axis=1)
            y, past = session.run(None, {"x": x, "past": past, "mask": mask})
            np.testing.assert_allclose(ours.run({"x": x, "mask": mask})[0], y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("past_key_values.0.key", "present.0.key"), ("state", "stateN"), ("h0", "hn"), ("h", "hn"),
        ("in_cache0", "out_cache0"), ("encoder.cache.0", "encoder.new_cache.0"), ("hidden", "new_hidden"),
        ("input_state", "output_state"), ("state", "next_state"),
    ],
)  # fmt: skip
def test_names_of_exporters_are_found(given: str, made: str) -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["x", given], [made]), helper.make_node("Neg", [made], ["y"])]
    ends = [value(made, F, (2,)), value("y", F, (2,))]
    graph = helper.make_graph(nodes, "g", [value("x", F, (2,)), value(given, F, (2,))], ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with weft.load(model, "cpu", state=True) as session:
        assert session.outputs == ["y"] and [*session.inputs] == ["x"]
        session.run(np.ones(2, np.float32))
        assert np.array_equal(session.run(np.ones(2, np.float32))[0], [-2, -2])


def test_what_is_passed_on_unchanged_is_left_to_the_caller() -> None:
    model = square()
    value = helper.make_tensor_value_info
    model.graph.node.append(helper.make_node("Identity", ["past.encoder"], ["present.encoder"]))
    model.graph.input.append(value("past.encoder", F, (1, "words", WIDTH)))
    model.graph.output.append(value("present.encoder", F, (1, "words", WIDTH)))
    x, words = np.ones((1, 2, WIDTH), np.float32), np.ones((1, 7, WIDTH), np.float32)
    with weft.load(model, "cpu", state=True) as session:
        assert session.outputs == ["y0", "present.encoder"]
        for rows in (2, 4):
            y, kept = session.run({"x": x, "past.encoder": words})
            assert np.array_equal(y, np.full((1, WIDTH, WIDTH), rows)) and np.array_equal(kept, words)


def test_a_resize_plans_for_a_prompt(plans: Callable[[], int]) -> None:
    x = np.ones((1, 2, WIDTH), np.float32)
    with weft.load(square(), "cpu", state=True) as session:
        assert plans() == 0
        session.resize({"x": x.shape})
        assert plans() == 1 and session.state.length == 0
        session.run(x)
        assert plans() == 0 and session.state.length == 2
    with weft.load(square(), "cpu", state=True, shapes={"x": x.shape}) as session:
        assert plans() == 1
        np.testing.assert_allclose(session.run(x)[0], np.full((1, WIDTH, WIDTH), 2))
        assert plans() == 0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"nothing*": "present*"}, "no input 'nothing"),
        ({"past": "nothing"}, "no input 'past' has an output 'nothing'"),
        ("past", "names no inputs and outputs"),
        ({}, "names no inputs and outputs"),
    ],
)  # fmt: skip
def test_wrong_pairs_are_refused(state: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        weft.load(square(), "cpu", state=state)


def test_a_session_without_state_says_so() -> None:
    with weft.load(square(), "cpu") as session, pytest.raises(ConfigError, match="keeps no state"):
        _ = session.state
    with pytest.raises(ConfigError, match="a state cannot be kept here"):
        weft.load(square(), "cpu", state=True, memory="limit")


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_is_repeated_after_an_overflow_takes_one_step(device: str) -> None:
    net = weft.Network()
    x, past = net.add_input("x", (4,)), net.add_input("past", (4,))
    total = net.add_layer("Add", past, x)
    net.add_output("present", total)
    square = net.add_layer("MatMul", net.add_layer("Mul", total, total), np.eye(4, dtype=np.float32))
    net.add_output("y", net.add_layer("Mul", square, np.float32(1e-3)))
    step = np.array([1, 2, 1000, 3], np.float32)
    with weft.load(net, device, state={"past": "present"}, precision="low") as session:
        for count in (1, 2, 3):
            (y,) = session.run(step)
            np.testing.assert_allclose(y, (count * step) ** 2 * 1e-3, rtol=4e-3)


def running_sum() -> weft.Network:
    """A network with a state of a fixed size: y = s + x, and s is y the next time."""
    net = weft.Network("sum")
    total = net.add_layer("Add", net.add_input("state", (2,)), net.add_input("x", (2,)))
    net.add_output("stateN", total)
    net.add_output("y", net.add_layer("Identity", total))
    return net


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_whose_outputs_nobody_took_counts(device: str) -> None:
    x = np.array([1, 2], np.float32)
    with weft.load(running_sum(), device, fallback="error", state=True) as session:
        session.submit(x)
        with pytest.raises(InputError, match="call wait first"):
            session.state.save()
        session.submit(x)
        assert (session.wait()[0] == 2 * x).all()
        assert (session.run(x)[0] == 3 * x).all()
        assert (session.state.save().values["state"] == 3 * x).all()


def test_a_run_that_fails_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference("genai")
    with weft.load(decoder("tiny", "genai"), "cpu", state=True) as session:
        words = [np.array([[w]], np.int64) for w in (2, 7, 1)]
        assert close(session.run(reference.feeds(words[0]))[0], reference.run(words[0]))
        feed = reference.feeds(words[1])

        def fail(*_: object) -> None:
            raise MemoryError("none is left")

        with monkeypatch.context() as patched:
            patched.setattr(np, "matmul", fail)
            with pytest.raises((weft.WeftError, MemoryError)):
                session.run(feed)
        assert session.state.length == 1
        assert close(session.run(feed)[0], reference.run(words[1])) and session.state.length == 2


def test_without_memory_for_a_larger_state_it_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.core.buffers.device_memory import DeviceMemory

    reference = Reference("genai")
    with weft.load(decoder("tiny", "genai"), "cpu", state=True) as session:
        first, long = np.arange(7)[None], np.arange(150).repeat(2)[None] % 100
        assert close(session.run(reference.feeds(first))[0], reference.run(first))
        feed, make, left = reference.feeds(long), DeviceMemory.make, [2]

        def scarce(memory: DeviceMemory, *given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OutOfMemory("there is none")
            return make(memory, *given)

        with monkeypatch.context() as patched:
            patched.setattr(DeviceMemory, "make", scarce)
            with pytest.raises(weft.WeftError, match="there is none"):
                session.run(feed)
        assert session.state.length == 7
        assert close(session.run(feed)[0], reference.run(long)) and session.state.length == 307


def test_a_closed_session_leaves_its_plans_without_a_collection() -> None:
    gc.collect()
    gc.disable()
    try:
        session = weft.load(decoder("tiny", "genai"), "cpu", state=True)
        reference = Reference("genai")
        session.run(reference.feeds(np.array([[3]], np.int64)))
        constants = session.pipelines[0].graph.constants
        largest = weakref.ref(max(constants.values(), key=lambda array: array.nbytes))
        del constants
        session.close()
        del session
        assert largest() is None
    finally:
        gc.enable()
