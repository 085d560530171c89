"""`weft devices`: the devices that networks can run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.tuning import rate_store
from weft.cli.console import line, plain, table
from weft.cli.json_output import JsonOption, answer
from weft.cli.options import BackendPathOption
from weft.cli.parsing import device_orders, parse_backend_options
from weft.core.contract.backend import DeviceInfo
from weft.core.contract.backend_options import Options, taken
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceChoice
from weft.core.registry.entries import WEFT
from weft.errors import ConfigError


def devices(
    backend_path: BackendPathOption = None,
    options: Annotated[
        bool, typer.Option("--options", help="List the options of the backends instead, for --backend-option.")
    ] = False,
    as_json: JsonOption = None,
) -> None:
    """List the devices that networks can run on, devices that do not work, and why other kinds are absent."""
    answer(as_json, _facts, _list_options if options else _list)


def _facts() -> dict[str, Any]:
    """Return all that is known of devices, as data."""
    choice = registry.choose("auto")[0]
    return {
        "devices": [as_dict(d) | {"measured": _measured(d)} for d in registry.devices()],
        "unusable": [as_dict(d) | {"use_as": f"{d.id}:{d.index}", "why": why} for d, why in registry.unusable()],
        "absent": registry.absent(),
        "hidden": registry.hidden(),
        "origins": registry.origins(),
        "skipped": registry.failures,
        "auto": {"device": choice.device, "why": choice.why},
        "options": {
            c.id: {o.name: {"default": o.default, "takes": o.takes, "doc": o.doc} for o in c.options}
            for c in registry.creators()
        },
    }


def _list() -> None:
    """Print the devices."""
    found, unusable, absent = registry.devices(), registry.unusable(), registry.absent()
    choice = registry.choose("auto")[0]
    rows = [_row(d, device_name(d), "software" if d.software else "hardware") for d in found]
    # An id alone means the first device that works.
    rows += [_row(d, f"{d.id}:{d.index}", "unusable") for d, _ in unusable]
    known = [any(cells) for cells in zip(*rows, strict=True)]
    head = ("use as", "device", "driver", "kind", "UUID", "PCI address")
    table(tuple(each for each, told in zip(head, known, strict=True) if told), [
        tuple(each for each, told in zip(row, known, strict=True) if told) for row in rows
    ])
    for id_, notes in registry.hidden().items():
        for note in notes:
            line(plain(f"{id_}: {note}"))
    for device, why in unusable:
        line(plain(f"{device.id}:{device.index} is unusable: {why}"))
    listed = {device.id for device, _ in unusable}
    for name, why in absent.items():
        if name not in listed:
            line(plain(f"{name} is absent: {why}"))
    for name, origin in registry.origins().items():
        if origin != WEFT:
            line(plain(f"{name} is from {origin}"))
    for origin, why in registry.failures.items():
        line(plain(f"{origin} is skipped: {why}"))
    line(plain(choice.why))


def _measured(info: DeviceInfo) -> dict[str, object] | None:
    """Return what a GPU was measured to do in a microsecond; None for others, and before that."""
    rates = rate_store.kept(info)
    return None if rates is None else rates.as_dict()


def _row(info: DeviceInfo, name: str, kind: str) -> tuple[str, ...]:
    return name, info.name, info.driver, kind, info.uuid, info.pci


def _list_options() -> None:
    """Print the options of each backend."""
    rows = [(f"{c.id}.{o.name}", o.takes, repr(o.default), o.doc) for c in registry.creators() for o in c.options]
    table(("option", "takes", "default", "what it does"), rows)
    for c in registry.creators():
        if not c.options:
            line(plain(f"{c.id} has no options"))


def device_name(info: DeviceInfo) -> str:
    """Return the name to use for a device: "vulkan", and "vulkan:1" for the second."""
    return f"{info.id}:{info.index}" if info.index else info.id


def gpus(device: str, backend_option: Sequence[str] | None) -> Iterator[tuple[DeviceChoice, GpuCreator, Options]]:
    """Yield each GPU that a `GpusOption` names, its creator and the options of its backend; ConfigError for no GPU."""
    given = parse_backend_options(backend_option)
    for [name] in device_orders(device):
        choice = registry.choose(name)[0]
        if isinstance(choice.creator, GpuCreator):
            yield choice, choice.creator, Options(taken(choice.creator, given.get(choice.creator.id, {})))
        elif device != "all":
            raise ConfigError(f"{name} is no GPU", why="its kernels are not Weft's", fix="name a GPU, or use `all`")


def as_dict(info: DeviceInfo) -> dict[str, object]:
    """Return the facts about a device for JSON."""
    kind = "software" if info.software else "hardware"
    own = {"use_as": device_name(info), "name": info.name, "driver": info.driver, "kind": kind}
    return {**own, "uuid": info.uuid, "pci": info.pci, "details": dict(info.details)}
