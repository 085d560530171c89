"""What a session asks of its backends, in the contract's terms: devices, storage, memory, precision, power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from weft.errors import ConfigError

EnumT = TypeVar("EnumT", bound=Enum)


def member(kind: type[EnumT], value: str | EnumT, name: str) -> EnumT:
    """Return the member of an enumeration that a user's value means; ConfigError, which names the option, if none."""
    if isinstance(value, kind):
        return value
    try:
        return kind(str(value).lower())
    except ValueError:
        names = ", ".join(repr(m.value) for m in kind)
        raise ConfigError(f"{name}={value!r} is not known", fix=f"use one of {names}") from None


class ForwardType(Enum):
    """The kinds of device that a user can ask for, with MNN's numbers."""

    CPU = 0
    OPENCL = 3
    AUTO = 4
    VULKAN = 7
    USER_0 = 8
    USER_1 = 9
    USER_2 = 10
    USER_3 = 11


class StorageType(Enum):
    """How long a tensor's memory lives, and whether it is reused.

    STATIC: from acquire to release or the end of the backend; a clear keeps it. For constants.
    DYNAMIC: from acquire to release, then reused; a clear frees it. For activations.
    DYNAMIC_SEPERATE (the contract's spelling): from acquire to clear; a release does nothing. For inputs.
    STATE: like STATIC, but runs write it: what one leaves there is what the next reads. Only a backend that
    `keeps_state` is asked for it.
    """

    STATIC = "static"
    DYNAMIC = "dynamic"
    DYNAMIC_SEPERATE = "dynamic_seperate"
    STATE = "state"

    @property
    def stays(self) -> bool:
        """Tell whether the memory is there from its acquire on, and a clear keeps it: STATIC and STATE."""
        return self in (StorageType.STATIC, StorageType.STATE)


class MemoryMode(Enum):
    """NORMAL: no limit. LIMIT: save memory, with smaller scratch and no second copies of weights."""

    NORMAL = "normal"
    LIMIT = "limit"


class Precision(Enum):
    """HIGH: strict fp32. NORMAL: fp32 storage, fp32-class accuracy. LOW: fp16 storage, fp32 accumulation.

    On GPUs with matrix units, NORMAL splits each number into two halves to compute convolutions and products with
    constant weights: a layer is within about 1e-6 of fp32 by norm. Its activations may reach 1.6e7; larger ones become
    infinite. Activations below 2^-6 lose up to 2^-28 (4e-9) each: a layer whose activations are all about 1e-3
    is off by 2e-6, and one of 1e-4 by 2e-5. Weights may have any size. On other devices NORMAL is HIGH.

    At HIGH all arithmetic is fp32, but GPUs may use Winograd's algorithm to save multiplications in large convolutions:
    such a layer is within about 2e-6 of the exact one by norm. Its error follows the largest of 6 x 6 inputs: one of
    1e4 among inputs of 1 leaves 0.2 in the outputs near it. Memory mode LIMIT and `winograd=False` avoid it.
    """

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Power(Enum):
    """What a session asks of a device's clocks, for backends of others that can set them.

    Weft's own run at whatever clock the device has, and the report says so for all but NORMAL.
    """

    NORMAL = "normal"
    HIGH = "high"
    LOW = "low"


class Wait(Enum):
    """For what a load waits. ALL: for everything. FIRST: for kernels that are soon there; better ones follow.

    AUTO is FIRST on GPUs and ALL on software devices.
    """

    AUTO = "auto"
    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """What a session asks of its backends."""

    memory: MemoryMode = MemoryMode.NORMAL
    precision: Precision = Precision.HIGH
    power: Power = Power.NORMAL
    fusing: bool = True
    """Whether a backend may fuse several nodes into one; if not, every value is rounded to its stored type."""
    winograd: bool = True
    """Whether a convolution may use Winograd's algorithm, with fewer multiplications and a larger error."""

    @property
    def switched_off(self) -> tuple[str, ...]:
        """Return the names of what a backend must not do."""
        return tuple(name for name in ("fusing", "winograd") if not getattr(self, name))


def not_granted(config: BackendConfig, *, faster_arithmetic: bool = False) -> list[str]:
    """Return what a configuration asks of a device in vain, as sentences for the report.

    `faster_arithmetic` says whether the device has arithmetic for precision NORMAL that is faster than that for HIGH.
    """
    out = []
    if config.precision is Precision.NORMAL and not faster_arithmetic:
        out.append("precision NORMAL was computed as HIGH: there is no faster arithmetic of fp32 accuracy")
    if config.power is not Power.NORMAL:
        out.append(f"power {config.power.name} was not granted: clocks cannot be set from here")
    return out


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that a backend found."""

    id: str
    index: int
    name: str
    driver: str = ""
    software: bool = False
    details: Mapping[str, object] = field(default_factory=dict)
    uuid: str = ""
    """What tells the device from all others, as its vendor's tools print it ("GPU-" and a UUID); empty if unknown."""
    pci: str = ""
    """Its PCI address, "0000:65:00.0"; empty if it has none or the driver does not say."""

    @property
    def identity(self) -> str:
        """Return the name that means this device wherever it is listed, "vulkan:GPU-..."; its usual name if none is."""
        return f"{self.id}:{self.uuid or self.pci or self.index}"
