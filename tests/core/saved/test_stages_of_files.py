"""Contract row F8: later stages of a file are not trusted: what they read, their hints and their limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.saved_networks import content, refusal, rewritten
from tests.helpers.staged_models import condition
from weft.core.graph.limits import Limits
from weft.core.saved.network_file import load_saved
from weft.errors import ModelError

Change = Callable[[Any], object]


def saved(device: str, folder: Path) -> bytes:
    return content(weft.optimize(condition().SerializeToString(), list(dict.fromkeys([device, "cpu"]))), folder)


def other_input(manifest: Any) -> None:
    """Let each later stage that reads x read a value that nobody has."""
    for stage in manifest["tail"]["stages"]:
        for number in stage["graph"]["nodes"]:
            manifest["nodes"][number] = renamed(manifest["nodes"][number])
        stage["graph"], stage["parts"] = renamed(stage["graph"]), renamed(stage["parts"])


def renamed(value: Any) -> Any:
    return json.loads(json.dumps(value).replace('"x"', '"foo"'))


def other_shape(manifest: Any) -> None:
    """Let each later stage read another shape of x."""
    for stage in manifest["tail"]["stages"]:
        for graph in (stage["graph"], *(p["graph"] for p in stage["parts"])):
            for name, spec in graph["specs"].items():
                if spec["shape"] == [3] and name in graph["inputs"]:
                    spec["shape"] = [4]


@pytest.mark.parametrize(
    ("change", "why"), [(other_input, "does not fit its place"), (other_shape, "contradicts|does not fit")]
)
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_stage_that_reads_what_no_run_has_is_refused(
    device: str, change: Change, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "changed.weft"
    path.write_bytes(rewritten(saved(device, tmp_path), change))
    with pytest.raises(ModelError, match=why), weft.load(path) as session:
        session.run({"x": np.array([1, 2, 3], np.float32)})


def test_a_hint_for_a_device_that_the_network_lacks_is_refused(tmp_path: Path) -> None:
    def hint(manifest: Any) -> None:
        manifest["tail"]["hints"] = {"*": "nonsense:9"}

    assert "'nonsense:9'" in refusal(rewritten(saved("cpu", tmp_path), hint), tmp_path)


def test_a_file_cannot_raise_the_limits_that_protect_from_it(tmp_path: Path) -> None:
    def raised(manifest: Any) -> None:
        manifest["tail"]["limits"] |= {"nodes": 10**15, "folding_seconds": 1e18, "folding_bytes": 5}

    path = tmp_path / "raised.weft"
    path.write_bytes(rewritten(saved("cpu", tmp_path), raised))
    network = load_saved(path)
    assert network.tail is not None
    limits = network.tail.options.limits
    assert (limits.nodes, limits.folding_seconds) == (Limits().nodes, Limits().folding_seconds)
    assert limits.folding_bytes == 5
