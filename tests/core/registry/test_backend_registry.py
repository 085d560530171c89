"""Contract row A1: one registry; a factory is enough to register; dynamic backends come second."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator
from tests.helpers.nets import Net
from tests.helpers.plugins import COUNT, in_new_process, new_registry, py_source, write
from tests.helpers.waits import LIMIT, ended
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend, BackendInfo, ForwardType
from weft.core.graph.graph import Graph
from weft.core.registry.backend_registry import BackendRegistry, registry
from weft.core.registry.entries import as_creator
from weft.errors import BackendError, ConfigError, NoDevice


def small() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", 4), name="y"))


def test_A1_only_the_factory_need_exist() -> None:
    class Never(Creator):
        def onCreate(self, info: BackendInfo) -> Backend:
            raise AssertionError("nobody asked for a backend")

    made = BackendRegistry()
    made.insert("never", Never(absent="it is not built yet"))
    assert made.ids() == ["never"] and made.is_registered("Never") and not made.is_registered("ever")
    assert made.absent() == {"never": "it is not built yet"} and made.devices() == []


def test_A1_queries_by_id_and_by_type() -> None:
    assert registry.is_registered("cpu") and registry.is_registered(ForwardType.VULKAN)
    assert not registry.is_registered(ForwardType.USER_2) and not registry.is_registered("npu")
    assert {k: v for k, v in registry.origins().items() if v == "weft"}.keys() == {"cpu", "opencl", "vulkan", "ort"}


def test_A1_other_processes_do_not_know_what_a_call_registered_whatever_origin_it_names() -> None:
    made = new_registry()
    made.insert("mine", Creator(), origin="my own program")
    assert made.insert_dynamic(Creator(id="found"), "/folder/found.py")
    known = {id: made.is_known_elsewhere(id) for id in ("cpu", "mine", "found", "nobody")}
    assert known == {"cpu": True, "mine": False, "found": True, "nobody": False}


def test_A1_a_second_static_registration_raises() -> None:
    made = new_registry()
    with pytest.raises(BackendError, match="the id 'cpu' is taken") as caught:
        made.insert("cpu", Creator())
    assert "CpuCreator" in caught.value.why


def test_A1_a_second_dynamic_registration_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    made, first, second = new_registry(), Creator(id="acme"), Creator(id="acme")
    assert made.insert_dynamic(first, "/one") is True
    assert made.insert_dynamic(second, "/two") is False
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("weft.plugins", logging.WARNING)
    assert "/two is skipped: the id 'acme' is taken" in record.message and "from /one" in record.message
    assert made.find("acme") is first and made.origins()["acme"] == "/one"
    assert list(made.failures) == ["/two"]
    assert made.insert_dynamic(first, "/one") is True, "the same object is no second registration"


def test_A1_a_dynamic_backend_cannot_take_a_slot_or_a_wrong_id() -> None:
    made = new_registry()
    assert not made.insert_dynamic(Creator(id="other", forward_type=ForwardType.CPU), "/slot")
    assert "the slot CPU is taken" in made.failures["/slot"] and "CpuCreator" in made.failures["/slot"]
    for id_ in ("", "two words", "a:1", "auto"):
        assert not made.insert_dynamic(Creator(), f"/{id_}", id=id_)
    assert made.ids() == ["cpu"] and len(made.failures) == 5


def test_A1_a_static_registration_against_a_dynamic_one_names_its_origin() -> None:
    made = new_registry()
    made.insert_dynamic(Creator(id="acme"), "/opt/acme")
    with pytest.raises(BackendError) as caught:
        made.insert("acme", Creator())
    assert "from /opt/acme" in caught.value.why


def test_A1_a_backend_class_will_do() -> None:
    class Half(CpuBackend):
        pass

    weft.insertExtraBackendCreator("half", Half)
    try:
        assert [d.name for d in weft.devices() if d.id == "half"] == ["Half"]
        assert registry.origins()["half"] == "insertExtraBackendCreator"
        with weft.load(small(), device="half") as session:
            np.testing.assert_array_equal(session.run(np.array([-1, 2, -3, 4], np.float32))[0], [0, 2, 0, 4])
        with pytest.raises(BackendError) as caught:
            weft.insertExtraBackendCreator("half", Creator())
        assert "Half" in caught.value.why and "insertExtraBackendCreator" in caught.value.why
    finally:
        registry.remove("half")
    assert not registry.is_registered("half")


@pytest.mark.parametrize("wrong", [3, "acme", None, int, object()])
def test_A1_what_is_no_backend_is_refused(wrong: object) -> None:
    with pytest.raises(BackendError, match="is not a backend"):
        as_creator(wrong)


def test_A1_unregistering_closes_and_frees_the_id() -> None:
    made, creator = new_registry(), Creator(id="acme")
    made.insert_dynamic(creator, "/one")
    made.remove("acme")
    assert creator.closed and not made.is_registered("acme")
    assert made.insert_dynamic(Creator(id="acme"), "/two")


def test_A1_an_unknown_device_is_told_with_what_was_skipped() -> None:
    made = new_registry()
    made.skip("/opt/acme_npu_backend.so", "it cannot be loaded")
    with pytest.raises(NoDevice) as caught:
        made.find("npu")
    assert "/opt/acme_npu_backend.so was skipped: it cannot be loaded" in caught.value.why


# -- a registry of a runtime -------------------------------------------------------------------------------


def test_A1_a_derived_registry_has_its_own_folders(tmp_path: Path) -> None:
    write(tmp_path / "a" / "acme_one_backend.py", py_source("one"))
    write(tmp_path / "b" / "acme_two_backend.py", py_source("two"))
    base = new_registry()
    base.rescan([tmp_path / "a"])
    base.insert("mine", Creator())
    base.insert_dynamic(Creator(id="installed"), "entry point installed")
    assert base.paths == (tmp_path / "a",)
    derived = base.derive([tmp_path / "b"])
    assert base.ids() == ["cpu", "one", "mine", "installed"]
    assert derived.ids() == ["cpu", "mine", "installed", "two"]
    assert derived.find("cpu") is base.find("cpu")
    shared, own = derived.find("installed"), derived.find("two")
    closed = []
    shared.close = lambda: closed.append("shared")  # type: ignore[method-assign]
    own.close = lambda: closed.append("own")  # type: ignore[method-assign]
    derived.close()
    derived.close()
    assert closed == ["own"] and derived.ids() == ["cpu", "mine", "installed"]
    assert base.ids() == ["cpu", "one", "mine", "installed"]


ONE_OBJECT = """
from weft import BackendCreator
from weft.backends.cpu.backend import CpuBackend

