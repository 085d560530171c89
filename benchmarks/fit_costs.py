"""Fits the cost model of convolutions to the trials in benchmarks/tuned, and tests it on networks that it has not seen.

    python -m benchmarks.fit_costs            # prints how far choices are from the best that was timed
    python -m benchmarks.fit_costs --write    # also writes weft/kernels/cost_model.json

It needs no device, and takes about a minute. `weft.kernels.cost_model` says what the terms are.

Each trial gives a row: the terms of a candidate, and its time. The fit minimises squares of log(estimate / time). For a
choice only ratios within a problem matter, so a row's distance from the mean of its problem counts fully, and its
distance as such counts `LEVEL`. A row counts by (best time / its time) ** `NEAR_BEST`. Coefficients stay positive:
their logarithms are fitted, and are pulled by `PULL` towards a tenth of the usual time for the usual term.

Cross-validation leaves out one network at a time, of `benchmarks/models.py` or `TUNED_ALSO`: the model is fitted
without all problems with the taps, sizes and channels of one of its convolutions, at any batch, in any type and on both
APIs, and chooses for these. Trials of no such network are left out together. A choice counts among the candidates that
were timed. The tuner times candidates that take more than `HOPELESS` times the best's time only once, with whatever
clock the device has at that moment: their times are left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.cards import CARDS, PRECISIONS, plan, trials
from benchmarks.models import MODELS
from weft.backends.gpu.tuning.candidate_timing import HOPELESS
from weft.backends.gpu.tuning_tables.tuning_table import Entry
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Layout
from weft.kernels.chooser import Chooser, Decision
from weft.kernels.cost_model import DATA, TERMS, WORTH
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem
from weft.ops.window import Window

Floats = NDArray[np.float64]
RULES = Chooser[ConvProblem, ConvPlan](*(replace(rivals, modelled=None) for rivals in CONVOLUTIONS.rivals))
"""Chooses as without the cost model."""
MODELLED = tuple(rivals.name for rivals in CONVOLUTIONS.rivals if rivals.modelled is not None)
TUNED_ALSO = {"vgg16": (224, 112, 56, 28, 14), "yolov8n_like": (640, 320, 160, 80, 40, 20)}
"""Networks that were tuned but are not among `MODELS`, by the sides of the images that their convolutions read.

