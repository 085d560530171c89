"""Arrays that a session hands out: devices read and write them where they are, and they outlive the session."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

import weft
from tests.helpers.arrays_of_sessions import DEVICES, GPUS, SHAPE, check, network, random, upload
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import Net
from tests.helpers.opened import opened
from tests.helpers.warm_python import WarmPython
from weft.backends.gpu.recording import chunked_upload, pipeline_recording
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.host.host_backend import HostBackend
from weft.errors import InputError, OutOfMemory

HALF = np.dtype(np.float16)


@pytest.fixture(params=["whole", "directly", "chunks"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload in each of the ways of GPUs."""
    upload(request.param, monkeypatch)


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", DEVICES)
def test_runs_read_and_write_them_and_other_runs_do_not(device: str, precision: str, ways: None) -> None:
    with weft.load(network(), device, precision=precision, fallback="error") as session:
        one, two, out = session.input_arrays(), session.input_arrays(), session.output_arrays()
        assert {k: v.shape for k, v in (one | out).items()} == dict.fromkeys("abyz", SHAPE)
        assert all(not array.any() for array in (one | out).values())
        assert {v.dtype for v in (one | out).values()} == {HALF if precision == "low" else np.dtype(np.float32)}
        for k, arrays in enumerate((one, two)):
            arrays["a"][...], arrays["b"][...] = random(k), random(k + 10)
        for _ in range(2):
            y, z = session.run(one, outputs=out)
            assert y is out["y"] and z is out["z"]
            check(out, random(0), random(10), precision)
            kept = {name: array.copy() for name, array in (one | out).items()}
            # Others between them: another set of arrays, arrays of the caller's own, both together.
            check(dict(zip("yz", session.run(two), strict=True)), random(1), random(11), precision)
            check(dict(zip("yz", session.run(random(2), random(3)), strict=True)), random(2), random(3), precision)
            mixed = session.run(random(4), two["b"], outputs=[None, np.empty(SHAPE, np.float32)])
            check(dict(zip("yz", mixed, strict=True)), random(4), random(11), precision)
            for name, array in (one | out).items():
                np.testing.assert_array_equal(array, kept[name])


@pytest.mark.parametrize("device", GPUS)
def test_the_host_copies_nothing(device: str, ways: None) -> None:
    with weft.load(network(), device, fallback="error") as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        (pipeline,) = session.pipelines
        for staging in pipeline.mapped.values():
            staging[...] = np.nan
        session.run(arrays, outputs=out)
        check(out, random(0), random(1))
        assert all(np.isnan(pipeline.mapped[name]).all() for name in ("a", "b", "y", "z"))


@pytest.mark.parametrize("device", GPUS)
def test_float32_arrays_at_low_are_uploaded_from_where_they_are(device: str, ways: None) -> None:
    with weft.load(network(), device, precision="low", fallback="error") as session:
        arrays = session.input_arrays(half=False)
        assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        session.run(arrays)  # which looks for overflows
        (pipeline,) = session.pipelines
        for name in ("a", "b"):
            pipeline.mapped[name][...] = np.nan
        check(dict(zip("yz", session.run(arrays), strict=True)), random(0), random(1), "low")
        assert all(np.isnan(pipeline.mapped[name]).all() for name in ("a", "b"))


@pytest.mark.parametrize("precision", ["high", "low"])
def test_the_cpu_computes_in_them(precision: str) -> None:
    """Also in those of before a resize; at LOW the first run with them plans anew, which is one."""
    with weft.load(network("N"), "cpu", precision=precision, shapes=dict.fromkeys("ab", SHAPE)) as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        for _ in range(2):
            session.run(arrays, outputs=out)
            (pipeline,) = session.pipelines
            for name, array in (arrays | out).items():
                assert pipeline.tensor(name).memory is array
            session.resize(dict.fromkeys("ab", (5, *SHAPE[1:])))