class AcmeCreator(BackendCreator):
    closed = 0
    def onCreate(self, info):
        if self.closed:
            raise RuntimeError("the device is closed")
        return CpuBackend(info)
    def close(self):
        self.closed += 1

ONE = AcmeCreator()
def GetBackendId(): return "acme"
def GetVersion(): return (1, 0)
def BackendFactory(): return ONE
"""


def test_A1_a_creator_that_two_runtimes_share_is_closed_by_the_last(tmp_path: Path) -> None:
    write(tmp_path / "acme_one_backend.py", ONE_OBJECT)
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 2), name="y"))
    first, second = weft.Runtime(dynamic_backend_paths=[tmp_path]), weft.Runtime(dynamic_backend_paths=[tmp_path])
    creator: Any = second.registry.find("acme")
    assert first.registry.find("acme") is second.registry.find("acme")
    first.close()
    with weft.load(graph, "acme", runtime=second, fallback="error") as session:
        assert session.run(np.ones(2, np.float32))[0].tolist() == [1, 1]
    assert creator.closed == 0
    second.close()
    second.close()
    assert creator.closed == 1


def test_A1_one_object_under_two_ids_is_closed_with_the_second() -> None:
    made, creator = new_registry(), Creator()
    assert made.insert_dynamic(creator, "/one", id="one") and made.insert_dynamic(creator, "/two", id="two")
    made.remove("one")
    assert not creator.closed
    made.remove("two")
    assert creator.closed


def test_A1_what_is_removed_while_a_runtime_has_it_is_closed_with_that() -> None:
    base, creator = new_registry(), Creator()
    base.insert("acme", creator)
    derived = base.derive([])
    base.remove("acme")
    assert not creator.closed and "acme" in derived.ids()
    derived.close()
    assert creator.closed


def test_A1_a_registry_that_is_gone_holds_nothing() -> None:
    base, creator = new_registry(), Creator()
    base.insert("acme", creator)
    derived = base.derive([])
    del derived
    gc.collect()
    base.remove("acme")
    assert creator.closed


def test_A1_a_backend_that_cannot_be_closed_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"acme_{name}_backend.py", py_source(name))
    derived = new_registry().derive([tmp_path])
    closed = []

    def stuck() -> None:
        raise OSError("the device hangs")

    derived.find("one").close = stuck  # type: ignore[method-assign]
    derived.find("two").close = lambda: closed.append("two")  # type: ignore[method-assign]
    derived.close()
    assert closed == ["two"] and derived.ids() == ["cpu"]


def test_A1_a_rescan_sees_what_changed(tmp_path: Path) -> None:
    file = write(tmp_path / "acme_one_backend.py", py_source("one"))
    made = new_registry()
    made.rescan([tmp_path])
    first = made.find("one")
    write(file, py_source("uno"))
    write(tmp_path / "acme_broken_backend.py", "import nothing_of_that_name")
    made.rescan([tmp_path])
    assert made.ids() == ["cpu", "uno"] and len(made.failures) == 1
    (tmp_path / "acme_broken_backend.py").unlink()
    write(file, py_source("one"))
    made.rescan([tmp_path])
    assert made.ids() == ["cpu", "one"] and made.find("one") is not first and made.failures == {}


@pytest.mark.parametrize("given", ["/opt/acme", Path("/opt/acme")])
def test_A1_one_path_is_not_a_list_of_paths(given: object) -> None:
    with pytest.raises(ConfigError, match="not a list"):
        new_registry().derive(given)  # type: ignore[arg-type]


# -- when it is looked ---------------------------------------------------------------------------------------


def test_A1_nothing_is_loaded_until_the_registry_is_asked(tmp_path: Path) -> None:
    write(tmp_path / "acme_npu_backend.py", COUNT + py_source())
    count = str(tmp_path / "count")
    code = f"""
