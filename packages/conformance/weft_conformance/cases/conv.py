"""Rows of Conv and ConvTranspose."""

from __future__ import annotations

from math import inf, nan

import numpy as np

from weft.core.graph.layout import Array
from weft_conformance.cases.table import Case, Input, case, const, f16, f32, f64, given


def with_specials(*shape: int) -> Input:
    """Return small numbers, of which a few far apart are NaN or infinite."""
    numbers = np.random.default_rng(3).uniform(-1, 1, shape)
    for place, special in zip(np.ndindex(2, 2), (nan, inf, -inf, nan), strict=True):
        at = (min(1 + 5 * far, size - 1) for far, size in zip(place, shape[2:], strict=True))
        numbers[(0, sum(place) % shape[1], *at)] = special
    return given(numbers)


def with_infinity(*shape: int) -> Array:
    """Return small weights, of which the first one is infinite."""
    numbers = np.random.default_rng(4).uniform(-1, 1, shape)
    numbers.flat[0] = -inf
    return numbers


CASES: list[Case] = [
    # padding counts as zeros, of which an infinite weight makes NaN
    *(case("Conv", x, const(with_infinity(*w), x.dtype), name="infinite", **how) for x, w, how in (
        (f32(1, 8, 9, 9), (8, 1, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}),
        (f32(1, 4, 17, 16), (4, 1, 15, 14), {"group": 4, "pads": (7, 6, 7, 7)}),
        (f32(1, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "pads": (2, 2, 2, 2), "dilations": (2, 2), "strides": (2, 1)}),
        (f32(1, 3, 8, 8), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
        (f32(1, 8, 7, 7), (8, 4, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
        (f32(1, 6, 7, 7), (9, 2, 2, 3), {"group": 3, "pads": (1, 0, 0, 1)}),
        (f32(1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"pads": (1, 1, 0, 0, 1, 1)}),
        (f64(1, 2, 5, 5), (2, 2, 3, 3), {"pads": (1, 1, 1, 1)}),
    )),
    case("Conv", f32(1, 8, 9, 9), given(with_infinity(8, 1, 3, 3)), group=8, pads=(1, 1, 1, 1), name="infinite"),
    # kernel sizes, strides, pads and channel counts that fall between blocks of four
    case("Conv", f32(1, 3, 8, 8), const(f32(4, 3, 3, 3)), pads=(1, 1, 1, 1)),
    case(
        "Conv", f32(1, 3, 8, 8), const(f32(4, 3, 3, 3)), const(f32(4)), pads=(1, 1, 1, 1), kernel_shape=(3, 3)
    ),
    case("Conv", f32(3, 1, 7, 9), const(f32(5, 1, 3, 3)), const(f32(5))),
    case("Conv", f32(1, 5, 7, 9), const(f32(7, 5, 1, 1)), const(f32(7))),
    case("Conv", f32(3, 8, 9, 7), const(f32(17, 8, 1, 1)), strides=(2, 2)),
    case("Conv", f32(1, 17, 6, 6), const(f32(8, 17, 2, 3)), const(f32(8)), pads=(0, 1, 1, 2)),
    case("Conv", f32(1, 4, 11, 13), const(f32(4, 4, 3, 3)), strides=(2, 3), pads=(1, 0, 2, 1)),
    case("Conv", f32(1, 3, 11, 13), const(f32(4, 3, 2, 2)), const(f32(4)), strides=(3, 4)),
    case("Conv", f32(1, 3, 23, 21), const(f32(8, 3, 7, 7)), const(f32(8)), strides=(2, 2), pads=(3, 3, 3, 3)),
    case("Conv", f32(1, 7, 10, 12), const(f32(5, 7, 3, 3)), dilations=(2, 3), pads=(2, 3, 2, 3)),
    case("Conv", f32(1, 4, 9, 9), const(f32(4, 4, 5, 1)), const(f32(4)), pads=(2, 0, 2, 0)),
    case("Conv", f32(1, 2, 5, 5), const(f32(3, 2, 5, 5))),
    case("Conv", f32(1, 2, 3, 3), const(f32(3, 2, 3, 3)), pads=(4, 5, 4, 3), strides=(2, 2)),
    # weights that are computed at run time: a kernel packs them
    case("Conv", f32(2, 3, 8, 8), f32(4, 3, 3, 3), f32(4)),
    case("Conv", f32(1, 9, 7, 6), f32(10, 9, 3, 2), pads=(1, 0, 1, 1)),
    case("Conv", f32(1, 6, 7, 7), f32(8, 3, 3, 3), f32(8), group=2, strides=(2, 1)),
    case("Conv", f32(2, 7, 6, 5), f32(7, 1, 3, 3), const(f32(7)), group=7, pads=(1, 1, 1, 1)),
    case("Conv", f32(1, 3, 16), f32(5, 3, 4), f32(5)),
    case("Conv", f32(1, 2, 4, 5, 6), f32(3, 2, 2, 3, 2), f32(3)),
    case("Conv", f32(1, 5, 6, 6), const(f32(6, 5, 3, 3)), f32(6)),
    case("Conv", f16(1, 5, 8, 8), f16(7, 5, 3, 3), f16(7), pads=(1, 1, 1, 1)),
    case("ConvTranspose", f32(1, 5, 4, 4), f32(5, 7, 3, 2), f32(7), strides=(2, 3)),
    case("ConvTranspose", f32(2, 6, 5, 4), f32(6, 5, 2, 2), f32(10), group=2, pads=(1, 0, 0, 1)),
    case("ConvTranspose", f32(1, 3, 7), f32(3, 4, 3), dilations=(2,)),
    case("ConvTranspose", f32(1, 3, 3, 4, 5), f32(3, 2, 3, 2, 3), strides=(2, 1, 2)),
    # more than one tile of any kernel
    case("Conv", f32(1, 20, 19, 21), const(f32(36, 20, 3, 3)), const(f32(36)), pads=(1, 1, 1, 1)),
    case("Conv", f32(2, 64, 14, 14), const(f32(70, 64, 1, 1)), const(f32(70))),
    case("Conv", f32(1, 40, 33, 31), const(f32(40, 1, 3, 3)), group=40, pads=(1, 1, 1, 1), strides=(2, 2)),
    # sums over more channels than eight bits count, and more of them than a work-group has items
    case("Conv", f32(1, 523, 3, 5), const(f32(6, 523, 1, 1, low=-0.1, high=0.1)), const(f32(6)), name="many"),
    case("Conv", f32(2, 259, 4, 3), const(f32(5, 259, 3, 3, low=-0.05, high=0.05)), pads=(1, 1, 1, 1), name="many"),
    case("Conv", f32(1, 1027, 3, 3), const(f32(1027, 1, 3, 3)), group=1027, pads=(1, 1, 1, 1), name="many"),
    case("ConvTranspose", f32(1, 259, 3, 2), const(f32(259, 5, 2, 2)), strides=(2, 2), name="many"),
    # images of few channels: GPUs read them in NCHW
    case("Conv", f32(3, 3, 9, 11), const(f32(6, 3, 3, 3)), const(f32(6)), strides=(2, 2), pads=(0, 1, 2, 1)),
    case("Conv", f32(2, 2, 9, 10), const(f32(5, 2, 3, 2)), dilations=(2, 3), pads=(2, 0, 1, 3)),
    case("Conv", f32(2, 3, 7, 9), const(f32(9, 3, 1, 1)), const(f32(9))),
    case("Conv", f32(2, 4, 5, 7), const(f32(33, 4, 5, 5)), pads=(2, 2, 2, 2), strides=(1, 2)),
    # groups, depthwise, depthwise with a multiplier
    case("Conv", f32(1, 8, 7, 7), const(f32(8, 4, 3, 3)), const(f32(8)), group=2, pads=(1, 1, 1, 1)),
    case("Conv", f32(3, 9, 6, 5), const(f32(6, 3, 3, 3)), group=3, strides=(2, 1)),
    case("Conv", f32(1, 8, 9, 9), const(f32(8, 1, 3, 3)), const(f32(8)), group=8, pads=(1, 1, 1, 1)),
    case(
        "Conv",
        f32(3, 5, 9, 8),
        const(f32(5, 1, 3, 3)),
        const(f32(5)),
        group=5,
        strides=(2, 2),
        pads=(0, 0, 1, 1),
    ),
    case("Conv", f32(1, 17, 9, 9), const(f32(17, 1, 5, 5)), group=17, pads=(4, 4, 4, 4), dilations=(2, 2)),
    case("Conv", f32(1, 4, 6, 7), const(f32(12, 1, 3, 3)), const(f32(12)), group=4),
    case("Conv", f32(1, 1, 6, 7), const(f32(4, 1, 3, 3)), const(f32(4)), group=1),
    # groups of whole blocks: one and several blocks, unequal in and out, sizes that tiles do not divide, long kernels
    case("Conv", f32(2, 12, 7, 9), const(f32(12, 4, 3, 3)), const(f32(12)), group=3, pads=(1, 1, 1, 1)),
    case("Conv", f32(1, 16, 9, 9), const(f32(32, 8, 3, 3)), const(f32(32)), group=2, strides=(2, 2), pads=(0, 1, 1, 1)),
    case("Conv", f32(2, 48, 5, 6), const(f32(24, 16, 2, 3)), group=3, strides=(1, 2), pads=(1, 2, 0, 1)),
    case("Conv", f32(1, 64, 7, 7), const(f32(64, 32, 3, 3)), group=2, dilations=(2, 1), pads=(2, 1, 2, 1)),
    case("Conv", f32(1, 136, 6, 5), const(f32(48, 68, 1, 1)), const(f32(48)), group=2),
    case("Conv", f32(1, 16, 9, 11), const(f32(8, 8, 5, 7)), group=2, pads=(2, 3, 2, 3)),
    case("Conv", f32(2, 24, 33), const(f32(16, 12, 20)), const(f32(16)), group=2, pads=(9, 10)),
    case("Conv", f32(1, 8, 6, 6), f32(16, 4, 3, 3), f32(16), group=2, pads=(1, 1, 1, 1)),
    case("Conv", f16(1, 16, 7, 9), const(f16(24, 8, 3, 3)), const(f16(24)), group=2, pads=(1, 1, 1, 1)),
    # depthwise with several pixels an item: sizes that tiles do not divide, strides, dilations, one dimension
    case("Conv", f32(2, 8, 13, 11), const(f32(8, 1, 3, 3)), const(f32(8)), group=8, pads=(1, 1, 1, 1)),
    case("Conv", f32(2, 6, 14, 15), const(f32(6, 1, 3, 3)), group=6, strides=(2, 2), pads=(0, 0, 1, 1)),
    case("Conv", f32(1, 12, 10, 9), const(f32(12, 1, 3, 5)), group=12, strides=(1, 3), dilations=(2, 1)),
    case("Conv", f32(1, 7, 10, 9), const(f32(7, 1, 3, 5)), group=7, strides=(1, 3), pads=(3, 1, 2, 2)),
    case("Conv", f32(1, 4, 12, 12), const(f32(4, 1, 5, 5)), const(f32(4)), group=4, strides=(2, 1), pads=(2, 2, 2, 2)),
    case("Conv", f32(1, 5, 9, 13), const(f32(5, 1, 7, 7)), group=5, pads=(3, 3, 3, 3), dilations=(1, 2)),
    case("Conv", f32(1, 9, 19, 23), const(f32(9, 1, 7, 5)), const(f32(9)), group=9, strides=(2, 2), pads=(3, 1, 2, 2)),
    case("Conv", f32(1, 4, 17, 16), const(f32(4, 1, 15, 14)), const(f32(4)), group=4, pads=(7, 6, 7, 7)),
    case("Conv", f32(1, 4, 9, 8), const(f32(4, 1, 15, 14)), group=4, pads=(63, 58, 63, 59), dilations=(9, 9)),
    case("Conv", f32(2, 8, 3, 37), const(f32(8, 1, 1, 3)), group=8, pads=(0, 4, 0, 4), dilations=(1, 4)),
    case("Conv", f32(2, 8, 131), const(f32(8, 1, 3)), const(f32(8)), group=8, strides=(2,), pads=(1, 1)),
    # auto_pad
    case("Conv", f32(1, 3, 7, 8), const(f32(4, 3, 3, 2)), auto_pad="SAME_UPPER", strides=(2, 2)),
    case("Conv", f32(1, 3, 7, 8), const(f32(4, 3, 3, 2)), auto_pad="SAME_LOWER", strides=(2, 2)),
    case("Conv", f32(1, 3, 7, 8), const(f32(4, 3, 4, 4)), auto_pad="SAME_UPPER"),
    case("Conv", f32(1, 3, 9, 8), const(f32(4, 3, 3, 3)), auto_pad="SAME_LOWER", dilations=(2, 2)),
    case("Conv", f32(1, 3, 7, 8), const(f32(4, 3, 3, 2)), auto_pad="VALID", strides=(2, 1)),
    # one and three dimensions
    case("Conv", f32(1, 3, 16), const(f32(4, 3, 5)), const(f32(4)), pads=(2, 2)),
    case("Conv", f32(3, 5, 17), const(f32(7, 5, 3)), strides=(2,), dilations=(3,), pads=(1, 2)),
    case("Conv", f32(1, 8, 15), const(f32(8, 1, 4)), const(f32(8)), group=8, pads=(3, 0)),
    case("Conv", f32(1, 3, 5, 6, 7), const(f32(4, 3, 3, 3, 3)), const(f32(4)), pads=(1, 1, 1, 1, 1, 1)),
    case("Conv", f32(2, 4, 5, 6, 7), const(f32(5, 4, 1, 2, 3)), strides=(2, 1, 2), pads=(0, 1, 0, 0, 0, 1)),
    case("Conv", f32(1, 4, 5, 6, 7), const(f32(4, 1, 3, 3, 3)), group=4, dilations=(1, 2, 2)),
    # float16
    case("Conv", f16(1, 5, 8, 8), const(f16(7, 5, 3, 3)), const(f16(7)), pads=(1, 1, 1, 1)),
    case("Conv", f16(1, 8, 8, 8), const(f16(8, 1, 3, 3)), group=8, strides=(2, 2)),
    case("Conv", f16(3, 4, 5, 5), const(f16(4, 4, 1, 1)), const(f16(4))),
    case("Conv", f16(2, 3, 9, 8), const(f16(5, 3, 3, 3)), const(f16(5)), strides=(2, 2), pads=(1, 1, 1, 1)),
    case("ConvTranspose", f32(1, 3, 5, 6), const(f32(3, 4, 3, 3))),
    case(
        "ConvTranspose",
        f32(1, 3, 5, 6),
        const(f32(3, 4, 3, 3)),
        const(f32(4)),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
    ),
    case(
        "ConvTranspose",
        f32(3, 5, 4, 4),
        const(f32(5, 7, 2, 2)),
        const(f32(7)),
        strides=(2, 2),
        kernel_shape=(2, 2),
    ),
    case("ConvTranspose", f32(1, 4, 5, 5), const(f32(4, 4, 4, 4)), strides=(2, 2), pads=(1, 0, 2, 1)),
    case("ConvTranspose", f32(1, 4, 5, 5), const(f32(4, 3, 3, 3)), strides=(3, 2), output_padding=(2, 1)),
    case("ConvTranspose", f32(1, 4, 5, 5), const(f32(4, 3, 2, 2)), strides=(3, 3)),
    case("ConvTranspose", f32(1, 3, 5, 6), const(f32(3, 2, 3, 3)), strides=(2, 2), output_shape=(10, 12)),
    # What is not finite reaches what its taps reach; sub-pixels have unlike numbers of these.
    *(case("ConvTranspose", with_specials(1, 3, 8, 9), const(f32(3, 5, *taps)), const(f32(5)), strides=strides, **more)
      for taps, strides, more in (
          ((3, 3), (2, 2), {"pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
          ((5, 4), (3, 2), {"pads": (2, 1, 1, 1)}),
          ((2, 2), (2, 2), {}),
          ((4, 4), (2, 2), {"pads": (1, 1, 1, 1)}),
      )),
    *(case("ConvTranspose", f32(1, 3, 4, 5), const(with_specials(3, 5, size, size)), strides=(2, 2), pads=(1, 1, 1, 1))
      for size in (3, 4)),
    case("ConvTranspose", f32(1, 3, 4, 5), const(with_specials(3, 5, 3, 3)), pads=(1, 1, 1, 1), name="stride 1"),
    case("ConvTranspose", f32(1, 3, 4, 5), const(f32(3, 5, 3, 2)), dilations=(2, 3), pads=(1, 1, 1, 1)),
    case("ConvTranspose", f32(1, 8, 5, 5), const(f32(8, 2, 3, 3)), const(f32(8)), group=4, strides=(2, 2)),
    case(
        "ConvTranspose", f32(1, 5, 5, 5), const(f32(5, 1, 3, 3)), group=5, strides=(2, 2), pads=(1, 1, 1, 1)
    ),
    case("ConvTranspose", f32(1, 3, 5, 6), const(f32(3, 4, 3, 3)), auto_pad="SAME_UPPER", strides=(2, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), const(f32(3, 4, 4, 4)), auto_pad="SAME_LOWER", strides=(3, 3)),
    case("ConvTranspose", f32(1, 3, 5, 6), const(f32(3, 4, 3, 3)), auto_pad="VALID", strides=(2, 1)),
    case("ConvTranspose", f32(1, 3, 7), const(f32(3, 4, 3)), const(f32(4)), strides=(2,), pads=(1, 1)),
    case(
        "ConvTranspose",
        f32(1, 3, 3, 4, 5),
        const(f32(3, 2, 3, 2, 3)),
        strides=(2, 1, 2),
        pads=(1, 0, 1, 1, 0, 0),
    ),
    case("Conv", f32(0, 3, 6, 6), const(f32(8, 3, 3, 3)), const(f32(8))),
    case("Conv", f32(0, 4, 6, 6), const(f32(6, 2, 3, 3)), const(f32(6)), group=2, pads=(1, 1, 1, 1)),
    case("Conv", f32(0, 8, 6, 6), const(f32(16, 4, 3, 3)), const(f32(16)), group=2, pads=(1, 1, 1, 1)),
    case("Conv", f32(0, 4, 6, 6), const(f32(8, 1, 3, 3)), const(f32(8)), group=4, strides=(2, 2)),
    case("ConvTranspose", f32(0, 4, 5, 5), const(f32(4, 3, 2, 2)), const(f32(3)), strides=(2, 2)),
    case("ConvTranspose", f32(0, 4, 5, 5), const(f32(4, 1, 3, 3)), group=4, pads=(1, 1, 1, 1)),
    case("ConvTranspose", f16(1, 4, 5, 5), const(f16(4, 5, 3, 3)), const(f16(5)), strides=(2, 2)),
    # float64
    case("Conv", f64(2, 5, 7, 6), const(f64(3, 5, 3, 2)), const(f64(3)), strides=(2, 1), pads=(1, 0, 2, 1)),
    case("Conv", f64(1, 6, 5, 6), f64(4, 3, 2, 3), f64(4), group=2, dilations=(2, 1), auto_pad="SAME_UPPER"),
    case("Conv", f64(1, 4, 9), const(f64(4, 1, 3)), group=4, pads=(1, 1)),
    case("Conv", f64(1, 2, 4, 5, 6), const(f64(3, 2, 2, 3, 2)), strides=(1, 2, 2), pads=(0, 1, 0, 1, 1, 0)),
    case("ConvTranspose", f64(2, 3, 5, 4), const(f64(3, 4, 3, 2)), const(f64(4)), strides=(2, 3), pads=(1, 0, 1, 1)),
    case("ConvTranspose", f64(1, 4, 5, 5), f64(4, 3, 3, 3), group=2, dilations=(2, 1), output_padding=(1, 1),
         strides=(2, 2), unverified="onnxruntime has no ConvTranspose of float64, and onnx none in groups"),
    case("ConvTranspose", f64(1, 3, 3, 4, 5), const(f64(3, 2, 3, 2, 3)), strides=(2, 1, 2)),
    case("weft::PlanarConv", f64(1, 2, 5, 6), const(f64(3, 2, 3, 2)), pads=(1, 0, 1, 1),
         unverified="an op of ours: Conv in another layout"),
    case("weft::PlanarConvTranspose", f64(1, 2, 4, 5), const(f64(2, 3, 3, 2)), strides=(2, 1),
         unverified="an op of ours: ConvTranspose in another layout"),
]
