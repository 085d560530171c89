"""Section 4: every failure is a WeftError that says what, where, why and what next; then all goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net, branching, feeds, op
from tests.helpers.null_gpu import null_gpu
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Execution, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.errors import (
    ClosedError,
    ConfigError,
    ExecutionError,
    InputError,
    ModelError,
    NoDevice,
    OutOfMemory,
    WeftError,
)

DEVICES = ("cpu", "opencl", "vulkan")


def relu(*shape: int | str) -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", *shape), name="y"))


def assert_usable() -> None:
    """Fail unless the process can still load and run a network."""
    with weft.load(branching(), device="cpu") as session:
        np.testing.assert_allclose(session.run(feeds(branching())), outputs(branching(), feeds(branching())), rtol=1e-5)


def assert_goes_on(session: weft.Session, fed: Any, expected: Any) -> None:
    """Fail unless the session can still run and be closed."""
    np.testing.assert_allclose(session.run(fed)[0], expected, rtol=1e-5)
    session.close()


# -- the shape of a message ----------------------------------------------------------------------------


def test_4_a_message_has_what_where_why_and_next() -> None:
    error = WeftError("it failed", where="node 'a' (Relu)", why="12 bytes needed, 4 available", fix="use less")
    assert str(error) == "it failed\n  where: node 'a' (Relu)\n  why: 12 bytes needed, 4 available\n  next: use less"


def test_4_all_errors_are_in_one_tree() -> None:
    from weft import errors

    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(kinds) > 10 and all(issubclass(e, WeftError) for e in kinds)


# -- inputs ----------------------------------------------------------------------------------------------

F32 = np.zeros((2, 3), np.float32)
BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "none at all": ((), r"0 input\(s\) were given"),
    "too many": ((F32, F32), r"2 input\(s\) were given"),
    "an unknown name": (({"z": F32},), "'x' is missing; there is no input 'z'"),
    "an empty dict": (({},), "'x' is missing"),
    "another shape": ((np.zeros((2, 4), np.float32),), r"cannot have shape \(2, 4\): dimension 1 is 4 instead of 3"),
    "another rank": ((np.zeros(6, np.float32),), "rank 1 instead of 2"),
    "booleans": ((np.zeros((2, 3), bool),), "has element type bool and float32 is needed"),
    "complex numbers": ((np.zeros((2, 3), complex),), "element type complex128"),
    "text": ((np.full((2, 3), "a"),), "element type <U1"),
    "objects": ((np.full((2, 3), None),), "element type object"),
    "nothing": ((None,), "element type object"),
    "a ragged list": (([[1, 2], [3]],), "is not an array"),
    "numbers too large": ((np.full((2, 3), 1e300),), "does not hold all of its values"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", BAD_INPUTS)
def test_4_a_bad_input_is_refused_and_the_session_goes_on(device: str, case: str) -> None:
    given, message = BAD_INPUTS[case]
    session = weft.load(relu(2, 3), device=device)
    with pytest.raises(InputError, match=message) as caught:
        session.run(*given)
    assert "'x'" in str(caught.value)
    assert_goes_on(session, np.ones((2, 3), np.float32), 1.0)


def test_4_all_bad_inputs_are_named_at_once() -> None:
    net = Net()
    a, b, c = net.input("a", 2), net.input("b", 2), net.input("c", 2, dtype=DType.UINT8)
    graph = net.finish(net.add("Add", a, b, name="y"), c)
    with weft.load(graph, device="cpu") as session:
        with pytest.raises(InputError) as caught:
            session.run({"a": np.zeros(2, bool), "c": np.array([-1, 300]), "d": np.zeros(1)})
        for part in ("'b' is missing", "no input 'd'", "'a' has element type bool", "'c' has element type int64"):
            assert part in caught.value.why
        with pytest.raises(InputError) as caught:
            session.run(np.zeros(3, np.float32), np.zeros((2, 2), np.float32), np.zeros(2, np.uint8))
        assert "'a' cannot" in caught.value.why and "'b' cannot" in caught.value.why


@pytest.mark.parametrize("shape", ["abc", 5, None, (1.5, 3), (-1, 3), (2, "n"), [None, 3]])
def test_4_a_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(InputError, match="is not a shape for 'x'"):
        weft.load(relu("N", 3), device="cpu", shapes={"x": shape})
    with weft.load(relu("N", 3), device="cpu") as session:
        with pytest.raises(InputError, match="is not a shape for 'x'"):
            session.resize({"x": shape})
        assert_goes_on(session, np.ones((2, 3), np.float32), 1.0)


def test_4_a_report_before_the_shapes_are_known_says_what_to_do() -> None:
    with weft.load(relu("N", 3), device="cpu") as session:
        with pytest.raises(InputError, match=r"the shape of 'x' is \('N', 3\)") as caught:
            _ = session.report
        assert "shapes={name: shape}" in caught.value.fix


# -- models ----------------------------------------------------------------------------------------------


def broken(change: Callable[[Graph], object]) -> Graph:
    graph = branching()
    change(graph)
    return graph


BAD_GRAPHS: dict[str, tuple[Callable[[Graph], object], str]] = {
    "a missing producer": (lambda g: g.nodes.pop(0), "'n_stem_relu' .Relu. reads 'stem', which nothing makes"),
    "a wrong order": (lambda g: g.nodes.reverse(), "which is made only later"),
    "a name twice": (lambda g: g.nodes.append(g.nodes[-1]), "2 nodes are called 'n_y'; value 'y' is made 2 times"),
    "an output of nobody": (lambda g: g.outputs.append("z"), "nothing makes the output 'z'"),
    "an input without a spec": (lambda g: g.specs.pop("x"), "'x' has no shape and type"),
    "a constant unlike its spec": (
        lambda g: g.specs.update({next(iter(g.constants)): TensorSpec((1,), DType.INT8)}),
        r"its spec says int8\[1\]",
    ),
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_4_a_malformed_graph_is_refused(case: str) -> None:
    change, message = BAD_GRAPHS[case]
    with pytest.raises(ModelError, match=message):
        weft.load(broken(change), device="cpu")
    assert_usable()


def test_4_inputs_of_a_node_that_do_not_fit_are_named_with_their_shapes() -> None:
    graph = relu(2, 3)
    graph.nodes.append(Node("product", op("MatMul"), ("y", "y"), ("z",)))
    graph.outputs = ["z"]
    with pytest.raises(ModelError, match=r"node 'product' \(MatMul\)") as caught:
        weft.load(graph, device="cpu")
    assert "float32[2x3]" in caught.value.where and caught.value.why


@pytest.mark.parametrize("model", [3, None, b"", b"no model", "", "/nowhere/model.onnx", object()])
def test_4_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(WeftError):
        weft.load(model, device="cpu")
    assert_usable()


# -- drivers ---------------------------------------------------------------------------------------------


def test_4_a_missing_driver_says_why_and_what_to_do() -> None:
    with registered(Creator(absent="libOpenCL.so.1 was not found"), "card"), pytest.raises(NoDevice) as caught:
        weft.load(relu(2), device="card")
    assert (caught.value.why, caught.value.fix) == ("libOpenCL.so.1 was not found", "run 'weft doctor'")
    assert_usable()


def test_4_a_name_that_is_no_device_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="'gpu!' is not a device"):
        weft.load(relu(2), device="gpu!")


# -- memory ----------------------------------------------------------------------------------------------


def test_4_a_device_that_is_full_says_how_much_was_needed_and_available() -> None:
    net = Net()
    graph = net.finish(net.add("Conv", net.input("x", "N", 4, 8, 8), net.random(4, 4, 1, 1), net.random(4), name="y"))
    with null_gpu(memory=20 << 20) as device, weft.load(graph, device="null", shapes={"x": (1, 4, 8, 8)}) as session:
        before = session.run(np.zeros((1, 4, 8, 8), np.float32))[0]
        with pytest.raises(OutOfMemory, match=r"bytes cannot be allocated") as caught:
            session.resize({"x": (20_000, 4, 8, 8)})
        assert "null:0" in caught.value.where and "20,971,520" in caught.value.why
        assert device.stats.live_buffers == 0, "what was allocated before it failed is freed"
        assert session.run(np.zeros((1, 4, 8, 8), np.float32))[0].shape == before.shape
    assert_usable()


def test_4_a_session_that_could_not_be_made_leaves_nothing_on_the_device() -> None:
    with null_gpu(memory=1 << 20) as device:
        with pytest.raises(OutOfMemory):
            weft.load(branching(64, 64), device="null")
        assert (device.stats.live_buffers, device.stats.live_bytes, device.stats.live_recordings) == (0, 0, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_4_more_memory_than_there_is_is_refused_on_every_device(device: str) -> None:
    net = Net()
    x = net.input("x", "N", "N")
    graph = net.finish(net.add("ReduceMax", net.add("Exp", x, name="e"), name="y", keepdims=0))
    with weft.load(graph, device=device) as session:
        with pytest.raises(WeftError) as caught:
            session.resize({"x": (1 << 22, 1 << 22)})
        assert isinstance(caught.value, OutOfMemory), str(caught.value)
        assert caught.value.fix
        assert_goes_on(session, np.zeros((3, 3), np.float32), 1.0)
    assert_usable()


@pytest.mark.parametrize("storage", ["DYNAMIC", "DYNAMIC_SEPERATE", "STATIC"])
def test_4_a_backend_that_refuses_memory_is_an_out_of_memory_with_the_numbers(storage: str) -> None:
    class Full(CpuBackend):
        def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
            return storage_type.name != storage and super().onAcquireBuffer(tensor, storage_type)

    net = Net()
    graph = net.finish(net.add("Add", net.input("x", 5), np.ones(5, np.float32), name="y"))
    with registered(Creator(Full), "full"), pytest.raises(OutOfMemory, match="full:0 has no memory") as caught:
        weft.load(graph, device="full")
    assert caught.value.why == f"20 bytes of {storage} memory were refused"


def test_4_a_backend_that_cannot_allocate_its_plan_is_an_out_of_memory_with_the_numbers() -> None:
    class Full(CpuBackend):
        def onAllocateBuffer(self) -> bool:
            return False

    with registered(Creator(Full), "full"), pytest.raises(OutOfMemory, match="full:0") as caught:
        weft.load(relu(1000), device="full")
    assert "8,000 bytes" in caught.value.why


# -- executions ------------------------------------------------------------------------------------------


class Bad(Execution):
    """Fails where it is told to."""

    where = "onExecute"
    error: Exception = ValueError("shapes (2,) and (3,) do not align")

    def __init__(self, inputs: Inputs, outputs: Outputs, op: Op, backend: Any) -> None:
        self._fail("onCreate")

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self._fail("onResize")

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self._fail("onExecute")
        outputs[0].memory[...] = 1

    def _fail(self, where: str) -> None:
        if Bad.where == where:
            raise Bad.error


class Acme(CpuBackend):
    """A backend whose Relu fails."""


Acme.creator("Relu")(Bad)

RAISED = [
    ValueError("no"),
    KeyError("no"),
    ZeroDivisionError("no"),
    AssertionError("no"),
    OSError("no"),
    Exception("no"),
    StopIteration("no"),
]


def run_relu() -> None:
    with weft.load(relu(2, 3), device="acme") as session:
        session.run(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("where", ["onCreate", "onResize", "onExecute"])
@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
def test_4_whatever_an_execution_raises_names_node_op_and_device(where: str, error: Exception) -> None:
    Bad.where, Bad.error = where, error
    with registered(Creator(Acme)), pytest.raises(ExecutionError) as caught:
        run_relu()
    callback = "Acme.onCreate" if where == "onCreate" else f"Bad.{where}"
    assert caught.value.where == f"node 'n_y' (Relu) on acme:0: {callback}"
    assert caught.value.why.startswith(type(error).__name__) and caught.value.__cause__ is error


def test_4_a_WeftError_of_an_execution_keeps_its_class_and_its_advice() -> None:
    Bad.where, Bad.error = "onExecute", OutOfMemory("no room", where="tile 3", why="4 of 8 bytes", fix="use less")
    with registered(Creator(Acme)), pytest.raises(OutOfMemory) as caught:
        run_relu()
    text = "no room\n  where: node 'n_y' (Relu) on acme:0: tile 3\n  why: 4 of 8 bytes\n  next: use less"
    assert str(caught.value) == text


def test_4_memory_that_runs_out_in_numpy_is_an_out_of_memory_error() -> None:
    Bad.where, Bad.error = "onExecute", MemoryError("Unable to allocate 8 TiB")
    with registered(Creator(Acme)), pytest.raises(OutOfMemory, match="Unable to allocate 8 TiB"):
        run_relu()


def test_4_after_a_failed_run_the_session_runs_again() -> None:
    Bad.where, Bad.error = "onExecute", ValueError("once")
    with registered(Creator(Acme)):
        session = weft.load(relu(2, 3), device="acme")
        with pytest.raises(ExecutionError):
            session.run(np.zeros((2, 3), np.float32))
        with pytest.raises(InputError, match="no run to wait for"):
            session.wait()
        Bad.where = ""
        assert_goes_on(session, np.zeros((2, 3), np.float32), 1.0)


def test_4_after_a_failed_resize_the_session_runs_again() -> None:
    Bad.where = ""
    with registered(Creator(Acme)):
        session = weft.load(relu("N", 3), device="acme", shapes={"x": (2, 3)})
        Bad.where, Bad.error = "onResize", ValueError("this time")
        with pytest.raises(ExecutionError):
            session.resize({"x": (4, 3)})
        with pytest.raises(InputError, match="the last resize failed"):
            _ = session.report
        Bad.where = ""
        assert_goes_on(session, np.zeros((2, 3), np.float32), 1.0)


CALLBACKS = ("onResizeBegin", "onResizeEnd", "onAllocateBuffer", "onExecuteBegin", "onExecuteEnd")


@pytest.mark.parametrize("callback", CALLBACKS)
def test_4_a_callback_that_fails_names_the_device(callback: str) -> None:
    def fail(self: Any) -> None:
        raise RuntimeError("the bus is down")

    made = type("Failing", (CpuBackend,), {callback: fail})
    with registered(Creator(made)), pytest.raises(ExecutionError, match="acme:0") as caught:
        run_relu()
    assert caught.value.why == "RuntimeError: the bus is down"
    assert caught.value.where.endswith(f": Failing.{callback}")
    assert_usable()


def test_4_a_close_that_fails_does_not_stop_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    closed = list[str]()

    class Willing(CpuBackend):
        def close(self) -> None:
            closed.append(self.info.device)

        @classmethod
        def why_not(cls, inputs: object, outputs: object, op: object) -> str | None:
            return None if getattr(op, "type", "") == cls.takes else f"only {cls.takes} is here"

        takes = "Relu"

    class Stuck(Willing):
        takes = "Exp"

        def close(self) -> None:
            super().close()
            raise RuntimeError("the door does not shut")

    net = Net()
    graph = net.finish(net.add("Relu", net.add("Exp", net.add("Relu", net.input("x", 2, 3)))))
    with registered(Creator(Willing), "willing"), registered(Creator(Stuck), "stuck"):
        session = weft.load(graph, device=["stuck", "willing"])
        assert session.report.nodes_by_device == {"stuck": 1, "willing": 2}
        session.run(X)
        session.close()
        assert sorted(closed) == ["stuck:0", "willing:0", "willing:0"], "each pipeline's backend is closed"
        assert [r.getMessage() for r in caplog.records if "the door does not shut" in r.getMessage()]
        session.close()
        assert len(closed) == 3, "a second close does nothing"
        with pytest.raises(ClosedError):
            session.run(X)
    assert_usable()


# -- after close -----------------------------------------------------------------------------------------

X = np.zeros((2, 3), np.float32)
CALLS: dict[str, Callable[[weft.Session], object]] = {
    "run": lambda s: s.run(X),
    "submit": lambda s: s.submit(X),
    "wait": lambda s: s.wait(),
    "resize": lambda s: s.resize({"x": (2, 3)}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS)
def test_4_use_after_close_is_refused(device: str, call: str) -> None:
    session = weft.load(relu(2, 3), device=device)
    session.run(X)
    session.close()
    with pytest.raises(ClosedError, match="the session is closed"):
        CALLS[call](session)
    assert session.inputs == {"x": (2, 3)} and session.outputs == ["y"]
    session.close()
    assert_usable()
