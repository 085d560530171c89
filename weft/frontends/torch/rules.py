"""The table: from the name of an overload, as `str` gives it of one ("aten.relu.default"), to what makes nodes of it.

A rule gets a `Builder` and the arguments of the overload's schema, in order and with the defaults for those that a call
leaves out. Tensors and sizes that are not numbers come as `Value`. It returns a `Value`, or a list of them for an op
with several results, and raises `Unsupported` for arguments that Weft has no form for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)

_RULES: dict[str, Rule] = {}
_MATTERS = (
    "attention", "creation", "elementwise", "indexing", "norms", "pools", "products", "recurrent", "reductions",
    "resize", "shapes", "sizes", "vision",
)  # fmt: skip


class Unsupported(Exception):
    """Raised by a rule; the text says what of the call Weft has no form for."""


def aten(names: str, domain: str = "aten") -> Callable[[R], R]:
    """Enter a rule for overloads of ATen, their names split by spaces; one without a dot is the default overload."""

    def enter(rule: R) -> R:
        for name in names.split():
            key = f"{domain}.{name}" if "." in name else f"{domain}.{name}.default"
            assert key not in _RULES, key
            _RULES[key] = rule
        return rule

    return enter


@cache
def table() -> dict[str, Rule]:
    """Return the rules of all overloads that Weft runs, by name."""
    for matter in _MATTERS:
        importlib.import_module(f"weft.frontends.torch.{matter}")
    return dict(sorted(_RULES.items()))