def reshaping() -> Graph:
    """Return a network of reshapes: of an input, of a value before an output, and between an input and an output."""
    net, flat = Net(), np.array([-1], np.int64)
    a, b = net.input("a", *SHAPE), net.input("b", *SHAPE)
    relu = net.add("Relu", net.add("Reshape", a, flat), name="relu")
    both = net.add("Mul", net.add("Sigmoid", a), b, name="both")
    return net.finish(
        relu, both, net.add("Reshape", both, flat, name="flat"), net.add("Reshape", b, flat, name="b_flat")
    )


@pytest.mark.parametrize("profile", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_values_that_are_only_reshaped(device: str, profile: bool) -> None:
    with weft.load(reshaping(), device, profile=profile, fallback="error") as session:
        for seed in range(3):
            arrays, out = session.input_arrays(), session.output_arrays()
            a, b = arrays["a"], arrays["b"]
            a[...], b[...] = random(seed), random(seed + 10)
            for inputs in (arrays, {"a": random(seed), "b": random(seed + 10)}):
                for array in out.values():
                    array[...] = 7
                session.run(inputs, outputs=out)
                both = b / (1 + np.exp(-a))
                exact = {"relu": np.maximum(a, 0).ravel(), "both": both, "flat": both.ravel(), "b_flat": b.ravel()}
                for name, value in exact.items():
                    np.testing.assert_allclose(out[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_value_of_another_device_that_the_cpu_only_reshapes() -> None:
    net = Net()
    first = net.add("Relu", net.input("a", *SHAPE))
    last = net.add("Add", net.add("Sigmoid", first), first)
    graph = net.finish(first, net.add("Reshape", last, np.array([-1], np.int64), name="y"))
    hints = {node.name: "cpu" for node in graph.nodes if node.op.type != "Sigmoid"}
    with weft.load(graph, ["opencl", "cpu"], hints=hints) as session:
        assert [part.device for part in session.optimized.parts] == ["cpu:0", "opencl:0", "cpu:0"]
        arrays, out = session.input_arrays(), session.output_arrays()
        for seed in range(2):
            arrays["a"][...] = random(seed)
            session.run(arrays, outputs=out)
            relu = np.maximum(random(seed), 0)
            np.testing.assert_array_equal(out[first], relu)
            np.testing.assert_allclose(out["y"], (1 / (1 + np.exp(-relu)) + relu).ravel(), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_part_of_one_is_copied_unless_it_is_the_first(device: str) -> None:
    with weft.load(network("N"), device, shapes=dict.fromkeys("ab", SHAPE), fallback="error") as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        for k, name in enumerate("ab"):
            arrays[name][...] = random(k)
        for part in (slice(0, 1), slice(1, 2), slice(None, None, -1)):
            mine = {name: array[part] for name, array in arrays.items()}
            targets = {name: array[part] for name, array in out.items()}
            session.run(mine, outputs=targets)
            check(targets, random(0)[part], random(1)[part])


@pytest.mark.parametrize("device", DEVICES)
def test_they_outlive_a_resize_and_the_session(device: str) -> None:
    with weft.load(network("N"), device, shapes=dict.fromkeys("ab", SHAPE), fallback="error") as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        larger = (5, *SHAPE[1:])
        session.run(random(2, larger), random(3, larger))
        assert session.input_arrays()["a"].shape == larger
        session.run(arrays, outputs=out)  # resizes back
        check(out, random(0), random(1))
        last = arrays["a"][1]
    np.testing.assert_array_equal(arrays["a"], random(0))
    arrays["a"] += 1
    check(out, random(0), random(1))
    with weft.load(network(), device, fallback="error") as another:
        another.run(arrays, outputs=out)
        check(out, random(0) + 1, random(1))
    del arrays, out, session, another
    gc.collect()
    np.testing.assert_array_equal(last, random(0)[1] + 1)


@pytest.mark.parametrize("device", GPUS)
def test_their_memory_is_freed_with_the_last_view(device: str) -> None:
    def held() -> int:
        gc.collect()
        with weft.load(network(), device):  # frees what is not used any more, when it allocates
            return opened(device).stats.live_buffers

    before = held()
    with weft.load(network(), device, fallback="error") as session:
        view = session.input_arrays()["a"][1:, ::2].T
        for seed in range(20):  # more sets than a session keeps recordings for
            arrays = session.input_arrays()
            arrays["a"][...], arrays["b"][...] = random(seed), random(seed + 1)
            check(dict(zip("yz", session.run(arrays), strict=True)), random(seed), random(seed + 1))
        assert opened(device).stats.live_buffers < before + 3 * 20
    del arrays
    assert held() == before + 1
    del view
    assert held() == before


@pytest.mark.parametrize("ways", ["chunks"], indirect=True)
@pytest.mark.parametrize("device", GPUS)
def test_a_session_keeps_the_last_eight_sets(device: str, ways: None) -> None:
    """Each set adds a replay and the uploads of both inputs, until a ninth set takes the place of the first."""
    with weft.load(network(), device, fallback="error") as session:
        sets, recordings = list[object](), [opened(device).stats.live_recordings]
        for seed in range(10):
            arrays, out = session.input_arrays(), session.output_arrays()
            arrays["a"][...], arrays["b"][...] = random(seed), random(seed + 1)
            session.run(arrays, outputs=out)
            check(out, random(seed), random(seed + 1))
            sets.append((arrays, out))
            recordings.append(opened(device).stats.live_recordings)
        added = np.diff(recordings).tolist()
        assert added[0] > 1 and added == [added[0]] * 8 + [0, 0]


@pytest.mark.parametrize("ways", ["chunks"], indirect=True)
@pytest.mark.parametrize("device", GPUS)
def test_a_lent_array_that_is_sent_in_chunks_adds_its_chunks_alone(device: str, ways: None) -> None:
    """The run itself is the same, wherever the chunks came from."""
    with weft.load(network(), device, fallback="error") as session:
        before = opened(device).stats.live_recordings
        array = session.input_arrays()["a"]
        array[...] = random(0)
        check(dict(zip("yz", session.run(array, random(1)), strict=True)), random(0), random(1))
        assert opened(device).stats.live_recordings == before + -(-array.nbytes // chunked_upload.CHUNK)


@pytest.fixture(params=GPUS)
def direct(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a device that uploads all inputs from the caller's arrays, where these allow it."""
    device: str = request.param
    monkeypatch.setattr(pipeline_recording, "LEAST_DIRECT", 1)
    for name, value in {"uploads_directly": True, "computes_on_uploads": False, "sends_ahead": False}.items():
        monkeypatch.setattr(opened(device), name, value)
    return device


def recordings_of_runs(device: str, session: weft.Session, arrays: list[Array]) -> int:
    """Return how many recordings two runs add to those of the load or the resize before."""
    before = opened(device).stats.live_recordings
    for _ in range(2):
        check(dict(zip("yz", session.run(*arrays), strict=True)), arrays[0], arrays[1])
    return opened(device).stats.live_recordings - before


def test_a_load_records_what_runs_with_arrays_of_the_callers_need(direct: str) -> None:
    with weft.load(network(), direct, fallback="error") as session:
        assert recordings_of_runs(direct, session, [random(0), random(1)]) == 0


def test_a_resize_records_what_the_runs_before_it_needed(direct: str) -> None:
    """An array with other strides goes through the staging buffer; the first run with one cannot be foreseen."""
    shapes = [(n, *SHAPE[1:]) for n in (2, 3, 4)]
    with weft.load(network("N"), direct, shapes=dict.fromkeys("ab", SHAPE), fallback="error") as session:
        for shape, added in zip(shapes, (1, 0, 0), strict=True):
            session.resize(dict.fromkeys("ab", shape))
            turned = np.asfortranarray(random(0, shape))
            assert recordings_of_runs(direct, session, [turned, random(1, shape)]) == added
        for batch, added in ((5, 1), (6, 0)):
            shape = (batch, *SHAPE[1:])
            session.resize(dict.fromkeys("ab", shape))
            assert recordings_of_runs(direct, session, [random(0, shape), random(1, shape)]) == added


def test_an_input_that_another_device_made_is_uploaded_from_there(direct: str) -> None:
    with weft.load(network(), [direct, "cpu"], hints={"n_relu0": "cpu", "n_y": "cpu"}) as session:
        assert session.report.subgraphs == ("cpu:0", f"{direct}:0")
        pipeline = session.pipelines[1]
        staging = pipeline.mapped[pipeline.graph.inputs[0]]
        staging[...] = np.nan
        assert recordings_of_runs(direct, session, [random(0), random(1)]) == 0
        assert np.isnan(staging).all(), "the host copied nothing"


def test_an_upload_beside_the_device_s_work_waits_for_the_run_before(
    direct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session waits before it fills inputs; a backend does not rely on that, for the run reads what is written."""
    with weft.load(network(), direct, fallback="error") as session:
        session.run(random(0), random(1))
        (pipeline,) = session.pipelines
        backend, device = pipeline.backend, opened(direct)
        calls = list[str]()
        for name in ("submit", "wait", "upload_beside"):
            real = getattr(device, name)

            def noting(*given: object, name: str = name, real: Callable[..., object] = real) -> object:
                calls.append(name)
                return real(*given)

            monkeypatch.setattr(device, name, noting)
        for _ in range(2):
            pipeline.fill("a", random(2))
            backend.onExecuteBegin()
            backend.onExecuteEnd()
        assert backend.onWaitFinish()
        assert calls == ["upload_beside", "submit", "wait"] * 2


@pytest.mark.parametrize("device", GPUS)
def test_a_network_may_have_more_inputs_than_a_session_keeps_sets(device: str, ways: None) -> None:
    net, count = Net(), 11
    total = net.input("x0", *SHAPE)
    for k in range(1, count):
        total = net.add("Add", total, net.input(f"x{k}", *SHAPE))
    with weft.load(net.finish(total), device, fallback="error") as session:
        for turn in range(2):
            arrays = session.input_arrays()
            for k, array in enumerate(arrays.values()):
                array[...] = 2**k + turn
            np.testing.assert_array_equal(session.run(arrays)[0], 2**count - 1 + count * turn)


@pytest.mark.parametrize("device", DEVICES)
def test_one_set_is_filled_while_the_device_works_on_another(device: str) -> None:
    with weft.load(network(), device, fallback="error") as session:
        sets = [(session.input_arrays(), session.output_arrays()) for _ in range(2)]
        for turn in range(4):
            arrays, out = sets[turn % 2]
            arrays["a"][...], arrays["b"][...] = random(turn), random(turn + 1)
            if turn:
                session.wait()
                check(sets[1 - turn % 2][1], random(turn - 1), random(turn))
            session.submit(arrays, outputs=out)
        y, _ = session.wait()
        assert y is out["y"]
        check(out, random(3), random(4))
        session.submit(arrays, outputs=out)
        with pytest.raises(InputError, match="two sets of arrays"):
            session.wait(outputs=out)
        assert session.wait()[0] is out["y"]
        session.submit(arrays)
        assert session.wait(outputs=out)[1] is out["z"]
        check(out, random(3), random(4))


@pytest.mark.parametrize("device", DEVICES)
def test_threads_have_sets_of_their_own(device: str) -> None:
    with weft.load(network(), device, fallback="error") as shared, weft.load(network(), device) as other:

        def work(seed: int) -> None:
            arrays, out = shared.input_arrays(), other.output_arrays()
            for turn in range(4):
                arrays["a"][...], arrays["b"][...] = random(seed + turn), random(seed)
                for session in (shared, other):
                    session.run(arrays, outputs=out)
                    check(out, random(seed + turn), random(seed))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, (0, 20, 40)))


@pytest.mark.parametrize("device", DEVICES)
def test_fp16_arrays_travel_as_they_are_at_low(device: str) -> None:
    with weft.load(network(), device, precision="low", fallback="error") as session:
        a, b = random(0).astype(HALF), random(1).astype(HALF)
        exact = session.run(a.astype(np.float32), b.astype(np.float32))
        kinds = [node.op.type for node in session.optimized.graph.nodes]
        out = np.empty(SHAPE, HALF)
        y, z = session.run(a, b, outputs={"z": out})
        assert z is out and y.dtype == np.float32, "without an array for it, an output has the model's type"
        assert [session.optimized.graph.specs[v].dtype.numpy for v in "abyz"] == [HALF, HALF, np.float32, HALF]
        assert kinds.count("Cast") > [n.op.type for n in session.optimized.graph.nodes].count("Cast")
        check({"y": y, "z": z}, a, b, "low")
        for before, now in zip(exact, (y, z), strict=True):
            np.testing.assert_allclose(before, now, atol=2e-3)
        assert session.run(a, b, outputs={"y": out})[0] is out


@pytest.mark.parametrize("memory", ["normal", "limit"])
@pytest.mark.parametrize("device", DEVICES)
def test_wait_converts_to_fp16_arrays_at_low(device: str, memory: str) -> None:
    with weft.load(network(), device, precision="low", memory=memory, fallback="error") as session:
        out = session.output_arrays()
        assert {v.dtype for v in out.values()} == {HALF}
        session.submit(random(0), random(1))
        y, z = session.wait(outputs=out)
        assert y is out["y"] and z is out["z"]
        check(out, random(0), random(1), "low")
        session.submit(random(2), random(3))
        turned = np.empty(SHAPE[::-1], HALF).T
        y, z = session.wait(outputs={"y": turned})
        assert y is turned and z.dtype == np.float32
        check({"y": y, "z": z}, random(2), random(3), "low")
        session.submit(random(2), random(3))
        with pytest.raises(InputError, match=r"'y' needs a writable array float16\[2x4x6x5\]"):
            session.wait(outputs=[np.empty((1, 2), HALF), None])


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_is_refused_leaves_the_types_of_the_plan(device: str) -> None:
    shapes = dict.fromkeys("ab", SHAPE)
    with weft.load(network("N"), device, precision="low", shapes=shapes, fallback="error") as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        session.run(random(2), random(3))  # plans for fp32
        with pytest.raises(InputError, match="the shapes do not fit"):
            session.run(arrays["a"], np.ones((3, *SHAPE[1:]), HALF), outputs=out)
        session.run(arrays, outputs=out)
        check(out, random(0), random(1), "low")
        session.run(arrays["a"], random(1), outputs=out)
        check(out, random(0), random(1), "low")


@pytest.mark.parametrize("device", DEVICES)
def test_runs_store_to_lent_arrays_of_the_tensors_type_and_shape_only(device: str) -> None:
    with weft.load(network(), device, fallback="error") as session:
        session.run(random(0), random(1))
        (pipeline,), out = session.pipelines, session.output_arrays()["y"]
        for array in (out, out.view(np.int32), out.view(HALF), out[:1]):
            assert pipeline.execute({"y": array}) == (["y"] if array is out else [])
            pipeline.wait()
        check(dict(zip("yz", session.run(random(2), random(3)), strict=True)), random(2), random(3))


@pytest.mark.parametrize("device", DEVICES)
def test_runs_read_lent_arrays_of_the_tensors_type_and_shape_in_place(device: str) -> None:
    with weft.load(network(), device, fallback="error") as session:
        array, out = session.input_arrays()["a"], session.output_arrays()
        (pipeline,) = session.pipelines
        pipeline.fill("b", random(1))
        for lent in (array, random(2)):
            array[...] = random(2)
            pipeline.fill("a", lent)
            array[...] = random(3)
            assert pipeline.execute(out) == ["y", "z"]
            pipeline.wait()
            check(out, random(3 if lent is array else 2), random(1))


def test_fp16_arrays_are_converted_where_the_network_stores_fp32() -> None:
    with weft.load(network(), "cpu") as session:
        assert session.run(random(0).astype(HALF), random(1))[0].dtype == np.float32
        with pytest.raises(InputError, match="'z' needs a writable array float32"):
            session.run(random(0), random(1), outputs=[None, np.empty(SHAPE, HALF)])


@pytest.mark.parametrize("device", DEVICES)
def test_an_error_names_both_types_that_an_array_for_an_output_may_have_at_low(device: str) -> None:
    outputs = {"y": np.empty(SHAPE, np.int32)}
    shown = r"'y' needs a writable array float32\[2x4x6x5\] or float16; given is int32"
    with weft.load(network(), device, precision="low") as session, pytest.raises(InputError, match=shown):
        session.run(random(0), random(1), outputs=outputs)


def test_a_saved_network_takes_fp16_arrays(tmp_path: object) -> None:
    weft.optimize(network(), "cpu", precision="low").save(f"{tmp_path}/net.weft")
    with weft.load(f"{tmp_path}/net.weft") as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        assert [x.dtype for x in (arrays["a"], out["z"])] == [HALF, HALF]
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        session.run(arrays, outputs=out)
        check(out, random(0), random(1), "low")
        assert not any("does not launch" in note for note in session.report.notes)


@pytest.mark.parametrize("device", GPUS)
def test_values_between_devices_stay_where_the_other_device_reads_them(device: str) -> None:
    """"y" is an output of the first part and an input of the second."""
    with weft.load(network(), [device, "cpu"], hints={"n_tanh2": "cpu", "n_z": "cpu"}) as session:
        assert len(session.report.subgraphs) == 2
        arrays, out = session.input_arrays(), session.output_arrays()
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        for _ in range(2):
            session.run(arrays, outputs=out)
            check(out, random(0), random(1))


@pytest.mark.parametrize("output", ["y", "z"])
@pytest.mark.parametrize("node", ["n_y", "n_z"])
@pytest.mark.parametrize("device", GPUS)
def test_one_array_may_be_an_input_and_an_output_of_several_parts(device: str, node: str, output: str) -> None:
    """No part reads what another one wrote in the place of an input."""
    net = Net()
    x = net.input("x", 4)
    net.add("Add", x, np.ones(4, np.float32), name="y")
    net.add("Mul", x, np.full(4, 10, np.float32), name="z")
    with weft.load(net.finish("y", "z"), [device, "cpu"], hints={node: "cpu"}) as session:
        assert len(session.report.subgraphs) == 2
        state = session.output_arrays()[output]
        for _ in range(2):
            state[:] = [1, 2, 3, 4]
            y, z = session.run(state, outputs={output: state})
            assert (y.tolist(), z.tolist()) == ([2, 3, 4, 5], [10, 20, 30, 40])


@pytest.mark.parametrize("device", GPUS)
def test_they_count_for_the_memory_limit(device: str) -> None:
    options = {device: {"memory_limit": 40_000}}
    with weft.load(network(), device, backend_options=options, fallback="error") as session:
        held = list[object]()
        with pytest.raises(OutOfMemory, match=r"bytes cannot be allocated"):
            while len(held) < 100:
                held.append(session.input_arrays())
        check(dict(zip("yz", session.run(random(0), random(1)), strict=True)), random(0), random(1))
        del held
        session.input_arrays()


@pytest.mark.parametrize("device", GPUS)
def test_arrays_that_nobody_holds_make_room(device: str, ways: None) -> None:
    """A session keeps what it recorded for the last sets, and gives it up where it or another lacks memory."""
    options = {device: {"memory_limit": 55_000}}

    def load() -> weft.Session:
        return weft.load(network(), device, backend_options=options, fallback="error")

    with load() as session, load() as other:

        def sets(asked: weft.Session) -> list[tuple[dict[str, Array], dict[str, Array]]]:
            held = list[tuple[dict[str, Array], dict[str, Array]]]()
            with suppress(OutOfMemory):
                while len(held) < 100:
                    held.append((asked.input_arrays(), asked.output_arrays()))
            return held

        room = len(sets(session))
        assert room > 2
        for asked in (session, other):
            held = sets(session)
            assert len(held) == room
            for seed, (arrays, out) in enumerate(held):
                arrays["a"][...], arrays["b"][...] = random(seed), random(seed + 1)
                session.run(arrays, outputs=out)
                check(out, random(seed), random(seed + 1))
            del held[1:], arrays, out
            assert len(sets(asked)) == room - 1
            arrays, out = held.pop()
            session.submit(arrays, outputs=out)
            del arrays
            assert len(sets(asked)) == room - 1, "what the device works with stays, though the caller dropped it"
            session.wait()
            check(out, random(0), random(1))
            del out


@pytest.mark.parametrize("device", DEVICES)
def test_in_memory_mode_limit_they_are_numpys(device: str) -> None:
    with weft.load(network(), device, memory="limit", fallback="error") as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        session.run(arrays, outputs=out)
        check(out, random(0), random(1))


def test_a_backend_without_such_memory_has_numpys() -> None:
    class Acme(HostBackend):
        def onCreate(self, inputs, outputs, op):  # type: ignore[no-untyped-def]
            return None

    with registered(Creator(Acme)), weft.load(network(), ["acme", "cpu"]) as session:
        arrays, out = session.input_arrays(), session.output_arrays()
        arrays["a"][...], arrays["b"][...] = random(0), random(1)
        session.run(arrays, outputs=out)
        check(out, random(0), random(1))


def test_there_are_none_before_shapes_are_known() -> None:
    with weft.load(network("N"), "cpu") as session:
        for ask in (session.input_arrays, session.output_arrays):
            with pytest.raises(InputError, match="the network has no shapes yet"):
                ask()
    net = Net()
    net.input("x", "N")
    with weft.load(net.finish(net.add("NonZero", "x", name="y")), "cpu", shapes={"x": (3,)}) as session:
        session.input_arrays()["x"][...] = 1
        with pytest.raises(InputError, match="are not known before a run"):
            session.output_arrays()


def test_an_empty_input_and_a_scalar_have_arrays() -> None:
    net = Net()
    x, n = net.input("x", 0, 3), net.input("n", dtype=DType.FLOAT32)
    graph = net.finish(net.add("Relu", x, name="y"), net.add("Neg", n, name="m"))
    for device in DEVICES:
        with weft.load(graph, device) as session:
            arrays, out = session.input_arrays(), session.output_arrays()
            arrays["n"][...] = 3
            session.run(arrays, outputs=out)
            assert out["y"].shape == (0, 3) and out["m"] == -3


CLOSED = """
import gc, sys
import numpy as np
import weft
from tests.core.session.test_session_arrays import network
session = weft.load(network(), sys.argv[1], fallback="error")
arrays, out = session.input_arrays(), session.output_arrays()
session.run(arrays, outputs=out)
session.close()
weft.registry.find(sys.argv[1]).close()
for array in (*arrays.values(), *out.values()):
    array[...] = 7
del session
gc.collect()
print(sum(array.sum() for array in (arrays | out).values()))
kept = arrays.pop("a") if sys.argv[2] == "kept" else None
del arrays, out, array
gc.collect()
print("end")
"""


@pytest.mark.parametrize("ending", ["dropped", "kept"])
@pytest.mark.parametrize("device", GPUS)
def test_they_outlive_the_device(device: str, ending: str, warm_python: WarmPython) -> None:
    done = warm_python.run("-c", CLOSED, device, ending)
    assert (done.returncode, done.stdout.split()) == (0, [str(7.0 * 4 * 240), "end"]), done.stderr
