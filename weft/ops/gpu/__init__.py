"""How GPUs run the ops, similar ones in one module; the templates that they launch are in `weft/shaders`.

Importing this package imports all of them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
