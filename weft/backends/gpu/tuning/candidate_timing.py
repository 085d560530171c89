"""Compare the candidates for one problem on the device, by value and by time.

The clock of a GPU may change by a factor of five within a second, with its load, so a time by itself says little. Each
candidate is timed right beside the default, and its time is scaled to the default's first time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from weft.backends.gpu.tuning.node_bench import NodeBench, Variant, difference
from weft.backends.gpu.tuning_tables.tuning_table import Trial
from weft.core.graph.layout import Array
from weft.errors import DeviceLost, ExecutionError, WeftError

MARGIN = 0.98
"""A candidate replaces the default if it takes at most so much of its time: less is noise."""
HOPELESS = 4.0
"""A candidate whose first runs take so many times the best's is not measured further."""
STEADY = 1.0
"""Seconds without a faster run after which a device is warm: the clock of a GPU rises in steps nearer than that."""
FINALISTS, ROUNDS = 5, 5
"""How many candidates are timed once more in turn at the end, and how often."""


@dataclass
class Contest:
    """The work on one problem."""

    bench: NodeBench
    default: Variant
    reference: list[Array] = field(default_factory=list)
    trials: dict[str, Trial] = field(default_factory=dict)
    """The trials of its candidates with their current kernels, of this time and earlier ones."""

    @property
    def best(self) -> float:
        """Return the shortest time so far in microseconds."""
        return min((t.us for t in self.trials.values() if t.us is not None), default=float("inf"))

    @property
    def begun(self) -> bool:
        """Tell whether the default has a time, to which others are scaled."""
        known = self.trials.get(self.default.text)
        return known is not None and bool(known.us)

    def choice(self) -> str:
        """Return the fastest candidate, or the default if it is hardly slower or nothing was timed."""
        timed = {text: t.us for text, t in self.trials.items() if t.us is not None}
        if not timed:
            return self.default.text
        fastest = min(timed, key=lambda text: timed[text])
        default = timed.get(self.default.text, float("inf"))
        return fastest if timed[fastest] <= MARGIN * default else self.default.text

    def begin(self, steady: float) -> None:
        """Run the default until the device is warm (see `NodeBench.warm`), and time it.

        Earlier times of candidates are scaled to it.
        """
        bench, default = self.bench, self.default
        default.build()
        if steady > 0.0:
            bench.warm(default, steady)
        bench.poison(default)
        seconds = bench.seconds(default, bench.once(default))
        self.reference = bench.results()
        if any(each.size and np.isnan(each).all() for each in self.reference if each.dtype.kind == "f"):
            why = "on random inputs it gives only NaN, like a kernel that writes nothing"
            raise ExecutionError("the default cannot be compared with", where=default.text, why=why)
        known = self.trials.get(default.text)
        if known is not None and known.us:
            self.trials = {text: t.scaled(seconds * 1e6 / known.us) for text, t in self.trials.items()}
        self.trials[default.text] = Trial(default.digest, us=_us(seconds))

    def attempt(self, variant: Variant) -> Trial:
        """Note and return the time of a candidate, or why it failed; DeviceLost if it loses the device."""
        try:
            trial = self._attempt(variant)
        except DeviceLost:
            raise
        except WeftError as e:
            trial = Trial(variant.digest, failed=e.what)
        self.trials[variant.text] = trial
        return trial

    def _attempt(self, variant: Variant) -> Trial:
        bench, limit = self.bench, HOPELESS * self.best * 1e-6
        variant.build()
        bench.poison(variant)
        once = bench.once(variant)
        wrong = difference(bench.results(), self.reference)
        if wrong is not None:
            return Trial(variant.digest, failed=wrong)
        if once > limit:
            # The first run of a kernel also loads it, and the clock may have fallen.
            once = bench.once(variant) * self._known / bench.once(self.default)
        if once > limit:
            return Trial(variant.digest, us=_us(once))
        return Trial(variant.digest, us=_us(self._share(variant, once) * self._known))

    @property
    def _known(self) -> float:
        """Return the seconds of the default."""
        return (self.trials[self.default.text].us or 0.0) * 1e-6

    def _share(self, variant: Variant, once: float) -> float:
        """Return the time of a candidate as a multiple of the default's, both measured now."""
        return self.bench.seconds(variant, once) / self.bench.seconds(self.default, self._known)

    def finalists(self) -> list[str]:
        """Return the fastest candidates besides the default."""
        limit = HOPELESS * self.best
        timed = sorted((t.us, text) for text, t in self.trials.items() if t.us is not None and t.us <= limit)
        return [text for _, text in timed if text != self.default.text][:FINALISTS]

    def play_off(self, finalists: Sequence[Variant], enough: Callable[[], bool]) -> None:
        """Time the finalists again in turn until `enough`; the median of the shares of the default's time counts."""
        shares: dict[str, list[float]] = {variant.text: [] for variant in finalists}
        for _ in range(ROUNDS):
            if enough():
                break
            for variant in finalists:
                shares[variant.text].append(self._share(variant, (self.trials[variant.text].us or 0.0) * 1e-6))
        for text, found in shares.items():
            if found:
                self.trials[text] = replace(self.trials[text], us=_us(median(found) * self._known))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
