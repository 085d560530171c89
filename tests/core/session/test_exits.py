"""What is no error passes through Weft as it is, and leaves the session and the process usable (section 4)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net
from weft.core.contract.backend import Execution
from weft.core.contract.engine import Engine
from weft.core.graph.graph import Graph
from weft.core.graph.op import Op
from weft.core.host.host_backend import HostBackend
from weft.core.session.pipeline import Pipeline

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


class Stopped(BaseException):
    """What a program may raise to end itself."""


class Late(TimeoutError):
    """What the handler of an alarm raises: an Exception, and not the failure of what it came upon."""


def alarm(*_: object) -> None:
    raise Late("time is up")


def by_signal() -> None:
    signal.raise_signal(signal.SIGALRM)


def raising(error: BaseException) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


WAYS: dict[str, tuple[Callable[[], None], type[BaseException]]] = {
    "SystemExit": (raising(SystemExit(3)), SystemExit),
    "GeneratorExit": (raising(GeneratorExit()), GeneratorExit),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), KeyboardInterrupt),
    "a program's own": (raising(Stopped()), Stopped),
    "by a signal": (by_signal, Late),
}


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, alarm)
    yield
    signal.signal(signal.SIGALRM, before)


class Armed:
    """Raises once, when it is armed, in the callback of that name."""

    def __init__(self, way: str) -> None:
        self.do, self.kind = WAYS[way]
        self.name = ""
        self.closed: list[object] = []

    def pass_by(self, name: str) -> None:
        if name == self.name:
            self.name = ""
            self.do()

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Arm a callback for the block, which must raise just that."""
        self.name = name
        with pytest.raises(self.kind) as caught:
            yield
        assert type(caught.value) is self.kind, caught.value
        assert not self.name, "it was reached"
        if self.kind is SystemExit:
            assert caught.value.args == (3,)


CALLBACKS = (
    "why_not", "OptimizeSubgraph", "lower", "onCreate", "onAcquireBuffer", "onReleaseBuffer", "onCopyBuffer",
    "onResizeBegin", "onAllocateBuffer", "onResizeEnd", "onExecuteBegin", "onExecuteEnd", "onWaitFinish",
    "onClearBuffer", "canImport", "statistics", "notes", "close",
)


def backend(armed: Armed) -> type[HostBackend]:
    """Return a class of backends that rectify, in whose callbacks something may be raised."""

    class Relu(Execution):
        def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
            armed.pass_by("onResize")

        def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
            armed.pass_by("onExecute")
            assert inputs[0] is not None
            np.maximum(inputs[0].memory, 0, out=outputs[0].memory)

        def close(self) -> None:
            armed.closed.append(self)
            armed.pass_by("Execution.close")

    class Acme(HostBackend, Engine):
        pipeline_type = Pipeline

        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            armed.pass_by("why_not")
            return None if op.type in ("Relu", "Add") else "it rectifies alone"

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
            armed.pass_by("onCreate")
            return Relu()

    for name in set(CALLBACKS) - {"why_not", "onCreate"}:
        setattr(Acme, name, passing(armed, name))
    return Acme


def passing(armed: Armed, name: str) -> Any:
    def callback(self: Any, *arguments: Any) -> Any:
        armed.pass_by(name)
        return getattr(super(type(self), self), name)(*arguments)

    return callback


def network() -> Graph:
    net = Net()
    x = net.input("x", "N", 3)
    a = net.add("Relu", x, name="a")
    b = net.add("Tanh", net.add("Relu", a, name="b"))
    return net.finish(net.add("Relu", b, name="y"), a)


def right(session: weft.Session, x: np.ndarray = X) -> None:
    y, a = session.run(x)
    np.testing.assert_allclose(y, np.tanh(np.maximum(x, 0)), rtol=1e-6)
    np.testing.assert_array_equal(a, np.maximum(x, 0))


