"""The examples, and one of them as a module."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(name: str) -> ModuleType:
    """Return a new module of an example, by its name: "classify"."""
    place = EXAMPLES / f"{name}.py"
    spec = spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
