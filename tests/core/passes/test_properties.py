"""A7: what holds of every pass on every network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.choices import choice_networks
from tests.helpers.nets import assert_near, feeds
from tests.helpers.random_folds import fold_networks
from tests.helpers.random_moves import move_networks
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs, values
from weft.core.graph.tensor import TensorSpec
from weft.core.graph.validate import validate
from weft.core.passes import PASSES, Pass, find_pass, run_passes
from weft.core.passes.constants import fold_constants

EXACT = {p.name for p in PASSES} - {
    *("fold_pads", "fold_batch_norm", "add_stacked_parts", "add_biases_first"),
    *("join_parallel_convolutions", "settle_convolutions"),
    *("fuse_gelu", "fuse_group_norm", "fuse_layer_norm", "fuse_rms_norm", "fuse_l2_norm", "fuse_sum_norm"),
    "fuse_group_deviation",
    "settle_steps",
    *("fuse_attention", "share_keys", "attend_in_place", "join_projections", "join_sibling_products"),
}
"""The passes that change no bit."""
TOLERANCE = 2e-5
"""Relative to the largest number of a result: what is left of folding weights in a row of convolutions."""
GRAPHS = st.one_of(move_networks(), fold_networks(), networks(), choice_networks())
ALONE = [find_pass(name) for name in dict.fromkeys(p.name for p in PASSES)]
many = settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)


def assert_kept(before: Graph, after: Graph, *, exact: bool) -> None:
    """Fail unless the graph is well formed, with true specs, and puts out what the other does."""
    validate(after)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert [after.specs[o] for o in after.outputs] == [before.specs[o] for o in before.outputs]
    assert len(after.nodes) <= len(before.nodes)
    fed = feeds(before)
    known = values(after, fed)
    for value in (o for n in after.nodes for o in n.outputs if o):
        assert after.specs[value] == TensorSpec(known[value].shape, DType.of(known[value].dtype))
    for name, expected in zip(before.outputs, outputs(before, fed), strict=True):
        if exact:
            np.testing.assert_array_equal(known[name], expected)
            continue
        assert_near(known[name], expected, TOLERANCE)


@pytest.mark.parametrize("each", ALONE, ids=lambda p: p.name)
@given(graph=GRAPHS)
@many
def test_a_pass_keeps_numbers_names_and_specs_and_adds_no_node(each: Pass, graph: Graph) -> None:
    bound = fold_constants(graph)
    before = str(bound)
    after = each(bound)
    assert str(bound) == before, "a pass leaves the graph that it was given"
    assert_kept(bound, after, exact=each.name in EXACT)
    assert str(each(after)) == str(after), "a second time there is nothing left to do"


@given(graph=GRAPHS)
@settings(many, max_examples=examples(400))
def test_all_passes_in_order_leave_nothing_for_a_second_time(graph: Graph) -> None:
    after = run_passes(graph)
    assert_kept(graph, after, exact=False)
    assert str(run_passes(after)) == str(after)
    for each in ALONE:
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
