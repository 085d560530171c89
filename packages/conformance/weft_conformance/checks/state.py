"""STATE memory, which runs leave to the next one: of a backend that says that it keeps state (M16)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import numpy as np

from weft.core.contract.backend import Backend, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node, infer_shapes
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, WritingOp, new_op
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.core.placement.in_place import keeps_state
from weft_conformance.checks.optimizing import optimized
from weft_conformance.checks.storage import ends_of_others
from weft_conformance.drive import Drive, acquired, ask, read, write
from weft_conformance.kit import Kit, Untried, check
from weft_conformance.report import Finding

STATE = StorageType.STATE
ROWS, WIDTH = 7, 6
WRITERS: tuple[tuple[Op, bool], ...] = (
    (new_op("TensorScatter", axis=1), True), (new_op("ScatterND"), False), (new_op("ScatterElements", axis=1), False)
)
"""Ops that write into their first input, and whether the update comes before the places."""


@check("state", "M16", "what a run leaves in STATE memory is there for the next, of this network and of others")
def state(kit: Kit) -> Iterable[Finding]:
    """Acquire STATE memory on an object that runs nothing, and let networks write rows into it."""
    with kit.opened() as backend:
        if not keeps_state(backend):
            yield kit.refused("state", f"{kit.device} does not keep state: it is copied after each run")
            return
    for subject, attempt in ends_of_others(STATE).items():
        yield kit.attempt(subject, _on_an_object, kit, attempt)
    attempts: dict[str, Callable[[Kit, _Writer], str]] = {
        "from run to run": _kept,
        "a write and a read between runs": _written,
        "two networks in turns": _shared,
        "after a network that used it is closed": _outlives,
        "a fork": _forked,
    }
    for subject, use in attempts.items():
        yield kit.attempt(subject, _with_a_writer, kit, use)


def _on_an_object(kit: Kit, attempt: Callable[[Backend], str]) -> str:
    with kit.opened() as backend:
        return attempt(backend)


def _with_a_writer(kit: Kit, use: Callable[[Kit, _Writer], str]) -> str:
    with ExitStack() as stack:
        owner = stack.enter_context(kit.opened())
        reasons: dict[str, None] = {}
        for op, first in WRITERS:
            reason = ask(owner, _network(kit, op, first, 1))
            if reason is None:
                return use(kit, _Writer(kit, stack, owner, op, first))
            reasons[f"{op.type}: {reason}"] = None
        raise Untried(f"{kit.device} takes no op that writes into its input: {'; '.join(reasons)}")


def _network(kit: Kit, op: Op, first: bool, rows: int) -> Graph:
    """Return a network of one node that writes rows into a cache."""
    inputs = ("past", "new", "at") if first else ("past", "at", "new")
    graph = Graph("state", ["past", "new", "at"], ["present"], [Node("write", op, inputs, ("present",))])
    places = _places(op, rows, 0)
    graph.specs = {
        "past": TensorSpec((1, ROWS, WIDTH), kit.dtype), "new": TensorSpec((1, rows, WIDTH), kit.dtype),
        "at": TensorSpec(places.shape, DType.INT64),
    }
    graph.aliases = {"present": "past"}
    return infer_shapes(graph)


def _places(op: Op, rows: int, begin: int) -> Array:
    """Return what tells the op to write so many rows from one on."""
    if op.type == "TensorScatter":
        return np.array([begin], np.int64)
    at = begin + np.arange(rows)
    if op.type == "ScatterND":
        return np.stack([np.zeros_like(at), at], axis=1)[None].astype(np.int64)
    return np.broadcast_to(at[None, :, None], (1, rows, WIDTH)).astype(np.int64)


class _Writer:
    """Networks that write rows into STATE tensors of an owner, and what the tensors should hold."""

    def __init__(self, kit: Kit, stack: ExitStack, owner: Backend, op: Op, first: bool) -> None:
        self.kit, self.stack, self.owner, self.op, self.first = kit, stack, owner, op, first
        self.held: dict[Tensor, Array] = {}
        self.seed = 0

    def tensor(self, name: str = "past") -> Tensor:
        """Return STATE memory with numbers of its own."""
        made = acquired(self.owner, (1, ROWS, WIDTH), STATE, self.kit.dtype, name=name)
        self.held[made] = self.numbers(ROWS)
        write(self.owner, made, self.held[made])
        return made

    def numbers(self, rows: int) -> Array:
        """Return numbers that no run had."""
        self.seed += 1
        drawn = np.random.default_rng(self.seed).uniform(1, 2, (1, rows, WIDTH))
        return np.asarray(drawn, self.kit.dtype.numpy)

    def network(self, tensor: Tensor, rows: int) -> Drive:
        """Return a network that writes so many rows at once, in an object of its own."""
        graph = optimized(self.kit, _network(self.kit, self.op, self.first, rows))
        backend = self.kit.choice.open(self.kit.config)
        if not backend.canImport(self.owner):
            backend.close()
            raise Untried(f"{self.kit.device} does not use the memory of another of its objects")
        made = self.stack.enter_context(Drive(backend, graph, {"past": tensor, "present": tensor}))
        if made.graph.aliases != {"present": "past"}:
            raise Untried(f"{self.kit.device} does not write {self.op.type} in place")
        return made

    def run(self, network: Drive, tensor: Tensor, rows: int, begin: int) -> str:
        """Write rows, and return what is wrong before or afterwards."""
        lost = self.lost("before a run, once its network was loaded")
        places, new = _places(self.op, rows, begin), self.numbers(rows)
        assert isinstance(self.op, WritingOp)
        self.op.write(self.held[tensor], *((new, places) if self.first else (places, new)))
        (made,) = network.run({"new": new, "at": places})
        problem = lost or self.lost(f"when rows from {begin} on were written")
        if not problem and not np.array_equal(made, self.held[tensor]):
            problem = "the output is not what the memory holds"
        return problem

    def lost(self, when: str) -> str:
        """Return which tensors do not hold what they should."""
        wrong = (t.name for t, held in self.held.items() if not np.array_equal(read(self.owner, t), held))
        name = next(wrong, None)
        return "" if name is None else f"the STATE memory {name!r} does not hold what it should {when}"


def _kept(kit: Kit, writer: _Writer) -> str:
    cache = writer.tensor()
    writer.tensor("another")  # which no run may touch
    network = writer.network(cache, 1)
    return next(filter(None, (writer.run(network, cache, 1, begin) for begin in (0, 1, 5, 1))), "")


def _written(kit: Kit, writer: _Writer) -> str:
    cache = writer.tensor()
    network = writer.network(cache, 2)
    problem = writer.run(network, cache, 2, 3)
    writer.held[cache] = writer.numbers(ROWS)
    write(writer.owner, cache, writer.held[cache])
    return problem or writer.lost("after a write between runs") or writer.run(network, cache, 2, 0)


def _shared(kit: Kit, writer: _Writer) -> str:
    """Load the second network once the first has run: what is planned for one must leave the memory as it is."""
    cache = writer.tensor()
    one = writer.network(cache, 1)
    problem = writer.run(one, cache, 1, 0)
    several = writer.network(cache, 3)
    turns = ((several, 3, 1), (one, 1, 4), (several, 3, 2), (one, 1, 6))
    return problem or next(filter(None, (writer.run(n, cache, rows, at) for n, rows, at in turns)), "")


def _outlives(kit: Kit, writer: _Writer) -> str:
    cache = writer.tensor()
    network = writer.network(cache, 1)
    problem = writer.run(network, cache, 1, 2)
    network.close()
    problem = problem or writer.lost("when the network was closed")
    return problem or writer.run(writer.network(cache, 2), cache, 2, 0)


def _forked(kit: Kit, writer: _Writer) -> str:
    cache = writer.tensor()
    network = writer.network(cache, 1)
    problem = writer.run(network, cache, 1, 3)
    fork = acquired(writer.owner, cache.shape, STATE, cache.dtype, name="fork")
    writer.owner.onCopyBuffer(cache, fork)
    writer.held[fork] = writer.held[cache].copy()
    problem = problem or writer.lost("when it was copied")
    return problem or writer.run(network, cache, 1, 4) or writer.run(writer.network(fork, 1), fork, 1, 5)
