"""Contract row A10: what a context refuses or fails at, in a load, an unload and a close."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
from tests.helpers.fakes import Mock, registered
from tests.helpers.nets import chain, feeds
from tests.helpers.noting_contexts import NOTICES, Heard, WithContext, network, said, two_backends
from weft.core.graph.interpreter import outputs
from weft.errors import BackendError, ExecutionError, InputError, OutOfMemory


@pytest.mark.parametrize("notice", ["before_load", "after_load"])
@pytest.mark.parametrize("answer", [False, RuntimeError("no room")])
def test_A10_a_refused_load_is_an_error_and_followed_by_the_unload_notices(
    acme: WithContext, notice: str, answer: bool | Exception
) -> None:
    optimised = network()
    with weft.Runtime() as runtime:
        acme.answers[notice] = answer
        wanted = ExecutionError if isinstance(answer, Exception) else BackendError
        with pytest.raises(wanted) as caught:
            runtime.load(optimised)
        assert "acme" in str(caught.value) and notice in str(caught.value)
        if wanted is ExecutionError:
            assert "no room" in caught.value.why
        else:
            assert caught.value.what == "backend 'acme' refused to load network 1"
        told = NOTICES if notice == "after_load" else ("before_load", "before_unload", "after_unload")
        assert said(acme.heard) == [(what, 1) for what in told]
        assert runtime.networks == []
        acme.answers.clear()
        assert runtime.load(optimised) == 2, "the runtime is as it was, and ids are not used twice"


def test_A10_those_that_were_not_told_of_a_load_hear_nothing_of_its_end() -> None:
    with two_backends() as (one, _), weft.Runtime() as runtime:
        one.answers["before_load"] = False
        with pytest.raises(BackendError, match="'one' refused to load"):
            runtime.load(network(["one", "two"]))
        assert {device for device, _, _ in one.heard} == {"one"}


def test_A10_a_load_that_fails_is_followed_by_the_unload_notices() -> None:
    happened: Heard = []

    class Broken(Mock):
        views: list[list[str]] = []

        def onAllocateBuffer(self) -> bool:
            return False

        def close(self) -> None:
            happened.append(("acme", "close", 1))
            super().close()

    with registered(WithContext(Broken, happened), "acme"), weft.Runtime() as runtime:
        optimised = network()
        happened.clear()
        with pytest.raises(OutOfMemory):
            runtime.load(optimised)
        # When after_unload says that the network is gone, it is.
        assert said(happened) == [(what, 1) for what in ("before_load", "close", "before_unload", "after_unload")]
        assert runtime.networks == []


@pytest.mark.parametrize("answer", [False, RuntimeError("still needed")])
def test_A10_a_refused_unload_leaves_the_network_loaded(acme: WithContext, answer: bool | Exception) -> None:
    graph = chain("Relu", "Tanh")
    with weft.Runtime() as runtime:
        id_ = runtime.load(network())
        acme.answers["before_unload"] = answer
        for _ in range(2):
            with pytest.raises(weft.WeftError) as caught:
                runtime.unload(id_)
            assert "acme" in str(caught.value) and "before_unload" in str(caught.value)
        assert said(acme.heard)[-1] == ("before_unload", id_) and runtime.networks == [id_]
        np.testing.assert_array_equal(runtime.run(id_, feeds(graph))[0], outputs(graph, feeds(graph))[0])
        acme.answers.clear()
        runtime.unload(id_)
        assert runtime.networks == []


@pytest.mark.parametrize("answer", [False, RuntimeError("dirty")])
def test_A10_an_unload_that_cannot_clean_up_says_so_and_the_network_is_gone(answer: bool | Exception) -> None:
    with two_backends() as (one, _), weft.Runtime() as runtime:
        id_ = runtime.load(network(["one", "two"]))
        one.answers["after_unload"] = answer
        with pytest.raises(BackendError, match=r"unloaded, but[\s\S]*after_unload of 'one'"):
            runtime.unload(id_)
        assert runtime.networks == []
        assert one.heard[-1] == ("two", "after_unload", id_), "the others hear of it all the same"
        with pytest.raises(InputError):
            runtime.run(id_, np.zeros((2, 3), np.float32))


def test_A10_an_unload_that_cannot_clean_up_frees_the_later_stages_too() -> None:
    loaded: list[Mock] = []

    class Counted(Mock):
        def onResizeBegin(self) -> None:
            loaded.append(self)
            super().onResizeBegin()

        def close(self) -> None:
            loaded[:] = [each for each in loaded if each is not self]
            super().close()

    nodes = [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Neg", ["at"], ["y"])]
    put = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    graph = helper.make_graph(nodes, "staged", [put], [helper.make_tensor_value_info("y", TensorProto.INT64, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with registered(WithContext(Counted)) as creator:
        assert isinstance(creator, WithContext)
        session = weft.load(model, ["acme", "cpu"])
        np.testing.assert_array_equal(session.run(np.array([0, 1, 0, 2, 3, 0], np.float32))[0], [[-1, -3, -4]])
        assert len(set(loaded)) > 1
        creator.answers["after_unload"] = RuntimeError("dirty")
        with pytest.raises(BackendError, match="after_unload"):
            session.close()
        assert not loaded


def test_A10_closing_a_runtime_unloads_all_that_it_may() -> None:
    with two_backends() as (one, two):
        runtime = weft.Runtime()
        kept = runtime.load(weft.optimize(chain("Relu"), ["one"], fallback="error"))
        runtime.load(weft.optimize(chain("Tanh"), ["two"], fallback="error"))
        one.answers["before_unload"] = False
        with pytest.raises(BackendError, match="'one' refused to unload"):
            runtime.close()
        assert runtime.networks == [kept]
        assert ("two", "after_unload", 2) in two.heard
        one.answers.clear()
        runtime.close()
        assert runtime.networks == [] and one.heard[-1] == ("one", "after_unload", kept)


def test_A10_a_context_that_cannot_be_made_is_an_error_that_names_the_backend(acme: WithContext) -> None:
    def broken() -> weft.BackendContext:
        raise OSError("no such bus")

    acme.create_context = broken  # type: ignore[method-assign]
    with weft.Runtime() as runtime, pytest.raises(ExecutionError, match=r"context[\s\S]*acme[\s\S]*no such bus"):
        runtime.load(network())
