"""ONNX Runtime as a backend: a whole subgraph is one node that holds an ONNX model, and runs as one session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.backends.ort.faults import why_not_at_large_numbers, why_not_right
from weft.backends.ort.model import (
    NotConvertible,
    is_small,
    open_session,
    said,
    single,
    to_model,
    why_not_run,
)
from weft.core.contract.backend import Execution, MemoryMode, Precision
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.host.host_backend import HostBackend
from weft.core.placement.optimized_network import PreCompiled, precompiled

Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]


class CompiledModel:
    """A subgraph as an ONNX model without its weights: what a pre-compiled node holds.

    It keeps the session that was opened to see whether ONNX Runtime takes the model, until a part runs it.
    """

    def __init__(self, content: bytes, session: Any = None, threads: int = 0) -> None:
        self._content, self._session, self._threads = content, session, threads

    def to_bytes(self) -> bytes:
        """Return what a file holds of it."""
        return self._content

    def open(self, weights: Sequence[Array], threads: int, thrifty: bool) -> Any:
        """Return a session, which no one else has."""
        session, self._session = self._session, None
        if session is not None and self._threads == threads:
            return session
        return open_session(self._content, weights, threads, thrifty=thrifty)


class OrtBackend(HostBackend):
    """ONNX Runtime as one part of a network sees it; tensors are numpy arrays."""

    copies_constants = False

    @property
    def _threads(self) -> int:
        return int(self.info.options.get("threads", 0))

    @property
    def _thrifty(self) -> bool:
        return self.info.config.memory is MemoryMode.LIMIT

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        """Ask ONNX Runtime about a model of this node alone, and for what is wrong in it."""
        if isinstance(op, PreCompiled):
            return None if op.backend == self.info.id else f"{op.backend} compiled it for itself"
        try:
            graph, _ = single(inputs, outputs, op, feeds=True)
            model = to_model(graph, sizes=False)
        except NotConvertible as e:
            return str(e)
        return why_not_right(inputs, outputs, op) or why_not_run(model) or why_not_at_large_numbers(inputs, op)

    def notes(self) -> Sequence[str]:
        """Return what is not as the configuration asks."""
        low = self.info.config.precision is Precision.LOW
        wider = ["inside of a subgraph, values may keep more digits than float16 has"] if low else []
        return [*super().notes(), *wider]

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        """Put one node with an ONNX model in the place of the whole view."""
        views, graph = OptimizationViews(), view.graph
        weights = [name for name, value in graph.constants.items() if not is_small(value)]
        try:
            content = to_model(graph, weights)
            arrays = [graph.constants[name] for name in weights]
            session = open_session(content, arrays, self._threads, thrifty=self._thrifty)
        except NotConvertible as e:
            views.fail(view, str(e))
            return views
        except Exception as e:  # what ONNX Runtime raises has no class of its own
            views.fail(view, said(e))
            return views
        payload = CompiledModel(content, session, self._threads)
        made = precompiled(view, self.info.id, payload, [*view.inputs, *weights])
        views.reasons[made.nodes[0].name] = f"ONNX Runtime runs {len(view.nodes)} node(s) as one session"
        views.substitute(view, made)
        return views

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution:
        """Return what runs the model of a pre-compiled node, or of a node that was left as it is."""
        if isinstance(op, PreCompiled):
            assert isinstance(op.payload, CompiledModel)
            model, large = op.payload, [t for t in inputs if t is not None and t.constant is not None]
        else:
            graph, names = single(inputs, outputs, op)
            model = CompiledModel(to_model(graph, names))
            constants = [t for t in inputs if t is not None and t.constant is not None]
            large = [t for t in constants if t.constant is not None and not is_small(t.constant)]
        weights = [t.constant for t in large if t.constant is not None]
        return SubgraphExecution(inputs, model.open(weights, self._threads, self._thrifty))


class SubgraphExecution(Execution):
    """Runs a session; its inputs are those of the node that are not constant."""

    def __init__(self, inputs: Inputs, session: Any) -> None:
        self._session = session
        self._fed = [k for k, t in enumerate(inputs) if t is not None and t.constant is None]
        self._names = [value.name for value in session.get_inputs()]
        self._results = [value.name for value in session.get_outputs()]
        self._binding: Any = None
        self._bound: list[Array] = []

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Run the session, which reads and writes the arrays of the tensors."""
        arrays = [tensor.memory for k in self._fed if (tensor := inputs[k]) is not None]
        results = [tensor.memory for tensor in outputs]
        held = [*arrays, *results]
        if len(held) != len(self._bound) or any(a is not b for a, b in zip(held, self._bound, strict=True)):
            self._bind(arrays, results)
        self._session.run_with_iobinding(self._binding)

    def _bind(self, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        binding = self._session.io_binding()
        for names, group, bind in (
            (self._names, arrays, binding.bind_input), (self._results, results, binding.bind_output)
        ):
            for name, array in zip(names, group, strict=True):
                bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self._binding, self._bound = binding, [*arrays, *results]

    def close(self) -> None:
        """Free the session."""
        self._session = self._binding = None
        self._bound = []
