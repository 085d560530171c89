"""Tells whether Vulkan can be used here, and if not, what to install. Importing this module loads nothing."""

from __future__ import annotations

from weft.errors import WeftError

_FIX_PACKAGE = "pip install vulkan cffi"


def absent_reason() -> str | None:
    """Return why no Vulkan device can be used and what to do about it, or None if one can."""
    try:
        import vulkan  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return f"the Python package `vulkan` is not installed: {_FIX_PACKAGE}"
    except OSError:
        return (
            "the Vulkan loader (libvulkan) is not installed: apt install libvulkan1, and a driver, "
            "for instance mesa-vulkan-drivers or NVIDIA's own"
        )
    from weft.backends.vulkan.instance import NO_DRIVER_FIX
    from weft.backends.vulkan.physical import physical_devices

    try:
        found = physical_devices()
    except WeftError as e:
        return "; ".join(part for part in (e.what, e.why, e.fix) if part)
    return None if found else f"Vulkan finds no device with Vulkan 1.1 and a compute queue: {NO_DRIVER_FIX}"
