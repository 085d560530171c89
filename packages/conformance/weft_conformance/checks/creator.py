"""The creator: what it says about its devices, and what it makes (M1, M13, M14)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from weft.core.contract.backend import API_VERSION, Backend, DeviceInfo, is_compatible
from weft.core.contract.engine import Engine
from weft_conformance.kit import Kit, check
from weft_conformance.report import Finding


@check("creator", "M1 M2 M13 M14", "devices, versions, statistics and notes are what they should be")
def creator(kit: Kit) -> Iterable[Finding]:
    """Ask the creator and one backend object for all that they report."""
    yield kit.attempt("devices", _devices, kit)
    yield kit.attempt("version of the interface", _version, kit)
    yield kit.attempt("objects", _objects, kit)


def _devices(kit: Kit) -> str:
    made = kit.choice.creator
    if made.absent() is not None:
        return f"absent() says {made.absent()!r}, and the device can be opened"
    devices = made.devices()
    if not devices or not all(isinstance(d, DeviceInfo) for d in devices):
        return f"devices() returned {devices!r}"
    if [d.index for d in devices] != list(range(len(devices))):
        return f"the indices of the devices are {[d.index for d in devices]}"
    foreign = [d.id for d in devices if d.id.lower() != made.id.lower()]
    return f"devices of {made.id!r} have the id {foreign[0]!r}" if foreign else ""


def _version(kit: Kit) -> str:
    version = kit.choice.creator.api_version
    if version is not None and not is_compatible(version):
        return f"it was written for interface {version}, and this one is {API_VERSION}"
    return ""


def _objects(kit: Kit) -> str:
    with kit.opened() as one, kit.opened() as other:
        if one is other:
            return "onCreate gave one object to two pipelines"
        return _told(one, kit)


def _told(backend: Backend, kit: Kit) -> str:
    if backend.info.id.lower() != kit.choice.creator.id.lower() or backend.info.index != kit.choice.index:
        return f"it was made for {kit.device} and says it is {backend.info.device}"
    known = Engine if isinstance(backend, Engine) else Backend
    unknown = [name for name in dir(type(backend)) if re.match("on[A-Z]", name) and not hasattr(known, name)]
    if unknown:
        kit.note(f"nothing calls {', '.join(unknown)} of {type(backend).__name__}: the contract has no such callback")
    statistics: object = backend.statistics()
    if not isinstance(statistics, Mapping):
        return f"statistics() returned {statistics!r} instead of a mapping of names to whole numbers"
    strange = [f"{k!r}: {v!r}" for k, v in statistics.items() if not (isinstance(k, str) and isinstance(v, int))]
    if strange:
        return f"statistics() has {', '.join(strange)}; names and whole numbers were expected"
    notes: object = backend.notes()
    if not isinstance(notes, Sequence) or isinstance(notes, str):
        return f"notes() returned {notes!r} instead of a list of sentences"
    empty = [n for n in notes if not isinstance(n, str) or not n.strip()]
    return f"notes() has {empty[0]!r}" if empty else ""
