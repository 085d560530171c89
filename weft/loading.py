"""`weft.load`: from a model and the name of a device to a session."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from weft.core.backend import BackendConfig, DeviceInfo, ForwardType, MemoryMode, Power, Precision
from weft.core.graph import Graph
from weft.core.layout import Shape
from weft.core.pipeline import Progress
from weft.core.registry import Choice, DeviceName, registry
from weft.core.session import Session
from weft.errors import ConfigError

if TYPE_CHECKING:
    from enum import Enum

    import onnx

    EnumT = TypeVar("EnumT", bound=Enum)


def load(
    model: str | os.PathLike[str] | bytes | Graph | onnx.ModelProto,
    device: DeviceName | Sequence[DeviceName] = "auto",
    *,
    precision: str | Precision = Precision.HIGH,
    memory: str | MemoryMode = MemoryMode.NORMAL,
    power: str | Power = Power.NORMAL,
    shapes: Mapping[str, Shape] | None = None,
    fallback: str = "cpu",
    progress: Progress | None = None,
) -> Session:
    """Return a session that runs an ONNX model (a path, bytes, a loaded model) or a `Graph`.

    `device` is a `ForwardType`, an id such as "opencl" or "vulkan:1", or a list of them in order of
    preference. `precision` is "high", "normal" or "low" (fp16 storage). `shapes` binds symbolic
    dimensions, by input name; without it they are bound by the first run. Nodes that no named device
    supports go to the CPU with a warning, or raise UnsupportedOps if `fallback` is "error". `progress` is
    called after each node is prepared, with the number prepared and that of all nodes of one device's part.
    """
    if fallback not in ("cpu", "error"):
        raise ConfigError(f"fallback={fallback!r} is not known", fix='use "cpu" or "error"')
    config = BackendConfig(
        _member(MemoryMode, memory, "memory"),
        _member(Precision, precision, "precision"),
        _member(Power, power, "power"),
    )
    importlib.import_module("weft.ops")  # late, as it takes longer to import than the rest; it registers the ops
    choices = registry.choose(device)
    graph = model if isinstance(model, Graph) else _parse(model)
    if fallback == "cpu" and all(c.creator.forward_type is not ForwardType.CPU for c in choices):
        choices.append(Choice(registry.find(ForwardType.CPU), 0))
    return Session(graph, choices, config, shapes=shapes, fallback=fallback, progress=progress)


def devices() -> list[DeviceInfo]:
    """Return every device that a session can run on; `registry.absent()` says why others cannot."""
    return registry.devices()


def _parse(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Graph:
    # Imported late: onnx takes longer to import than all of Weft.
    from weft.frontends.onnx import load as load_onnx

    return load_onnx(model)


def _member(kind: type[EnumT], value: str | EnumT, name: str) -> EnumT:
    if isinstance(value, kind):
        return value
    try:
        return kind(str(value).lower())
    except ValueError:
        names = ", ".join(repr(m.value) for m in kind)
        raise ConfigError(f"{name}={value!r} is not known", fix=f"use one of {names}") from None
