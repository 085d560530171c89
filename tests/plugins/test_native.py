"""Contract row A19: a backend in C, from its header to its numbers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.native_sources import ECHO, LAYOUT, Vault, loaded, vault_in
from tests.helpers.nets import Net, op
from tests.helpers.plugins import COMPILER, ROOT, needs_compiler, write
from weft.core.contract.backend import Backend, BackendInfo
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import values
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.session.session import Session
from weft.errors import BackendError, ClosedError, DeviceError, ExecutionError, NoDevice, OutOfMemory
from weft.plugins import include_dir, native_abi
from weft.plugins.native import NativeCreator

pytestmark = needs_compiler
EXAMPLE = ROOT / "examples" / "c_backend" / "acme_leaky_backend.c"
STRICT = ("-pedantic", "-O2")


@contextmanager
def on(folder: Path, graph: Graph, *devices: str, memory: str = "normal") -> Iterator[Session]:
    """Give a session that has the backends in a folder."""
    with (
        weft.Runtime(dynamic_backend_paths=[folder]) as runtime,
        weft.load(graph, device=devices, runtime=runtime, memory=memory) as session,
    ):
        yield session


# -- the header ------------------------------------------------------------------------------------------------


def test_A19_the_structures_are_those_of_the_header(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(write(tmp_path / "layout.so", LAYOUT)))
    fields = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "fields"))).decode().split()
    places = list((ctypes.c_size_t * len(fields)).in_dll(library, "places"))
    ours = {
        "weft_tensor": native_abi.CTensor,
        "weft_attribute": native_abi.CAttribute,
        "weft_node": native_abi.CNode,
        "weft_device_info": native_abi.CDeviceInfo,
        "weft_option_info": native_abi.COptionInfo,
        "weft_backend": native_abi.CBackend,
    }
    for field, place in zip(fields, places, strict=True):
        kind, _, name = field.partition(".")
        assert place == (getattr(ours[kind], name).offset if name else ctypes.sizeof(ours[kind])), field
    named = {f for f in fields if "." in f}
    assert named == {f"{kind}.{f[0]}" for kind, made in ours.items() for f in made._fields_}
    numbers = list((ctypes.c_int32 * (len(DType) + 8)).in_dll(library, "numbers"))
    assert numbers == [*(native_abi.DTYPES[d] for d in DType), native_abi.NO_TYPE, *range(1, 8)]


@pytest.mark.parametrize("language", [("c", "c99"), ("c", "c11"), ("c++", "c++11")], ids=lambda p: p[1])
def test_A19_the_header_compiles_without_a_warning(language: tuple[str, str], tmp_path: Path) -> None:
    if language[0] == "c++" and shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler: apt install g++")
    assert COMPILER is not None
    (tmp_path / "a.c").write_text('#include "weft_backend.h"\nint main(void) { return 0; }\n')
    command = [COMPILER, "-x", language[0], f"-std={language[1]}", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    subprocess.run([*command, "-fsyntax-only", "-I", str(include_dir()), str(tmp_path / "a.c")], check=True)


# -- the example -------------------------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with the example, compiled."""
    write(tmp_path / "acme_leaky_backend.so", EXAMPLE.read_text(), *STRICT)
    yield tmp_path


def leaky_net(alpha: float = 0.1) -> Graph:
    net = Net()
    x = net.input("x", 2, 3, 5)
    a = net.add("LeakyRelu", x, name="a", alpha=alpha)
    b = net.add("Sigmoid", a, name="b")
    c = net.add("Add", b, np.float32(-0.6) * np.ones((5,), np.float32), name="e")
    return net.finish(net.add("Relu", c, name="d"), a)


