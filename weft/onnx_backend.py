"""ONNX's own backend interface (`onnx.backend.base`), so that programs written for it run on Weft.

    import weft.onnx_backend as backend
    y, = backend.prepare(model, device="VULKAN").run([x])

Devices are "CPU" and every id of Weft ("OPENCL", "vulkan:1"), in any case; "CUDA" is one where a backend of
that id is registered. Keywords are the options of `weft.load`. A node that the device cannot run is an error,
unless fallback="cpu" is given: a program that names a device means it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.registry.backend_registry import registry
from weft.core.session.load_options import LoadKeywords
from weft.core.session.session import Session
from weft.errors import ConfigError, InputError, WeftError
from weft.frontends.builder.conversion import near
from weft.frontends.onnx.reading import NEWEST_OPSET
from weft.frontends.onnx.tensors import DTYPES
from weft.loading import load

Model = ModelProto | bytes | str | os.PathLike[str]
Info = Sequence[tuple[Any, tuple[int, ...]]]

_OPTIONS = tuple(LoadKeywords.__annotations__)
_CODES = {dtype: code for code, dtype in DTYPES.items()}


class WeftRep(BackendRep):
    """A model that is ready to run, as often as wanted. Close it, or use it as a context manager."""

    def __init__(self, session: Session) -> None:
        self.session = session
        """The session that runs it; its report says what runs where."""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs, by position and by name, for a list or tuple of arrays or a dict by name.

        An array by itself will do where the model has one input. InputError for anything else.
        """
        if kwargs:
            raise ConfigError(f"run takes no options; given: {', '.join(kwargs)}", fix="give them to prepare")
        given = _listed(inputs, list(self.session.inputs), "the model")
        results = self.session.run(*((given,) if isinstance(given, Mapping) else given))
        outputs: tuple[Any, ...] = namedtupledict("Outputs", self.session.outputs)(*results)
        return outputs

    def close(self) -> None:
        """Close the session and free its memory."""
        self.session.close()

    def __enter__(self) -> WeftRep:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class WeftBackend(Backend):
    """Weft as a backend of ONNX."""

    @classmethod
    def is_compatible(cls, model: Model, device: str = "CPU", **kwargs: Any) -> bool:
        """Tell whether the device runs the whole model. It is loaded to find out."""
        options = _checked(kwargs)
        try:
            cls.prepare(model, device, **options).close()
        except WeftError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Model, device: str = "CPU", **kwargs: Any) -> WeftRep:
        """Return the model ready to run; a member of WeftError says why that cannot be."""
        return WeftRep(load(model, device, **{"fallback": "error", **_checked(kwargs)}))

    @classmethod
    def run_model(cls, model: Model, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs of one run."""
        with cls.prepare(model, device, **kwargs) as prepared:
            return prepared.run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Info | None = None, **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return the outputs of one node; `opset_version` says of which opset it is (default: the newest).

        `inputs` are arrays for the node's inputs that are named, in order, or a dict by name. `outputs_info`
        gives the type and shape that each output must have; InputError if one comes out otherwise.
        """
        opset = int(kwargs.pop("opset_version", NEWEST_OPSET))
        arrays = _by_name(node, inputs)
        domains = {"": opset} | ({node.domain: 1} if node.domain not in ("", "ai.onnx") else {})
        graph = helper.make_graph(
            [node],
            node.name or node.op_type,
            [helper.make_tensor_value_info(n, _CODES[DType.of(a.dtype)], a.shape) for n, a in arrays.items()],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*entry) for entry in domains.items()])
        results = cls.run_model(model, arrays, device, **kwargs)
        _check_outputs(node, results, outputs_info)
        return results

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tell whether a device of that name is here."""
        try:
            registry.choose(device)
        except WeftError:
            return False
        return True


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [f"{name!r}{near(name, _OPTIONS)}" for name in options if name not in _OPTIONS]
    if unknown:
        raise ConfigError(f"unknown option(s): {'; '.join(unknown)}", fix=f"use {', '.join(_OPTIONS)}")
    return dict(options)


def _listed(inputs: Any, names: Sequence[str], reader: str) -> Mapping[str, Any] | Sequence[Any]:
    """Return inputs as a dict, or as a list with one array for each name; an array alone is the only input."""
    if isinstance(inputs, Mapping):
        return inputs
    wanted = f"{reader} reads {', '.join(names) or 'nothing'}"
    if not isinstance(inputs, (list, tuple)):
        if not hasattr(inputs, "__array__"):
            kind = type(inputs).__name__
            raise InputError(f"{kind} cannot be the inputs", why=wanted, fix="give a list of arrays, or a dict by name")
        if len(names) != 1:
            raise InputError("an array by itself was given", why=wanted, fix="give a list of arrays, or a dict by name")
        inputs = [inputs]
    if len(inputs) != len(names):
        raise InputError(f"{len(inputs)} input(s) were given", why=wanted, fix="give one array for each input")
    given: Sequence[Any] = inputs
    return given


def _by_name(node: NodeProto, inputs: Any) -> dict[str, Array]:
    names = list(dict.fromkeys(name for name in node.input if name))
    listed = _listed(inputs, names, "the node")
    given = listed if isinstance(listed, Mapping) else dict(zip(names, listed, strict=True))
    return {name: np.asarray(value) for name, value in given.items()}


def _check_outputs(node: NodeProto, results: Sequence[Array], info: Info | None) -> None:
    names = [name for name in node.output if name]
    problems = [
        f"{name!r} is {array.dtype}{list(array.shape)} instead of {np.dtype(dtype)}{list(shape)}"
        for name, array, (dtype, shape) in zip(names, results, info or (), strict=False)
        if array.dtype != np.dtype(dtype) or array.shape != tuple(shape)
    ]
    if problems:
        raise InputError(
            f"outputs of {node.op_type} are not as outputs_info says",
            why="; ".join(problems),
            fix="correct outputs_info, or the node",
        )


is_compatible = WeftBackend.is_compatible
prepare = WeftBackend.prepare
run_model = WeftBackend.run_model
run_node = WeftBackend.run_node
supports_device = WeftBackend.supports_device
