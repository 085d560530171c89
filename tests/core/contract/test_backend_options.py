"""Contract row M14: options of a backend, declared by its creator and given by its id."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import weft
from tests.helpers.cli import Cli, write_model
from tests.helpers.fakes import Creator, Mock, registered
from tests.helpers.native_sources import loaded
from tests.helpers.nets import chain
from tests.helpers.plugins import C_FACTORY, C_ID, C_VERSION, needs_compiler, py_source, write
from weft.backends.gpu.creator import GpuCreator
from weft.core.contract.backend import Backend
from weft.core.contract.backend_options import BackendOptions
from weft.errors import BackendError, ConfigError

GAIN = weft.BackendOption("gain", 1.0, "What results are multiplied by.", least=0, saved=True)
MODE = weft.BackendOption("mode", "plain", "How it works.", choices=("plain", "odd"), saved=True)
LANES = weft.BackendOption("lanes", 4, "Lanes that work.", least=1)
STRICT = weft.BackendOption("strict", False, "Refuse what is not exact.")
USUAL = {"gain": 1.0, "mode": "plain", "lanes": 4, "strict": False}
X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


class Listener(weft.BackendContext):
    """Notes the options that it has at each load."""

    def __init__(self, loads: list[dict[str, Any]]) -> None:
        self.loads = loads

    def before_load(self, network: int) -> bool:
        self.loads.append(dict(self.options))
        return True


class WithOptions(Creator):
    """A creator with an option of each type."""

    options = (GAIN, MODE, LANES, STRICT)

    def __init__(self) -> None:
        super().__init__(Mock)
        self.loads: list[dict[str, Any]] = []
        self.contexts = self.prepared = 0

    def onPrepare(self, index: int) -> None:
        self.prepared += 1

    def create_context(self) -> weft.BackendContext:
        self.contexts += 1
        return Listener(self.loads)

    @property
    def seen(self) -> list[dict[str, Any]]:
        """Return the options of each backend that was made."""
        return [dict(b.info.options) for b in self.backends]


@pytest.fixture
def creator() -> Iterator[WithOptions]:
    with registered(made := WithOptions(), "acme"):
        yield made


def run(**options: Any) -> None:
    with weft.load(chain("Relu"), "acme", **options) as session:
        np.testing.assert_array_equal(session.run(X)[0], X)


def test_M14_a_backend_and_its_context_get_every_option_the_users_or_the_default(creator: WithOptions) -> None:
    run()
    assert creator.seen == creator.loads == [USUAL]
    run(backend_options={"acme": {"gain": 2, "strict": np.True_}})
    given = {**USUAL, "gain": 2.0, "strict": True}
    assert creator.seen[-1] == creator.loads[-1] == given
    assert type(creator.seen[-1]["gain"]) is float and type(creator.seen[-1]["strict"]) is bool


def test_M14_the_forward_type_is_in_the_info() -> None:
    with registered(made := Creator(Mock), weft.ForwardType.USER_1):
        weft.load(chain("Relu"), weft.ForwardType.USER_1).close()
        assert made.backends[0].info.forward_type is weft.ForwardType.USER_1
    with registered(made := Creator(Mock), "acme"):
        weft.load(chain("Relu"), "acme").close()
        assert made.backends[0].info.forward_type is None


def test_M14_options_of_a_runtime_are_those_of_its_networks_and_a_loads_own_go_first(creator: WithOptions) -> None:
    with weft.Runtime(backend_options={"ACME": {"gain": 3.0, "lanes": 2}}) as runtime:
        run(runtime=runtime)
        run(runtime=runtime, backend_options={"acme": {"lanes": 1}})
        network = weft.optimize(chain("Relu"), "acme", runtime=runtime)
        runtime.run(runtime.load(network), X)
    own = {**USUAL, "gain": 3.0}
    assert [s["lanes"] for s in creator.seen] == [2, 1, 2, 2]
    assert creator.loads == [{**own, "lanes": 2}, {**own, "lanes": 1}, {**own, "lanes": 2}]
    assert creator.contexts == 2, "one for each set of options"


def test_M14_an_index_does_not_matter_and_a_forward_type_names_the_backend_too() -> None:
    made = WithOptions()
    with registered(made, weft.ForwardType.USER_2):
        weft.load(chain("Relu"), "user_2:0", backend_options={weft.ForwardType.USER_2: {"lanes": 9}}).close()
    assert made.seen[0]["lanes"] == 9


def test_M14_what_is_opened_ahead_is_not_opened_for_other_options(creator: WithOptions) -> None:
    run()
    assert creator.prepared == 1
    run(backend_options={"acme": {"gain": 1.0}})
    assert creator.prepared == 2, "that is the default"
    run(backend_options={"acme": {"gain": 2.0}})
    assert creator.prepared == 2


WRONG: list[tuple[Any, str]] = [
    ({"acme": {"gian": 2.0}}, "'acme' has no option 'gian': it has gain, mode, lanes, strict; did you mean 'gain'?"),
    ({"acme": {3: 2.0}}, "'acme' has no option 3"),
    ({"acmee": {"gain": 2.0}}, "'acmee' is not a backend: registered are"),
    ({None: {}}, "None is not a backend"),
    ({"cpu": {"gain": 2.0}}, "'cpu' has no option 'gain': it has threads"),
    ({"acme": {"gain": "2"}}, "'gain' of 'acme' takes a number from 0 on, not '2'"),
    ({"acme": {"gain": -1}}, "'gain' of 'acme' takes a number from 0 on, not -1"),
    ({"acme": {"gain": float("nan")}}, "'gain' of 'acme' takes a number from 0 on, not nan"),
    ({"acme": {"gain": True}}, "'gain' of 'acme' takes a number from 0 on, not True"),
    ({"acme": {"lanes": 2.5}}, "'lanes' of 'acme' takes a whole number from 1 on, not 2.5"),
    ({"acme": {"lanes": None}}, "'lanes' of 'acme' takes a whole number from 1 on, not None"),
    ({"acme": {"strict": 1}}, "'strict' of 'acme' takes True or False, not 1"),
    ({"acme": {"mode": "even"}}, "'mode' of 'acme' takes one of 'plain', 'odd', not 'even'"),
    ({"acme": {"mode": np.array(["odd", "odd"])}}, "'mode' of 'acme' takes one of"),
    ({"acme": 3}, "'acme' has 3, which is not a dict of values by name"),
    ({"acme": {}, "Acme": {}}, "'acme' is named twice"),
    (["acme"], "['acme'] is not a dict of options by backend"),
]


@pytest.mark.parametrize(("given", "why"), WRONG, ids=lambda v: str(v)[:30])
def test_M14_what_no_backend_takes_is_refused_by_name(creator: WithOptions, given: Any, why: str) -> None:
    for refused in (
        lambda: weft.load(chain("Relu"), "cpu", backend_options=given),
        lambda: weft.optimize(chain("Relu"), "cpu", backend_options=given),
        lambda: weft.Runtime(backend_options=given),
    ):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert why in caught.value.why and "weft devices --options" in caught.value.fix
    assert not creator.backends


def test_M14_all_that_is_wrong_is_said_at_once(creator: WithOptions) -> None:
    with pytest.raises(ConfigError) as caught:
        weft.load(chain("Relu"), "acme", backend_options={"acme": {"a": 1, "lanes": 0}, "nobody": {}})
    assert caught.value.why.count(";") == 2


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("gain", "options is 'gain', which is not a list"),
        (3, "options is 3, which is not a list"),
        (["gain"], "'gain' is not a BackendOption"),
        ([GAIN, GAIN], "'gain' is declared twice"),
        ([weft.BackendOption("Gain", 1, "x")], "'Gain' is no name for an option"),
        ([weft.BackendOption("gain", None, "x")], "the default of 'gain' is of type NoneType"),  # type: ignore[arg-type]
        ([weft.BackendOption("gain", 1, " ")], "'gain' has no doc"),
        ([weft.BackendOption("gain", 1, "x", least=2)], "'gain' does not take its own default"),
        ([weft.BackendOption("gain", 1, "x", saved="no")], "saved of 'gain' is 'no'"),  # type: ignore[arg-type]
        ([weft.BackendOption("gain", 1, "x", check=3)], "check of 'gain' is 3"),  # type: ignore[arg-type]
    ],
)
def test_M14_what_is_declared_is_checked_when_the_backend_is_registered(declared: Any, why: str) -> None:
    made = Creator(Mock)
    made.options = declared
    with pytest.raises(BackendError) as caught:
        weft.registry.insert("acme", made)
    assert why in caught.value.why and not weft.registry.is_registered("acme")


# -- saved networks --------------------------------------------------------------------------------------------


def manifest_with(path: Path, options: dict[str, dict[str, object]]) -> Path:
    """Return a copy of a saved network with other options in its manifest."""
    made = path.with_name("changed.weft")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename == "network.json":
                content = json.dumps({**json.loads(content), "options": options}).encode()
            new.writestr(item, content)
    return made


def test_M14_a_network_keeps_what_it_depends_on_in_memory_and_in_a_file(creator: WithOptions, tmp_path: Path) -> None:
    own: BackendOptions = {"acme": {"gain": 2.0, "mode": "plain", "lanes": 9}}
    network = weft.optimize(chain("Relu"), "acme", backend_options=own)
    network.save(tmp_path / "a.weft")
    with zipfile.ZipFile(tmp_path / "a.weft") as archive:
        assert json.loads(archive.read("network.json"))["options"]["acme"] == {"gain": 2.0}, "lanes are not saved"
    for each in (network, tmp_path / "a.weft"):
        weft.load(each).close()
        assert creator.seen[-1] == {**USUAL, "gain": 2.0}
        weft.load(each, backend_options={"acme": {"lanes": 8}}).close()
        assert creator.seen[-1] == {**USUAL, "gain": 2.0, "lanes": 8}
        weft.load(each, backend_options={"acme": {"gain": 1.0}}).close()
        assert creator.seen[-1] == USUAL, "what load is given goes first"
        with pytest.raises(ConfigError, match="has no option 'gian'"):
            weft.load(each, backend_options={"acme": {"gian": 1.0}})


def test_M14_a_file_sets_no_option_that_the_user_decides(creator: WithOptions, tmp_path: Path) -> None:
    weft.optimize(chain("Relu"), "acme").save(tmp_path / "a.weft")
    made = manifest_with(tmp_path / "a.weft", {"acme": {**USUAL, "lanes": 1_000_000, "strict": True, "mode": "odd"}})
    weft.load(made).close()
    assert creator.seen[-1] == {**USUAL, "mode": "odd"}
    with weft.Runtime(backend_options={"acme": {"lanes": 2}}) as runtime:
        runtime.load(made)
    assert creator.seen[-1] == {**USUAL, "mode": "odd", "lanes": 2}
    wrong = manifest_with(tmp_path / "a.weft", {"acme": {"mode": "even"}})
    with pytest.raises(ConfigError, match="'mode' of 'acme' takes one of"):
        weft.load(wrong)
    weft.load(wrong, backend_options={"acme": {"mode": "plain"}}).close()


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_M14_a_file_sets_no_option_of_a_gpu(device: str, tmp_path: Path) -> None:
    weft.optimize(chain("Relu"), device).save(tmp_path / "a.weft")
    stranger: dict[str, object] = {"memory_limit": 1, "device_profile": "smallest", "tuning": False, "kernels_kept": 0}
    with weft.load(manifest_with(tmp_path / "a.weft", {device: stranger})) as session:
        np.testing.assert_array_equal(session.run(X)[0], X)
        gpu = weft.registry.find(device)
        assert isinstance(gpu, GpuCreator)
        assert session.pipelines[0].backend.runtime is gpu.runtime(0)  # type: ignore[attr-defined]


def test_M14_a_runtime_with_other_options_refuses_the_network(creator: WithOptions, tmp_path: Path) -> None:
    network = weft.optimize(chain("Relu"), "acme", backend_options={"acme": {"gain": 2.0}})
    network.save(tmp_path / "a.weft")
    with weft.Runtime(backend_options={"acme": {"gain": 3.0}}) as runtime:
        with pytest.raises(ConfigError, match="the backend options that it depends on") as caught:
            runtime.load(tmp_path / "a.weft")
        with pytest.raises(ConfigError, match=r"the network was optimised with 1\.0"):
            runtime.load(weft.optimize(chain("Relu"), "acme"))
        runtime.load(tmp_path / "a.weft", backend_options={"acme": {"gain": 4.0}})
    assert creator.seen[-1]["gain"] == 4.0
    assert "'gain' of 'acme' is 3.0 in this runtime, and the network was optimised with 2.0" in caught.value.why
    with weft.Runtime(backend_options={"acme": {"gain": 2.0}}) as runtime:
        runtime.load(tmp_path / "a.weft")


def test_M14_an_option_that_is_gone_is_named_if_the_network_depends_on_it(creator: WithOptions) -> None:
    usual = weft.optimize(chain("Relu"), "acme", backend_options={"acme": {"lanes": 9}})
    odd = weft.optimize(chain("Relu"), "acme", backend_options={"acme": {"mode": "odd"}})
    creator.options = (GAIN,)  # type: ignore[assignment]
    weft.load(usual).close()
    with pytest.raises(ConfigError, match="'acme' has no option 'mode': it has gain"):
        weft.load(odd)


# -- what comes with Weft --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_M14_sessions_with_other_options_share_no_device(device: str) -> None:
    gpu = weft.registry.find(device)
    assert isinstance(gpu, GpuCreator)
    usual = gpu.runtime(0)
    options: BackendOptions = {device: {"tuning": False}}
    with weft.load(chain("Relu"), device) as one, weft.load(chain("Relu"), device, backend_options=options) as two:
        np.testing.assert_array_equal(one.run(X)[0], two.run(X)[0])
        first, second = (s.pipelines[0].backend.runtime for s in (one, two))  # type: ignore[attr-defined]
    assert first is usual and second is not usual and second.device is not usual.device
    assert (first.options["tuning"], second.options["tuning"]) == (True, False)
    with weft.load(chain("Tanh"), device, backend_options=options) as three:
        assert three.pipelines[0].backend.runtime is second  # type: ignore[attr-defined]


# -- files -----------------------------------------------------------------------------------------------------


def test_M14_a_class_of_backends_declares_options_too(tmp_path: Path) -> None:
    more = "import weft\nAcme.options = [weft.BackendOption('gain', 1, 'A number.')]\n"
    write(tmp_path / "acme_one_backend.py", py_source(version=(1, 1), more=more))
    given = {"acme": {"gain": 7}}
    with (
        weft.Runtime(dynamic_backend_paths=[tmp_path], backend_options=given) as runtime,
        weft.load(chain("Relu"), "acme", runtime=runtime) as session,
    ):
        assert dict(session.pipelines[0].backend.info.options) == {"gain": 7}


OPTIONS_IN_C = (
    r"""
