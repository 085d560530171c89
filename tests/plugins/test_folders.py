"""Contract rows A16 to A18: folders, file names and symlinks, with real files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.cli import Cli, double, try_only_others
from tests.helpers.nets import Net
from tests.helpers.plugins import (
    COUNT,
    c_source,
    in_new_process,
    needs_compiler,
    new_registry,
    py_source,
    write,
)
from weft import config
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.plugins.folders import is_considered

KINDS = [pytest.param("so", marks=needs_compiler), "py"]
C_COUNT = """
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void)
{
    FILE *file = fopen(getenv("WEFT_TEST_COUNT"), "a");
    if (file) { fputc('x', file); fclose(file); }
}
"""


def source(kind: str, id: str = "acme") -> str:
    return py_source(id) if kind == "py" else c_source(id)


def scanned(*folders: object) -> BackendRegistry:
    """Return a registry that was given these folders."""
    made = new_registry()
    made.rescan([str(f) for f in folders])
    return made


# -- A16: folders ----------------------------------------------------------------------------------------------


def test_A16_the_variable_names_folders_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / name / "acme_npu_backend.py", py_source(f"in_{name}"))
    monkeypatch.setenv("WEFT_DYNAMIC_BACKEND_PATHS", f"{tmp_path}/b:{tmp_path}/a")
    assert config.dynamic_backend_paths() == [f"{tmp_path}/b", f"{tmp_path}/a"]
    assert new_registry().ids() == ["cpu", "in_b", "in_a"]
    monkeypatch.setenv("WEFT_DYNAMIC_BACKEND_PATHS", "")
    assert config.dynamic_backend_paths() == [] and new_registry().ids() == ["cpu"]
    monkeypatch.delenv("WEFT_DYNAMIC_BACKEND_PATHS")
    assert config.dynamic_backend_paths() == [] and new_registry().ids() == ["cpu"]


def test_A16_the_option_replaces_the_variable_entirely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "variable" / "acme_npu_backend.py", COUNT + py_source("variable"))
    write(tmp_path / "option" / "acme_npu_backend.py", py_source("option"))
    monkeypatch.setenv("WEFT_DYNAMIC_BACKEND_PATHS", str(tmp_path / "variable"))
    base = new_registry()
    assert base.derive([tmp_path / "option"]).ids() == ["cpu", "option"]
    assert base.derive([]).ids() == ["cpu"], "an empty list turns it off"
    assert caplog.records == []
    assert base.derive(["/nowhere"]).ids() == ["cpu"], "none valid means none, not the variable's"
    assert not (tmp_path / "variable" / "count").exists()
    assert base.ids() == ["cpu", "variable"]


BAD_FOLDERS = {
    "relative": "it is not an absolute path",
    "": "it is not an absolute path",
    "./x": "it is not an absolute path",
    "{tmp}/nowhere": "it does not exist",
    "{tmp}/file": "it is not a directory",
    "{tmp}/dangling": "it does not exist",
    "/a\0b": "it does not exist",
}


@pytest.mark.parametrize("bad", BAD_FOLDERS)
def test_A16_a_bad_folder_is_a_warning_and_the_rest_go_on(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "relative" / "acme_no_backend.py", py_source("no"))
    write(tmp_path / "good" / "acme_npu_backend.py", py_source("good"))
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    monkeypatch.chdir(tmp_path)
    made = scanned(bad.format(tmp=tmp_path), tmp_path / "good")
    assert made.ids() == ["cpu", "good"]
    ((origin, why),) = made.failures.items()
    assert origin == f"the folder {bad.format(tmp=tmp_path)!r}" and why == BAD_FOLDERS[bad]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and why in record.message


def test_A16_what_is_no_path_is_a_bad_folder() -> None:
    made = new_registry()
    made.rescan([7, b"/opt"])  # type: ignore[list-item]
    assert made.ids() == ["cpu"] and set(made.failures.values()) == {"it is not a path"}


def test_A16_a_folder_that_cannot_be_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", denied)
    assert list(scanned(tmp_path).failures.values()) == ["it cannot be read: Permission denied"]


def test_A16_a_runtime_has_its_own_folders(tmp_path: Path) -> None:
    write(tmp_path / "acme_npu_backend.py", py_source("a16npu"))
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 4), name="y"))
    x = np.array([-1, 2, -3, 4], np.float32)
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
        with weft.load(graph, device="a16npu", runtime=runtime) as session:
            np.testing.assert_array_equal(session.run(x)[0], [0, 2, 0, 4])
            assert session.report.nodes_by_device == {"a16npu": 1}
        assert not registry.is_registered("a16npu")
    with pytest.raises(weft.WeftError, match="no backend is registered for 'a16npu'"):
        weft.load(graph, device="a16npu")


def test_A16_the_variable_serves_the_whole_program(tmp_path: Path) -> None:
    write(tmp_path / "acme_npu_backend.py", py_source())
    code = "import weft; print([d.id for d in weft.devices()], weft.registry.origins()['acme'])"
    assert in_new_process(code, folders=str(tmp_path)).strip().endswith(f"'acme'] {tmp_path}/acme_npu_backend.py")


def test_A16_the_command_line_takes_folders(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(capsys)
    write(tmp_path / "here" / "acme_npu_backend.py", py_source())
    write(tmp_path / "here" / "acme_bad_backend.py", "import no_module_of_this_name")
    model = double(tmp_path / "double.onnx")
    monkeypatch.chdir(tmp_path)
    folder = ("--backend-path", "here")
    try:
        said = cli("devices", *folder).out
        assert f"acme is from {tmp_path}/here/acme_npu_backend.py" in said
        assert f"{tmp_path}/here/acme_bad_backend.py is skipped: it cannot be imported" in said
        assert '"acme": "' in cli("devices", "--json", *folder).out
        shape = ("--shape", "x=2,4")
        assert "acme" in cli("run", model, "--device", "acme", *shape, *folder).out
        assert "acme" in cli("bench", model, "--device", "acme", "--iterations", 1, *shape, *folder).out
        assert "PASS" in cli("compare", model, "--device", "cpu,acme", *shape, *folder).out
        assert "acme" in cli("inspect", model, "--devices", "acme", *folder).out
        try_only_others(monkeypatch)
        checks = cli("doctor", *folder, status=1).out
        assert "1 device, from" in checks and "acme_bad_backend.py" in checks and "acme:0" in checks
    finally:
        registry.rescan()
    assert not registry.is_registered("acme")


def test_A16_a_rescan_forgets_what_was_wrong_in_folders(tmp_path: Path) -> None:
    link = tmp_path / "in" / "acme_link_backend.py"
    write(tmp_path / "in" / "acme_bad_backend.py", "")
    link.symlink_to(tmp_path / "nothing")
    made = scanned(tmp_path / "in", tmp_path / "nowhere")
    assert set(made.failures) == {str(link), str(link).replace("link", "bad"), f"the folder '{tmp_path}/nowhere'"}
    assert made.derive([]).failures == {}
    made.rescan([])
    assert made.failures == {}


@pytest.mark.parametrize("differs", ["time", "size", "file"])
def test_A16_a_rescan_loads_what_a_file_holds_now(differs: str, tmp_path: Path) -> None:
    """Whichever of its facts tells that it is another one; as it was, it is not executed again."""
    file = write(tmp_path / "acme_npu_backend.py", COUNT + py_source("one"))
    made = scanned(tmp_path)
    made.rescan([tmp_path])
    assert made.ids() == ["cpu", "one"] and (tmp_path / "count").read_text() == "x"
    before = file.stat()
    text = COUNT + py_source("seven" if differs == "size" else "uno")
    if differs == "file":
        write(tmp_path / "new", text).replace(file)
    else:
        write(file, text)
    later = before.st_mtime_ns + (10**9 if differs == "time" else 0)
    os.utime(file, ns=(before.st_atime_ns, later))
    now = file.stat()
    facts = {
        "time": now.st_mtime_ns != before.st_mtime_ns,
        "size": now.st_size != before.st_size,
        "file": now.st_ino != before.st_ino,
    }
    assert [fact for fact, changed in facts.items() if changed] == [differs]
    made.rescan([tmp_path])
    assert made.ids() == ["cpu", "seven" if differs == "size" else "uno"]
    assert (tmp_path / "count").read_text() == "xx"


# -- A17, A18: names -------------------------------------------------------------------------------------------

ACCEPTED = ["Arm_GpuAcc_backend.*", "Arm123_GpuAcc_backend.*", "Arm_GpuAcc456_backend.*", "ArmCo_GpuAcc_backend.*"]
VERSIONED = ["Arm_GpuAcc_backend.*.1", "Arm_GpuAcc_backend.*.1.2", "Arm_GpuAcc_backend.*.1.2.3",
             "Arm_GpuAcc_backend.*.10.1.27"]
"""Accepted of native code; a Python file has no version in its name (A17)."""
REJECTED = [
    "Arm_GpuAcc_backend.*.10.1.33.", "Arm_GpuAcc_backend.*.3.4..5", "Arm_GpuAcc_backend.*.1,1.1",
    "Arm%Co_GpuAcc_backend.*", "Arm_Gpu.Acc_backend.*", "GpuAcc_backend.*", "_GpuAcc_backend.*",
    "Arm__backend.*", "Arm_GpuAcc.*", "__backend.*", "__.*", "Arm_GpuAcc_backend", "Arm_GpuAcc_backend_v1.2.*",
    # not in the table: a character for the dot, a case, other digits, something before, behind and between
    "Arm_GpuAcc_backendX*", "Arm_GpuAcc_Backend.*", "Arm_GpuAcc_backend.*.\u0663", "\u00c4rm_GpuAcc_backend.*",
    "lib.Arm_GpuAcc_backend.*", "Arm_GpuAcc_backend.*\n", "Arm_GpuAcc_backend.*.1.", "Arm_Gpu_Acc_backend.*",
    "Arm_GpuAcc_backend.*~", "Arm_GpuAcc_backend.*c", "Arm-GpuAcc-backend.*",
]
TABLE = [(name, {"so": True, "py": True}) for name in ACCEPTED]
TABLE += [(name, {"so": True, "py": False}) for name in VERSIONED]
TABLE += [(name, {"so": False, "py": False}) for name in REJECTED]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("pattern", "verdict"), TABLE, ids=[ascii(name) for name, _ in TABLE])
def test_A18_names(
    kind: str, pattern: str, verdict: dict[str, bool], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = pattern.replace("*", kind)
    file = tmp_path / name
    file.write_bytes(write(tmp_path / "origin" / f"a_b_backend.{kind}", source(kind)).read_bytes())
    made = scanned(tmp_path)
    assert is_considered(name) is verdict[kind]
    assert made.ids() == (["cpu", "acme"] if verdict[kind] else ["cpu"])
    assert made.failures == {} and caplog.records == [], "what has another name is none of ours"
    if verdict[kind]:
        assert made.origins()["acme"] == str(file)


@pytest.mark.parametrize("kind", KINDS)
def test_A18_symlinks_to_one_file_are_one_load(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The links of the table; those of Python files differ in the name, for they have no versions."""
    monkeypatch.setenv("WEFT_TEST_COUNT", str(tmp_path / "count"))
    names = [f"Arm_CpuAcc_backend.so{v}" for v in ("", ".1", ".1.2", ".1.2.3")]
    names = names if kind == "so" else [f"Arm_CpuAcc{v}_backend.py" for v in ("", "1", "12", "123")]
    text = COUNT + py_source() if kind == "py" else c_source(more=C_COUNT)
    # Written for this test alone: a library that is loaded already is not loaded again.
    write(tmp_path / names[0], text, *(["-D_POSIX_C_SOURCE=200809L"] if kind == "so" else []))
    for link, target in zip(names[1:], names, strict=False):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / names[0]).symlink_to(tmp_path / names[-1])
    made = scanned(tmp_path, tmp_path / "more", tmp_path)
    assert made.origins()["acme"] == str(tmp_path / names[0])
    assert made.ids() == ["cpu", "acme"] and made.failures == {} and caplog.records == []
    assert (tmp_path / "count").read_text() == "x"


