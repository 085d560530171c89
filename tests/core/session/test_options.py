"""Section 4: options and networks that make no sense are refused early; warnings count rightly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Mock, mock, mocks
from tests.helpers.nets import Net, chain
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Limits
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.host.host_backend import HostBackend
from weft.errors import BackendError, ConfigError, ModelError, UnsupportedOps
from weft.extend import graph_pass
from weft.models import path

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


def weighted() -> Graph:
    net = Net()
    return net.finish(net.add("Add", net.input("x", 2, 3), np.ones(3, np.float32), name="y"))


# -- what is not on its device ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "hints", "said"),
    [
        (["one", "two"], {}, "2 node(s) do not run on one:0:"),
        (["two", "one"], {"n_v0": "one"}, "1 node(s) do not run on one:0, as a hint asks:"),
        (["one", "two"], {"n_v0": "two"}, "1 node(s) do not run on one:0:"),
        (
            ["one", "two"],
            {"n_v0": "three"},
            "1 node(s) do not run on one:0; 1 node(s) do not run on three:0, as a hint asks:",
        ),
    ],
)
def test_4_the_warning_counts_what_is_not_where_it_is_wanted(
    order: list[str], hints: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """one takes no Relu and no Tanh, two takes all, three no Relu."""
    with mocks(one=mock("Exp"), two=mock(), three=mock("Tanh")):
        weft.load(chain("Relu", "Tanh"), [*order, "three"], hints=hints).close()
    (record,) = [r for r in caplog.records if r.name == "weft.session"]
    assert record.message.splitlines()[0] == said


class NineAxes(Mock):
    """Refuses every node, with the name of a value in the reason."""

    def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
        """Return the reason."""
        return f"{outputs[0].name!r} has rank 9"


def alike(nodes: int) -> Graph:
    return chain(*("Relu" if k % 2 else "Tanh" for k in range(nodes)))


def test_4_the_warning_tells_nodes_refused_alike_in_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    with mocks(one=NineAxes):
        session = weft.load(alike(200), "one")
    with session:
        assert len(session.report.refusals) == 200
    (record,) = [r for r in caplog.records if r.name == "weft.session"]
    assert record.message.splitlines() == [
        "200 node(s) do not run on one:0:",
        "  'n_v0', 'n_v2', 'n_v4' and 97 more (Tanh) on cpu:0: one:0: 'v0' has rank 9",
        "  'n_v1', 'n_v3', 'n_v5' and 97 more (Relu) on cpu:0: one:0: 'v1' has rank 9",
    ]


def test_4_the_error_of_refused_nodes_tells_those_alike_in_one_line_each() -> None:
    with mocks(one=NineAxes), pytest.raises(UnsupportedOps) as caught:
        weft.load(alike(200), "one", fallback="error")
    assert len(caught.value.problems) == len(caught.value.refusals) == 200
    assert len(str(caught.value).splitlines()) == 5
    assert "'n_v0', 'n_v2', 'n_v4' and 97 more (Tanh): one:0: " in str(caught.value)


def test_4_a_hint_that_is_followed_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with mocks(one=mock(), two=mock()):
        weft.load(chain("Relu", "Tanh"), ["one", "two"], hints={"n_v0": "two"}, fallback="error").close()
    assert not caplog.records


# -- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hints", "why"),
    [
        (["cpu"], "they are a list"),
        ("cpu", "they are a str"),
        (0, "they are a int"),
        ({None: "cpu"}, "None is no name"),
        ({"n_v0": 3, 4: "cpu"}, "4 is no name; 3 is no device"),
        ({"n_v0": ["cpu"]}, "['cpu'] is no device"),
    ],
)
@pytest.mark.parametrize("how", [weft.load, weft.optimize])
def test_4_hints_that_are_no_mapping_of_names_are_refused(how: Any, hints: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=r"hints=.* are not understood") as caught:
        how(chain("Relu"), "cpu", hints=hints)
    assert caught.value.why == why


@pytest.mark.parametrize("how", [weft.load, weft.optimize])
def test_4_debug_is_something_to_call_or_a_file_that_can_be(how: Any, tmp_path: Path) -> None:
    for debug, said in (
        (3, "debug=3 cannot be called and is no path"),
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "x.json", f"there is no folder {tmp_path / 'no'}"),
    ):
        with pytest.raises(ConfigError) as caught:
            how(chain("Relu"), "cpu", debug=debug)
        assert said in str(caught.value)
    how(chain("Relu"), "cpu", debug=str(tmp_path / "x.json"))


def test_4_progress_that_raises_is_the_users_own_error() -> None:
    def stop(done: int, total: int) -> None:
        raise LookupError("stop it")

    with mocks(acme=mock()), pytest.raises(LookupError, match="stop it"):
        weft.load(chain("Relu"), "acme", progress=stop)
    with pytest.raises(ConfigError, match="progress=3 cannot be called"):
        weft.load(chain("Relu"), "cpu", progress=3)  # type: ignore[arg-type]


# -- networks --------------------------------------------------------------------------------------------------


def test_4_a_runtime_loads_what_was_optimised_and_the_file_of_it(tmp_path: Path) -> None:
    network = weft.optimize(chain("Relu"), "cpu")
    network.save(tmp_path / "a.weft")
    with weft.Runtime() as runtime:
        for given in (network, tmp_path / "a.weft", str(tmp_path / "a.weft")):
            np.testing.assert_array_equal(runtime.run(runtime.load(given), X)[0], np.maximum(X, 0))


@pytest.mark.parametrize("given", [path("shapes"), str(path("shapes")), None, 3, chain("Relu"), b"x"])
def test_4_a_runtime_says_how_a_model_becomes_what_it_loads(given: Any) -> None:
    with weft.Runtime() as runtime, pytest.raises(ConfigError, match="a runtime does not load") as caught:
        runtime.load(given)
    assert "weft.optimize" in caught.value.fix


class Acme(HostBackend):
    """Takes a Relu."""


@Acme.creator("Relu")
class Relu(weft.Execution):
    """Computes on the host."""

    def onExecute(self, inputs: Any, outputs: Any) -> None:
        np.maximum(inputs[0].memory, 0, out=outputs[0].memory)


def test_4_a_network_in_memory_fits_the_versions_it_was_optimised_for() -> None:
    with mocks(acme=Acme):
        weft.registry.find("acme").version = "1"
        network = weft.optimize(chain("Relu"), "acme")
        weft.load(network).close()
        weft.registry.find("acme").version = "2"
        for load in (weft.load, weft.Runtime().load):
            with pytest.raises(BackendError, match="the optimised network does not fit") as caught:
                load(network)
            assert caught.value.why == "backend 'acme' is version 2 here, and the network was made with 1"
            assert "optimise the model again" in caught.value.fix


def test_4_a_network_that_a_thrifty_session_kept_says_that_it_has_no_weights(tmp_path: Path) -> None:
    with weft.load(weighted(), "cpu", memory="limit") as session:
        kept = session.optimized
    assert "Add" in str(kept)
    with pytest.raises(ModelError, match="has no weights and cannot be loaded") as caught:
        weft.load(kept)
    assert "memory mode LIMIT" in caught.value.why and "weft.optimize" in caught.value.fix
    with pytest.raises(ModelError):
        kept.save(tmp_path / "a.weft")
    with weft.load(chain("Relu"), "cpu", memory="limit") as session:
        weft.load(session.optimized).close()  # it has none to lose
    assert weft.load(replace(weft.optimize(weighted(), "cpu"))).run(X)[0].tolist() == (X + 1).tolist()


# -- counters --------------------------------------------------------------------------------------------------


class Counting(HostBackend):
    """Reports the same counter from each part."""

    def onExecuteEnd(self) -> None:
        assert self.info.profiling is not None
        self.info.profiling.counter("span", 2.5)


Counting.creator("Relu")(Relu)


def test_A13_counters_of_parts_on_one_device_add_up() -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.add("Exp", net.add("Relu", net.input("x", "N", 3)))))
    with mocks(acme=Counting), weft.load(graph, "acme", profile=True) as session:
        for count in (2, 2, 3):
            session.run(np.ones((count, 3), np.float32))
            assert session.report.subgraphs == ("acme:0", "cpu:0", "acme:0")
            assert session.profile.counters == {("acme:0", "span"): 5}
        profile = session.profile
    assert profile.counters == {("acme:0", "span"): 5}, "it outlives the session"


def test_4_fallback_error_says_where_each_node_was_wanted() -> None:
    with mocks(one=mock("Exp"), two=mock("Exp")), pytest.raises(UnsupportedOps) as caught:
        weft.load(chain("Relu", "Tanh"), ["one", "two", "cpu"], hints={"n_v0": "two"}, fallback="error")
    assert caught.value.what == "2 node(s) cannot run on two:0, one:0"


# -- networks that are optimised already -----------------------------------------------------------------------

TAKEN = {"overflow_check", "wait", "model", "profile", "progress", "backend_options", "runtime"}
CHANGED: dict[str, Any] = {
    "device": "cpu",
    "precision": "low",
    "memory": "limit",
    "power": "high",
    "fusing": False,
    "winograd": False,
    "shapes": {"x": (2, 3)},
    "fallback": "error",
    "hints": {"y": "cpu"},
    "debug": print,
    "limits": {"nodes": 7},
    "signature": "serving_default",
    "passes": [graph_pass()(lambda graph, context: graph)],
    "state": True,
}


def test_4_an_optimised_network_takes_no_option_that_it_was_optimised_with() -> None:
    network = weft.optimize(weighted(), "cpu")
    assert CHANGED.keys() == signature(weft.load).parameters.keys() - TAKEN
    for name, value in CHANGED.items():
        with pytest.raises(ConfigError, match="an optimised network is loaded as it is") as caught:
            weft.load(network, **{name: value})
        assert caught.value.where == f"options {name}"
    with weft.load(network, limits=Limits(), hints={}, precision="high") as session:
        np.testing.assert_array_equal(session.run(X)[0], X + 1)
