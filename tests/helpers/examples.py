"""The examples, and one of them as a module."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(path: str) -> ModuleType:
    """Return a new module of an example, by its path: "classify", or the package "ort_backend/weft_ort"."""
    place = EXAMPLES / path
    spec = spec_from_file_location(place.name, place / "__init__.py" if place.is_dir() else place.with_suffix(".py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[place.name] = module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