def test_A19_the_example_runs_its_part_of_a_network(example: Path) -> None:
    graph, x = leaky_net(), np.linspace(-3, 3, 30, dtype=np.float32).reshape(2, 3, 5)
    expected = values(graph, {"x": x})
    with weft.Runtime(dynamic_backend_paths=[example]) as runtime:
        with weft.load(graph, device=["leaky", "cpu"], runtime=runtime) as session:
            d, a = session.run(x)
            np.testing.assert_allclose(d, expected["d"], rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(a, expected["a"], rtol=1e-6)
            report = session.report
        assert report.nodes_by_device == {"leaky": 2, "cpu": 2}
        assert "Acme computes Relu and LeakyRelu, not Sigmoid" in str(report)
        assert runtime.registry.find("leaky").version == "1.0"


def test_A19_an_error_message_arrives_word_for_word(example: Path) -> None:
    net = Net()
    graph = net.finish(net.add("LeakyRelu", net.input("x", 3), name="a", alpha=float("nan")))
    with on(example, graph, "leaky") as session:
        with pytest.raises(ExecutionError) as caught:
            session.run(np.zeros(3, np.float32))
        assert caught.value.why == "the slope of 'a' is not a number: set alpha to a finite value"
        assert "node 'n_a' (LeakyRelu) on leaky:0" in caught.value.where


def test_A19_a_reason_arrives_word_for_word(example: Path) -> None:
    net = Net()
    x = net.input("x", 3, dtype=DType.FLOAT64)
    graph = net.finish(net.add("Relu", x, name="a"))
    with weft.Runtime(dynamic_backend_paths=[example]) as runtime, pytest.raises(weft.WeftError) as caught:
        weft.load(graph, device="leaky", runtime=runtime, fallback="error")
    assert "Acme computes in float32 alone, and 'x' is of another type" in str(caught.value)


def test_A19_the_example_follows_shapes(example: Path) -> None:
    net = Net()
    graph = net.finish(net.add("LeakyRelu", net.input("x", "n", 4), name="a", alpha=0.5))
    with on(example, graph, "leaky") as session:
        for n in (1, 7, 3):
            x = -np.ones((n, 4), np.float32)
            np.testing.assert_array_equal(session.run(x)[0], x / 2)


# -- what C sees of a node ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    own = loaded(tmp_path_factory.mktemp("echo"), ECHO)
    backend = own.find("echo").onCreate(BackendInfo("echo"))
    yield backend
    backend.close()
    own.close()


def tensor(name: str, *shape: int, dtype: DType = DType.FLOAT32, value: object = None) -> Tensor:
    constant = None if value is None else np.full(shape, value, dtype.numpy)
    return Tensor(name, shape, dtype, constant=constant)


X, Y = tensor("x", 1, 3, 4, 4), tensor("y", 1, 2, 4, 4)
SEEN: list[tuple[Op, list[Tensor | None], str]] = [
    (op("Relu"), [X], "Relu y in x:1:4[1,3,4,4]:192:- out y:1:4[1,2,4,4]:128:-"),
    (
        op("LeakyRelu", alpha=0.25),
        [X],
        "LeakyRelu y in x:1:4[1,3,4,4]:192:- out y:1:4[1,2,4,4]:128:- alpha/2=0.25,",
    ),
    (
        op("Clip"),
        [X, None, tensor("max", value=6.5)],
        "Clip y in x:1:4[1,3,4,4]:192:- :0:0[]:0:- max:1:0[]:4:-:6.5 out y:1:4[1,2,4,4]:128:-",
    ),
    (
        op("Transpose", perm=(0, 2, 1, 3)),
        [X],
        "Transpose y in x:1:4[1,3,4,4]:192:- out y:1:4[1,2,4,4]:128:- perm/4=0,2,1,3,",
    ),
    (op("Transpose"), [X], "Transpose y in x:1:4[1,3,4,4]:192:- out y:1:4[1,2,4,4]:128:- perm/4="),
    (
        op("Gelu", approximate="tanh"),
        [X],
        "Gelu y in x:1:4[1,3,4,4]:192:- out y:1:4[1,2,4,4]:128:- approximate/3=tanh,",
    ),
    (
        op("Gather", axis=-1),
        [X, tensor("i", 2, dtype=DType.INT64, value=3)],
        "Gather y in x:1:4[1,3,4,4]:192:- i:4:1[2]:16:-:3 out y:1:4[1,2,4,4]:128:- axis/1=-1,",
    ),
    (op("Relu"), [tensor("é", 0, 2)], "Relu y in é:1:2[0,2]:0:- out y:1:4[1,2,4,4]:128:-"),
    (op("EyeLike"), [X], "EyeLike y in x:1:4[1,3,4,4]:192:- out y:1:4[1,2,4,4]:128:- k/1=0,"),
]


@pytest.mark.parametrize(("node", "inputs", "expected"), SEEN, ids=lambda v: str(v)[:40])
def test_A19_what_C_sees(echo: Backend, node: Op, inputs: list[Tensor | None], expected: str) -> None:
    assert echo.why_not(inputs, [Y], node) == expected


def test_A19_an_element_type_is_its_name(echo: Backend) -> None:
    assert "to/3=int8," in (echo.why_not([X], [Y], op("Cast", to=DType.INT8)) or "")


def test_A19_all_element_types(echo: Backend) -> None:
    for dtype in DType:
        said = echo.why_not([tensor("x", 3, dtype=dtype)], [tensor("y", 3, dtype=dtype)], op("Relu"))
        assert said is not None
        number, nbytes = native_abi.DTYPES[dtype], 3 * dtype.itemsize
        assert f"x:{number}:1[3]:{nbytes}:-" in said


def test_A19_what_C_has_no_type_for_is_refused_with_that_reason(echo: Backend) -> None:
    class Odd:
        type = "Odd"

        def attributes(self) -> dict[str, object]:
            return {"table": {"a": 1}}

    why = echo.why_not([X], [Y], Odd())  # type: ignore[arg-type]
    assert why == "its attribute 'table' is dict, for which weft_backend.h has no type"


def test_A19_a_long_reason_ends_with_its_buffer(echo: Backend) -> None:
    many: list[Tensor | None] = [tensor(f"input_number_{k}_with_a_long_name", 1) for k in range(99)]
    why = echo.why_not(many, [Y], op("Concat", axis=0))
    assert why is not None and len(why) == native_abi.Message.SIZE - 1


# -- buffers, a queue and devices of its own -----------------------------------------------------------------------


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with vault_in(tmp_path) as made:
        yield made


def adding() -> Graph:
    net = Net()
    x = net.input("x", "n", 6)
    a = net.add("Add", x, x, name="a")
    b = net.add("Clip", a, np.array(-1, np.float32), name="b")
    c = net.add("Neg", b, name="e")
    return net.finish(net.add("Add", c, a, name="d"))


@pytest.mark.parametrize("memory", ["normal", "limit"])
def test_A19_own_buffers_and_a_queue(vault: Vault, memory: str) -> None:
    with on(vault.folder, adding(), "vault", "cpu", memory=memory) as session:
        for n in (2, 5, 1):
            x = np.arange(-3, 3, dtype=np.float32) * np.ones((n, 1), np.float32)
            np.testing.assert_allclose(session.run(x)[0], x + x - np.maximum(x + x, -1))
        assert session.report.nodes_by_device == {"vault": 3, "cpu": 1}
    assert vault.counters["created"] >= 9, "once a node and a shape"
    assert vault.counters["waits"] > 0


def test_A19_two_sessions_share_an_open_device(vault: Vault) -> None:
    one, two, other = vault.backend(), vault.backend(), vault.backend(1)
    assert vault.counters["opened"] == 2
    creator = vault.registry.find("vault")
    one.close()
    one.close()
    creator.close()
    assert vault.counters["closed"] == 0, "a backend uses each device still"
    two.close()
    other.close()
    assert vault.counters["closed"] == 2
    three = vault.backend()
    assert vault.counters["opened"] == 3
    three.close()


def test_A19_a_state_keeps_its_device_open_and_is_destroyed_once(vault: Vault) -> None:
    backend = vault.backend()
    x, y = tensor("x", 4), tensor("y", 4)
    execution = backend.onCreate([x, x], [y], op("Add"))
    assert execution is not None
    execution.onResize([x, x], [y])
    vault.registry.close()
    backend.close()
    assert vault.counters["destroyed"] == vault.counters["closed"] == 0
    execution.close()
    execution.close()
    assert vault.counters["destroyed"] == vault.counters["created"] == 1
    assert vault.counters["closed"] == vault.counters["opened"] == 1
    with pytest.raises(ClosedError):
        backend.device.retain()  # type: ignore[attr-defined]


def test_A19_the_devices_are_as_the_library_describes_them(vault: Vault) -> None:
    found = [d for d in vault.registry.devices() if d.id == "vault"]
    assert [(d.index, d.name, d.driver, d.software) for d in found] == [
        (0, "vault 0", "acme_vault_backend.so", False),
        (1, "vault 1", "acme_vault_backend.so", True),
    ]
    creator = vault.registry.find("vault")
    assert isinstance(creator, NativeCreator)
    assert (creator.version, creator.api_version) == ("2.7", (1, 0))
    vault.mode(1)
    assert vault.registry.absent()["vault"] == "no card is plugged in: buy one"
    assert creator.devices() == []
    with pytest.raises(NoDevice) as caught:
        vault.registry.choose("vault")
    assert caught.value.why == "no card is plugged in: buy one"


def test_A19_what_is_not_UTF_8_is_replaced(vault: Vault) -> None:
    backend = vault.backend()
    assert backend.why_not([tensor("x", 1)], [tensor("y", 1)], op("Relu")) == "the vault “adds” and clips: Relu? \ufffd"
    backend.close()


FAILURES = {
    2: (ExecutionError, "the firmware is too old for a"),
    3: (ExecutionError, "execute returned -5 and wrote no message"),
    4: (DeviceError, "the queue stopped at job 1 of 1"),
    5: (OutOfMemory, "the library's allocate returned NULL"),
    6: (DeviceError, "the bus is asleep"),
    7: (DeviceError, "device 0 is in use"),
}


@pytest.mark.parametrize("mode", FAILURES)
def test_A19_each_failure_has_the_librarys_words(vault: Vault, mode: int) -> None:
    kind, why = FAILURES[mode]
    net = Net()
    graph = net.finish(net.add("Add", net.input("x", 4), np.ones(4, np.float32), name="a"))
    x = np.zeros(4, np.float32)
    vault.mode(mode)
    with weft.Runtime(dynamic_backend_paths=[vault.folder]) as runtime:
        with pytest.raises(kind) as caught, weft.load(graph, device="vault", runtime=runtime) as session:
            session.run(x)
        assert caught.value.why == why
        vault.mode(0)
        with weft.load(graph, device="vault", runtime=runtime) as session:
            np.testing.assert_array_equal(session.run(x)[0], x + 1)


def test_A19_a_reason_is_not_empty(vault: Vault) -> None:
    net = Net()
    graph = net.finish(net.add("Add", net.input("x", 4), np.ones(4, np.float32), name="a"))
    vault.mode(8)
    said = pytest.raises(BackendError, match="a reason that is not empty")
    with weft.Runtime(dynamic_backend_paths=[vault.folder]) as runtime, said:
        weft.load(graph, device="vault", runtime=runtime)


@pytest.mark.parametrize("answer", [2, -1])
def test_A19_supports_answers_1_or_0(vault: Vault, monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
    backend: Any = vault.backend()
    with monkeypatch.context() as patched:
        patched.setattr(backend.device, "table", SimpleNamespace(supports=lambda *_: answer))
        with pytest.raises(BackendError, match="did not say whether it takes a node of type Relu") as caught:
            backend.why_not([tensor("x", 1)], [tensor("y", 1)], op("Relu"))
    assert caught.value.why == f"it returned {answer}"
    backend.close()


@pytest.mark.parametrize(
    ("mode", "what"), [(9, "a message is longer than its buffer"), (10, "a message does not end with a NUL")]
)
def test_A19_a_reason_ends_within_its_buffer(vault: Vault, mode: int, what: str) -> None:
    backend = vault.backend()
    vault.mode(mode)
    with pytest.raises(BackendError, match=what):
        backend.why_not([tensor("x", 1)], [tensor("y", 1)], op("Relu"))
    vault.mode(0)
    assert backend.why_not([tensor("x", 1)], [tensor("y", 1)], op("Abs"))
    backend.close()