IN_RUNS = ("onExecuteBegin", "onExecute", "onExecuteEnd", "onWaitFinish")
IN_LOADS = tuple(c for c in (*CALLBACKS, "onResize") if c not in (*IN_RUNS, "onClearBuffer", "close", "onCopyBuffer"))
IN_RESIZES = ("onClearBuffer", "onCreate", "onResize", "onResizeEnd", "why_not", "Execution.close", "statistics")


@pytest.mark.parametrize("way", WAYS)
def test_4_it_passes_through_runs_resizes_loads_and_closes(way: str) -> None:
    armed = Armed(way)
    with registered(Creator(backend(armed))):
        for name in IN_LOADS:
            with armed.at(name):
                weft.load(network(), ["acme", "cpu"], shapes={"x": (2, 3)})
        with weft.load(network(), ["acme", "cpu"], shapes={"x": (2, 3)}) as session:
            right(session)
            for name in IN_RUNS:
                with armed.at(name):
                    session.run(X)
                with pytest.raises(weft.WeftError, match="no run to wait for"):
                    session.wait()
                right(session)
            for rows, name in enumerate(IN_RESIZES, 3):
                with armed.at(name):
                    session.resize({"x": (rows, 3)})
                right(session)
                right(session, np.ones((rows, 3), np.float32))
        for name in ("close", "Execution.close", "onWaitFinish"):
            session = weft.load(network(), ["acme", "cpu"], shapes={"x": (2, 3)})
            session.submit(X)
            armed.closed.clear()
            with armed.at(name):
                session.close()
            session.close()
            assert len(armed.closed) == 3, "the rest was closed all the same, once"


@pytest.mark.parametrize("way", WAYS)
def test_4_it_passes_through_debug_callbacks_and_progress(way: str) -> None:
    armed = Armed(way)
    with weft.load(network(), "cpu", debug=lambda _: armed.pass_by("debug"), shapes={"x": (2, 3)}) as session:
        with armed.at("debug"):
            session.run(X)
        right(session)
    with armed.at("progress"):
        weft.load(network(), "cpu", progress=lambda *_: armed.pass_by("progress"), shapes={"x": (2, 3)})
    with weft.load(network(), "cpu", progress=lambda *_: armed.pass_by("progress")) as session:
        right(session)
        with armed.at("progress"):
            session.run(np.ones((3, 3), np.float32))
        right(session)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("notice", ["before_load", "after_load", "before_unload", "after_unload", "create_context"])
def test_A10_it_passes_through_contexts_and_all_others_hear_of_the_end(notice: str, way: str) -> None:
    armed, heard = Armed(way), list[str]()

    class Context(weft.BackendContext):
        """Hears of networks."""

    for name in ("before_load", "after_load", "before_unload", "after_unload"):

        def hear(self: Any, network: int, name: str = name) -> bool:
            heard.append(name)
            armed.pass_by(name)
            return True

        setattr(Context, name, hear)

    class Told(Creator):
        def create_context(self) -> weft.BackendContext:
            armed.pass_by("create_context")
            return Context()

    with registered(Told(backend(armed))), registered(Told(backend(armed)), "other"), weft.Runtime() as runtime:

        def load() -> weft.Session:
            return weft.load(network(), ["acme", "other", "cpu"], runtime=runtime, shapes={"x": (2, 3)})

        if "unload" in notice:
            session = load()
            with armed.at(notice):
                session.close()
            session.close()
        else:
            with armed.at(notice):
                load()
        assert heard.count("before_load") == (0 if notice == "create_context" else 1 + (notice != "before_load"))
        if notice != "create_context":
            assert heard.count("after_unload") == heard.count("before_load"), "who heard of it hears that it is gone"
        with load() as session:
            right(session)


