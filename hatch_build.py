"""How Weft is built: hatchling, and in a wheel the Vulkan kernels compiled to SPIR-V.

pip calls the functions of PEP 517 below; a wheel needs more to be built than an editable install, which
is why they are not hatchling's own. hatchling calls `KernelHook`.
"""

from __future__ import annotations

import sys
import tempfile
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

COMPILER = "slangpy==0.43.1; sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'"
"""Brings glslang; elsewhere a glslangValidator or glslc on the PATH serves."""


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what building a wheel needs: hatchling's own wishes, and a compiler for the kernels."""
    wishes: list[str] = _hatchling.get_requires_for_build_wheel(config_settings)
    return [*wishes, *KERNEL_REQUIREMENTS, COMPILER]


class KernelHook(BuildHookInterface[Any]):
    """Put `weft/spirv.zip` into a wheel; without a compiler the wheel is built all the same, and says so."""

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
        except Exception as e:
            self._warn(e)
            return
        finally:
            sys.path.remove(self.root)
        build_data["force_include"][str(target)] = "weft/spirv.zip"
        self.app.display_info(f"weft: {count} Vulkan kernels compiled into weft/spirv.zip")

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
