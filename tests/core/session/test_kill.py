"""A process that is killed at any of its writes leaves whole files, old or new; scripts/soak does so at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.soak import kill
from tests.helpers.plugins import in_new_process

JOBS = {
    "blob": """
def job(generation):
    DiskCache("kind").put("key", generation.encode())

def found():
    return (DiskCache("kind").get("key") or b"old").decode()
""",
    "table": """
def job(generation):
    table = TuningTable(INFO)
    table.note(generation, Entry("a", {"a": Trial("00", us=1.0)}))
    table.save()

def found():
    return "new" if "new" in TuningTable(INFO).entries() else "old"
""",
    "network": """
def job(generation):
    net = weft.Network(generation)
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (3,))))
    weft.optimize(net, "cpu").save(folder / "net.weft")

def found():
    with weft.load(folder / "net.weft") as session:
        assert session.run(numpy.float32([-1, 0, 1]))[0].tolist() == [0, 0, 1]
        return session.graph.name
""",
}


@pytest.mark.parametrize("job", JOBS)
def test_a_write_that_is_killed_leaves_the_old_file_or_the_new_one(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    code = f"""
import logging, os, signal, sys
from pathlib import Path
import numpy, weft
from scripts.soak.kill import die_after
from weft.backends.gpu.tuning_tables.tuning_table import Entry, Trial, TuningTable
from weft.core.contract.backend import DeviceInfo
from weft.core.host.disk_cache import DiskCache

folder, INFO, warned = Path({str(tmp_path)!r}), DeviceInfo("vulkan", 0, "A GPU", "1.0"), []
handler = logging.Handler(logging.WARNING)
handler.emit = warned.append
logging.getLogger("weft").addHandler(handler)
{JOBS[job]}
job("old")
was_new = seen = 0
for events in range(1, 100):
    child = os.fork()
    if not child:
        die_after(events, folder)
        job("new")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    now = found()
    assert now in ("old", "new"), now
    seen += now == "old"
    assert not warned, warned[0].getMessage()
    if os.WIFEXITED(status):
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
assert status == 0 and now == "new" and seen and events > 1, (status, now, seen, events)
"""
    in_new_process(code)


def test_the_next_start_is_right_on_a_device(tmp_path: Path) -> None:
    child = kill.start("load", "--device", "opencl", "--after", 6, folder=tmp_path)
    assert kill.finish(child) == "" and child.returncode == -9
    assert kill.checked("opencl", tmp_path) == []