#include <stdio.h>
#include "weft_backend.h"

static int32_t option_info(int32_t index, weft_option_info *info)
{
    static const char *names[] = {"gain", "lanes", "mode", "strict"};
    static const int32_t kinds[] = {WEFT_FLOAT, WEFT_INT, WEFT_STRING, WEFT_BOOL_OPTION};
    if (index >= 4) return 1;
    snprintf(info->name, sizeof info->name, "%s", names[index]);
    snprintf(info->doc, sizeof info->doc, "The %s.", names[index]);
    info->kind = kinds[index];
    info->default_int = index == 1 ? 4 : 0;
    info->default_float = 1;
    snprintf(info->default_string, sizeof info->default_string, "plain");
    return 0;
}
static char texts[8][200];
static int opened;
static int32_t open_with(int32_t index, size_t count, const weft_attribute *const *options, void **device, char *error,
                         size_t size)
{
    char *text = texts[opened++ % 8];
    size_t used = (size_t)snprintf(text, 200, "device %d:", (int)index);
    for (size_t k = 0; k < count; ++k) {
        const weft_attribute *o = options[k];
        if (o->kind == WEFT_INT) used += (size_t)snprintf(text + used, 200 - used, " %s=%d", o->name, (int)o->ints[0]);
        if (o->kind == WEFT_FLOAT) used += (size_t)snprintf(text + used, 200 - used, " %s=%g", o->name, o->floats[0]);
        if (o->kind == WEFT_STRING)
            used += (size_t)snprintf(text + used, 200 - used, " %s=%s", o->name, o->strings[0]);
    }
    if (strstr(text, "mode=broken")) { snprintf(error, size, "mode broken is not made yet"); return 1; }
    *device = text;
    return 0;
}
static int32_t supports(void *device, const weft_node *n, char *reason, size_t size)
{ (void)n; snprintf(reason, size, "%s, opened %d", (const char *)device, opened); return 0; }
static int32_t create(void *d, const weft_node *n, void **s, char *e, size_t size)
{ (void)d; (void)n; (void)s; (void)e; (void)size; return 1; }
static int32_t execute(void *s, const weft_tensor *const *i, const weft_tensor *const *o, char *e, size_t size)
{ (void)s; (void)i; (void)o; (void)e; (void)size; return 1; }
static void destroy(void *s) { (void)s; }
static const weft_backend table = {.struct_size = sizeof(weft_backend), .supports = supports, .create = create,
                                   .execute = execute, .destroy = destroy, .option_info = option_info,
                                   .open_with = open_with};
