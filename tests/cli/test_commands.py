"""The other commands: devices, doctor, inspect, optimize, cache."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from onnx import TensorProto, helper

import weft
from tests.helpers.cli import Cli, double, write_model
from weft import OptimizationViews, SubgraphView, models
from weft.backends.cpu.backend import CpuBackend
from weft.backends.opencl import pip_driver
from weft.backends.vulkan.spirv import ShippedSet
from weft.cli import doctor, trial_run
from weft.cli.app import app_of, main
from weft.core.host.disk_cache import DiskCache
from weft.core.registry.backend_registry import registry
from weft.errors import DeviceError, Reason


def test_without_a_command_there_is_help(cli: Cli) -> None:
    done = cli(status=2)
    for command in ("run", "devices", "doctor", "bench", "compare", "inspect", "tune", "cache"):
        assert re.search(rf"\b{command}\b", done.out + done.err)
    assert cli("--version").out == f"weft {weft.__version__}\n"
    assert "--precision" in cli("run", "--help").out


def test_every_command_refuses_an_option_given_twice(cli: Cli) -> None:
    group: Any = typer.main.get_command(app_of())
    asked = []
    for name in group.list_commands(None):
        params = group.get_command(None, name).params
        options = [p for p in params if p.param_type_name == "option" and not (p.is_flag or p.multiple)]
        for option in options[:1]:
            given = (option.opts[0], "1") * 2
            assert f"{option.opts[0]} is given twice" in cli(name, *given, status=2).err, name
            asked.append(name)
    assert {"run", "inspect", "tune", "conformance"} <= {*asked}


def test_a_command_imports_no_other_command() -> None:
    code = """
import sys
from weft.cli import main
try:
    main(["cache", "info"])