import os, weft
assert not os.path.exists({count!r})
from weft.backends.cpu.backend import CpuBackend
weft.registry.insert("early", CpuBackend)
assert not os.path.exists({count!r})
assert weft.registry.ids() == ["cpu", "opencl", "vulkan", "ort", "early", "acme"], weft.registry.ids()
weft.devices(); weft.registry.absent()
print(open({count!r}).read())
"""
    assert in_new_process(code, folders=str(tmp_path)).strip() == "x"


def test_A1_threads_that_ask_at_once_load_once(tmp_path: Path) -> None:
    write(tmp_path / "acme_npu_backend.py", COUNT + py_source())
    made = new_registry()
    made._paths = (tmp_path,)
    together, seen = threading.Barrier(8, timeout=LIMIT), []

    def ask() -> None:
        together.wait()
        seen.append(made.ids())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert seen == [["cpu", "acme"]] * 8
    assert (tmp_path / "count").read_text() == "x"


def test_A1_a_backend_may_register_itself_and_ask_while_it_is_imported(tmp_path: Path) -> None:
    source = py_source() + """
import weft
creator = CpuCreator()
creator.forward_type = None
weft.insertExtraBackendCreator("acme", creator)
assert "acme" in weft.registry.ids() and weft.devices()
try:
    weft.registry.rescan()
except weft.WeftError:
    pass
else:
    raise AssertionError
def BackendFactory(): return creator
"""
    write(tmp_path / "acme_npu_backend.py", source)
    code = "import weft; print(weft.registry.ids(), weft.registry.failures)"
    printed = in_new_process(code, folders=str(tmp_path)).strip()
    assert printed == "['cpu', 'opencl', 'vulkan', 'ort', 'acme'] {}"


def test_A1_a_backend_that_derives_a_registry_from_its_own_folder_ends(tmp_path: Path) -> None:
    source = f"import weft\nweft.registry.derive([{str(tmp_path)!r}])\n" + py_source()
    write(tmp_path / "acme_npu_backend.py", source)
    made = new_registry()
    made.rescan([tmp_path])
    assert made.ids() == ["cpu", "acme"] and made.failures == {}
