"""Times convolutions of a table in `benchmarks/tuned` anew, for `fit_costs.py`, after their kernels have changed.

    python -m benchmarks.conv_trials nvidia-h100.json --device opencl --jobs 16

The convolutions in fp32 of the device's card are timed. A candidate that took more than `MOST` times as long as the
fastest is left out; one that the table lacks is timed. Each of these problems has the times of this run alone
afterwards, since those of two cards, or of two clocks, do not compare.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.cards import TRIALS
from benchmarks.fit_costs import problem_of
from benchmarks.options import number
from benchmarks.tile_times import Sizes, Times, runtime_of, timed
from weft.backends.gpu.tuning.node_bench import NodeBench
from weft.backends.gpu.tuning_tables.tuning_table import Entry, Trial, read_tables, write_tables
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.ops.conv import Conv

MOST = 1.9
"""How many times as long as the fastest a candidate may have taken."""
NAME = "conv_gemm"
"""The rivals for convolutions in fp32, as the keys of tables name them."""


@dataclass(frozen=True)
class Convolutions:
    """The convolutions of a table by their keys; a problem is the number of its key."""

    entries: Mapping[str, Entry]

    @property
    def keys(self) -> Sequence[str]:
        """Return the keys of the convolutions in fp32."""
        return [key for key in sorted(self.entries) if key.startswith(f"{NAME}(") and " of float32" in key]

    @property
    def problems(self) -> Sequence[Sizes]:
        """Return the numbers of the keys."""
        return [(number,) for number in range(len(self.keys))]

    def node(self, sizes: Sizes) -> tuple[Op, list[Tensor], list[Tensor]]:
        """Return a convolution with the problem's key, in blocks of four channels."""
        parsed = problem_of("opencl", self.keys[sizes[0]])
        assert parsed is not None
        _, p = parsed
        rng, w = np.random.default_rng(0), p.window

        def constant(name: str, *shape: int) -> Tensor:
            value: Array = rng.standard_normal(shape).astype(np.float32)
            return Tensor(name, shape, DType.FLOAT32, Layout.NCHW, constant=value)

        x, y = (
            Tensor(name, (p.images, channels, *size), DType.FLOAT32, Layout.NC4HW4)
            for name, channels, size in (("x", p.channels_in, w.inputs), ("y", p.channels_out, w.outputs))
        )
        bias = [constant("b", p.channels_out)] if p.bias else []
        ends = [
            max((count - 1) * stride + (taps - 1) * apart + 1 - size - begin, 0)
            for count, stride, taps, apart, size, begin in zip(
                w.outputs, w.strides, w.kernel, w.dilations, w.inputs, w.begin, strict=True
            )
        ]
        op = Conv(kernel_shape=w.kernel, strides=w.strides, dilations=w.dilations, pads=(*w.begin, *ends))
        return op, [x, constant("w", p.channels_out, p.channels_in, *w.kernel), *bias], [y]

    def offered(self, sizes: Sizes, texts: Sequence[str]) -> Sequence[str]:
        """Return the candidates that the table lacks, and those that were not much slower than the fastest."""
        trials = self.entries[self.keys[sizes[0]]].trials
        known = {text: trial.us for text, trial in trials.items() if trial.us}
        most = MOST * min(known.values(), default=0)
        return [text for text in texts if known.get(text, most) <= most]

    def anew(self, device: str, times: Mapping[Sizes, Times]) -> dict[str, Entry]:
        """Return the entries that a device's times make."""
        runtime, found = runtime_of(device), {}
        for sizes, us in times.items():
            if not us:  # no candidate was right, as the output says
                continue
            key = self.keys[sizes[0]]
            with NodeBench(runtime, *self.node(sizes)) as bench:
                trials = {text: Trial(bench.plan(key, text).digest, us=taken) for text, taken in sorted(us.items())}
            found[key] = Entry(min(us, key=us.__getitem__), trials)
        return found


def main() -> None:
    """Time the convolutions of a table's card, and write the table anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", help="the name of a file in benchmarks/tuned")
    parser.add_argument("--device", default="opencl", help="the device, which must be one of the table's cards")
    parser.add_argument("--jobs", type=number, default=1, help="processes that build kernels")
    options = parser.parse_args()
    path: Path = TRIALS / options.table
    tables, info = read_tables(path), runtime_of(options.device).device.info
    cards = [key for key in tables if (key.api, key.name) == (info.id, info.name)]
    if not cards:
        known = ", ".join(f"{key.api} {key.name}" for key in tables) or "none"
        raise SystemExit(f"{path} has no times of {info.id} {info.name}; its cards: {known}")
    (card,) = cards
    convolutions = Convolutions(tables.pop(card))
    times = timed(convolutions, options.device, options.jobs, convolutions.offered)
    entries = {**convolutions.entries, **convolutions.anew(options.device, times)}
    written = path.with_suffix(".new")
    write_tables(written, {**tables, replace(card, driver=info.driver): entries})
    written.replace(path)
    print(f"{path}: {len(times)} convolutions, {sum(map(len, times.values()))} candidates")


if __name__ == "__main__":
    main()
