"""Tells whether Vulkan can be used here, and if not, what to install. Importing this module loads nothing."""

from __future__ import annotations

from weft.backends.gpu.device.cards import UNHIDE
from weft.backends.gpu.device.driver_parts import unlisted
from weft.errors import Reason, WeftError

_FIX_PACKAGE = "pip install vulkan cffi"
_FIX_LOADER = "apt install libvulkan1, and a driver, for instance mesa-vulkan-drivers or NVIDIA's own"


def absent_reason() -> Reason | None:
    """Return why no Vulkan device can be used and what to do about it, or None if one can."""
    try:
        import vulkan  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return Reason("the Python package `vulkan` is not installed", _FIX_PACKAGE)
    except OSError:
        return Reason("the Vulkan loader (libvulkan) is not installed", _FIX_LOADER)
    from weft.backends.vulkan.instance import NO_DRIVER_FIX
    from weft.backends.vulkan.physical import listed_devices

    try:
        found, shown = listed_devices()
    except WeftError as e:
        return _with_cards(Reason(e.short, e.fix))
    if found and not shown.shown:
        return Reason(f"all Vulkan devices are hidden: {'; '.join(shown.notes)}", UNHIDE)
    if found:
        return None
    return _with_cards(Reason("Vulkan finds no device with Vulkan 1.1 and a compute queue", NO_DRIVER_FIX))


def _with_cards(reason: Reason) -> Reason:
    """Return why there is no device, with what is missing of the driver of a card that is in the machine."""
    lacking = [each.reason for each in unlisted("vulkan", ())]
    return Reason(f"{reason.what}: {lacking[0].what}", lacking[0].fix) if lacking else reason


def listed_vendors() -> set[int] | None:
    """Return the PCI ids of the vendors whose devices Vulkan lists, hidden ones too; None without package or loader."""
    try:
        from weft.backends.vulkan.physical import listed_devices
    except (ImportError, OSError):
        return None
    try:
        return {device.card.vendor for device in listed_devices()[0] if not device.software}
    except WeftError:
        return set()


def hidden() -> list[str]:
    """Return what the user's variables hide, a sentence each; nothing where Vulkan cannot be asked."""
    try:
        from weft.backends.vulkan.physical import listed_devices

        return listed_devices()[1].notes
    except (ImportError, OSError, WeftError):
        return []
