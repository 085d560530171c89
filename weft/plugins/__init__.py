"""Backends and front ends from outside: packages announce them; backends may also be files in a folder.

An installed package has an entry point in the group `weft.backends`. A file is named
`<vendor>_<name>_backend.py` or `<vendor>_<name>_backend.so[.<n>...]` and lies in a folder that
`WEFT_DYNAMIC_BACKEND_PATHS` or `dynamic_backend_paths` names. Whatever is wrong with one of them is a warning
and an entry in `weft.registry.failures`; it stops neither the program nor the others. Front ends have the
group `weft.front_ends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.core.registry.backend_registry import BackendRegistry
    from weft.core.registry.entries import Folder
    from weft.core.registry.front_ends import FrontEndRegistry


class PluginFinder:
    """Finds backends for the registry; imports the code that does it when it is first needed."""

    def insert_installed(self, registry: BackendRegistry) -> None:
        """Insert the backends that installed packages announce."""
        from weft.plugins import packages

        packages.insert_backends(registry)

    def insert_from(self, registry: BackendRegistry, paths: Sequence[Folder]) -> None:
        """Insert the backends in folders, in the order of the folders and, in each, of the file names."""
        if paths:
            from weft.plugins import folders

            folders.insert_all(registry, paths)


class PackagedFrontEnds:
    """Finds front ends for their registry; imports the code that does it when it is first needed."""

    def insert_installed(self, registry: FrontEndRegistry) -> None:
        """Insert the front ends that installed packages announce."""
        from weft.plugins import packages

        packages.insert_front_ends(registry)


def include_dir() -> Path:
    """Return the folder of `weft_backend.h`, for a C compiler's `-I`."""
    return Path(__file__).parent
