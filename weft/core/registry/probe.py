"""Checks what a creator says about its hardware; a creator that does not answer properly counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from weft.core.contract.backend import BackendCreator, DeviceInfo
from weft.core.contract.error_context import FAILURES, sent_by_signal
from weft.errors import Reason, WeftError, brief


def described(error: BaseException) -> str:
    """Return an exception in one line."""
    said = (error.what, error.why) if isinstance(error, WeftError) else (str(error),)
    return brief(": ".join(filter(None, (type(error).__name__, *(" ".join(text.split()) for text in said)))))


def present(creator: BackendCreator) -> tuple[list[DeviceInfo], str | None]:
    """Return the devices of a kind in the order of their indices; if none can run here, an empty list and the reason.

    Devices get the creator's id, whatever id they were given. A creator that fails to answer is absent; the reason is
    what it raised or returned.
    """
    asked = "absent"
    try:
        why: object = creator.absent()
        if why is not None:
            return [], _reason(why, "absent()")
        asked = "devices"
        found: object = creator.devices()
    except FAILURES as e:
        if sent_by_signal(e):
            raise
        return [], f"asking whether it is there failed: {_named(creator, asked)} raised {described(e)}"
    wrong = _why_not_devices(found)
    if wrong is not None:
        return [], f"{_named(creator, 'devices')} {wrong}"
    assert isinstance(found, (list, tuple))
    own = [d if d.id == creator.id else replace(d, id=creator.id) for d in found]
    return sorted(own, key=lambda d: d.index), None


def unusable(creator: BackendCreator, index: int) -> str | None:
    """Return why nothing can run on a present device, or None; a failure of the creator to answer is a reason, too."""
    try:
        why: object = creator.unusable(index)
    except FAILURES as e:
        if sent_by_signal(e):
            raise
        return f"asking whether it works failed: {_named(creator, 'unusable')} raised {described(e)}"
    return None if why is None else _reason(why, "unusable()")


def hidden(creator: BackendCreator) -> list[str]:
    """Return which devices the user hides, a sentence each; a creator that fails to answer hides none."""
    try:
        found: object = creator.hidden()
    except FAILURES as e:
        if sent_by_signal(e):
            raise
        return []
    return [brief(str(each)) for each in found] if isinstance(found, (list, tuple)) else []


def _named(creator: BackendCreator, function: str) -> str:
    return f"{type(creator).__name__}.{function}"


def _reason(why: object, function: str) -> str:
    if not isinstance(why, str):
        return f"{function} of its creator returned {brief(repr(why))}, which is not a reason in words"
    if isinstance(why, Reason):
        return Reason(brief(why.what), brief(why.fix))
    return brief(why) if why.strip() else "its creator gives no reason"


def _why_not_devices(found: object) -> str | None:
    """Return what is wrong with an answer of `devices`, or None."""
    if not isinstance(found, (list, tuple)):
        return f"returned {brief(repr(found))}, which is not a list of DeviceInfo"
    if not found:
        return "found no device, though its creator says that there is one"
    for each in found:
        if not isinstance(each, DeviceInfo):
            return f"returned {brief(repr(each))} among the devices, which is not a DeviceInfo"
        if type(each.index) is not int or each.index < 0:
            return f"gave a device the index {brief(repr(each.index))}, which is not a number from 0 on"
        if not isinstance(each.name, str) or not isinstance(each.driver, str):
            return f"gave device {each.index} a name or driver that is no text: {brief(repr((each.name, each.driver)))}"
        if not isinstance(each.uuid, str) or not isinstance(each.pci, str):
            both = brief(repr((each.uuid, each.pci)))
            return f"gave device {each.index} a UUID or PCI address that is no text: {both}"
        if not isinstance(each.software, (bool, np.bool_)):
            return f"says of device {each.index} that it is software: {brief(repr(each.software))}, not True or False"
        if not isinstance(each.details, Mapping):
            return f"gave device {each.index} details that are not a mapping: {brief(repr(each.details))}"
    indices = [each.index for each in found]
    twice = next((index for index in indices if indices.count(index) > 1), None)
    return None if twice is None else f"lists two devices with the index {twice}"
