"""Registers ONNX Runtime: what must be installed, and the one device, its CPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from weft.core.contract.backend import BackendCreator, BackendInfo, BackendOption, DeviceInfo
from weft.errors import Reason, said_of

if TYPE_CHECKING:
    from weft.backends.ort.backend import CompiledModel, OrtBackend

INSTALL = "pip install onnxruntime"


class OrtCreator(BackendCreator):
    """Makes backends that hand their subgraphs to ONNX Runtime; imports it when one is made."""

    id = "ort"
    options: Sequence[BackendOption] = (
        BackendOption(
            "threads", 0, "How many threads ONNX Runtime computes a subgraph with; 0 is one for each core.", least=0
        ),
    )

    def absent(self) -> str | None:
        """Return what is missing, or None."""
        if find_spec("onnxruntime") is None:
            return Reason("the Python package onnxruntime is missing", INSTALL)
        return None

    def devices(self) -> list[DeviceInfo]:
        """Return the one device, with the version of the library."""
        return [DeviceInfo(self.id, 0, "ONNX Runtime", f"onnxruntime {_installed()}", software=True)]

    def unusable(self, index: int) -> str | None:
        """Return why the library does not load, or None."""
        try:
            from weft.backends.ort.model import newest_opset

            newest_opset()
        except Exception as e:  # whatever a damaged installation raises
            return Reason(f"onnxruntime cannot be used ({said_of(e)})", f"{INSTALL} --force-reinstall")
        return None

    def onCreate(self, info: BackendInfo) -> OrtBackend:
        """Return a backend for one part of a network."""
        from weft.backends.ort.backend import OrtBackend

        return OrtBackend(info)

    def load_payload(self, content: bytes) -> CompiledModel:
        """Return the subgraph of a saved network."""
        from weft.backends.ort.backend import CompiledModel

        return CompiledModel(content)


def _installed() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("onnxruntime")
    except PackageNotFoundError:  # other builds of it are packages of other names
        return "of another package"
