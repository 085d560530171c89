"""How GPUs run the ops: one module a family, each beside the templates it launches in `weft/shaders`.

Importing this package imports all of them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
