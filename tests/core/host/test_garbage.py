"""Planning makes many objects: Python's collector waits until it is done."""

from __future__ import annotations

import gc

import pytest

import weft
from weft.core.graph.graph import Graph
from weft.core.host.garbage import without_collections
from weft.core.passes.manager import PassContext, graph_pass


def test_a_block_and_those_inside_it_are_not_interrupted() -> None:
    assert gc.isenabled()
    with without_collections():
        with without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_it() -> None:
    with pytest.raises(ValueError, match="no"), without_collections():
        raise ValueError("no")
    assert gc.isenabled()


def test_who_has_switched_collections_off_finds_them_so() -> None:
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_passes_run_without() -> None:
    seen = list[bool]()

    @graph_pass()
    def look(graph: Graph, context: PassContext) -> Graph:
        """Look whether cycles are collected."""
        seen.append(gc.isenabled())
        return graph

    net = weft.Network("small")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (1, 3))))
    with weft.load(net, "cpu", passes=[look]):
        assert seen == [False]
        assert gc.isenabled()
