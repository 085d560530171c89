"""The only door to the `vulkan` package: its raw functions, structs that stay alive, results in words.

The package's own wrappers cost 5-11 us a call and free what nested structs point to. So Weft uses only its cffi
objects: `lib` (functions and enums), `ffi`, and `Arena` to build structs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from vulkan import _vulkan  # type: ignore[import-untyped,import-not-found,unused-ignore]

from weft.errors import DeviceError, DeviceLost, OutOfMemory

vk: Any = _vulkan
"""The API's constants as plain ints; the package's VK_WHOLE_SIZE is wrong, hence the one below."""
ffi: Any = _vulkan.ffi
lib: Any = _vulkan.lib
NULL: Any = ffi.NULL
WHOLE_SIZE = 2**64 - 1

_DRIVER = "update the graphics driver"
_LEARN = "set WEFT_VULKAN_VALIDATION=1 to learn more"
_REPORT = "report this with the model"
_WORDS: dict[int, tuple[str, str, str]] = {
    1: ("VK_NOT_READY", "the work is not finished", "wait for it first"),
    2: ("VK_TIMEOUT", "the work did not finish in time", "see the system log for a reset of the device"),
    -1: ("VK_ERROR_OUT_OF_HOST_MEMORY", "the host has no memory left", "close other programs"),
    -2: ("VK_ERROR_OUT_OF_DEVICE_MEMORY", "the device has no memory left", "close other sessions"),
    -3: ("VK_ERROR_INITIALIZATION_FAILED", "the driver could not start", _DRIVER),
    -4: ("VK_ERROR_DEVICE_LOST", "the device stopped answering", "see the system log; open the session again"),
    -5: ("VK_ERROR_MEMORY_MAP_FAILED", "the memory cannot be mapped for the host", "use smaller buffers"),
    -6: ("VK_ERROR_LAYER_NOT_PRESENT", "a layer is not installed", "apt install vulkan-validationlayers"),
    -7: ("VK_ERROR_EXTENSION_NOT_PRESENT", "the driver lacks an extension", _DRIVER),
    -8: ("VK_ERROR_FEATURE_NOT_PRESENT", "the driver lacks a feature", _DRIVER),
    -9: ("VK_ERROR_INCOMPATIBLE_DRIVER", "no usable driver was found", "install a Vulkan driver"),
    -10: ("VK_ERROR_TOO_MANY_OBJECTS", "the driver's limit of objects is reached", "close other sessions"),
    -12: ("VK_ERROR_FRAGMENTED_POOL", "a descriptor pool is fragmented", _REPORT),
    -13: ("VK_ERROR_UNKNOWN", "the driver failed without saying why", _LEARN),
    -1000069000: ("VK_ERROR_OUT_OF_POOL_MEMORY", "a descriptor pool is used up", _REPORT),
    -1000012000: ("VK_ERROR_INVALID_SHADER_NV", "the driver refused a shader", _DRIVER),
}
NOT_THE_KERNELS_FAULT = (-1, -2, -4)
"""Results that say nothing of a kernel that could not be built: no memory, or a lost device."""


def words(result: int) -> str:
    """Return what a VkResult means, with its name."""
    name, meaning, _ = _WORDS.get(result, (f"VkResult {result}", "the driver refused", ""))
    return f"{meaning} ({name})"


def failure(result: int, what: str, where: str = "") -> DeviceError:
    """Return the error for a VkResult."""
    kind: type[DeviceError] = {-1: OutOfMemory, -2: OutOfMemory, -4: DeviceLost}.get(result, DeviceError)
    fix = _WORDS.get(result, ("", "", _LEARN))[2]
    return kind(what, where=where, why=words(result), fix=fix)


def check(result: int, what: str, where: str = "") -> None:
    """Raise the error for `result` unless it is VK_SUCCESS; `what` says what failed."""
    if result != 0:
        raise failure(result, what, where)


_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=[A-Z](?!it))|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(maxsize=256)
def _fields(name: str) -> dict[str, Any]:
    return dict(ffi.typeof(name).fields)


@lru_cache(maxsize=256)
def _structure_type(name: str) -> int:
    """Return the sType of a struct: VkSubmitInfo is VK_STRUCTURE_TYPE_SUBMIT_INFO."""
    if name == "VkPhysicalDeviceShaderFloat16Int8Features":  # its digits do not follow the rule
        return int(vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES)
    return int(getattr(vk, "VK_STRUCTURE_TYPE_" + _WORD_STARTS.sub("_", name[2:]).upper()))


class Arena:
    """Builds C structs and keeps everything they point to alive; hold it as long as the structs are used."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def keep(self, made: Any) -> Any:
        """Keep `made` alive and return it."""
        self._held.append(made)
        return made

    def new(self, name: str, **values: Any) -> Any:
        """Return a pointer to a struct; sType is filled in, str becomes char*, a list an array."""
        fields = _fields(name)
        struct = self.keep(ffi.new(name + "*"))
        if "sType" in fields:
            struct.sType = _structure_type(name)
        for key, value in values.items():
            if isinstance(value, str):
                value = self.keep(ffi.new("char[]", value.encode()))
            elif isinstance(value, (list, tuple)) and fields[key].type.kind == "pointer":
                value = self.array(fields[key].type.item.cname, value) if value else NULL
            setattr(struct, key, value)
        return struct

    def array(self, item: str, values: Sequence[Any]) -> Any:
        """Return a C array; pointers to structs are copied in as structs, strings become char*."""
        if item.rstrip(" *").endswith("char"):
            values = [self.keep(ffi.new("char[]", v.encode())) for v in values]
            return self.keep(ffi.new("char*[]", values))
        made = self.keep(ffi.new(f"{item}[]", len(values)))
        for i, value in enumerate(values):
            struct = isinstance(value, ffi.CData) and ffi.typeof(value) is ffi.typeof(item + "*")
            made[i] = value[0] if struct else value
        return made


def create(function: Any, device: Any, info: Any, handle: str, what: str) -> Any:
    """Call a `vkCreate...` or `vkAllocate...` function of a device and return the handle."""
    out = ffi.new(handle + "*")
    check(function(device, info, NULL, out), what)
    return out[0]


def string(chars: Any) -> str:
    """Return a C string as str."""
    return str(ffi.string(chars).decode(errors="replace"))


def enumerate_all(function: Any, item: str, what: str, *arguments: Any) -> list[Any]:
    """Return all items of one of the two-call enumerations, `function(*arguments, count, items)`."""
    count = ffi.new("uint32_t*")
    result = function(*arguments, count, NULL)
    if result not in (0, 5, None):
        raise failure(result, what)
    items = ffi.new(f"{item}[]", max(1, count[0]))
    if ffi.typeof(item).kind == "struct" and "sType" in _fields(item):
        for i in range(count[0]):
            items[i].sType = _structure_type(item)
    result = function(*arguments, count, items)
    if result not in (0, 5, None):
        raise failure(result, what)
    if ffi.typeof(item).kind == "struct":
        return [ffi.new(item + "*", items[i]) for i in range(count[0])]
    return [items[i] for i in range(count[0])]
