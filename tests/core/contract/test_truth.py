"""Section 4: what each callback may answer, in one table: numpy's booleans, numbers, None, texts, arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import AsynchronousBackend, Creator, Inputs, Outputs, mock, mocks, registered
from tests.helpers.nets import Net, chain
from tests.helpers.plugins import (
    C_FACTORY,
    C_ID,
    C_TABLE,
    needs_compiler,
    new_registry,
    package,
    py_source,
    write,
)
from weft.core.contract.backend import API_VERSION, Backend, Execution
from weft.core.contract.check_answers import NoReason
from weft.core.contract.engine import Engine
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.graph import Graph
from weft.core.host.host_backend import HostBackend
from weft.core.placement.optimized_network import Copy, PreCompiled, precompiled
from weft.core.session.pipeline import Pipeline
from weft.errors import BackendError, ExecutionError, OutOfMemory, WeftError

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


class Code(IntEnum):
    """Error codes as an author of backends may have them; not a backend's own type."""

    NO_ERROR = 0
    OUT_OF_POWER = 3


class Status(Enum):
    """The same without numbers that compare."""

    FINE = 0
    BROKEN = 7


class Sum(Execution):
    """Adds on the host."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        outputs[0].memory[...] = sum(t.memory for t in inputs if t is not None)


def sums(rows: int | str = 2) -> Graph:
    """Return a network with a constant, and with a value that is released."""
    net = Net()
    a = net.add("Add", net.input("x", rows, 3), np.ones(3, np.float32), name="a")
    return net.finish(net.add("Add", a, a, name="y"))


def answering(name: str, answer: object) -> type[Backend]:
    """Return a class of backends that does its work and then gives this answer."""
    bases = (HostBackend, Engine) if name == "lower" else (HostBackend,)
    made: Any = type("Acme", bases, {"pipeline_type": Pipeline})
    execution = type("Summing", (Sum,), {})
    made.creator("Add")(execution)
    owner, _, callback = name.rpartition(".")
    target = execution if owner == "Execution" else made
    inner = getattr(target, callback)

    def call(self: Any, *arguments: Any) -> Any:
        inner(self, *arguments)
        return answer

    setattr(target, callback, call)
    return made  # type: ignore[no-any-return]


def outcome(made: type[Backend], graph: Graph | None = None) -> WeftError | None:
    """Return the error of a load, a run and a resize of a network with a free dimension, or None."""
    with registered(Creator(made)):
        try:
            with weft.load(graph or sums("N"), "acme", shapes={"x": (2, 3)}) as session:
                session.run(X, outputs=[np.empty((2, 3), np.float32)])
                session.resize({"x": (4 if graph is None else 2, 3)})
        except WeftError as e:
            return e
    return None


YES = [True, np.True_, 1, np.int64(1)]
NO = [False, np.False_, 0, np.uint8(0)]
NONSENSE = [2, -1, 1.0, "yes", "", b"no", [], (True,), np.array([True, False]), np.array(True), object()]
GRANTED = ["onAcquireBuffer", "onReleaseBuffer", "onClearBuffer", "onAllocateBuffer", "onWaitFinish"]


@pytest.mark.parametrize("answer", YES, ids=repr)
@pytest.mark.parametrize("callback", GRANTED)
def test_4_a_callback_that_grants_says_yes_in_four_ways(callback: str, answer: object) -> None:
    assert outcome(answering(callback, answer)) is None


REFUSED = {
    "onAcquireBuffer": (OutOfMemory, "acme:0 has no memory for"),
    "onReleaseBuffer": (BackendError, "acme:0 did not take back the memory of"),
    "onClearBuffer": (BackendError, "acme:0 did not free the memory of network"),
    "onAllocateBuffer": (OutOfMemory, "acme:0 could not allocate what the network needs"),
    "onWaitFinish": (ExecutionError, "the device could not finish a run"),
}


@pytest.mark.parametrize("answer", NO, ids=repr)
@pytest.mark.parametrize("callback", GRANTED)
def test_4_a_callback_that_grants_says_no_in_four_ways(callback: str, answer: object) -> None:
    kind, what = REFUSED[callback]
    error = outcome(answering(callback, answer))
    assert type(error) is kind and what in error.what


@pytest.mark.parametrize("answer", [None, *NONSENSE], ids=lambda a: repr(a)[:20])
@pytest.mark.parametrize("callback", GRANTED)
def test_4_a_callback_that_grants_must_say_yes_or_no(callback: str, answer: object) -> None:
    error = outcome(answering(callback, answer))
    assert type(error) is BackendError and error.what.startswith(f"{callback} returned ")
    assert error.where.endswith(f"Acme.{callback}") and "acme:0" in error.where
    assert error.why.startswith("it must return True, or False ")
    assert (error.fix == "end it with 'return True'") is (answer is None)


DONE = [
    *("onResizeBegin", "onResizeEnd", "onCopyBuffer", "onExecuteBegin", "onExecuteEnd"),
    *("Execution.onResize", "Execution.onExecute"),
]
FAILED: list[tuple[object, str]] = [
    (False, "it returned False"),
    (np.False_, "it returned False"),
    (5, "it returned the error code 5"),
    (np.int32(-2), "it returned the error code -2"),
    (Code.OUT_OF_POWER, "it returned the error code "),
    (Status.BROKEN, "it returned the error code Status.BROKEN"),
    ("the fan stands still ", "the fan stands still"),
]


@pytest.mark.parametrize("answer", [None, True, np.True_, 0, np.int64(0), Code.NO_ERROR, Status.FINE], ids=repr)
@pytest.mark.parametrize("callback", DONE)
def test_4_a_callback_that_does_something_may_say_that_it_is_done(callback: str, answer: object) -> None:
    assert outcome(answering(callback, answer)) is None


@pytest.mark.parametrize(("answer", "why"), FAILED, ids=lambda a: repr(a)[:20])
@pytest.mark.parametrize("callback", DONE)
def test_4_a_callback_that_does_something_may_report_a_failure(callback: str, answer: object, why: str) -> None:
    error = outcome(answering(callback, answer))
    assert type(error) is ExecutionError and error.why.startswith(why), error
    assert "acme:0" in error.where and error.where.endswith(callback.rpartition(".")[2])


@pytest.mark.parametrize("answer", [1.5, "", b"no", [], np.array([0, 1]), object()], ids=lambda a: repr(a)[:20])
@pytest.mark.parametrize("callback", DONE)
def test_4_a_callback_that_does_something_says_nothing_else(callback: str, answer: object) -> None:
    error = outcome(answering(callback, answer))
    assert type(error) is BackendError and error.what.startswith(f"{callback.rpartition('.')[2]} returned ")
    assert "acme:0" in error.where


def test_4_what_onResizeEnd_refuses_names_the_backend_and_the_network() -> None:
    error = outcome(answering("onResizeEnd", "there is no room for 3 kernels"))
    assert error is not None and error.what == "the backend failed in onResizeEnd of network part 'net.0'"
    assert error.where == "acme:0: Acme.onResizeEnd" and error.why == "there is no room for 3 kernels"


def test_4_an_execution_that_returns_its_result_is_told_where_to_write_it() -> None:
    class Returning(Sum):
        def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
            return X  # type: ignore[return-value]

    queued = {"onCreate": lambda *_: Returning()}
    for made in (answering("Execution.onExecute", X), type("Acme", (AsynchronousBackend,), queued)):
        error = outcome(made)
        assert error is not None and error.fix == "write the result into outputs[0].memory"


@pytest.mark.parametrize("callback", ["close", "Execution.close"])
@pytest.mark.parametrize("answer", [False, "the door is stuck", 3, 1.5], ids=repr)
def test_4_a_close_that_fails_is_logged_and_stops_nothing(
    callback: str, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert outcome(answering(callback, answer), sums()) is None
    assert "closing Pipeline failed" in caplog.text and "acme:0" in caplog.text


def test_4_close_clears_the_memory_of_every_backend_once() -> None:
    made: Any = answering("onClearBuffer", True)
    made.close = lambda self: self.seen.append("close")
    made.seen, inner = [], made.onClearBuffer
    made.onClearBuffer = lambda self: [self.seen.append("clear"), inner(self)][1]
    with registered(Creator(made)):
        weft.load(sums(), "acme").close()
    assert made.seen == ["clear", "close"]


def test_4_executions_and_constants_are_given_back_whatever_one_of_them_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: Any = answering("Execution.close", "the door is stuck")
    seen: list[str] = []
    inner = made.onReleaseBuffer

    def release(self: Any, tensor: Any, storage: Any) -> Any:
        seen.append(f"{tensor.name} {storage.name}")
        return inner(self, tensor, storage)

    def close(self: Any) -> Any:
        seen.append("close")
        return stuck(self)

    made.onReleaseBuffer = release
    execution: Any = made.find_creator("Add")._make
    stuck, execution.close = execution.close, close
    with registered(Creator(made)):
        session = weft.load(sums(), "acme")
        seen.clear()
        session.close()
    assert seen == ["close", "close", "c STATIC"] and "the door is stuck" in caplog.text


@pytest.mark.parametrize("answer", [None, *NONSENSE], ids=lambda a: repr(a)[:20])
def test_4_canImport_and_onImportBuffer_say_yes_or_no(answer: object) -> None:
    def importing(can: object, does: object) -> Any:
        made: Any = type("Acme", (mock("Tanh"),), {})
        inner = made.onImportBuffer
        made.canImport = lambda *_: can
        made.onImportBuffer = lambda *a: (inner(*a), does)[1]
        return outcome(made, chain("Relu", "Tanh"))

    for yes in YES:
        assert importing(yes, yes) is None
    for no in NO:
        assert importing(no, True) is None
        assert "did not import" in importing(True, no).what
    assert importing(answer, True).what.startswith("canImport returned ")
    assert importing(True, answer).what.startswith("onImportBuffer returned ")


@pytest.mark.parametrize("answer", [*YES, *NO, *NONSENSE], ids=lambda a: repr(a)[:20])
def test_4_onCreate_returns_an_execution_or_None(answer: object) -> None:
    made: Any = type("Acme", (HostBackend,), {"onCreate": lambda *_: answer, "why_not": lambda *_: None})
    error = outcome(made)
    assert type(error) is BackendError and error.what.startswith("onCreate returned ")


@pytest.mark.parametrize(
    "answer", [*YES, *NO, *(a for a in NONSENSE if not isinstance(a, str))], ids=lambda a: repr(a)[:20]
)
def test_4_why_not_returns_a_sentence_or_None(answer: object) -> None:
    error = outcome(answering("why_not", answer))
    assert type(error) is NoReason and error.what.startswith("why_not returned ")


@pytest.mark.parametrize("answer", [*YES, *NO, *NONSENSE], ids=lambda a: repr(a)[:20])
@pytest.mark.parametrize("callback", ["lower", "OptimizeSubgraph"])
def test_4_what_must_be_an_object_is_no_truth_value(callback: str, answer: object) -> None:
    error = outcome(answering(callback, answer))
    assert (type(error) is BackendError and "Acme." in error.where + error.what + error.why) or callback in str(error)


def test_4_statistics_may_be_numpys_numbers() -> None:
    with registered(Creator(answering("statistics", {"bytes": np.int64(3)}))), weft.load(sums(), "acme") as session:
        assert session.report.statistics["acme"]["bytes"] == 3


# -- contexts and memory managers --------------------------------------------------------------------------------

NOTICES = ["before_load", "after_load", "before_unload", "after_unload"]


class Told(weft.BackendContext):
    """Gives an answer once, and agrees from then on, so that what it refused can be cleaned up."""


def hearing(notice: str, answer: object) -> WeftError | None:
    """Return the error of a load and an unload with a context that gives one answer once."""
    answers = iter([answer])
    made = type("Acme", (Told,), {notice: lambda *_: next(answers, None)})
    creator = Creator(mock())
    creator.create_context = lambda: made()  # type: ignore[method-assign]
    with registered(creator), weft.Runtime() as runtime:
        try:
            weft.load(chain("Relu"), "acme", runtime=runtime).close()
        except WeftError as e:
            return e
    return None


@pytest.mark.parametrize("notice", NOTICES)
def test_4_a_context_is_heard_whatever_kind_of_no_it_says(notice: str) -> None:
    for yes in (None, *YES):
        assert hearing(notice, yes) is None
    for no in NO:
        error = hearing(notice, no)
        assert type(error) is BackendError and "returned False" in error.why, no
    for other in NONSENSE:
        error = hearing(notice, other)
        assert type(error) is BackendError and f"{notice} returned " in str(error), other


@pytest.mark.parametrize("answer", [False, np.False_, 9, "the pool is dry", 1.5, X], ids=lambda a: repr(a)[:20])
def test_4_a_memory_manager_that_fails_is_heard(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {}
    callbacks = {name: lambda self, name=name: given.get(name) for name in ("acquire", "release")}
    pool = type("Pool", (weft.MemoryManager,), callbacks)
    creator = Creator(mock())
    creator.create_memory_manager = lambda index: pool()  # type: ignore[method-assign]
    with registered(creator):
        given["acquire"] = answer
        with weft.load(chain("Relu"), "acme") as session, pytest.raises(WeftError) as caught:
            session.run(X)
        assert "acme:0" in caught.value.where and caught.value.where.endswith("Pool.acquire")
        given.update(acquire=True, release=answer)
        with weft.load(chain("Relu"), "acme") as session:
            session.run(X)
    assert "could not release its memory" in caplog.text


@pytest.mark.parametrize("answer", [False, "the door is stuck", 3, 1.5], ids=repr)
def test_4_a_creator_that_cannot_close_is_named(answer: object) -> None:
    creator: Any = Creator(mock())
    creator.close = lambda: answer
    weft.registry.insert("acme", creator)
    with pytest.raises(WeftError, match="close") as caught:
        weft.registry.remove("acme")
    assert caught.value.where.startswith("acme") and not weft.registry.is_registered("acme")


# -- nodes that were compiled for another --------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["cpu", "opencl", "ACME", "", "nobody"])
def test_A5_a_backend_compiles_nodes_for_itself_alone(other: str) -> None:
    def optimise(self: Backend, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        views.substitute(view, precompiled(view, other, b""))
        return views

    made = type("Acme", (mock(),), {"OptimizeSubgraph": optimise})
    with mocks(acme=made), pytest.raises(BackendError, match="made nodes that it cannot run") as caught:
        weft.optimize(chain("Relu"), "acme")
    assert f"compiled for {other!r}" in caught.value.why and caught.value.where == "acme:0"
    assert "PreCompiled('acme', ...)" in caught.value.fix


def test_A5_copies_are_made_by_nobody_but_weft() -> None:
    def optimise(self: Backend, view: SubgraphView) -> OptimizationViews:
        views, graph = OptimizationViews(), view.graph.copy()
        graph.nodes = [weft.Node("c", Copy("acme:0", "cpu:0"), tuple(graph.inputs), tuple(graph.outputs))]
        views.substitute(view, graph)
        return views

    made = type("Acme", (mock(),), {"OptimizeSubgraph": optimise})
    with mocks(acme=made), pytest.raises(BackendError, match="made nodes that it cannot run") as caught:
        weft.optimize(chain("Relu"), "acme")
    assert "'c' is a copy between devices" in caught.value.why


def test_A5_a_backends_own_compiled_node_is_taken() -> None:
    with mocks(acme=mock(replace=lambda nodes: [("compiled", nodes)])):
        network = weft.optimize(chain("Relu"), "acme")
        assert [type(n.op) for n in network.graph.nodes] == [PreCompiled]


# -- versions, however a backend arrives -----------------------------------------------------------------------------

NEWER, OTHER = (API_VERSION[0], API_VERSION[1] + 1), (API_VERSION[0] + 1, 0)
BAD: list[tuple[Any, str]] = [
    (NEWER, f"version {NEWER[0]}.{NEWER[1]} of the backend interface"),
    (OTHER, f"version {OTHER[0]}.{OTHER[1]} of the backend interface"),
    ("1.0", "which is not a pair of numbers"),
    ((1,), "which is not a pair of numbers"),
    ((1, -1), "which is not a pair of numbers"),
    ((True, 0), "which is not a pair of numbers"),
    ((1.0, 0), "which is not a pair of numbers"),
    (np.array([1, 0]), "which is not a pair of numbers"),
    (1, "which is not a pair of numbers"),
]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "truth_pkg", raising=False)
    yield tmp_path


@pytest.mark.parametrize(("version", "said"), BAD, ids=lambda v: str(v)[:20])
def test_A20_the_rule_for_calls(version: Any, said: str) -> None:
    creator, cls = Creator(mock()), type("Acme", (mock(),), {"api_version": version})
    creator.api_version = version
    calls: list[Callable[[], None]] = [
        lambda: weft.registry.insert("acme", creator),
        lambda: weft.insertExtraBackendCreator("acme", creator),
        lambda: weft.insertExtraBackendCreator(weft.ForwardType.USER_3, creator),
        lambda: weft.registry.insert("acme", cls),
    ]
    for call in calls:
        with pytest.raises(BackendError) as caught:
            call()
        assert said in str(caught.value)
        assert not weft.registry.is_registered("acme") and not weft.registry.is_registered(weft.ForwardType.USER_3)


@pytest.mark.parametrize("version", [None, (1, 0), [1, 0], API_VERSION, (np.int64(1), np.uint8(0))], ids=repr)
def test_A20_versions_that_fit_are_taken_in_calls(version: Any) -> None:
    creator = Creator(mock())
    creator.api_version = version
    with registered(creator):
        assert creator.api_version is None or all(type(part) is int for part in creator.api_version)


@pytest.mark.parametrize(("version", "said"), [b for b in BAD if not isinstance(b[0], np.ndarray)], ids=repr)
def test_A20_the_rule_for_what_is_found(version: Any, said: str, site: Path) -> None:
    (site / "folder").mkdir()
    write(site / "folder" / "acme_one_backend.py", py_source(version=version))
    source = "from weft.backends.cpu.backend import CpuBackend\n"
    source += f"class Acme(CpuBackend):\n    api_version = {version!r}\n"
    package(site, "truth_pkg", source, "acme = truth_pkg:Acme")
    registry = new_registry()
    registry.rescan([site / "folder"])
    assert registry.ids() == ["cpu"] and len(registry.failures) == 2
    assert all(said in why for why in registry.failures.values()), registry.failures


@needs_compiler
@pytest.mark.parametrize("version", [NEWER, OTHER])
def test_A20_the_rule_for_libraries(version: tuple[int, int], tmp_path: Path) -> None:
    numbers = f"void GetVersion(uint32_t *major, uint32_t *minor) {{ *major = {version[0]}; *minor = {version[1]}; }}\n"
    write(tmp_path / "acme_one_backend.so", C_TABLE + C_ID + numbers + C_FACTORY)
    registry = new_registry()
    registry.rescan([tmp_path])
    (why,) = registry.failures.values()
    assert f"version {version[0]}.{version[1]} of the backend interface" in why


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("version", 2, "version is 2, not a text"),
        ("version", None, "version is None, not a text"),
        ("auto_rank", "first", "auto_rank is 'first', not a number"),
        ("auto_rank", True, "auto_rank is True, not a number"),
        ("forward_type", 8, "forward_type is 8, not a ForwardType or None"),
    ],
)
def test_M13_what_a_creator_says_of_itself_is_checked(field: str, value: object, said: str) -> None:
    creator = Creator(mock())
    setattr(creator, field, value)
    with pytest.raises(BackendError) as caught:
        weft.registry.insert("acme", creator)
    assert said in caught.value.why and not weft.registry.is_registered("acme")


def test_M13_a_class_of_creators_that_cannot_be_made_is_an_error_of_ours() -> None:
    class Needy(Creator):
        def __init__(self) -> None:
            raise ValueError("no license")

    with pytest.raises(BackendError, match="no object can be made of Needy") as caught:
        weft.registry.insert("acme", Needy)  # type: ignore[arg-type]
    assert "no license" in caught.value.why
