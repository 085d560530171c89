"""What tells one card from others, and which cards this process may use.

Vendors let a user hide cards by environment variables, which a vendor's own driver may obey, and other drivers of the
same card do not. `visible` obeys them for those. `vendors.json` says which variables there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from weft import config

PCI_DEVICES = Path("/sys/bus/pci/devices")
UNHIDE = "unset the variable, or name the card in it"
"""What to do about a card that is hidden."""


@dataclass(frozen=True)
class Variable:
    """An environment variable by which a user hides a vendor's cards."""

    name: str
    mask: bool = False
    """Whether it is a set: then the cards keep their order, unknown ones are passed over, and an empty one hides none.
    Otherwise it is a list that gives their order, and ends at the first entry that means no card."""
    order: str = ""
    """The variable that says how cards are numbered."""
    by_bus: str = ""
    """The value of `order` with which they are numbered as here."""
    unrepeated: bool = False
    """Whether a list that names a card twice shows none, as NVIDIA's driver does. Otherwise it ends there."""


@dataclass(frozen=True)
class Vendor:
    """A maker of cards: what `vendors.json` says."""

    name: str
    ids: frozenset[int]
    """PCI ids, by which every API knows a vendor."""
    variables: tuple[Variable, ...]
    """In the order in which they apply: each sees what those before it left."""
    uuid: str = ""
    """What the vendor's tools print before a UUID."""
    asks_kernel: bool = False
    """Whether they print `unique_id` of the kernel's PCI device."""
    runs_ptx: bool = False
    """Whether its cards run PTX."""


@dataclass(frozen=True)
class Card:
    """A device of some API, as far as it must be told from others."""

    name: str
    vendor: int = 0
    """The PCI id of its vendor."""
    uuid: str = ""
    pci: str = ""
    software: bool = False
    obeyed: frozenset[str] = frozenset()
    """The variables that its driver obeys itself: what they hide, it does not list."""

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(filter(None, (self.uuid, self.pci)))})" if self.uuid or self.pci else self.name


@dataclass
class Visible:
    """Which of some cards a process may use."""

    shown: list[int] = field(default_factory=list)
    """Their numbers, in the order in which they are listed."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each card that is hidden, and on what else a reader should know of the variables."""


@cache
def vendors() -> Mapping[str, Vendor]:
    """Return the known vendors by their keys in `vendors.json`."""
    found = json.loads(Path(__file__).with_name("vendors.json").read_text(encoding="utf-8"))
    return {
        key: Vendor(
            told["name"],
            frozenset(int(each, 16) for each in told["ids"]),
            tuple(Variable(**each) for each in told["variables"]),
            told.get("uuid", ""),
            told.get("asks_kernel", False),
            told.get("runs_ptx", False),
        )
        for key, told in found.items()
    }


def vendor_of(pci_id: int) -> Vendor | None:
    """Return the vendor with a PCI id, if it is known."""
    return next((each for each in vendors().values() if pci_id in each.ids), None)


def uuid_text(raw: bytes, vendor: int, pci: str = "", devices: Path = PCI_DEVICES) -> str:
    """Return what the vendor's tools call a card, "GPU-4b2c...", by its UUID of 16 bytes; empty if there is none.

    Zeros stand for none. Where a vendor's tools print an id that only the kernel knows, the card is that at `pci`.
    """
    known = vendor_of(vendor)
    prefix = known.uuid if known else ""
    if known and known.asks_kernel and pci:
        with suppress(OSError):
            unique = (devices / pci / "unique_id").read_text().strip()
            return f"{prefix}{unique}" if unique.strip("0") else ""
    if len(raw) != 16 or not any(raw):
        return ""
    digits = raw.hex()
    cut = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return ("" if known and known.asks_kernel else prefix) + "-".join(cut)


def pci_text(domain: int, bus: int, device: int, function: int) -> str:
    """Return a PCI address as Linux writes it, "0000:65:00.0"."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def visible(cards: Sequence[Card], given: Mapping[str, str] | None = None) -> Visible:
    """Return which cards this process may use, by the variables in `given`, or those of the environment.

    A number in a variable counts a vendor's cards in the order of their PCI addresses, or in the order in which an
    earlier variable left them. The cards of a vendor keep the places of all of its cards in the list.
    """
    values = config.cards() if given is None else given
    found = Visible(list(range(len(cards))))
    for vendor in vendors().values():
        counted_before = False
        for variable in vendor.variables:
            value = values.get(variable.name)
            if value is None or (variable.mask and not value.strip()):
                continue
            own = [i for i in found.shown if cards[i].vendor in vendor.ids and not cards[i].software]
            mine = [i for i in own if variable.name not in cards[i].obeyed]
            if len(mine) < len(own):
                found.notes.append(f"{vendor.name}'s own driver obeys {variable.name}={value}, and lists what it shows")
            numbered = mine if counted_before or not all(cards[i].pci for i in mine) else sorted(
                mine, key=lambda i: cards[i].pci
            )
            counted_before = True
            if mine:
                _apply(variable, value, cards, numbered, found)
                found.notes += _counted_otherwise(variable, value, values, [cards[i] for i in mine])
    return found


def _apply(variable: Variable, value: str, cards: Sequence[Card], numbered: Sequence[int], found: Visible) -> None:
    """Leave of some cards those that a variable names."""
    kept, ended = list[int](), ""
    for entry in (each.strip() for each in value.split(",")):
        place = _meant(entry.partition(".")[0] if variable.mask else entry, [cards[i] for i in numbered])
        if place is not None and numbered[place] not in kept:
            kept.append(numbered[place])
        elif not variable.mask:
            ended = f", whose list ends at {entry!r}" if value.strip() else ""
            if place is not None and variable.unrepeated:
                kept, ended = [], f", which names a card twice: {entry!r}"
            break
    hidden = [i for i in numbered if i not in kept]
    if variable.mask:
        kept = [i for i in found.shown if i in kept]
    told = f"{variable.name}={value!r}" if not value.strip() else f"{variable.name}={value}"
    found.notes += [f"{cards[i]} is hidden by {told}{ended}" for i in hidden]
    left = iter(kept)
    placed = (next(left, None) if i in set(numbered) else i for i in found.shown)
    found.shown = [i for i in placed if i is not None]


def _meant(entry: str, cards: Sequence[Card]) -> int | None:
    """Return the number of the card that an entry means: a number, or a UUID or the beginning of one; None for none."""
    if re.fullmatch(r"\d{1,9}", entry):
        return int(entry) if int(entry) < len(cards) else None
    begins = entry.lower()
    if not re.fullmatch(r"(gpu|mig)-[0-9a-f][0-9a-f/-]*", begins):
        return None
    found = [k for k, card in enumerate(cards) if card.uuid.lower().startswith(begins)]
    return found[0] if len(found) == 1 else None


def _counted_otherwise(
    variable: Variable, value: str, values: Mapping[str, str], cards: Sequence[Card]
) -> list[str]:
    """Return a note if the vendor's own software may count different cards in another order."""
    numbers = any(each.strip().isdigit() for each in value.split(","))
    by_bus = not variable.order or values.get(variable.order) == variable.by_bus
    if by_bus or not numbers or len({card.name for card in cards}) < 2:
        return []
    return [
        f"{variable.name}={value} counts cards by PCI address here, and the fastest first elsewhere unless "
        f"{variable.order}={variable.by_bus}: set that, or name cards by UUID"
    ]
