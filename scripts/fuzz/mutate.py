"""Changes to bytes and to JSON, with every choice taken from a random stream."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    13,
    255,
    2**20,
    2**31 - 1,
    -(2**31),
    2**32 + 5,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64,
)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, 1e300, float("inf"), float("-inf"), float("nan"))


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes with a few of them changed, inserted, removed or cut off."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place, length = draw.randrange(len(out) or 1), draw.choice((1, 1, 2, 8))
        action = draw.randrange(9)
        if action == 0:
            del out[place : place + length]
        elif action < 3:
            out[place:place] = draw.randbytes(length)
        elif action < 6 and out:
            out[place] ^= 1 << draw.randrange(8)
        elif action < 8:
            out[place : place + length] = draw.choice((b"\xff", b"\0", b"\x80")) * length
        else:
            out = out[: max(place, 1)]
    return bytes(out)


def change_json(value: Any, draw: random.Random) -> None:
    """Change one place in a JSON value: replace it, copy another place to it, remove it, or duplicate it."""
    places = list(json_places(value))
    holder, key = draw.choice(places)
    action = draw.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), copied(holder[key]))
    elif action == 2 and isinstance(holder, list):
        draw.shuffle(holder)
    elif action < 5:
        other, there = draw.choice(places)
        if there in other if isinstance(other, dict) else there < len(other):
            holder[key] = copied(other[there])
    else:
        holder[key] = other_scalar(holder[key], draw)


def json_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a JSON value."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])


def copied(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    return json.loads(json.dumps(value))


def other_scalar(value: Any, draw: random.Random) -> Any:
    """Return another value, mostly of the same kind."""
    if draw.random() < 0.1:
        return draw.choice((None, True, False, "", [], {}, 0, -1, 1.5, "x"))
    if isinstance(value, bool) or value is None:
        return draw.choice((True, False, None, 0, 1))
    if isinstance(value, int):
        near = (value + 1, value - 1, value * 2, -value, value ^ 4)
        return draw.choice(near if draw.random() < 0.5 else NUMBERS)
    if isinstance(value, float):
        return draw.choice((value + 1, -value, *(r for r in REALS if abs(r) < 1e301)))
    if isinstance(value, str):
        return draw.choice((value + "x", value[:-1], "", value.lower(), value.upper()))
    return draw.choice((None, 0, "", [], {}))
