"""Contract row A19: every call of Weft keeps the rules of `weft_backend.h`, judged by a strict C backend."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
import weft_conformance
from tests.helpers.native_probe import PROBE, Probe
from tests.helpers.plugins import needs_compiler, write
from weft.core.graph.dtypes import DType
from weft.core.graph.op import find_op, new_op
from weft.core.graph.tensor import Tensor
from weft.core.registry.backend_registry import registry
from weft.plugins.native_abi import CBackend, Message, NodeView
from weft_conformance.networks import Net

pytestmark = needs_compiler


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    """Compile the probe under a name of its own: a process loads a path once."""
    write(tmp_path / "acme_probe_backend.so", PROBE)
    yield Probe(ctypes.CDLL(str(tmp_path / "acme_probe_backend.so")))


def test_A19_the_kit_on_a_strict_c_backend_breaks_no_rule(probe: Probe, tmp_path: Path) -> None:
    registry.rescan([tmp_path])
    try:
        chosen = ["storage", "order", "resize", "limit", "errors", "threads", "imports", "short-lived", "Add", "Clip"]
        report = weft_conformance.run("probe", only=chosen)
    finally:
        registry.rescan()
    assert report.ok, str(report)
    assert probe.broken == []
    assert probe.judged > 10_000


def test_A19_a_constant_is_on_the_host_in_supports_and_create_alone(probe: Probe, tmp_path: Path) -> None:
    net = Net((2, 3))
    graph = net.finish(net.add(new_op("Add"), "x", net.weights(2, 3)))
    x = np.ones((2, 3), np.float32)
    registry.rescan([tmp_path])
    try:
        with weft.load(graph, "probe", fallback="error") as session:
            (y,) = session.run(x)
    finally:
        registry.rescan()
    np.testing.assert_array_equal(y, x + graph.constants["w0"])
    assert probe.broken == []


class Caller:
    """Calls the table as Weft does, one node and one buffer at hand."""

    def __init__(self, table: CBackend) -> None:
        self.table, self.device, self.state = table, ctypes.c_void_p(), ctypes.c_void_p()
        self.message = Message()
        tensors = [Tensor(name, (4,), DType.FLOAT32) for name in "aby"]
        op = find_op("Add")
        assert op is not None
        self.view = NodeView(tensors[:2], tensors[2:], op())
        self.host = np.zeros(4, np.float32)
        table.open(0, ctypes.byref(self.device), *self.message.clear())
        self.buffer = table.allocate(self.device, 48)
        for k, seen in enumerate((*self.view.inputs, *self.view.outputs)):
            seen.data, seen.offset = self.buffer, 16 * k
        self.create()

    def create(self) -> None:
        places = [(t, t.data) for t in (*self.view.inputs, *self.view.outputs)]
        for t, _ in places:
            t.data = None
        self.table.create(self.device, ctypes.byref(self.view.node), ctypes.byref(self.state), *self.message.clear())
        for t, data in places:
            t.data = data

    def execute(self) -> None:
        self.table.execute(self.state, self.view.input_array, self.view.output_array, *self.message.clear())

    def wait(self) -> None:
        self.table.wait(self.device, *self.message.clear())

    def move(self, function: str, offset: int = 0, nbytes: int = 16) -> None:
        host = self.host.ctypes.data
        getattr(self.table, function)(self.device, self.buffer, offset, host, nbytes, *self.message.clear())

    def end(self) -> None:
        self.table.destroy(self.state)
        self.table.free(self.device, self.buffer)
        self.table.close(self.device)


def _moves_late(function: str) -> Callable[[Caller], None]:
    def act(c: Caller) -> None:
        c.execute()
        c.move(function)

    return act


def _executes_after_destroy(c: Caller) -> None:
    c.table.destroy(c.state)
    c.execute()


def _destroys_twice(c: Caller) -> None:
    c.table.destroy(c.state)
    c.table.destroy(c.state)


def _frees_late(c: Caller) -> None:
    c.execute()
    c.table.free(c.device, c.buffer)


def _frees_twice(c: Caller) -> None:
    c.table.free(c.device, c.buffer)
    c.table.free(c.device, c.buffer)


def _places_outside(c: Caller) -> None:
    c.view.outputs[0].offset = 40
    c.execute()


def _overlaps(c: Caller) -> None:
    c.view.outputs[0].offset = 8
    c.execute()


def _changes_shape(c: Caller) -> None:
    c.view.inputs[0].shape[0] = 3
    c.view.inputs[0].nbytes = 12
    c.execute()


def _keeps_the_state(c: Caller) -> None:
    c.create()  # *state is not NULL


def _no_room(c: Caller) -> None:
    c.table.wait(c.device, None, 0)


FAULTS: dict[str, Callable[[Caller], None]] = {
    "upload was called while work was queued": _moves_late("upload"),
    "download was called while work was queued": _moves_late("download"),
    "free was called while work was queued": _frees_late,
    "free got a buffer that is not allocated": _frees_twice,
    "execute got a state that was destroyed or never made": _executes_after_destroy,
    "destroy got a state that was destroyed or never made": _destroys_twice,
    "execute got bytes 40 to 56 of a buffer of 48": _places_outside,
    "execute got an output that overlaps another tensor": _overlaps,
    "execute got another shape or type than create": _changes_shape,
    "create got a state that is not NULL": _keeps_the_state,
    "wait got no room for a message": _no_room,
    "upload got bytes 40 to 56 of a buffer of 48": lambda c: c.move("upload", 40),
    "download got nothing to copy": lambda c: c.move("download", 0, 0),
    "allocate was asked for 0 bytes": lambda c: c.table.allocate(c.device, 0),
    "close was called with 1 states that are not destroyed": lambda c: c.table.close(c.device),
}


def test_A19_the_probe_finds_each_broken_rule(tmp_path: Path) -> None:
    made = tmp_path / "acme_probe_backend.so"
    write(made, PROBE)

    def right_so_far(name: str) -> tuple[Probe, Caller]:
        # Of each copy, the system makes a library of its own, with its own books.
        probe = Probe(ctypes.CDLL(str(shutil.copy(made, tmp_path / name))))
        caller = Caller(probe.table())
        caller.execute()
        caller.wait()
        caller.move("download")
        return probe, caller

    for k, (rule, act) in enumerate(FAULTS.items()):
        probe, caller = right_so_far(f"probe{k}.so")
        assert probe.broken == [], rule
        act(caller)
        assert rule in probe.broken
    probe, caller = right_so_far("right.so")
    caller.end()
    assert probe.broken == []