finally:
    print(*(m for m in sys.modules if m.startswith(("weft.cli.", "weft.ops", "rich.progress", "markdown_it"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    own = ("app", "console", "command", "cache", "json_output", "writing")
    assert {*done.stdout.splitlines()[-1].split()} == {f"weft.cli.{m}" for m in own}


def test_a_module_is_a_command_too() -> None:
    command = [sys.executable, "-m", "weft", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("weft ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", [["--version"], ["run", "--help"], ["devices"], ["inspect", "--passes", "--json"]])
def test_a_stdout_that_takes_nothing_is_an_error(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            main(command)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said
    assert "what the command prints cannot be written\n  where: stdout\n  why: No space left on device" in said


def test_a_closed_stdout_is_an_error_and_a_closed_pipe_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    pipe = os.fdopen(writes, "w")
    for stdout, status, said in ((None, 2, "why: it is closed"), (pipe, 1, "")):
        with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
            patched.setattr(sys, "stdout", stdout)
            main(["--version"])
        error = capsys.readouterr().err
        assert ended.value.code == status and said in error and bool(said) == bool(error)


@pytest.mark.parametrize("module", ["numpy", "typer", "weft.cli.tune"])
def test_an_interrupt_while_modules_are_imported_is_quiet(module: str) -> None:
    code = f"""
import sys, weft_command
assert not any(m.split(".")[0] in ("weft", "numpy") for m in sys.modules)
class Interrupt:
    def find_spec(self, name, *_):
        if name == "{module}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
weft_command.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# -- devices -------------------------------------------------------------------------------------------------


def test_devices_are_listed_with_the_name_to_use(cli: Cli) -> None:
    done = cli("devices")
    for name in ("cpu", "opencl", "vulkan"):
        assert re.search(rf"^{name} .* (software|hardware)\b", done.out, re.M)
    assert "AUTO picked" in done.out
    facts = json.loads(cli("devices", "--json").out)
    assert {d["use_as"] for d in facts["devices"]} >= {"cpu", "opencl", "vulkan"}
    assert facts["absent"] == {} and facts["auto"]["why"]


def test_an_absent_kind_is_listed_with_the_reason(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.find("vulkan"), "absent", lambda: "no loader: apt install libvulkan1")
    assert "vulkan is absent: no loader: apt install libvulkan1" in cli("devices").out


# -- doctor --------------------------------------------------------------------------------------------------


def test_doctor_finds_nothing_wrong(cli: Cli) -> None:
    report = json.loads(cli("doctor", "--json").out)
    assert report["counts"].keys() <= {"PASS", "absent"}
    found = {c["name"]: c["found"] for c in report["checks"] if c["status"] == "PASS"}
    assert {
        "python",
        "numpy",
        "onnx",
        "cache",
        "GLSL compiler",
        "cpu:0",
        "opencl:0",
        "vulkan:0",
    } <= found.keys()
    assert "a small network within" in found["vulkan:0"]
    assert found["front end ONNX"] == "reads .onnx, bytes, bytearray, memoryview, onnx.ModelProto"
    assert found["front end saved networks"].startswith("reads .weft, ")


def test_doctor_says_what_to_do(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Reason("no platform was found (asked: the loader): none", "install a driver: any")
    monkeypatch.setattr(registry.find("opencl"), "absent", lambda: absent)
    monkeypatch.setattr(doctor, "trial_run", lambda device: 0.5 if device == "cpu:0" else 0.0)
    done = cli("doctor", status=1)
    assert re.search(r"^opencl\s+FAIL\s+no platform was found \(asked: the loader\): none *$", done.out, re.M)
    assert re.search(r"^opencl: install a driver: any$", done.out, re.M)
    assert re.search(r"^cpu:0\s+FAIL", done.out, re.M) and "update its driver, and report this" in done.out
    assert "2 FAIL" in done.out


def test_what_is_not_installed_is_no_failure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda p: None if p in ("pyopencl", "pillow") else real(p))
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    monkeypatch.setattr(doctor, "trial_run", lambda device: 0.0)
    done = cli("doctor")
    assert re.search(r"^opencl\s+absent\s+pyopencl cannot be imported \(import of pyopencl halted", done.out, re.M)
    assert re.search(r"^opencl: pip install pyopencl$", done.out, re.M)
    assert "pillow: for pictures as inputs: pip install pillow" in done.out


def test_a_missing_compiler_matters_only_without_shipped_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    monkeypatch.setattr(ShippedSet, "count", lambda self: 0)
    assert doctor.compiler_check(needed=True).status == "FAIL"
    assert doctor.compiler_check(needed=False).status == "absent"
    monkeypatch.setattr(ShippedSet, "count", lambda self: 17)
    check = doctor.compiler_check(needed=True)
    assert check.status == "absent" and "17 compiled kernels" in check.found and "slangpy" in check.fix


def test_a_cache_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    check = doctor.cache_check()
    assert check.status == "FAIL" and "WEFT_CACHE_DIR" in check.fix


def test_a_driver_that_ends_the_process_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def abort(command: list[str], **options: object) -> object:
        code = "import os, sys; print('linking failed', file=sys.stderr, flush=True); os.abort()"
        return real([command[0], "-c", code], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", abort)
    with pytest.raises(DeviceError, match=r"the driver ended the process \(SIGABRT\)") as caught:
        trial_run.trial_run("opencl:0")
    assert "linking failed" in caught.value.why and "apt install gcc" in caught.value.fix


def test_an_error_of_the_trial_run_comes_back_whole() -> None:
    with pytest.raises(DeviceError, match="there is no device cpu:9") as caught:
        trial_run.trial_run("cpu:9")
    assert "1 device(s)" in caught.value.why


# -- inspect -------------------------------------------------------------------------------------------------


def test_inspect_counts_ops_and_says_who_takes_them(cli: Cli) -> None:
    done = cli("inspect", models.path("shapes"), "--nodes")
    assert "input  image: float32[nx3x128x128]" in done.out or "input  image: float32" in done.out
    assert "output probabilities" in done.out
    assert re.search(r"^Conv\s+\d+\s*$", done.out, re.M)
    assert re.search(r"vulkan:0: (\d+) of \1 nodes after the rewrites", done.out)


def test_inspect_lists_all_ops_that_are_not_known(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node(op, ["x"], [op], name=f"node{op}") for op in ("Foo", "Bar", "Relu")]
    model = write_model(tmp_path / "m.onnx", nodes, {"x": (1, 2)}, ["Relu"])
    done = cli("inspect", model, "--unsupported", status=1)
    assert "nodeFoo" in done.out and "nodeBar" in done.out and "nodeRelu" not in done.out
    assert re.search(r"^Foo +1$", done.out, re.M) and "vulkan:0: 1 of 1 other nodes" in done.out


def test_inspect_counts_what_is_not_known_in_graphs_that_nodes_hold(cli: Cli, tmp_path: Path) -> None:
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    unknown = [helper.make_node("Foo", ["x"], ["a"], name="deep"), helper.make_node("Foo", ["a"], ["y"], name="deeper")]
    held = helper.make_graph(unknown, "held", [], outputs)
    plain = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "plain", [], outputs)
    inner = helper.make_node("If", ["c"], ["y"], name="inner", then_branch=held, else_branch=plain)
    around = helper.make_graph([inner, helper.make_node("Bar", ["x"], ["z"])], "around", [], outputs)
    node = helper.make_node("If", ["c"], ["y"], name="outer", then_branch=plain, else_branch=around)
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.BOOL), node]
    done = cli("inspect", write_model(tmp_path / "m.onnx", nodes, {"x": (1,)}, ["y"]), "-d", "cpu", status=1)
    assert re.search(r"^Foo +2$", done.out, re.M) and re.search(r"^Bar +1$", done.out, re.M)
    assert "3 of the 8 nodes" in done.err


def test_inspect_gives_the_reason_of_each_refusal(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MeanVarianceNormalization", ["x"], ["y"], name="adapted", axes=[0, 2, 4, 6]),
        helper.make_node("Relu", ["y"], ["z"], name="plain"),
    ]
    model = write_model(tmp_path / "m.onnx", nodes, {"x": (2,) * 7}, ["z"])
    done = cli("inspect", model, "--devices", "vulkan", "--unsupported")
    assert "vulkan:0: 1 of 2 nodes" in done.out
    assert re.search(r"^adapted +MeanVarianceNormalization +vulkan:0 +axes .* are more than three", done.out, re.M)
    assert "subgraph" not in done.out
    done = cli("inspect", model, "--device", "vulkan+cpu", "--nodes")
    assert "2 subgraph(s), with their nodes after the backends' rewrites: cpu:0 (1) -> vulkan:0 (1)" in done.out
    assert re.search(r"^copy y: cpu:0 -> vulkan:0 +cpu:0 +vulkan:0 +float32\[2x2x2x2x2x2x2\] +512$", done.out, re.M)
    assert "1 copies between devices, 512 bytes in every run" in done.out
    assert "on vulkan:0:" in done.out and "z = Relu" in done.out


def test_a_comma_means_another_run_and_a_plus_an_order_for_every_command(cli: Cli, tmp_path: Path) -> None:
    model = double(tmp_path / "m.onnx", (3, 4))
    apart = cli("inspect", model, "--device", "cpu,opencl").out
    assert re.findall(r"^for (\w+)$", apart, re.M) == ["cpu", "opencl"]
    assert re.findall(r"rewrites: (\S+) \(1\)$", apart, re.M) == ["cpu:0", "opencl:0"]
    order = cli("inspect", model, "--device", "cpu+opencl").out
    assert re.findall(r"rewrites: (\S+) \(1\)$", order, re.M) == ["cpu:0"]
    assert re.findall(r"^(\S+): \S+ ms$", cli("run", model, "--device", "cpu+opencl,opencl").out, re.M) == [
        "cpu+opencl", "opencl"
    ]
    said = cli("optimize", model, "--device", "opencl,cpu", "-o", tmp_path / "m.weft", status=2).err
    assert "commas separate runs" in said and 'join devices with +: "opencl+cpu"' in said


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
@pytest.mark.parametrize("command", [("devices",), ("devices", "--options"), ("inspect", "--passes"), ("bench",)])
def test_tables_fit_columns_in_a_pipe_and_break_no_word(
    command: tuple[str, ...], columns: int, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == ("bench",):
        monkeypatch.setattr("weft.cli.measure.milliseconds", lambda seconds: 1234.5)
        monkeypatch.setattr("weft.cli.bench.milliseconds", lambda seconds: 1234.5)
        command = ("bench", str(double(tmp_path / "m.onnx")), "-d", "cpu,cpu", "--iterations", "1", "--warmup", "0")

    def printed() -> str:
        """Return the table, and no line after it."""
        return "\n".join(x for x in cli(*command).out.splitlines() if not re.match("AUTO|.* is absent|.* options$", x))

    monkeypatch.delenv("COLUMNS", raising=False)
    words = {word for word in printed().split() if "\u2500" not in word}
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = printed()
    assert words <= {word for each in narrow.split() for word in (each, each.removesuffix(":"))}
    # A word may be longer than a line, and is not broken even then.
    assert all(len(text) <= columns or len(text.split()[-1]) > columns - 10 for text in narrow.splitlines())


def test_inspect_prints_each_pass(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["i"], name="idle"), helper.make_node("Relu", ["i"], ["y"])]
    done = cli(
        "inspect", write_model(tmp_path / "m.onnx", nodes, {"x": ("n",)}, ["y"]), "--passes", "-d", "cpu"
    )
    assert "as read: 2 nodes" in done.out and "2 -> 1 nodes" in done.out and "remove_identities: " in done.out
    assert "taken as 1 for x" in done.err


def test_inspect_lists_the_rewrites_and_says_what_failed_later(cli: Cli, tmp_path: Path) -> None:
    listed = cli("inspect", "--passes", "--precision", "low").out
    assert "fold_batch_norm" in listed and "store_as_float16" in listed and "OptimizeSubgraph" in listed
    assert listed.index("\nsettle_convolutions ") < listed.index("\n  fold_pads "), "a group is above its members"
    assert "no model was named" in cli("inspect", status=2).err

    class Late(CpuBackend):
        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            views = OptimizationViews()
            views.fail(view, "the compiler ran out of registers")
            return views

    weft.registry.insert("late", Late)
    try:
        done = cli("inspect", double(tmp_path / "m.onnx", (3, 4)), "--device", "late+cpu")
    finally:
        weft.registry.remove("late")
    assert re.search(r"^twice +Add +late:0 +the compiler ran out of registers$", done.out, re.M)
    assert "late:0: 0 of 1 nodes" in done.out


# -- optimize ------------------------------------------------------------------------------------------------


def test_an_optimised_network_is_saved_and_run(cli: Cli, tmp_path: Path) -> None:
    model, saved = double(tmp_path / "m.onnx", (3, 4)), tmp_path / "m.weft"
    done = cli("optimize", model, "-d", "vulkan+cpu", "-o", saved)
    assert f"wrote {saved}: 1 subgraph(s): vulkan:0 (1)" in done.out
    ran = cli("run", saved, "-o", tmp_path / "out")
    assert "vulkan:0+cpu:0" in ran.out and "nodes: vulkan 1" in ran.out
    cli("run", model, "-d", "cpu", "-o", tmp_path / "plain")
    (name,) = [p.name for p in (tmp_path / "out").iterdir()]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / name), np.load(tmp_path / "plain" / name))


def test_optimize_says_what_is_wrong(cli: Cli, tmp_path: Path) -> None:
    model = double(tmp_path / "m.onnx", (3, 4))
    assert "does not end in .weft" in cli("optimize", model, "-d", "cpu", "-o", tmp_path / "m.zip", status=2).err
    assert "join devices with +" in cli("optimize", model, "-d", "cpu,vulkan", status=2).err
    cli("optimize", model, "-d", "cpu", "-o", tmp_path / "m.weft")
    for option in (("-d", "cpu"), ("--hint", "twice=cpu"), ("--precision", "low"), ("--strict",)):
        said = cli("run", tmp_path / "m.weft", *option, status=2).err
        assert "leave these options out" in said and "weft optimize" in said


@pytest.mark.parametrize("command", ["bench", "compare", "inspect", "optimize", "tune"])
def test_a_saved_network_is_not_taken_for_an_onnx_file(cli: Cli, tmp_path: Path, command: str) -> None:
    cli("optimize", double(tmp_path / "m.onnx", (3, 4)), "-d", "cpu", "-o", tmp_path / "m.weft")
    said = cli(command, tmp_path / "m.weft", status=2).err
    assert "m.weft is a saved network, and this command takes a model" in said
    assert f"`weft run {tmp_path / 'm.weft'}` runs it" in said.replace("\n", " ")


def test_optimize_says_which_shapes_it_needs(cli: Cli, tmp_path: Path) -> None:
    model = double(tmp_path / "m.onnx")
    said = cli("optimize", model, "-d", "cpu", "-o", tmp_path / "m.weft", status=2).err
    assert "the sizes of n are not known: input 'x' is float32[nx4]" in said
    assert "next: write, for instance, --shape x=1,4\n" in said
    cli("optimize", model, "-d", "cpu", "-o", tmp_path / "m.weft", "--shape", "x=1,4")


def test_help_promises_only_options_that_there_are(cli: Cli) -> None:
    for command, there in (("run", True), ("bench", True), ("inspect", False), ("tune", False), ("optimize", False)):
        said = cli(command, "--help").out
        assert ("--input" in said) == there and (".weft" in said) == (command in ("run", "optimize"))


# -- cache ---------------------------------------------------------------------------------------------------


def test_clearing_the_cache_leaves_what_is_not_ours(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    DiskCache("spirv").put("a", b"12345")
    DiskCache("opencl").put("b", b"12345")
    (tmp_path / "spirv" / "notes.txt").write_text("mine")
    shown = cli("cache", "info").out
    assert str(tmp_path) in shown and re.search(r"^all\s+2\s", shown, re.M)
    assert "removed 2 files" in cli("cache", "clear").out
    assert (tmp_path / "spirv" / "notes.txt").exists()
    assert re.search(r"^all\s+0\s", cli("cache", "info").out, re.M)


def test_files_that_cannot_be_removed_are_a_failure(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    DiskCache("spirv").put("a", b"12345")

    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    done = cli("cache", "clear", status=1)
    assert "removed 0 files" in done.out and "cannot be removed: Read-only file system" in done.err
    assert "1 files are left: make their folders writable" in done.err


def test_a_cache_that_is_no_folder_is_said_to_be_none(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for name, said in (("file", "file is no folder"), ("none", "none is not there"), ("file/x", "x is not there")):
        monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / name))
        assert said in cli("cache", "info").err
        done = cli("cache", "clear")
        assert said in done.err and "removed 0 files" in done.out


def test_a_cache_that_cannot_be_written_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.mkstemp", full)
    with caplog.at_level(logging.DEBUG, "weft.cache"):
        for kind in ("opencl", "spirv", "spirv"):
            DiskCache(kind).put("a", b"12345")
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert caplog.messages[0].endswith("; make the folder writable, or name another in WEFT_CACHE_DIR")


def test_a_cache_that_is_no_folder_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (file := tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(file))
    for kind in ("opencl", "spirv", "spirv"):
        DiskCache(kind).put("a", b"12345")
    assert [message.partition(";")[0] for message in caplog.messages] == [
        f"{file} is not used: it is a file, not a folder"
    ]


# -- a terminal ----------------------------------------------------------------------------------------------


def test_a_terminal_sees_that_work_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.cli.console import working

    monkeypatch.setenv("TERM", "xterm")
    with working("preparing") as progress:
        progress(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with working("preparing") as progress:
        progress(17, 42)
    shown = capsys.readouterr().err
    assert "preparing" in shown and "17/42" in shown


def test_variables_that_make_no_sense_are_an_error_of_every_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_VULKAN_VALIDATION", "perhaps")
    for command in (("cache", "info"), ("devices",)):
        said = cli(*command, status=2).err
        assert "WEFT_VULKAN_VALIDATION=perhaps is neither on nor off" in said and "next: " in said


def test_an_unusable_device_is_shown_as_such_with_what_to_do(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "a small kernel does not run: unknown CPU; install another driver: apt install x"
    monkeypatch.setattr(registry.find("opencl"), "unusable", lambda index: why)
    monkeypatch.setattr(doctor, "trial_run", lambda device: 0.0)
    done = cli("devices")
    assert re.search(r"^opencl:0 .* unusable\b", done.out, re.M) and f"opencl:0 is unusable: {why}" in done.out
    assert "opencl is absent" not in done.out
    facts = json.loads(cli("devices", "--json").out)
    assert facts["unusable"][0]["use_as"] == "opencl:0" and {d["why"] for d in facts["unusable"]} == {why}
    checked = {c["name"]: c for c in json.loads(cli("doctor", "--json", status=1).out)["checks"]}
    assert checked["opencl:0"]["status"] == "FAIL" and checked["opencl:0"]["fix"] == why
    assert "does not work" in checked["opencl:0"]["found"]


def test_doctor_says_which_driver_pip_installed_in_vain(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Reason("it cannot be loaded (libimf.so): no such file", "pip install more")
    monkeypatch.setattr(pip_driver, "problem", lambda: problem)
    monkeypatch.setattr(doctor, "trial_run", lambda device: 0.0)
    done = cli("doctor", status=1)
    assert re.search(r"^OpenCL from pip\s+FAIL\s+it cannot be loaded \(libimf.so\): no such file *$", done.out, re.M)
    assert "OpenCL from pip: pip install more" in done.out