@pytest.mark.parametrize("way", WAYS)
def test_4_it_passes_through_creators_and_memory_managers(way: str) -> None:
    armed = Armed(way)

    class Manager(weft.MemoryManager):
        def acquire(self) -> None:
            armed.pass_by("acquire")

        def release(self) -> None:
            armed.pass_by("release")

    class Managed(Creator):
        def onCreate(self, info: weft.BackendInfo) -> weft.Backend:
            armed.pass_by("BackendCreator.onCreate")
            return super().onCreate(info)

        def create_memory_manager(self, index: int) -> weft.MemoryManager:
            armed.pass_by("create_memory_manager")
            return Manager()

    with registered(Managed(backend(armed))):
        for name in ("BackendCreator.onCreate", "create_memory_manager"):
            with armed.at(name):
                weft.load(network(), ["acme", "cpu"], shapes={"x": (2, 3)})
        session = weft.load(network(), ["acme", "cpu"], shapes={"x": (2, 3)})
        with armed.at("acquire"):
            session.run(X)
        right(session)
        with armed.at("release"):
            session.close()
        assert len(armed.closed) == 3


def test_4_what_a_device_that_is_opened_ahead_raises_passes_through() -> None:
    class Ahead(Creator):
        def onPrepare(self, index: int) -> None:
            raise Stopped

    with registered(Ahead()), pytest.raises(Stopped):
        weft.load(network(), "acme", shapes={"x": (2, 3)})


@pytest.mark.parametrize("function", ["GetBackendId", "GetVersion", "BackendFactory", "import"])
def test_A15_an_exit_of_a_backend_that_is_looked_for_is_its_own_and_that_of_a_signal_is_not(
    function: str, tmp_path: Path
) -> None:
    text = "import signal, sys\n{}\ndef GetBackendId(): {}; return 'lost'\ndef GetVersion(): {}; return (1, 0)\n"
    text += "def BackendFactory(): {}\n"
    places = ["import", "GetBackendId", "GetVersion", "BackendFactory"]
    for end, passes in (("sys.exit(3)", False), ("signal.raise_signal(signal.SIGALRM)", True)):
        (tmp_path / "acme_lost_backend.py").write_text(text.format(*(end if p == function else "pass" for p in places)))
        if passes:
            with pytest.raises(Late):
                weft.Runtime(dynamic_backend_paths=[tmp_path])
        else:
            with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
                (why,) = runtime.registry.failures.values()
                assert "SystemExit: 3" in why


class Alarm:
    """Handlers in the forms that Python takes."""

    def ring(self, *_: object) -> None:
        raise Late("time is up")

    __call__ = ring


@pytest.mark.parametrize("question", ["absent", "devices", "unusable"])
@pytest.mark.parametrize(
    "way",
    [alarm, Alarm().ring, Alarm(), partial(alarm, 1), partial(partial(Alarm(), 1), 2)],
    ids=["function", "method", "object", "partial", "partial of an object"],
)
def test_A15_a_signal_while_a_backend_is_asked_for_its_devices_is_raised(
    way: Callable[..., None], question: str
) -> None:
    def asked(self: object, *_: int) -> None:
        by_signal()

    late = type("Late", (Creator,), {question: asked})
    signal.signal(signal.SIGALRM, way)
    with registered(late()), pytest.raises(Late):
        weft.load(network(), "acme", shapes={"x": (2, 3)})


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
@pytest.mark.parametrize("method", ["submit", "wait"])
def test_a_signal_in_a_run_of_a_gpu_is_not_taken_for_its_failure(
    method: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    x = net.input("x", 64, 64)
    graph = net.finish(net.add("MatMul", x, x, name="y"))
    eye = np.eye(64, dtype=np.float32)
    with weft.load(graph, api, fallback="error") as session:
        session.run(eye)
        device: Any = session.pipelines[0].backend.device  # type: ignore[attr-defined]
        do = getattr(type(device), method)

        def late(self: Any, handle: Any) -> None:
            if method == "submit":
                do(self, handle)
            by_signal()

        with monkeypatch.context() as patch, pytest.raises(Late):
            patch.setattr(type(device), method, late)
            session.run(2 * eye)
        for k in range(3, 6):
            np.testing.assert_array_equal(session.run(k * eye)[0], k * k * eye)
