"""Why an API does not list a card that is in the machine: which part of its driver is not there, or not in reach.

A driver is a kernel module with device files, a library for each API, and a manifest by which the API's loader finds
that library. In a container each may be missing by itself. `driver_parts.json` says what they are for each vendor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.backends.gpu.device.cards import Vendor, vendors
from weft.backends.gpu.device.known_drivers import read_table
from weft.errors import Reason

TABLE = Path(__file__).with_suffix(".json")
ROOT = Path("/")
_LIBRARIES = (
    "usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "lib/*-linux-gnu", "usr/lib/wsl/lib", "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib", "usr/local/lib", "opt/rocm/lib", "opt/rocm*/lib", "opt/amdgpu*/lib/*-linux-gnu",
)
_CONTAINER = (".dockerenv", "run/.containerenv", "run/systemd/container")
_DISPLAY, _PROCESSING = "0x03", "0x12"
"""The classes of PCI devices that compute: graphics cards, and processing accelerators."""


@dataclass(frozen=True)
class _Parts:
    """What a vendor's driver needs to be there for an API; paths are relative to the root and may be patterns."""

    libraries: Sequence[str]
    """One of these is enough."""
    manifests: Sequence[str]
    install: str
    """What brings the library."""
    manifest: str
    """What brings the manifest."""
    capability: str = ""
    """Why a container may lack the library."""
    nodes: Sequence[str] = field(default=())
    """Device files that this API needs besides the vendor's."""


@dataclass(frozen=True)
class Unlisted:
    """A vendor whose cards an API should list."""

    vendor: str
    reason: Reason
    broken: bool
    """Whether a part of the driver is there and does not work as it is; if not, it is just not installed."""


def unlisted(api: str, listed: Collection[int]) -> list[Unlisted]:
    """Return why an API lists no card of vendors that have one in this machine.

    `listed` are the PCI ids of the vendors of the cards that it lists, hidden ones among them.
    """
    root, found = ROOT, list[Unlisted]()
    if sys.platform != "linux":
        return found
    for key, told in read_table(TABLE).items():
        vendor = vendors()[key]
        cards = _cards(vendor, root)
        if vendor.ids.isdisjoint(listed) and (cards or (told.get("own_nodes") and _matching(root, told["nodes"]))):
            lacks = _lacks(vendor, told, api, cards, root)
            found += [] if lacks is None else [lacks]
    return found


def _lacks(vendor: Vendor, told: Mapping[str, Any], api: str, cards: Sequence[str], root: Path) -> Unlisted | None:
    """Return the first part of a vendor's driver that is not there or not in reach, or None."""
    parts = _Parts(**told["apis"][api])
    contained = any((root / place).exists() for place in _CONTAINER)
    run = f"docker run {told['give']} ..."
    card = f"{vendor.name}'s card at {cards[0]}" if cards else f"{vendor.name}'s card"
    for pattern in (*told["nodes"], *parts.nodes):
        nodes = _matching(root, [pattern])
        if not nodes:
            if contained:
                return _told(vendor, f"the container was not given /{pattern} of {card}", run)
            return _told(vendor, f"{card} has no /{pattern}: its kernel driver is not loaded", told["kernel"])
        if not any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
            return _told(vendor, *_not_in_reach(nodes[0], root, contained), broken=True)
    if not any(_matching(root, [f"{folder}/{name}" for folder in _LIBRARIES]) for name in parts.libraries):
        missing = f"{card} is in reach, but {parts.libraries[0]} is not there"
        if contained and parts.capability:
            return _told(vendor, f"{missing}: {parts.capability}", run, broken=True)
        return _told(vendor, missing, parts.install)
    if not _matching(root, parts.manifests):
        missing = f"{card} and {parts.libraries[0]} are there, but no /{parts.manifests[0]}, where the loader looks"
        return _told(vendor, missing, f"{parts.manifest}, or {run}" if contained else parts.manifest, broken=True)
    return None


def _told(vendor: Vendor, what: str, fix: str, *, broken: bool = False) -> Unlisted:
    return Unlisted(vendor.name, Reason(what, fix), broken)


def _not_in_reach(node: Path, root: Path, contained: bool) -> tuple[str, str]:
    """Return what keeps this user from a device file, and what to do about it."""
    import grp

    name, number = f"/{node.relative_to(root)}", node.stat().st_gid
    try:
        group = grp.getgrgid(number).gr_name
    except KeyError:
        group = str(number)
    fix = f"docker run --group-add {number} ..." if contained else f"sudo usermod -aG {group} $USER, and log in again"
    return f"{name} cannot be opened: only root and the group {group} may", fix


def _cards(vendor: Vendor, root: Path) -> list[str]:
    """Return the PCI addresses of a vendor's cards in the machine."""
    return sorted(place.name for place in _matching(root, ["sys/bus/pci/devices/*"]) if _is_card(place, vendor))


def _is_card(place: Path, vendor: Vendor) -> bool:
    try:
        maker, kind = ((place / name).read_text().strip().lower() for name in ("vendor", "class"))
        return kind.startswith((_DISPLAY, _PROCESSING)) and int(maker, 16) in vendor.ids
    except (OSError, ValueError):
        return False


def _matching(root: Path, patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in _glob(root, pattern)]


def _glob(root: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from sorted(root.glob(pattern))
    except OSError:  # a folder that this user may not list
        return
