"""A7: what holds of every pass on every network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from tests.helpers.nets import assert_near, feeds
from tests.helpers.pass_networks import ALONE, GENERAL, OWN, given_to
from tests.helpers.random_moves import move_networks
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs, values
from weft.core.graph.tensor import TensorSpec
from weft.core.graph.validate import validate
from weft.core.passes import PASSES, run_passes

EXACT = {*ALONE} - {
    *("fold_pads", "fold_batch_norm", "add_stacked_parts", "add_biases_first"),
    *("join_parallel_convolutions", "settle_convolutions"),
    *("fuse_gelu", "fuse_group_norm", "fuse_layer_norm", "fuse_rms_norm", "fuse_l2_norm", "fuse_sum_norm"),
    "fuse_group_deviation",
    "settle_steps",
    *("fuse_attention", "share_keys", "attend_in_place", "join_projections", "join_sibling_products"),
}
"""The passes that change no bit."""
ADDING = {"concat_scattered_slices", "add_stacked_parts"}
"""The passes that may add nodes: slices and moves, which take no launch on a GPU."""
MOVES_IN_AN_EINSUM = 3
"""An Einsum of two values stands for their product and as many moves: of both and of the result."""
TOLERANCE = 2e-5
"""Relative to the largest number of a result: what is left of folding weights in a row of convolutions."""
GRAPHS = st.one_of(GENERAL, st.sampled_from(sorted(OWN)).flatmap(lambda name: OWN[name]))
many = settings(max_examples=examples(90), deadline=None, suppress_health_check=SLOW)


def size(graph: Graph) -> int:
    """Return how many nodes a graph has, where an Einsum counts as those that it stands for."""
    return sum(1 + MOVES_IN_AN_EINSUM * (node.op.type == "Einsum") for node in graph.nodes)


def assert_kept(before: Graph, after: Graph, *, exact: bool, adds: bool = False) -> None:
    """Fail unless the graph is well formed, with true specs, and puts out what the other does."""
    validate(after)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert [after.specs[o] for o in after.outputs] == [before.specs[o] for o in before.outputs]
    assert adds or size(after) <= size(before)
    fed = feeds(before)
    known = values(after, fed)
    for value in (o for n in after.nodes for o in n.outputs if o):
        assert after.specs[value] == TensorSpec(known[value].shape, DType.of(known[value].dtype))
    for name, expected in zip(before.outputs, outputs(before, fed), strict=True):
        if exact:
            np.testing.assert_array_equal(known[name], expected)
            continue
        assert_near(known[name], expected, TOLERANCE)


@pytest.mark.parametrize("name", ALONE)
@given(data=st.data())
@many
def test_a_pass_keeps_numbers_names_and_specs_and_adds_no_node(name: str, data: st.DataObject) -> None:
    each, own = ALONE[name], data.draw(st.integers(0, 2)) > 0
    bound = given_to(each, data.draw(OWN[name] if own else GENERAL))
    before = str(bound)
    after = each(bound)
    assert str(bound) == before, "a pass leaves the graph that it was given"
    if after is not bound:
        assert_kept(bound, after, exact=name in EXACT, adds=name in ADDING)
    assert str(each(after)) == str(after), "a second time there is nothing left to do"


@pytest.mark.parametrize("name", ALONE)
def test_each_pass_changes_one_of_the_networks_that_are_drawn_for_it(name: str) -> None:
    """Else the test above shows nothing of the pass."""

    def is_changed(graph: Graph) -> bool:
        bound = given_to(ALONE[name], graph)
        return str(ALONE[name](bound)) != str(bound)

    first = settings(many, max_examples=50, derandomize=True, database=None, phases=[Phase.generate])
    try:
        find(OWN[name].map(is_changed), bool, settings=first)
    except NoSuchExample:
        pytest.fail(f"{name} changed none of {first.max_examples} networks: draw others for it")


@given(graph=GRAPHS)
@settings(many, max_examples=examples(400))
def test_all_passes_in_order_leave_nothing_for_a_second_time(graph: Graph) -> None:
    after = run_passes(graph)
    others = run_passes(graph, [each for each in PASSES if each.name not in ADDING])
    assert_kept(graph, after, exact=False, adds=str(others) != str(after))
    assert str(run_passes(after)) == str(after)
    for each in ALONE.values():
        assert str(each(after)) == str(after), each.name


@given(graph=GRAPHS)
@many
def test_the_result_is_the_same_each_time(graph: Graph) -> None:
    assert str(run_passes(graph)) == str(run_passes(graph.copy()))
    made = {o for n in run_passes(graph).nodes for o in n.outputs}
    assert made | {*graph.inputs} | {*run_passes(graph).constants} >= {*graph.outputs}


@given(graph=move_networks())
@many
def test_no_two_moves_are_left_that_one_could_do(graph: Graph) -> None:
    after = run_passes(graph)
    producers, readers = after.producers(), after.readers()
    for node in after.nodes:
        above = producers.get(node.inputs[0]) if node.op.type in ("Transpose", "Reshape") else None
        assert above is None or above.op.type != node.op.type, "neither two transposes nor two reshapes in a row"
    assert all(readers[o] for n in after.nodes for o in n.outputs[:1])
