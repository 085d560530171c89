"""The ops, similar ones in one module. Importing this package imports and registers all of them, and their kernels."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
