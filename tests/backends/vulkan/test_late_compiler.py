"""A driver that compiles a kernel at its first dispatch does so in the load; Mesa's own cache on disk tells when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.plugins import in_new_process

LOAD = """
import numpy as np
import weft
from tests.helpers.nets import Net

net = Net()
net.input("x", 1, 8, 6, 6)
graph = net.finish(net.add("Softmax", net.add("MaxPool", "x", kernel_shape=(2, 2)), axis=1))
seen = []
with weft.load(graph, "vulkan", fallback="error", progress=lambda done, of: seen.append((done, of))) as session:
    assert seen and seen[-1][0] == seen[-1][1]
    RUN
"""


def test_a_load_leaves_nothing_for_the_first_run_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESA_DISK_CACHE_MULTI_FILE", "1")
    monkeypatch.setenv("MESA_SHADER_CACHE_DIR", str(tmp_path))

    def compiled() -> set[str]:
        return {file.name for file in tmp_path.rglob("*") if file.is_file()} - {"index"}

    in_new_process(LOAD.replace("RUN", "pass"))
    loaded = compiled()
    in_new_process(LOAD.replace("RUN", "session.run(np.ones((1, 8, 6, 6), np.float32))"))
    assert len(loaded) > 1 and compiled() == loaded
