"""What a session asks of its backends, in the contract's words: devices, storage, memory, precision, power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class ForwardType(Enum):
    """The kinds of device that can be asked for, with MNN's numbers."""

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

    STATIC: from acquire to release or the end of the backend; a clear leaves it. For constants.
    DYNAMIC: from acquire to release, then reused; freed by a clear. For activations.
    DYNAMIC_SEPERATE (the contract's spelling): from acquire to clear; a release does nothing. For inputs.
    """

    STATIC = "static"
    DYNAMIC = "dynamic"
    DYNAMIC_SEPERATE = "dynamic_seperate"


class MemoryMode(Enum):
    """NORMAL: no limit. LIMIT: thrifty; smaller scratch and no second copies of weights."""

    NORMAL = "normal"
    LIMIT = "limit"


class Precision(Enum):
    """HIGH: strict fp32. NORMAL: fp32 storage, fp32-class accuracy. LOW: fp16 storage, fp32 accumulation.

    On GPUs with matrix units NORMAL computes convolutions and products with constant weights from sums of two halves
    for each number: a layer is within about 1e-6 of fp32 by norm. Their activations may reach 1.6e7; beyond that they
    count as infinite. Those below 2^-6 lose up to 2^-28 (4e-9) each: a layer all of whose activations are about 1e-3
    is off by 2e-6, and one of 1e-4 by 2e-5. Weights may be of any size. Elsewhere NORMAL is HIGH.

    At HIGH all arithmetic is fp32, though GPUs may spare multiplications of large convolutions by Winograd's method:
    such a layer is within about 2e-6 of the exact one by norm. Its error goes with the largest of 6 x 6 inputs: one of
    1e4 among those of 1 leaves 0.2 in outputs near it. Memory mode LIMIT does without, as does `winograd=False`.
    """

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Power(Enum):
    """A wish about clocks; no backend of Weft can influence them, and the report says so."""

    NORMAL = "normal"
    HIGH = "high"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """What a session asks of its backends."""

    memory: MemoryMode = MemoryMode.NORMAL
    precision: Precision = Precision.HIGH
    power: Power = Power.NORMAL
    fusing: bool = True
    """Whether a backend may compute several nodes in one: without, every value is rounded to its stored type."""
    winograd: bool = True
    """Whether a convolution may spare multiplications by Winograd's method, at a larger error."""

    @property
    def switched_off(self) -> tuple[str, ...]:
        """Return what a backend must not do, by name."""
        return tuple(name for name in ("fusing", "winograd") if not getattr(self, name))


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that a backend found."""

    id: str
    index: int
    name: str
    driver: str = ""
    software: bool = False
    details: Mapping[str, object] = field(default_factory=dict)