@pytest.mark.parametrize("kind", KINDS)
def test_A18_a_link_is_known_by_its_name_and_loaded_from_its_target(kind: str, tmp_path: Path) -> None:
    target = write(tmp_path / "hidden" / f"a_b_backend.{kind}", source(kind))
    (tmp_path / f"Arm_GpuAcc_backend.{kind}").symlink_to(target.rename(target.with_name("anything.bin")))
    made = scanned(tmp_path)
    assert made.origins()["acme"] == str(tmp_path / "hidden" / "anything.bin")


@pytest.mark.parametrize("kind", KINDS)
def test_A18_a_link_to_nothing_is_a_warning(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, loop = tmp_path / f"Arm_no_backend.{kind}", tmp_path / f"Arm_loop_backend.{kind}"
    link.symlink_to(tmp_path / "nothing")
    loop.symlink_to(loop)
    write(tmp_path / f"Arm_yes_backend.{kind}", source(kind))
    made = scanned(tmp_path)
    assert made.ids() == ["cpu", "acme"]
    assert made.failures.keys() == {str(link), str(loop)}
    assert "the link cannot be followed: No such file or directory" in made.failures[str(link)]
    assert [r.levelname for r in caplog.records] == ["WARNING"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_A18_one_name_in_two_folders(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = f"Arm_GpuAcc_backend.{kind}"
    a, b, c = (tmp_path / folder / name for folder in ("pathB", "pathA", "pathC"))
    for file, id_ in ((a, "acme"), (b, "acme"), (c, "other")):
        write(file, source(kind, id_))
    made = scanned(a.parent, b.parent, c.parent)
    assert made.origins() == {"cpu": "weft", "acme": str(a), "other": str(c)}
    assert list(made.failures) == [str(b)]
    (record,) = caplog.records
    assert f"{b} is skipped: the id 'acme' is taken" in record.message and f"from {a}" in record.message


@pytest.mark.parametrize("kind", KINDS)
def test_A17_files_come_in_the_order_of_their_names(kind: str, tmp_path: Path) -> None:
    for name in ("b_x", "a_x", "B_y", "a_10", "a_9"):
        write(tmp_path / f"{name}_backend.{kind}", source(kind, f"id_{name}"))
    assert scanned(tmp_path).ids() == ["cpu", "id_B_y", "id_a_10", "id_a_9", "id_a_x", "id_b_x"]


def test_A17_a_folder_is_no_file_and_folders_are_not_entered(tmp_path: Path) -> None:
    (tmp_path / "Arm_GpuAcc_backend.so").mkdir()
    write(tmp_path / "inner" / "Arm_GpuAcc_backend.py", py_source())
    made = scanned(tmp_path)
    assert made.ids() == ["cpu"] and made.failures == {}
