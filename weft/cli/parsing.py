"""Parses the texts of options: devices, shapes, hints, limits, precisions, options of backends."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.contract.backend import Precision
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Limits
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceName
from weft.core.session.arguments import take_shape
from weft.errors import ConfigError

ALL = "all"


def device_orders(text: str) -> list[list[str]]:
    """Return, for each run that is asked for, its devices in order of preference."""
    orders: list[list[str]] = []
    for part in text.split(","):
        names = [name.strip() for name in part.split("+") if name.strip()]
        if names == [ALL]:
            orders += [[f"{d.id}:{d.index}"] for d in registry.devices()]
        elif ALL in names:
            raise ConfigError(
                f"{ALL!r} cannot be one of several devices of a run",
                where=f"--device {text!r}",
                why=f"{ALL!r} is every device, in a run each",
                fix='write "all" alone, or "auto" for the devices that Weft prefers: auto+cpu',
            )
        elif names:
            orders.append(names)
    if not orders:
        raise ConfigError("no device was named", where=f"--device {text!r}", fix='write "cpu", "vulkan" or "all"')
    for names in orders:
        registry.choose(names)
    return orders


def parse_pairs(
    given: Sequence[str] | None, option: str, example: str, *, at_first: bool = False
) -> dict[str, str]:
    """Return the NAME=VALUE arguments of an option as a dict; names may have a "=", or values if cut `at_first`."""
    pairs: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=") if at_first else text.rpartition("=")
        if not (name and equals and value):
            raise ConfigError(
                f"{option} {text!r} is not NAME=VALUE", fix=f"write, for instance, {option} {example}"
            )
        if name in pairs:
            raise ConfigError(
                f"{name!r} is given twice",
                where=f"{option} {name}={pairs[name]} and {option} {text}",
                fix=f"keep one {option} for {name!r}",
            )
        pairs[name] = value
    return pairs


def parse_hints(given: Sequence[str] | None) -> dict[str, DeviceName]:
    """Return the devices of `--hint` by the name or pattern of nodes."""
    return dict(parse_pairs(given, "--hint", "head/*=cpu"))


def parse_backend_options(given: Sequence[str] | None) -> dict[DeviceName, dict[str, object]]:
    """Return the values of `--backend-option` by backend, in the types that the backends declare."""
    found: dict[DeviceName, dict[str, object]] = {}
    for key, text in parse_pairs(given, "--backend-option", "vulkan.tuning=no", at_first=True).items():
        backend, dot, name = key.partition(".")
        if not (backend and dot and name):
            raise ConfigError(
                f"--backend-option {key}={text} is not BACKEND.NAME=VALUE",
                fix="write, for instance, --backend-option vulkan.tuning=no",
            )
        declared = registry.find(backend).options if registry.is_registered(backend) else ()
        option = next((each for each in declared if each.name == name), None)
        found.setdefault(backend.lower(), {})[name] = option.parse(text) if option else text
    return found


def parse_limits(given: Sequence[str] | None) -> Limits:
    """Return the limits of `--limit`; the others are as by default."""
    found: dict[str, float] = {}
    for name, text in parse_pairs(given, "--limit", "nodes=1000000").items():
        try:
            found[name] = int(text)
        except ValueError:
            try:
                found[name] = float(text)
            except ValueError:
                fix = "write, for instance, --limit nodes=1000000"
                raise ConfigError(f"--limit {name}={text} is not a number", fix=fix) from None
    return Limits.of(found)


def parse_state(given: Sequence[str] | None) -> bool | dict[str, str]:
    """Return the pairs of `--state` by input; True for "auto", and False if there are none."""
    if given and "auto" in given:
        if len(given) > 1:
            raise ConfigError(
                "--state auto stands beside other pairs", why="it finds all pairs by the names that exporters use",
                fix="give --state auto alone, or only pairs",
            )
        return True
    return parse_pairs(given, "--state", '"past*=present*", or --state auto') or False


def parse_shapes(given: Sequence[str] | None) -> dict[str, Shape]:
    """Return the shapes of `--shape` by input name."""
    shapes: dict[str, Shape] = {}
    for name, value in parse_pairs(given, "--shape", "x=1,3,224,224").items():
        try:
            sizes = tuple(int(d) for d in value.replace("x", ",").split(","))
        except ValueError:
            raise ConfigError(
                f"--shape {name}={value} is not a list of numbers",
                fix=f"write, for instance, --shape {name}=1,3,224,224, or --shape {name}=2 if it is a dimension",
            ) from None
        shapes[name] = take_shape(name, sizes)
    return shapes


def parse_precisions(text: str) -> list[Precision]:
    """Return the precisions of "high,low"."""
    names = {p.value: p for p in Precision}
    wrong = [part for part in text.split(",") if part.strip().lower() not in names]
    if wrong:
        raise ConfigError(f"--precision {text!r} is not known", fix=f"use some of {', '.join(names)}")
    return [names[part.strip().lower()] for part in text.split(",")]
