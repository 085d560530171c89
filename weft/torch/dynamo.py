"""The backend of `torch.compile`: graphs of Dynamo become graphs of Weft; what Weft lacks goes back to PyTorch."""

from __future__ import annotations

import importlib
import logging
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils._python_dispatch import _disable_current_modes

from weft.errors import ConfigError, Problem, grouped
from weft.frontends.torch.builder import Value
from weft.frontends.torch.exported import add_inputs, attribute, decompositions
from weft.frontends.torch.rules import table
from weft.frontends.torch.translation import Translation
from weft.torch.alike import Form, substitution
from weft.torch.options import Options
from weft.torch.runner import Runner, check_devices

log = logging.getLogger("weft.torch")
CALLER = 'torch.compile(backend="weft")'
COPY = "aten.copy_.default"


@dataclass(eq=False)
class Compiled:
    """What became of one graph of Dynamo."""

    name: str
    nodes: int
    refused: Mapping[str, Problem] = field(default_factory=dict)
    """The nodes that run in PyTorch, each with the reason."""
    runners: list[Runner] = field(default_factory=list)
    """What Weft runs: one for a whole graph."""
    reused: bool = False
    """Whether an earlier network serves it, for other sizes."""
    end: str = ""
    """Why the graph ends there, if the function goes on behind it."""


_heard: list[list[Compiled]] = []
"""Lists of who asks to hear what is compiled."""
_known: weakref.WeakSet[_Whole] = weakref.WeakSet()
_count = iter(range(2**62))


@contextmanager
def heard() -> Iterator[list[Compiled]]:
    """Return a list that gets what is compiled during the block."""
    mine: list[Compiled] = []
    _heard.append(mine)
    try:
        yield mine
    finally:
        _heard.remove(mine)


