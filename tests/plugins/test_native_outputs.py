"""Contract row A19, the header's rule for outputs: unused ones may be missing at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
from tests.helpers.plugins import C_FACTORY, C_ID, C_VERSION, needs_compiler, write

pytestmark = needs_compiler

SPLIT = (
    r"""
#include <stdio.h>
#include <stdlib.h>
#include "weft_backend.h"

typedef struct { size_t count; size_t bytes[8]; size_t start[8]; } split_state;

/* Takes a Split along the first axis into at most 8 parts, whose sizes are those of its outputs. */
static int32_t supports(void *device, const weft_node *n, char *reason, size_t size)
{
    (void)device;
    if (strcmp(n->op_type, "Split") != 0 || n->output_count > 8 || weft_int(n, "axis", 0) != 0) {
        snprintf(reason, size, "it takes Split alone, not %s", n->op_type);
        return 0;
    }
    for (size_t k = 0; k < n->output_count; ++k)
        if (!n->outputs[k] || n->outputs[k]->dtype != n->inputs[0]->dtype) {
            snprintf(reason, size, "output %d has no type", (int)k);
            return 0;
        }
    return 1;
}

static int32_t create(void *device, const weft_node *n, void **state, char *error, size_t size)
{
    (void)device; (void)error; (void)size;
    split_state *made = calloc(1, sizeof *made);
    size_t start = 0;
    made->count = n->output_count;
    for (size_t k = 0; k < n->output_count; ++k) {
        made->start[k] = start;
        start += made->bytes[k] = n->outputs[k]->nbytes;
    }
    *state = made;
    return 0;
}

static int32_t execute(void *state, const weft_tensor *const *in, const weft_tensor *const *out, char *e, size_t size)
{
    (void)e; (void)size;
    const split_state *split = state;
    for (size_t k = 0; k < split->count; ++k)
        memcpy((char *)out[k]->data + out[k]->offset, (const char *)in[0]->data + in[0]->offset + split->start[k],
               split->bytes[k]);
    return 0;
}

static const weft_backend table = {.struct_size = sizeof table, .supports = supports, .create = create,
                                   .execute = execute, .destroy = free};
"""
    + C_ID
    + C_VERSION
    + C_FACTORY
)


def split_model(outputs: list[str], shown: list[str], **attributes: Any) -> bytes:
    """Return a model that splits x of 6 rows along them."""
    node = helper.make_node("Split", ["x"], outputs, axis=0, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (6, 2))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in shown],
    )
    opset = helper.make_opsetid("", 18 if attributes else 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(model.SerializeToString())


UNREAD = {
    "last unread": (["a", "b", "c"], ["a", "b"], {"num_outputs": 3}),
    "last unread, counted": (["a", "b", "c"], ["a", "b"], {}),
    "last without a name": (["a", "b", ""], ["a", "b"], {"num_outputs": 3}),
    "all but the first unread": (["a", "b", "c"], ["a"], {"num_outputs": 3}),
    "middle unread": (["a", "b", "c"], ["a", "c"], {"num_outputs": 3}),
    "first unread": (["a", "b", "c"], ["b", "c"], {"num_outputs": 3}),
}


@pytest.mark.parametrize("case", UNREAD)
def test_A19_a_split_with_outputs_that_nobody_reads(case: str, tmp_path: Path) -> None:
    outputs, shown, attributes = UNREAD[case]
    model = split_model(outputs, shown, **attributes)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    expected = {name: x[2 * k : 2 * k + 2] for k, name in enumerate("abc")}
    write(tmp_path / "acme_split_backend.so", SPLIT)
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
        for device, fallback in (("acme", "error"), ("cpu", "cpu")):
            with weft.load(model, device, fallback=fallback, runtime=runtime) as session:
                results = session.run(x)
                assert session.report.nodes_by_device == {device: 1}
            for name, result in zip(shown, results, strict=True):
                np.testing.assert_array_equal(result, expected[name], err_msg=f"{name} on {device}")