"""
    + C_ID
    + C_VERSION.replace("*minor = 0", "*minor = WEFT_API_MINOR")
    + C_FACTORY
)


def refusal(runtime: weft.Runtime, **options: Any) -> str:
    """Return what the library says of its device."""
    with weft.load(chain("Relu"), "acme", runtime=runtime, **options) as session:
        return session.report.refusals["n_v0"]["acme:0"]


@needs_compiler
def test_M14_a_library_declares_options_and_is_opened_with_them(tmp_path: Path) -> None:
    write(tmp_path / "acme_opt_backend.so", OPTIONS_IN_C)
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
        assert refusal(runtime) == "device 0: gain=1 lanes=4 mode=plain strict=0, opened 1"
        own: BackendOptions = {"acme": {"gain": 0.5, "mode": "odd", "strict": True}}
        assert refusal(runtime, backend_options=own) == "device 0: gain=0.5 lanes=4 mode=odd strict=1, opened 2"
        assert refusal(runtime).endswith("opened 2"), "the first device is open still"
        with pytest.raises(weft.WeftError, match="mode broken is not made yet"):
            refusal(runtime, backend_options={"acme": {"mode": "broken"}})
        with pytest.raises(ConfigError, match="'lanes' of 'acme' takes a whole number"):
            refusal(runtime, backend_options={"acme": {"lanes": "many"}})


@needs_compiler
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("if (index >= 4) return 1;", "if (index >= 4) index = 3;", "'strict' is declared twice"),
        ('"lanes"', '"Lanes!"', "'Lanes!' is no name for an option"),
        ("{WEFT_FLOAT,", "{99,", "option 0 the kind 99"),
        (".open_with = open_with", ".open_with = 0", "has option_info and no open_with"),
    ],
)
def test_M14_a_library_whose_options_are_wrong_is_skipped(old: str, new: str, why: str, tmp_path: Path) -> None:
    source = OPTIONS_IN_C.replace(old, new).replace("static int32_t open_with(", "int32_t open_with(")
    own = loaded(tmp_path, source, "acme_opt_backend.so")
    (said,) = own.failures.values()
    assert why in said or "never says that there are no more" in said
    own.close()


# -- the command line ------------------------------------------------------------------------------------------


def test_M14_the_command_line_lists_and_takes_options(
    creator: WithOptions, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli = Cli(capsys)
    listed = cli("devices", "--options").out
    assert "acme.gain" in listed and "What results are multiplied by." in listed and "cpu.threads" in listed
    assert "vulkan.tuning" in listed
    facts = json.loads(cli("devices", "--json").out)["options"]["acme"]["mode"]
    assert facts == {"default": "plain", "takes": "one of 'plain', 'odd'", "doc": "How it works."}

    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    model, shape = write_model(tmp_path / "relu.onnx", [node], {"x": ("n", 3)}, ["y"]), ("--shape", "x=2,3")
    given = ["--backend-option", "acme.gain=2", "--backend-option", "acme.strict=yes"]
    expected = {**USUAL, "gain": 2.0, "strict": True}
    cli("run", model, *shape, "--device", "acme", *given)
    assert creator.seen[-1] == expected
    cli("optimize", model, *shape, "--device", "acme", *given, "-o", tmp_path / "a.weft")
    assert creator.seen[-1] == expected
    cli("run", tmp_path / "a.weft", "--backend-option", "acme.strict=yes")
    assert creator.seen[-1] == expected, "the file has the gain"
    cli("bench", model, *shape, "--device", "acme", *given, "--iterations", 1, "--warmup", 0)
    assert creator.seen[-1] == expected
    cli("inspect", model, *shape, "--devices", "acme", *given)
    assert creator.seen[-1] == expected
    cli("conformance", "acme", *given, "--only", "order")
    assert all(seen == expected for seen in creator.seen[-3:])
    for wrong in ("acme.gain=many", "acme.gian=2", "gain=2", "nobody.gain=2"):
        assert "error:" in cli("run", model, *shape, "--device", "acme", "--backend-option", wrong, status=2).err


def test_M14_a_backend_made_by_hand_has_no_options() -> None:
    assert dict(weft.BackendInfo("acme").options) == {}
    backend: Backend = Mock(weft.BackendInfo("acme"))
    assert backend.info.forward_type is None