def backend(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Return a function that runs a graph of Dynamo on Weft; PyTorch calls it by the name "weft".

    `options` are those of `weft.load`, and `buffers`, see `weft.torch.write_back`. ConfigError for others, for a
    `mode`, and for a graph that is to be trained.
    """
    given = Options.of(options, CALLER)
    if mode is not None:
        raise ConfigError(f"{CALLER} has no mode {mode!r}", why="modes are of PyTorch's own backends",
                          fix='leave it out, and pass options={"precision": "low"} for speed')
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in example_inputs):
        raise ConfigError(
            "Weft runs finished networks, and this call is to be trained",
            where=CALLER,
            why="gradients are enabled, and weights or inputs require them",
            fix="call it within torch.no_grad() or torch.inference_mode(), or freeze it: model.requires_grad_(False)",
        )
    check_devices(example_inputs, CALLER)
    importlib.import_module("weft.ops")
    compiler = _Compiler(given, _end_of(gm))
    with _whole_composites():
        compiled: Callable[..., Any] = aot_module_simplified(
            gm, example_inputs, fw_compiler=compiler, inference_compiler=compiler,
            decompositions=_decompositions(), keep_inference_input_mutations=True,
        )
    return compiled


def _end_of(gm: GraphModule) -> str:
    """Return why Dynamo ended a graph, with the place in the user's code; "" for one that ends with its function."""
    found = getattr(gm, "compile_subgraph_reason", None)
    if found is None or not getattr(found, "graph_break", True):
        return ""
    reason = str(found.reason).strip().splitlines()[0]
    stack = [*found.user_stack]
    return f"{reason} ({stack[-1].filename}:{stack[-1].lineno})" if stack else reason


@cache
def _decompositions() -> dict[Any, Any]:
    return decompositions()


@cache
def _composites() -> dict[Any, Callable[..., Any]]:
    """Return the table's ops that PyTorch takes apart on its own, with what keeps them whole."""
    from torch._export.utils import _collect_all_valid_cia_ops

    known = table()
    return {op: _kept for op in _collect_all_valid_cia_ops() if str(op) in known}


def _kept(*_: Any, **__: Any) -> Any:
    return NotImplemented


@contextmanager
def _whole_composites() -> Iterator[None]:
    """Let the table's composite ops stay whole in graphs that are traced meanwhile.

    The way there is not public: with a torch that has another, more ops are taken apart, and the results are the same.
    """
    try:
        from torch.export.exported_program import _override_composite_implicit_decomp

        composites = _composites()
    except ImportError as e:
        log.info("composite ops are taken apart: %s", e)
        yield
        return
    with _override_composite_implicit_decomp(composites):
        yield


@dataclass
class _Compiler:
    """Compiles what AOTAutograd traced: a graph of ATen's ops that writes into inputs by `copy_` alone."""

    options: Options
    end: str

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._functorch.aot_autograd import make_boxed_func

        name = f"graph {next(_count)}"
        statics = _statics()
        record = Compiled(name, sum(node.op == "call_function" for node in gm.graph.nodes), end=self.end)
        for each in _heard:
            each.append(record)
        with _disable_current_modes():  # else reads of constant tensors are traced, too
            boxed: Callable[..., Any] = make_boxed_func(_compiled(gm, statics, self.options, record))
        return boxed


def _statics() -> frozenset[int]:
    """Return which inputs are weights and buffers, by position."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return frozenset(() if metadata is None else metadata.static_input_indices)


def _counted_up() -> frozenset[int]:
    """Return of which inputs the version is counted up before each call, by position."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return frozenset(() if metadata is None else metadata.mutated_graph_handled_indices_seen_by_autograd)


def _compiled(
    gm: GraphModule, statics: frozenset[int], options: Options, record: Compiled
) -> Callable[..., Any]:
    whole = _Whole.of(gm, statics, options, record.name)
    if isinstance(whole, _Whole):
        known = next(filter(None, (k.serving(whole) for k in [*_known])), None)
        if known is None:
            _known.add(whole)
        record.reused, made = known is not None, known or whole
        record.runners.append(made.runner)
        return made.call if known is None else _Borrowed(whole, made).call
    record.refused = {node.name: problem for node, problem in whole.refused.items()}
    if options.load.get("fallback") == "error":
        whole.raise_refused(record.nodes)
    return _divided(gm, statics, options, whole, record)


def _mutations(gm: GraphModule) -> dict[Node, Node]:
    """Return the nodes that write a new value into an input, with the input."""
    return {
        n: n.args[0] for n in gm.graph.nodes
        if n.op == "call_function" and str(n.target) == COPY and n.args[0].op == "placeholder"
    }


def _translated(gm: GraphModule, name: str, mutations: Mapping[Node, Node]) -> Translation:
    translation = Translation(name)
    nodes = [*gm.graph.nodes]
    add_inputs(translation, [n for n in nodes if n.op == "placeholder"])
    for node in nodes:
        if node in mutations:
            source, target = node.args[1], translation.values[mutations[node]]
            if isinstance(source, Node):
                value = translation.values[source]
                translation.values[node] = Value(value.name, value.dtype, value.shape)
                if value.dtype is not target.dtype or value.shape != target.shape:
                    del translation.values[node]
                    translation.refuse(node, "it writes a value of another type or shape into an input")
        else:
            translation.add([node], lambda target: attribute(gm, target))
    return translation


@dataclass(eq=False)
class _Whole:
    """A graph that Weft runs whole."""

    runner: Runner
    form: Form
    weights: list[int]
    """The positions of weights among the arguments."""
    inputs: list[int]
    """The positions of the other inputs of the graph."""
    results: list[tuple[str, Any]]
    """What each result is: ("output", its number), ("input", position), or ("value", itself)."""
    tensors: list[int]
    """The positions of all tensors."""

    @classmethod
    def of(
        cls, gm: GraphModule, statics: frozenset[int], options: Options, name: str
    ) -> _Whole | Translation:
        """Return it, or the translation with what is refused."""
        mutations = _mutations(gm)
        translation = _translated(gm, name, mutations)
        if translation.refused:
            return translation
        holders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        place = {node: k for k, node in enumerate(holders)}
        names = {node: v.name for node in holders if isinstance(v := translation.values[node], Value)}
        (given,) = next(n for n in gm.graph.nodes if n.op == "output").args
        outputs: dict[str, Value] = {}
        results: list[tuple[str, Any]] = []
        for each in given if isinstance(given, (list, tuple)) else [given]:
            value = translation.values[each] if isinstance(each, Node) else each
            if isinstance(each, Node) and each in place:
                results.append(("input", place[each]))
            elif isinstance(value, Value):
                is_size = not hasattr(each.meta.get("val"), "dtype")
                results.append(("size" if is_size else "output", len(outputs)))
                outputs[f"output{len(outputs)}"] = value
            else:
                results.append(("value", value))
        changed = {}
        for node, target in mutations.items():
            output = f"{target.name}.new"
            outputs[output] = translation.values[node]
            changed[output] = names[target]
        graph = translation.builder.finish(outputs)
        given_names = {*graph.inputs}
        written = {*mutations.values()}
        frozen = [n for n in holders if place[n] in statics and n not in written and names.get(n) in given_names]
        others = [n for n in holders if n not in frozen and names.get(n) in given_names]
        # The order of the graph's inputs is that of its runs.
        order = {name: k for k, name in enumerate(graph.inputs)}
        others.sort(key=lambda n: order[names[n]])
        graph.name = name
        ahead = {names[n] for n in written if place[n] in _counted_up()}
        runner = Runner(graph, [names[n] for n in frozen], options, dict(changed), ahead)
        return cls(runner, Form.of(gm, statics), [place[n] for n in frozen], [place[n] for n in others], results,
                   [k for k, n in enumerate(holders) if hasattr(n.meta.get("val"), "dtype")])

    def call(self, *args: Any) -> list[Any]:
        """Run it."""
        weights = [args[k] for k in self.weights]
        made = self.runner.run(weights, [args[k] for k in self.inputs])
        return [_result(kind, which, made, args) for kind, which in self.results]

    def serving(self, other: _Whole) -> _Whole | None:
        """Return this if it runs another graph, too: one that is the same at some of this one's sizes."""
        fits = self.runner.options == other.runner.options and len(self.tensors) == len(other.tensors)
        return self if fits and substitution(self.form, other.form) is not None else None


def _result(kind: str, which: Any, made: Sequence[Any], args: Sequence[Any]) -> Any:
    if kind == "output":
        return made[which]
    if kind == "size":
        return made[which].item()
    return args[which] if kind == "input" else which


@dataclass(eq=False)
class _Borrowed:
    """Runs a graph by the network of an earlier one, whose sizes are open where this one has numbers."""

    own: _Whole
    lender: _Whole

    def call(self, *args: Any) -> list[Any]:
        """Run it."""
        places: dict[int, int] = dict(zip(self.lender.tensors, self.own.tensors, strict=True))
        lender = self.lender
        made = lender.runner.run([args[places[k]] for k in lender.weights], [args[places[k]] for k in lender.inputs])
        return [
            args[own[1]] if own[0] == "input" else _result(*kind, made, args)
            for own, kind in zip(self.own.results, lender.results, strict=True)
        ]


# -- what Weft runs in parts -----------------------------------------------------------------------------------


class _Supported(OperatorSupportBase):  # type: ignore[misc]
    """Tells the partitioner which nodes Weft runs."""

    def __init__(self, refused: frozenset[Node]) -> None:
        self.refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return node.op == "call_function" and node not in self.refused


def _divided(
    gm: GraphModule, statics: frozenset[int], options: Options, whole: Translation, record: Compiled
) -> Callable[..., Any]:
    """Return a function that runs parts of a graph on Weft and the rest in PyTorch; warn of all that is not on Weft."""
    refused = {*whole.refused} | {*_mutations(gm)}
    sizes = {n for n in gm.graph.nodes if n.op == "call_function" and not hasattr(n.meta.get("val"), "dtype")
             and n.target is not operator.getitem and not isinstance(n.meta.get("val"), (list, tuple))}
    weights = {n for k, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder") if k in statics}
    weights -= {*_mutations(gm).values()}
    partitioner = CapabilityBasedPartitioner(gm, _Supported(frozenset(refused | sizes)))
    parted = partitioner.fuse_partitions(partitioner.propose_partitions())
    lines = "\n  ".join(("", *grouped(record.refused.values())))
    log.warning("%d of %d node(s) of %s go back to PyTorch:%s", len(record.refused), record.nodes, record.name, lines)
    held = {n.name for n in weights}
    for node in [n for n in parted.graph.nodes if n.op == "call_module"]:
        part = getattr(parted, node.target)
        own = frozenset(
            k for k, arg in enumerate(node.args)
            if isinstance(arg, Node) and arg.op == "placeholder" and arg.name in held
        )
        made = _Whole.of(part, own, options, f"{record.name}, {node.target}")
        assert isinstance(made, _Whole)  # each of its nodes was translated before
        record.runners.append(made.runner)
        delattr(parted, node.target)
        single = not isinstance(next(n for n in part.graph.nodes if n.op == "output").args[0], (list, tuple))
        setattr(parted, node.target, _first(made.call) if single else made.call)
    parted.recompile()
    run: Callable[..., Any] = parted.forward
    return run


def _first(call: Callable[..., list[Any]]) -> Callable[..., Any]:
    return lambda *args: call(*args)[0]
