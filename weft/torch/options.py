"""What a caller may ask of Weft through PyTorch: the options of `weft.load` that a compiled function can keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.session.load_options import LoadOptions
from weft.errors import ConfigError

_ELSEWHERE = {
    "shapes": "sizes follow from the tensors of each call",
    "state": "buffers that a model changes are its state",
    "signature": "a compiled function has one",
}
PLACES = ("host", "device")


@dataclass(frozen=True)
class Options:
    """What a caller asks for: `load` for `weft.load`, and where buffers are that the model changes."""

    load: Mapping[str, Any]
    buffers: str = "host"
    """"host": in the model, after each call. "device": there alone, until `weft.torch.write_back` is called."""

    @classmethod
    def of(cls, options: Mapping[str, Any] | None, caller: str) -> Options:
        """Return what is asked for; ConfigError for an option that is unknown, is wrong, or has no meaning here."""
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
        buffers = given.pop("buffers", "host")
        if buffers not in PLACES:
            raise ConfigError(f"buffers={buffers!r} is not known", fix='use "host" or "device"')
        LoadOptions.of(given, caller=caller)
        return cls(given, buffers)
