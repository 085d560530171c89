"""How Weft is built: hatchling, and in a wheel the Vulkan kernels compiled to SPIR-V and a bill of materials.

pip calls the functions of PEP 517 below; a wheel needs more to be built than an editable install, which
is why they are not hatchling's own. hatchling calls `KernelHook`.
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
"""What rendering the kernels imports."""

BILL = "weft.cdx.json"
"""The bill of materials in the wheel's `*.dist-info/sboms` (PEP 770), in CycloneDX's JSON."""
COMPILER = "slangpy==0.43.1; sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'"
"""Brings glslang; elsewhere a glslangValidator or glslc on the PATH serves."""


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what building a wheel needs: hatchling's own wishes, and a compiler for the kernels."""
    wishes: list[str] = _hatchling.get_requires_for_build_wheel(config_settings)
    return [*wishes, *KERNEL_REQUIREMENTS, COMPILER]


DATA = {
    "weft/models/shapes.onnx": (
        "machine-learning-model",
        "A segmentation network, trained by scripts/train_shapes.py on scenes that weft/models/scenes.py draws",
    ),
    "weft/plugins/weft_backend.h": ("file", "The C header for backends in shared libraries"),
    "weft/backends/gpu/tuning/tuned/nvidia-h200.json": ("file", "Which kernels are quickest on an H200, by weft tune"),
    "weft/backends/vulkan/standard.json": ("file", "Which Vulkan kernels a wheel brings compiled"),
}
"""What a wheel holds that is neither Python nor a template of kernels, and where it comes from: all of it is Weft's."""


def bill_of_materials(root: Path, version: str, spirv: Path | None = None, made_by: str = "") -> dict[str, Any]:
    """Return what a wheel carries, in the terms of CycloneDX 1.6; `spirv` was compiled by `made_by`.

    No third party's code is in it: what Weft depends on is in the wheel's metadata and comes from its own packages.
    It has neither time nor serial number, so that the same tree gives the same wheel.
    """
    reference = f"pkg:pypi/weft@{version}"
    licenses = [{"license": {"id": "Apache-2.0"}}]
    parts = [_part(root / name, name, kind, text) for name, (kind, text) in DATA.items()]
    if spirv is not None:
        text = f"Vulkan kernels: weft/shaders, rendered for weft/backends/vulkan/standard.json, compiled by {made_by}"
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
    return Path(description).name  # not the path: it is of the machine that builds


class KernelHook(BuildHookInterface[Any]):
    """Put `weft/spirv.zip` and the bill into a wheel; without a compiler there are no kernels, and it says so."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the standard kernels, unless the install is editable: that one compiles as it goes."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        self._folder = tempfile.TemporaryDirectory(prefix="weft-spirv-")
        target = Path(self._folder.name) / "spirv.zip"
        try:
            from weft.backends.vulkan.prebuild import build

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
        """Remove what `initialize` made."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _warn(self, reason: Exception) -> None:
        bar = "!" * 78
        self.app.display_warning(
            f"{bar}\nweft: NO VULKAN KERNELS ARE IN THIS WHEEL. It needs a GLSL compiler where it is used.\n"
            f"{reason}\n{bar}"
        )