The sides tell apart the trials that belong to none of `MODELS`.
"""
ALSO_ON = (("opencl", "NVIDIA H100 80GB HBM3"),)
"""Another card with trials: as many units of the same kind at the same clock, with less bandwidth."""
OTHERS = "no network"
NETWORKS = (*MODELS, *TUNED_ALSO, OTHERS)
LEVEL, NEAR_BEST, PULL = 0.03, 3.0, 3e-3
STEPS, LONGEST = 80, 1.5
"""Most steps of the fit, and the most that the logarithm of a coefficient changes in one."""
_KEY = re.compile(r"^(\w+)\((.*?)\) of (\w+)")
Signature = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int]


@dataclass(frozen=True)
class Timed:
    """A convolution that was timed: its decision, and the times of the candidates that are still offered."""

    api: str
    rivals: str
    problem: ConvProblem
    decision: Decision
    us: Mapping[str, float]
    best: float
    """The shortest of all times, also of candidates that are not offered any more."""

    @property
    def signature(self) -> Signature:
        """Return what it shares with the same layer at another batch or in another type."""
        return signature(self.problem)

    def excess(self, text: str) -> float:
        """Return how many times longer a candidate takes than the best."""
        return self.us[text] / self.best


def signature(problem: ConvProblem) -> Signature:
    """Return the taps, sizes and blocks of channels of a convolution."""
    w = problem.window
    return w.inputs, w.outputs, w.kernel, problem.blocks_in, problem.blocks


def problem_of(api: str, key: str) -> tuple[str, ConvProblem] | None:
    """Return the rivals and the problem of a tuning table's key; None if the model does not rank those rivals.

    What a key does not say is as on the card: images for matrix units lie as rows of channels.
    """
    found = _KEY.match(key)
    if found is None or found[1] not in MODELLED:
        return None
    name, facts, dtype = found[1], dict(_fact(text) for text in found[2].split(", ")), DType(found[3])
    window = Window(
        **{
            field: (facts[f"{letter}H"], facts[f"{letter}W"])
            for field, letter in zip(
                ("inputs", "outputs", "kernel", "strides", "dilations", "begin"), "IOKSDP", strict=True
            )
        },
        end=(0, 0),
    )
    ci, co = facts.get("CI", PACK * facts.get("C4", 0)), facts.get("CO", PACK * facts.get("COUNT", 0))
    problem = ConvProblem(
        images=facts["N"],
        channels_in=ci,
        channels_out=co,
        window=window,
        group=1,
        read=dtype,
        written=dtype,
        weights=dtype,
        bias=bool(facts["bias"]),
        layout=Layout.NHWC4,
        caps=CARDS[api].caps,
        planar="planar" in facts,
        pooled=facts.get("pooled", 0),
        rows=True,
        read_pieces=bool(facts.get("x_pieces", ci % 8 == 0)),
        written_pieces=bool(facts.get("y_pieces", co % 8 == 0)),
        split_products=name == "conv_split",
    )
    return name, problem


def _fact(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, int(ast.literal_eval(value))


def entries(api: str, card: str = "") -> Mapping[str, Entry]:
    """Return the trials of an API, on its card or on one of another name."""
    key = CARDS[api].key
    return trials(replace(key, name=card or key.name))


def timed(chooser: Chooser[ConvProblem, ConvPlan] = RULES) -> list[Timed]:
    """Return the timed convolutions with at least two candidates that are still offered, as a chooser decides."""
    out = []
    for api, card in [*((api, "") for api in CARDS), *ALSO_ON]:
        for key, entry in sorted(entries(api, card).items()):
            parsed = problem_of(api, key)
            if parsed is None:
                continue
            name, problem = parsed
            decision = chooser.decide(problem)
            every = {text: t.us for text, t in entry.trials.items() if t.us}
            most = HOPELESS * min(every.values())
            us = {text: t for text, t in every.items() if t <= most and text in decision.candidates}
            if decision.name == name and len(us) > 1:
                out.append(Timed(api, name, problem, decision, us, min(every.values())))
    return out


@cache
def networks() -> Mapping[Signature, frozenset[str]]:
    """Return the networks that have a convolution, by its signature."""
    found: dict[Signature, set[str]] = defaultdict(set)
    for network in MODELS:
        for precision in PRECISIONS:
            for choice in plan("vulkan", network, 1, precision):
                if isinstance(choice.decision.problem, ConvProblem):
                    found[signature(choice.decision.problem)].add(network)
    return {key: frozenset(names) for key, names in found.items()}


def networks_of(each: Timed) -> frozenset[str]:
    """Return the networks that have a timed convolution."""
    found = networks().get(each.signature)
    if found is None:
        inputs = each.problem.window.inputs
        found = frozenset(name for name, sides in TUNED_ALSO.items() if inputs in [(side, side) for side in sides])
    return found or frozenset([OTHERS])


def terms_of(each: Timed, text: str) -> tuple[str, tuple[float, ...]] | None:
    """Return the algorithm and the terms of a candidate."""
    candidate = each.decision.candidates[text]
    assert candidate.algorithm is not None
    effort = candidate.algorithm.effort(each.problem, candidate.tile)
    return None if effort is None else (candidate.algorithm.name, effort.terms(each.problem.caps))


Fitted = Mapping[tuple[str, str], float]
"""The microseconds of one of a term, by the algorithm and the term."""


def fit(problems: Sequence[Timed]) -> Fitted:
    """Return the coefficients that fit the timed candidates best.

    A term that no trial of an algorithm has, such as a second launch, costs as much as where it costs most.
    """
    rows: list[tuple[int, float, float, dict[tuple[str, str], float]]] = []
    for number, each in enumerate(problems):
        for text, us in each.us.items():
            terms = terms_of(each, text)
            if terms is not None:
                named = {(terms[0], term): x for term, x in zip(TERMS, terms[1], strict=True) if x}
                rows.append((number, us, (each.best / us) ** NEAR_BEST, named))
    names = sorted({name for *_, named in rows for name in named})
    place = {name: k for k, name in enumerate(names)}
    x = np.zeros((len(rows), len(names)))
    for row, (*_, named) in zip(x, rows, strict=True):
        row[[place[name] for name in named]] = list(named.values())
    starts = np.flatnonzero(np.diff([number for number, *_ in rows], prepend=-1))
    weights = np.array([weight for _, _, weight, _ in rows])
    found = dict(
        zip(names, log_fit(x, np.log([us for _, us, *_ in rows]), weights, starts).tolist(), strict=True)
    )
    most = {term: max(c for (_, name), c in found.items() if name == term) for _, term in names}
    return {(name, term): found.get((name, term), most[term]) for name, _ in names for term in most}


def log_fit(x: Floats, y: Floats, weights: Floats, starts: NDArray[np.intp]) -> Floats:
    """Return positive coefficients c that minimise the weighted squares of log(x c) - y, by Levenberg and Marquardt.

    Rows of one problem lie together, from each of `starts` on.
    """
    sizes = np.diff(starts, append=len(y))
    total = np.add.reduceat(weights, starts)

    def centred(rows: Floats) -> Floats:
        """Subtract from the rows of each problem their weighted mean."""
        mean: Floats = np.add.reduceat((weights * rows.T).T, starts)
        centred: Floats = rows - np.repeat((mean.T / total).T, sizes, axis=0)
        return centred

    usual = np.array([np.median(column[column > 0]) for column in x.T])
    prior = np.log(0.1 * np.exp(np.median(y)) / usual)

    def loss(at: Floats) -> float:
        off = np.log(x @ np.exp(at)) - y
        return float(weights @ (centred(off) ** 2 + LEVEL * off**2) + PULL * ((at - prior) ** 2).sum())

    at, damping, now = prior, 1e-2, loss(prior)
    for _ in range(STEPS):
        estimate = x @ np.exp(at)
        off, slopes = np.log(estimate) - y, x * np.exp(at) / estimate[:, None]
        ratios = centred(slopes)
        square = ratios.T @ (weights[:, None] * ratios) + LEVEL * slopes.T @ (weights[:, None] * slopes)
        square += PULL * np.eye(len(at))
        down = ratios.T @ (weights * centred(off)) + LEVEL * slopes.T @ (weights * off) + PULL * (at - prior)
        better = np.inf
        while damping < 1e6:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -down)
            there = at + np.clip(step, -LONGEST, LONGEST)
            better = loss(there)
            if better < now:
                break
            damping *= 4
        if not better < now * (1 - 1e-6):
            break
        at, now, damping = there, better, max(damping / 3, 1e-6)
    found: Floats = np.exp(at)
    return found


def choice(each: Timed, fitted: Fitted) -> str:
    """Return the timed candidate that the model with these coefficients takes, as the chooser does."""
    estimates = {text: _estimate(each, text, fitted) for text in each.us}
    usual, least = each.decision.default, min(estimates.values())
    if estimates.get(usual, np.inf) <= WORTH * least:
        return usual
    return min(estimates, key=lambda text: estimates[text])


def _estimate(each: Timed, text: str, fitted: Fitted) -> float:
    found = terms_of(each, text)
    if found is None:
        return float("inf")
    # What no trial shows at all, such as a second launch without the network that has them, is not taken.
    us = sum(fitted.get((found[0], term), np.inf) * x for term, x in zip(TERMS, found[1], strict=True) if x)
    candidate = each.decision.candidates[text]
    assert candidate.algorithm is not None
    return us + candidate.algorithm.margin(each.problem, candidate.tile)


def unseen(problems: Sequence[Timed]) -> list[tuple[str, Timed, float]]:
    """Return for each network and each of its problems the excess of the choice of a model that has not seen it."""
    out = []
    for network in NETWORKS:
        asked = [each for each in problems if network in networks_of(each)]
        if asked:
            known = fit([each for each in problems if network not in networks_of(each)])
            out += [(network, each, each.excess(choice(each, known))) for each in asked]
    return out


def by_rules(problems: Sequence[Timed]) -> list[tuple[str, Timed, float]]:
    """Return the same for the choices without the model, which were made by someone who had seen all of them."""
    return [
        (network, each, each.excess(each.decision.default))
        for each in problems
        if each.decision.default in each.us
        for network in sorted(networks_of(each))
    ]


def other_excesses() -> dict[str, list[float]]:
    """Return the excess of the untuned choices of rivals that the model does not rank, by their name."""
    found: dict[str, list[float]] = defaultdict(list)
    for api in CARDS:
        known, seen = entries(api), set[str]()
        for network in MODELS:
            for batch in (1, 32):
                for precision in PRECISIONS:
                    for made in plan(api, network, batch, precision):
                        times = {
                            text: t.us for text, t in known.get(made.key, Entry()).trials.items() if t.us
                        }
                        name = made.decision.name
                        if name not in MODELLED and made.default in times and made.key not in seen:
                            seen.add(made.key)
                            found[name].append(times[made.default] / min(times.values()))
    return found


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(list(values)))))


def _say(title: str, found: Sequence[tuple[str, Timed, float]]) -> None:
    print(
        f"{title}: {mean(x for *_, x in found):.3f} over {len(found)} problems, at most {max(x for *_, x in found):.2f}"
    )
    for name in MODELLED:
        for api in CARDS:
            _say_some(
                f"{name} on {api}",
                [(each, x) for _, each, x in found if each.rivals == name and each.api == api],
            )
    for network in NETWORKS:
        _say_some(network, [(each, x) for of, each, x in found if of == network])


def _say_some(title: str, found: Sequence[tuple[Timed, float]]) -> None:
    if found:
        together = sum(each.best * x for each, x in found) / sum(each.best for each, _ in found)
        print(
            f"    {title}: {mean(x for _, x in found):.3f} over {len(found)}, {together:.3f} of their time together"
        )


def main() -> None:
    """Print how far choices are from the best, and write the model's data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write weft/kernels/cost_model.json")
    options = parser.parse_args()
    os.environ["WEFT_CACHE"] = "0"
    problems = timed()
    found = unseen(problems)
    _say("by rules of thumb", by_rules(problems))
    _say("by the model, fitted without the network", found)
    fitted = fit(problems)
    print(f"fitted to all: {mean(each.excess(choice(each, fitted)) for each in problems):.3f}")
    excess = {name: mean(x for _, each, x in found if each.rivals == name) for name in MODELLED}
    excess |= {name: mean(values) for name, values in other_excesses().items()}
    print("excess of choices without tuning:", {name: round(x, 3) for name, x in sorted(excess.items())})
    if options.write:
        table: dict[str, dict[str, float]] = defaultdict(dict)
        for name in sorted({name for name, _ in fitted}):
            table[name] = {term: float(f"{fitted[name, term]:.3g}") for term in TERMS}
        content = {
            "fitted_on": f"{len(problems)} convolutions timed on an H200 and an H100, by benchmarks/fit_costs.py",
            "excess": {name: round(x, 3) for name, x in sorted(excess.items())},
            "microseconds": table,
        }
        DATA.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
