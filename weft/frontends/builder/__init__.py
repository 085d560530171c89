"""Networks built by hand: `Network`, its layers and the slots that join them."""

from weft.frontends.builder.network import Network, parse

__all__ = ["Network", "parse"]
