"""Contract row A19: what `weft_backend.h` promises holds with sessions in threads, and at the end of the process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.native_sources import vault_in
from tests.helpers.nets import Net
from tests.helpers.plugins import needs_compiler
from tests.helpers.waits import ended
from weft.core.graph.graph import Graph

pytestmark = needs_compiler
SESSIONS, RUNS = 6, 40


@pytest.fixture
def busy() -> Iterator[None]:
    """Let threads take turns far more often than they do."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def sums() -> Graph:
    """Return y = (x + x) + c, all on the library's own buffers."""
    net = Net()
    x = net.input("x", "N", 64)
    total = net.add("Add", x, x)
    return net.finish(net.add("Add", total, np.zeros(1, np.float32)), net.add("Add", total, x, name="y"))


@pytest.mark.usefixtures("busy")
def test_A19_the_queue_is_waited_for_right_before_each_copy_and_each_free(tmp_path: Path) -> None:
    """The vault counts copies and frees that come while something is queued, of whatever session."""
    wrong: list[object] = []
    start = threading.Barrier(SESSIONS)

    def work(k: int, runtime: weft.Runtime) -> None:
        try:
            start.wait()
            with weft.load(sums(), ["vault", "cpu"], runtime=runtime) as session:
                for i in range(RUNS):
                    x = np.full((1 + i % 3, 64), k + i, np.float32)
                    if not np.array_equal(session.run(x)[1], 3 * x):
                        wrong.append((k, i))
        except BaseException as e:
            wrong.append(e)
            raise

    with vault_in(tmp_path) as vault:
        with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
            threads = [threading.Thread(target=work, args=[k, runtime]) for k in range(SESSIONS)]
            for thread in threads:
                thread.start()
            ended(*threads)
        assert not wrong
        assert vault.counters["created"] > SESSIONS, "the vault was used"
        assert vault.counters["late"] == 0
