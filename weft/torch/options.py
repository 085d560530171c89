"""What a caller may ask of Weft through PyTorch: the options of `weft.load` that a compiled function can keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.session.load_options import LoadOptions
from weft.errors import ConfigError

_ELSEWHERE = {
    "shapes": "sizes follow from the tensors of each call",
    "state": "buffers that a model changes are its state",
}



def checked(options: Mapping[str, Any] | None, caller: str) -> dict[str, Any]:
    """Return options for `weft.load`; ConfigError for one that is unknown, is wrong, or has no meaning here."""
    given = dict(options or {})
    if not all(isinstance(name, str) for name in given):
        raise ConfigError(f"the options of {caller} are not understood", why="their names are no texts",
                          fix='pass a dict such as {"device": "vulkan", "precision": "low"}')
    strange = [name for name in given if name in _ELSEWHERE]
    if strange:
        raise ConfigError(
            f"{caller} takes no option {', '.join(map(repr, strange))}",
            why="; ".join(_ELSEWHERE[name] for name in strange), fix="leave it out",
        )
    LoadOptions.of(given, caller=caller)
    return given
