"""Figures of kinds of device that cost estimates read: how fast they are, and from which sizes a kernel pays.

`device_models.json` holds them, so no algorithm knows a device by its name. A device reports for itself what differs
within a kind: compute units, work-group memory, matrix units (`DeviceCaps`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("device_models.json")


@dataclass(frozen=True, eq=False)
class DeviceModel:
    """The figures of a kind of device. "A unit" is a compute unit; products are multiply-adds."""

    measured_on: str
    """Where the figures come from."""

    # -- what a device does in a time
    usual_units: int
    """Units of a device whose driver does not report them."""
    resident_items: int
    """Work-items that a unit holds at a time."""
    unit_registers: int
    """Registers that the work-items on a unit share."""
    unit_memory: int
    """Bytes of work-group memory of a unit, which the groups on it share."""
    group_memory: int
    """Bytes of it that each group takes besides its own."""
    busy_items: int
    """Work-items that keep a unit busy."""
    read_bytes: float
    """Bytes that a unit reads in a microsecond."""
    summed: float
    """Partial sums that the whole device writes and reads again in a microsecond."""
    group_vectors: float
    """Vectors of 16 bytes that a unit reads from work-group memory in a microsecond."""
    unit_products: float
    """Products in fp32 that a unit computes in a microsecond."""
    item_products: float
    """Products in fp32 that a work-item computes in a microsecond, one after the other."""
    round_us: float
    """Microseconds that a round of steps along K takes when it waits for memory."""
    unit_vectors: float
    """Vectors of four elements that the work-items on a unit load from its cache in a microsecond."""
    launch_us: float
    """Microseconds that one more launch takes."""
    between_launches_us: float
    """Microseconds between a launch and one that depends on it; timestamps do not show them."""
    products_per_float: int
    """Products that an fp32 kernel computes in the time in which it reads or writes a float."""
    products_per_launch: int
    """Products that a unit computes in the time of the two extra launches of Winograd's method."""
    idle_products: int
    """Products with zeros, for each unit, that cost less than a launch."""
    reused_pixels: int
    """Products with zeros are cheap only if each weight is multiplied with at least so many pixels."""

    # -- from which sizes something pays
    many_units: int
    """With at least so many units, small work-groups start too slowly to keep all of them busy."""
    split_products: int
    """A convolution needs at least so many products for fp32, split into halves, to pay on matrix units."""
    planar_products: int
    """Up to so many products, reading an image as NCHW beats packing it for matrix units."""
    gemm_items: int
    """A tile of the portable GEMM must give each unit at least so many work-items."""
    gemm_sliced_items: int
    """The same for a tile with slices of K."""
    gemm_long_steps: int
    """With more steps of K, a tile of few items that each compute more is faster."""
    unstaged_squares: int
    """Up to so many tiles of 16 x 16 for each unit, matrix units are faster without staging."""
    group_short_depth: int
    """Up to this depth, the smallest tile of full width is best for matrices of work-groups."""
    group_long_depth: int
    """From this depth on, small products are faster without staging than on matrices of work-groups."""
    warpgroup_short_steps: int
    """With at most so many steps, a tile of warpgroups should share its unit with two others."""
    pooled_vectors: int
    """Up to so many pixels of four channels for each unit, the convolution that reads a pool computes it."""
    pooled_channels: int
    """The most output channels that such a convolution may have."""
    prologue_channels: int
    """The most output channels of a convolution that applies steps as it loads: each group applies them again."""
    pair_products: int
    """Up to so many products, each work-group computes the first of two 1 x 1 convolutions of a pixel itself."""
    depthwise_items: int
    """A tile of depthwise convolutions must give each unit at least so many work-items."""
    depthwise_staged_taps: int
    """Depthwise convolutions are staged in work-group memory if their window has at least so many taps."""
    matmul_tiles: int
    """A product must have at least so many tiles for each unit."""
    column_items: int
    """Work-items that share a column of a product of few rows; CPUs switch between items at barriers."""
    attention_subgroups: int
    """In attention, more subgroups than this on a unit slow each other down."""
    front_pixels: int
    """A node runs on parts of the batch if a part has at least so many pixels for each unit."""

    # -- how the tiles of convolutions by warpgroups compare, in units of their own
    warpgroup_store_columns: int
    """Columns that storing a row of sums takes longer than its own columns."""
    wgmma_product: float
    """Time of a product in `conv_wgmma`."""
    wgmma_read: float
    """Time of an operand that it reads."""
    wgmma_store: float
    """Time of a sum that it stores."""
    wgmma_alone: float
    """Factor for a work-group that has a unit to itself, so that nobody multiplies while it stores."""
    wgmma_first_waits: Sequence[float]
    """With few steps, the share of its time that a work-group waits for the first one, by how many share its unit."""
    split_wgmma_step_columns: int
    """Columns that a step of `conv_split_wgmma` takes longer than its own columns."""
    split_wgmma_store: float
    """Time of a sum that it stores."""
    split_wgmma_three_planes: float
    """Factor for weights in three planes."""
    split_wgmma_alone: float
    """Factor for a warpgroup that has a unit to itself."""

    costs: Mapping[str, float]
    """The share of the portable kernel's time that an algorithm takes, by its name: where it has much work, or, with
    "little work" behind the name, where units wait."""


@dataclass(frozen=True)
class Peaks:
    """What a device can do in a second, as its datasheet says."""

    fp32: float
    """Operations in fp32."""
    fp16: float
    """Operations in fp16 on matrix units, summed in fp32, without sparsity."""
    bandwidth: float
    """Bytes that its memory transfers."""


def _read(kind: str) -> Any:
    return json.loads(DATA.read_text(encoding="utf-8"))[kind]


def _models() -> dict[str, DeviceModel]:
    """Return the models by kind; what a kind does not say is as with "gpu"."""
    kinds: dict[str, dict[str, Any]] = _read("kinds")
    names = {f.name for f in fields(DeviceModel)}
    assert all(held.keys() <= names for held in kinds.values()), "device_models.json has a figure that nothing reads"
    return {kind: DeviceModel(**{**kinds["gpu"], **held}) for kind, held in kinds.items()}


MODELS = _models()
"""The models by kind: "gpu", and "software" for CPUs behind an API of GPUs."""


@cache
def _peaks() -> dict[str, Peaks]:
    return {words: Peaks(*map(float, held)) for words, held in _read("peaks").items()}


def peaks_of(name: str) -> Peaks | None:
    """Return the peaks of a device by its name, or None if no datasheet is known.

    Each datasheet has a pattern of whole words of the name; the first that matches counts.
    """
    return next((p for words, p in _peaks().items() if re.search(rf"\b{words}\b", name)), None)
