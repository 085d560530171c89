"""Arrays of other libraries as inputs and outputs, by DLPack: in place, without an import of the library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, chain
from tests.helpers.shared_arrays import BFLOAT16, CUDA, SharedArray, bits_of
from weft.errors import CannotShare, InputError, ModelError

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
Y = np.maximum(X, 0)
DEVICES = ["cpu", "opencl", "vulkan"]


def same(made: object, given: object) -> bool:
    return made is given


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("version", [1, None], ids=["versioned", "older"])
def test_an_input_is_read(device: str, version: int | None) -> None:
    strided = np.asfortranarray(X)
    with weft.load(chain("Relu"), device) as session:
        for array in (X, strided):
            np.testing.assert_array_equal(session.run(SharedArray(array, version=version))[0], Y)
            np.testing.assert_array_equal(session.run({"x": SharedArray(array, version=version)})[0], Y)
        session.submit(SharedArray(X))
        np.testing.assert_array_equal(session.wait()[0], Y)


def test_what_requires_gradients_and_types_that_numpy_lacks_are_inputs_too() -> None:
    with weft.load(chain("Relu"), "cpu") as session:
        np.testing.assert_array_equal(session.run(SharedArray(X, requires_grad=True))[0], Y)
        np.testing.assert_array_equal(session.run(SharedArray(bits_of(X), BFLOAT16))[0], Y)
        np.testing.assert_array_equal(session.run(SharedArray(X.astype(np.float16), (2, 16)))[0], Y)
        empty = session.run(SharedArray(np.zeros((2, 3), np.int64), (0, 64)))
        np.testing.assert_array_equal(empty[0], np.zeros((2, 3)))


@pytest.mark.parametrize("device", DEVICES)
def test_an_output_is_written_in_place_and_returned(device: str) -> None:
    into = SharedArray(np.zeros((2, 3), np.float32))
    with weft.load(chain("Relu"), device) as session:
        y, = session.run(X, outputs=[into])
        assert same(y, into)
        np.testing.assert_array_equal(into.array, Y)
        name, = session.outputs
        y, = session.run(2 * X, outputs={name: into})
        assert same(y, into)
        np.testing.assert_array_equal(into.array, 2 * Y)
        session.submit(3 * X, outputs=[into])
        y, = session.wait()
        assert same(y, into)
        np.testing.assert_array_equal(into.array, 3 * Y)
        session.submit(4 * X)
        y, = session.wait(outputs=[into])
        assert same(y, into)
        np.testing.assert_array_equal(into.array, 4 * Y)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_at_precision_low_both_may_be_fp16(device: str) -> None:
    into = SharedArray(np.zeros((2, 3), np.float16), (2, 16))
    with weft.load(chain("Relu"), device, precision="low") as session:
        y, = session.run(SharedArray(X.astype(np.float16), (2, 16)), outputs=[into])
    assert same(y, into)
    np.testing.assert_array_equal(into.array, Y)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (SharedArray(X, device=CUDA), r"'x' is a SharedArray on cuda:0.*\.cpu\(\)"),
        (SharedArray(X, (3, 32)), "of elements that Weft does not know"),
        (SharedArray(X, version=2), "of DLPack 2.0, which is not known"),
    ],
)
def test_what_cannot_be_read_is_refused(given: SharedArray, why: str) -> None:
    with weft.load(chain("Relu"), "cpu") as session, pytest.raises(InputError, match=why):
        session.run(given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (SharedArray(X.copy(), device=CUDA), r"given is a SharedArray on cuda:0.*\.cpu\(\)"),
        (SharedArray(X.copy(), read_only=True), "given is a SharedArray that is read-only"),
        (SharedArray(X.copy(), version=None), "given is a SharedArray that is read-only"),
        (SharedArray(X.copy(), requires_grad=True), r"that requires gradients: give its \.detach\(\)"),
        (SharedArray(X[:1].copy()), r"given is float32\[1x3\]"),
    ],
)
def test_what_cannot_be_written_is_refused(given: SharedArray, why: str) -> None:
    with weft.load(chain("Relu"), "cpu") as session:
        with pytest.raises(InputError, match=why):
            session.run(X, outputs=[given])
        with pytest.raises(InputError, match="a bare array"):
            session.run(X, outputs=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("pending", "fix"), [("neg", r"\.resolve_neg\(\)"), ("conj", r"\.resolve_conj\(\)")])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_values_that_are_not_yet_what_they_say_are_refused(pending: str, fix: str, requires_grad: bool) -> None:
    given = SharedArray(X.copy(), requires_grad=requires_grad, pending=pending)
    with weft.load(chain("Relu"), "cpu") as session:
        with pytest.raises(InputError, match=fix):
            session.run(given)
        with pytest.raises(InputError, match=fix):
            session.run(X, outputs=[given])
    net = weft.Network("weights")
    doors: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: weft.array(given, device="cpu"), InputError),
        (lambda: weft.array(given, "float32", device="cpu"), InputError),
        (lambda: weft.array(X, device="cpu").write(given), InputError),
        (lambda: weft.from_dlpack(given), CannotShare),
        (lambda: net.add_layer("Add", net.add_input("x", (2, 3)), given), ModelError),
    ]
    for refuse, error in doors:
        with pytest.raises(error, match=fix):
            refuse()
    np.testing.assert_array_equal(given.array, X)


def test_negated_and_conjugated_tensors_of_pytorch_are_refused() -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    negated, into = z.conj().imag, torch.zeros(1, 2, dtype=torch.complex64).conj().imag
    for value, fix in ((negated, r"\.resolve_neg\(\)"), (z.conj(), r"\.resolve_conj\(\)")):
        with pytest.raises(InputError, match=fix):
            weft.array(value, device="cpu")
        with pytest.raises(CannotShare, match=fix):
            weft.from_dlpack(value)
    net = Net()
    with weft.load(net.finish(net.add("Relu", net.input("x", 1, 2))), "cpu") as session:
        with pytest.raises(InputError, match=r"\.resolve_neg\(\)"):
            session.run(negated)
        with pytest.raises(InputError, match=r"\.resolve_neg\(\)"):
            session.run(negated.resolve_neg(), outputs=[into])
        np.testing.assert_array_equal(session.run(negated.resolve_neg())[0], [[0, 4]])


def test_the_python_functions_of_other_libraries_keep_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ctypes.pythonapi` is the whole program's, and whoever reads capsules as well sets its types."""
    for name in ("PyCapsule_GetPointer", "PyCapsule_IsValid"):
        function = getattr(ctypes.pythonapi, name)
        monkeypatch.setattr(function, "restype", ctypes.POINTER(ctypes.c_char))
        monkeypatch.setattr(function, "argtypes", [ctypes.py_object, ctypes.c_void_p])
    with weft.load(chain("Relu"), "cpu") as session:
        np.testing.assert_array_equal(session.run(SharedArray(X))[0], Y)
    assert function.restype is ctypes.POINTER(ctypes.c_char)


