"""Builds Weft with hatchling; a wheel also gets the Vulkan kernels as SPIR-V, and a bill of materials.

pip calls the PEP 517 functions below. One of them is our own, because building a wheel requires more than building
an editable install. hatchling calls `KernelHook`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from hatchling import build as _hatchling
from hatchling.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
)
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = [
    "KernelHook",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

KERNEL_REQUIREMENTS = ["mako>=1.3", "numpy>=1.26", "platformdirs>=4.0"]
"""The packages that rendering the kernels imports."""

BILL = "weft.cdx.json"
"""The bill of materials in the wheel's `*.dist-info/sboms` (PEP 770), as CycloneDX JSON."""
COMPILER = "slangpy==0.43.1; sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'"
"""Contains glslang; on other platforms the build uses a glslangValidator or glslc on the PATH."""


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what building a wheel requires: hatchling's own requirements, and a compiler for the kernels."""
    wishes: list[str] = _hatchling.get_requires_for_build_wheel(config_settings)
    return [*wishes, *KERNEL_REQUIREMENTS, COMPILER]


DATA = {
    "weft/models/shapes.onnx": (
        "machine-learning-model",
        "A segmentation network, trained by scripts/train_shapes.py on scenes that scripts/scenes.py draws",
    ),
    "weft/plugins/weft_backend.h": ("file", "The C header for backends in shared libraries"),
    "weft/kernels/cost_model.json": ("file", "What kernels take on a GPU, fitted to the trials in benchmarks/tuned"),
    "weft/kernels/serial_model.json": ("file", "What kernels take on a CPU, fitted to the trials in benchmarks"),
    "weft/kernels/device_models.json": ("file", "What kinds of device do in a time, measured or from datasheets"),
    "weft/backends/gpu/device/driver_parts.json": ("file", "Which files make up the vendors' drivers"),
    "weft/backends/gpu/device/vendors.json": ("file", "The vendors of cards, and the variables that hide their cards"),
    "weft/backends/opencl/known_drivers.json": ("file", "What is known of OpenCL drivers by name"),
    "weft/backends/vulkan/known_drivers.json": ("file", "What is known of Vulkan drivers by name"),
}
"""The files of a wheel that are neither Python nor kernel templates, and their origin: all of them are Weft's own."""


def bill_of_materials(root: Path, version: str, spirv: Path | None = None, made_by: str = "") -> dict[str, Any]:
    """Return a wheel's contents as a CycloneDX 1.6 document; `made_by` compiled `spirv`.

    A wheel has no third-party code: its metadata lists the packages that Weft depends on.
    The document has neither time nor serial number, so the same tree gives the same wheel.
    """
    reference = f"pkg:pypi/weft@{version}"
    licenses = [{"license": {"id": "Apache-2.0"}}]
    parts = [_part(root / name, name, kind, text) for name, (kind, text) in DATA.items()]
    if spirv is not None:
        text = f"Vulkan kernels: weft/shaders, rendered for scripts/standard_kernels.json, compiled by {made_by}"
        parts.append(_part(spirv, "weft/spirv.zip", "file", text))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": reference,
                "name": "weft",
                "version": version,
                "purl": reference,
                "licenses": licenses,
            }
        },
        "components": [{**part, "licenses": licenses} for part in parts],
        "dependencies": [{"ref": reference, "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def _part(file: Path, name: str, kind: str, text: str) -> Mapping[str, Any]:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    hashes = [{"alg": "SHA-256", "content": digest}]
    return {"type": kind, "bom-ref": f"file:{name}", "name": name, "description": text, "hashes": hashes}


def _compiler_of_kernels() -> str:
    from weft.backends.vulkan.glslang import find_compiler

    compiler = find_compiler()
    description = compiler.description if compiler is not None else ""
    if "slangpy" in description:
        try:
            return f"the glslang of slangpy {version_of('slangpy')}"
        except PackageNotFoundError:
            pass
    return Path(description).name  # not the path, which depends on the build machine


class KernelHook(BuildHookInterface[Any]):
    """Puts `weft/spirv.zip` and the bill of materials into a wheel; without a compiler it warns and adds no kernels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the standard kernels, unless the install is editable: then Weft compiles kernels at run time."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        self._folder = tempfile.TemporaryDirectory(prefix="weft-spirv-")
        target = Path(self._folder.name) / "spirv.zip"
        try:
            from scripts.standard_kernels import build

            count = build(target)
            made_by = _compiler_of_kernels()
        except Exception as e:
            self._warn(e)
            self._add_bill(build_data)
            return
        finally:
            sys.path.remove(self.root)
        build_data["force_include"][str(target)] = "weft/spirv.zip"
        self._add_bill(build_data, target, made_by)
        self.app.display_info(f"weft: {count} Vulkan kernels compiled into weft/spirv.zip by {made_by}")

    def _add_bill(self, build_data: dict[str, Any], spirv: Path | None = None, made_by: str = "") -> None:
        bill = bill_of_materials(Path(self.root), self.metadata.version, spirv, made_by)
        path = Path(self._folder.name) / BILL
        path.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files of `initialize`."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _warn(self, reason: Exception) -> None:
        bar = "!" * 78
        self.app.display_warning(
            f"{bar}\nweft: NO VULKAN KERNELS ARE IN THIS WHEEL. It needs a GLSL compiler where it is used.\n"
            f"{reason}\n{bar}"
        )
