"""The Vulkan instances of this process, with the validation layer if requested."""

from __future__ import annotations

import _thread
import logging
import signal
import threading
from typing import Any

from weft import config
from weft.backends.vulkan._vk import NULL, Arena, check, enumerate_all, failure, ffi, lib, string, vk
from weft.errors import DeviceError, NoDevice

log = logging.getLogger("weft.vulkan")

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
NO_DRIVER_FIX = (
    "install a driver: NVIDIA's or AMD's own (is its *_icd.json under /usr/share/vulkan/icd.d?), or "
    "`apt install mesa-vulkan-drivers` for Intel, AMD and the CPU (llvmpipe); see `vulkaninfo --summary`"
)
_PORTABILITY = "VK_KHR_portability_enumeration"
_WANTED_API = (1 << 22) | (3 << 12)

_MOMENT = 0.05
"""Seconds after which a message callback has certainly returned."""

_lock = threading.Lock()
_instances: dict[bool, Any] = {}
_messages: list[str] = []
_lasting: list[Any] = []


def validation_messages() -> list[str]:
    """Return the validation layer's warnings and errors so far; callers may clear the list."""
    return _messages


def instance() -> Any:
    """Return this process's instance; there is one with validation and one without."""
    validated = config.vulkan_validation()
    with _lock:
        if validated not in _instances:
            _instances[validated] = _create(validated)
        return _instances[validated]


def _create(validated: bool) -> Any:
    arena = Arena()
    extensions, flags = [], 0
    if _PORTABILITY in _extensions(NULL):
        extensions.append(_PORTABILITY)
        flags = vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
    following = NULL
    if validated:
        extensions.append("VK_EXT_debug_utils")
        following = _validation(arena, extensions)
    application = arena.new("VkApplicationInfo", pApplicationName="weft", apiVersion=_WANTED_API)
    info = arena.new(
        "VkInstanceCreateInfo",
        pNext=following,
        flags=flags,
        pApplicationInfo=application,
        enabledLayerCount=int(validated),
        ppEnabledLayerNames=[VALIDATION_LAYER] if validated else [],
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=extensions,
    )
    made = ffi.new("VkInstance*")
    result = lib.vkCreateInstance(info, NULL, made)
    if result == vk.VK_ERROR_INCOMPATIBLE_DRIVER:
        raise NoDevice("Vulkan has no driver to work with", why=failure(result, "").why, fix=NO_DRIVER_FIX)
    check(result, "the Vulkan instance cannot be created")
    if validated:
        _listen(made[0])
    return made[0]


def _extensions(layer: Any) -> set[str]:
    found = enumerate_all(
        lib.vkEnumerateInstanceExtensionProperties,
        "VkExtensionProperties",
        "the extensions of Vulkan cannot be listed",
        layer,
    )
    return {string(e.extensionName) for e in found}


def _validation(arena: Arena, extensions: list[str]) -> Any:
    """Return the structs that enable synchronization validation; DeviceError if the layer is missing."""
    layers = enumerate_all(
        lib.vkEnumerateInstanceLayerProperties, "VkLayerProperties", "the layers of Vulkan cannot be listed"
    )
    if VALIDATION_LAYER not in {string(layer.layerName) for layer in layers}:
        raise DeviceError(
            "the Vulkan validation layer is requested but not installed",
            where="WEFT_VULKAN_VALIDATION=1",
            why=f"the loader finds no {VALIDATION_LAYER}",
            fix="apt install vulkan-validationlayers, or unset WEFT_VULKAN_VALIDATION",
        )
    layer_name = arena.keep(ffi.new("char[]", VALIDATION_LAYER.encode()))
    if "VK_EXT_validation_features" not in _extensions(layer_name):
        log.warning("this validation layer does not check synchronization")
        return NULL
    extensions.append("VK_EXT_validation_features")
    enabled = [vk.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT]
    return arena.new("VkValidationFeaturesEXT", enabledValidationFeatureCount=1, pEnabledValidationFeatures=enabled)


def _heard(severity: int, kind: int, data: Any, user: Any) -> int:
    text = string(data.pMessage) if data.pMessage != NULL else ""
    _messages.append(text)
    log.error("vulkan validation: %s", text)
    return 0


def _not_heard(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Handle an exception raised in the message callback, which cannot pass through the driver.

    Python raises a Ctrl-C in the next Python code that runs, which may be the callback. Send it again a moment
    later, because here it would be lost.
    """
    if issubclass(kind, KeyboardInterrupt):
        threading.Timer(_MOMENT, _interrupt_main_thread).start()
    else:
        log.error("a message of the Vulkan validation layer was lost: %s", error, exc_info=error)


def _interrupt_main_thread() -> None:
    """Interrupt the main thread as Ctrl-C does; if signals allow it, also in a waiting system call."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _listener() -> Any:
    """Return the callback that gets each message of the layer."""
    return ffi.callback(
        "VkBool32(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT, "
        "const VkDebugUtilsMessengerCallbackDataEXT*, void*)",
        _heard,
        onerror=_not_heard,
    )


def _listen(made: Any) -> None:
    """Collect the layer's messages; the callback lives as long as the process, like the instance."""
    arena = Arena()
    callback = arena.keep(_listener())
    info = arena.new(
        "VkDebugUtilsMessengerCreateInfoEXT",
        messageSeverity=vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
        | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
        | vk.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        pfnUserCallback=callback,
    )
    name = ffi.new("char[]", b"vkCreateDebugUtilsMessengerEXT")
    function = ffi.cast("PFN_vkCreateDebugUtilsMessengerEXT", lib.vkGetInstanceProcAddr(made, name))
    messenger = ffi.new("VkDebugUtilsMessengerEXT*")
    check(function(made, info, NULL, messenger), "the validation layer's messages cannot be received")
    _lasting.append((arena, messenger))