def test_weights_may_be_arrays_of_other_libraries() -> None:
    net = weft.Network("weights")
    net.add_output("y", net.add_layer("Add", net.add_input("x", (2, 3)), SharedArray(X, requires_grad=True)))
    with weft.load(net, "cpu") as session:
        np.testing.assert_array_equal(session.run(X)[0], 2 * X)


def test_tensors_of_pytorch() -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.from_numpy(X.copy())
    with weft.load(chain("Relu"), "cpu") as session:
        for each in (x, x.double(), x.bfloat16(), torch.nn.Parameter(x), x.T.contiguous().T):
            np.testing.assert_array_equal(session.run(each)[0], Y)
        into = torch.zeros(2, 3)
        assert same(session.run(x, outputs=[into])[0], into)
        np.testing.assert_array_equal(into.numpy(), Y)
        with pytest.raises(InputError, match="cannot be shared"):
            session.run(torch.zeros(2, 3, device="meta"))


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_torch_compile_leaves_weft_alone(device: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    runtime = weft.Runtime()
    network = runtime.load(weft.optimize(chain("Relu"), device))
    with runtime, weft.load(chain("Relu"), device) as session:

        def run(x: Any) -> Any:
            y, = session.run((x * 2).numpy())
            session.submit((x * 2).numpy())
            z, = session.wait()
            w, = runtime.run(network, (x * 2).numpy())
            return torch.from_numpy(y) + torch.from_numpy(z) + torch.from_numpy(w)

        compiled = torch.compile(run, backend="eager")
        for _ in range(2):
            np.testing.assert_array_equal(compiled(torch.from_numpy(X)).numpy(), 6 * Y)
