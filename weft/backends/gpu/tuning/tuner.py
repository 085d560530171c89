"""The tuner: for each problem that ops leave open, run the candidates on the device and keep the fastest that is right.

Problems that take the most of the network's time come first, and of each the candidates that a model of
the device expects most of. What is tried is noted on disk before, so that a candidate that ends the
process is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.device.device_lost import NotingLoss
from weft.backends.gpu.device.kernel_builds import Builds, thread_count
from weft.backends.gpu.execution import GpuExecution
from weft.backends.gpu.recording.recording import access
from weft.backends.gpu.recording.schedule import schedule
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.candidate_timing import STEADY, Contest
from weft.backends.gpu.tuning.node_bench import NodeBench, Variant
from weft.backends.gpu.tuning.tunables import Pick
from weft.backends.gpu.tuning.tuning_table import FORGOTTEN, Entry, Trial, TuningTable
from weft.core.session.pipeline import Pipeline, Task
from weft.errors import ConfigError, DeviceLost, OutOfMemory, WeftError
from weft.kernels.algorithms import Decision

PENDING = "the process ended while it was built or run"


@dataclass
class Problem:
    """What several nodes of a network may have in common, with one of them to try candidates on."""

    pick: Pick
    task: Task
    nodes: int = 0
    weight: float = 0.0
    """Seconds of one run that all of them take."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of one problem; times are microseconds of one node on the device."""

    device: str
    problem: str
    nodes: int
    default: str
    choice: str
    default_us: float | None
    us: float | None
    """None where nothing was measured, now or before."""
    tried: int
    skipped: int
    """Candidates for which the budget did not suffice, now or before."""
    failed: Mapping[str, str]

    @property
    def gain(self) -> float | None:
        """Return how many times faster the choice is than the default; None where one has no time."""
        return self.default_us / self.us if self.default_us and self.us else None


Progress = Callable[[int, int], None]


def tune_pipelines(
    pipelines: Iterable[Pipeline],
    *,
    budget: float = 60.0,
    again: bool = False,
    clock: Callable[[], float] = perf_counter,
    progress: Progress | None = None,
) -> list[Tuned]:
    """Tune what ops of loaded pipelines leave open on their GPUs, for `budget` seconds a device at most.

    Nothing else should run on the devices meanwhile, no run of these sessions either: times would say nothing.
    ConfigError for sessions with memory "limit", which keep nothing to try candidates with.
    Of every problem the most promising candidates are tried before the others of any. Those that were timed or
    failed before are not tried once more, unless `again`. New choices serve the sessions that are loaded or
    resized from now on.
    """
    rows: list[Tuned] = []
    for runtime, group in by_runtime(pipelines):
        if any(pipeline.thrifty for pipeline in group):
            why = 'with memory="limit" it keeps no weights to try candidates with'
            raise ConfigError("this session cannot be tuned", why=why, fix='load the model with memory="normal"')
        tuner = _Tuner(runtime, group[0].device, clock() + budget, again, clock)
        try:
            with runtime.device.building():
                rows += tuner.tune_all(open_problems(group), progress)
        finally:
            runtime.device.keep()
    return rows


def by_runtime(pipelines: Iterable[Pipeline]) -> list[tuple[GpuRuntime, list[Pipeline]]]:
    """Return the GPUs that run some of the pipelines, with these."""
    found: dict[int, tuple[GpuRuntime, list[Pipeline]]] = {}
    for pipeline in pipelines:
        if isinstance(pipeline.backend, GpuBackend):
            runtime = pipeline.backend.runtime
            found.setdefault(id(runtime), (runtime, []))[1].append(pipeline)
    return list(found.values())


def open_problems(pipelines: Sequence[Pipeline]) -> list[Problem]:
    """Return the distinct problems of some pipelines on one device, those that take most of the time first."""
    out: dict[str, Problem] = {}
    for pipeline in pipelines:
        times = _times(pipeline)
        for task in pipeline.tasks:
            if isinstance(task.execution, GpuExecution):
                open_ = [p for p in task.execution.picks if p.launches and len(p.candidates) > 1]
                for pick in open_:
                    problem = out.setdefault(pick.key, Problem(pick, task))
                    problem.weight += sum(times.get(id(launch), 0.0) for launch in pick.launches)
                for key in {pick.key for pick in open_}:
                    out[key].nodes += 1
    return sorted(out.values(), key=lambda p: -p.weight)


def _times(pipeline: Pipeline) -> dict[int, float]:
    """Return the seconds of each planned launch in one run of a pipeline, whatever lies in its memory."""
    backend = pipeline.backend
    assert isinstance(backend, GpuBackend)
    backend.recording.wait()
    device, launches = backend.device, backend.recording.planned
    accesses = [access(launch) for launch in launches]
    commands = schedule(accesses)
    handle = device.record(commands, profile=True)
    try:
        device.submit(handle)
        device.wait(handle)
        by_command = dict(zip(map(id, commands), device.timings(handle), strict=False))
    finally:
        device.release(handle)
    return {id(x.plan): by_command.get(id(a.command), 0.0) for x, a in zip(launches, accesses, strict=True)}


def _most_promising_first(variants: Sequence[Variant], decision: Decision) -> list[Variant]:
    """Merge two orders: that in which algorithms name their candidates, and that of their estimated costs."""
    costs = {v.text: decision.offers[v.text].candidate.cost for v in variants}
    estimated = sorted(costs, key=lambda text: costs[text])
    ranks = {v.text: min(k, estimated.index(v.text)) for k, v in enumerate(variants)}
    return sorted(variants, key=lambda v: ranks[v.text])


@dataclass
class _Tuner:
    runtime: GpuRuntime
    device: str
    deadline: float
    again: bool
    clock: Callable[[], float]
    _tried: dict[str, set[str]] = field(default_factory=dict)
    """The candidates of each problem that were tried by this tuner."""
    _is_warm: bool = False

    @property
    def table(self) -> TuningTable:
        return self.runtime.tuning

    def tune_all(self, problems: Sequence[Problem], progress: Progress | None) -> list[Tuned]:
        """Try the best few candidates of every problem, then what is left of each."""
        found: dict[str, Tuned] = {}
        for k, problem in enumerate(problems):
            found[problem.pick.key] = self.tune(problem, thread_count(self.runtime.device.caps))
            if progress is not None:
                progress(k + 1, 2 * len(problems))
        for k, problem in enumerate(problems, len(problems)):
            if found[problem.pick.key].skipped and self.clock() < self.deadline:
                found[problem.pick.key] = self.tune(problem)
            if progress is not None:
                progress(k + 1, 2 * len(problems))
        return list(found.values())

    def tune(self, problem: Problem, most: int | None = None) -> Tuned:
        """Try what is left of a problem's candidates, or the best few of it, as long as there is time."""
        if self.clock() >= self.deadline:
            return self._row(problem, None, self._left(problem.pick))
        try:
            return self._tune(problem, most)
        except DeviceLost:
            raise
        except WeftError as e:  # such as no memory for the largest node: the others may have room
            return replace(self._row(problem, None, 0), failed={problem.pick.default: e.what})

    def _tune(self, problem: Problem, most: int | None) -> Tuned:
        task, pick = problem.task, problem.pick
        assert isinstance(task.execution, GpuExecution)
        made = task.execution
        with NotingLoss(self.runtime.device), NodeBench(
            self.runtime, made.op, *made.planned,
            label=made.label, target=replace(made.target, tuning=None), clock=self.clock,
        ) as bench:  # fmt: skip
            work = Contest(bench, bench.plan(pick.key, pick.default))
            rest = self._untried(problem, work)
            if rest or not work.begun:
                work.begin(0.0 if self._is_warm else STEADY)
                self._is_warm = True
            size, left = thread_count(self.runtime.device.caps), len(rest) if most is None else most
            while rest and left > 0 and self.clock() < self.deadline:
                batch, rest, left = rest[:size], rest[size:], left - size
                self._try_all(pick.key, work, batch)
            if most is None or not rest:
                self._play_off(pick.key, work)
            if self._tried.get(pick.key) or not rest:
                self.table.note(pick.key, Entry(self._choice(pick.key, work), work.found))
                self.table.save()
        return self._row(problem, work, len(rest))

    def _untried(self, problem: Problem, work: Contest) -> list[Variant]:
        """Return the candidates of which nothing is known yet, the most promising first."""
        key, out = problem.pick.key, []
        for text in problem.pick.candidates:
            try:
                variant = work.default if text == work.default.text else work.bench.plan(key, text)
            except OutOfMemory:
                continue  # not a fault of its own: another time there may be room
            except WeftError as e:
                work.trials[text] = Trial("", failed=e.what)  # no hash: it is rendered anew each time
                continue
            afresh = self.again and text not in self._tried.get(key, ())
            known = self.table.known(key, text, variant.digest)
            if known is not None:
                work.trials[text] = known  # until it is tried again: what time does not suffice for stays as it is
                if known.digest != self.table.own(key).trials.get(text, FORGOTTEN).digest:
                    work.brought.add(text)
            if variant is not work.default and (known is None or afresh):
                out.append(variant)
        return _most_promising_first(out, problem.pick.decision)

    def _try_all(self, key: str, work: Contest, batch: Sequence[Variant]) -> None:
        """Build some candidates side by side, then try each; all are noted as failed until they are not."""
        pending = {v.text: Trial(v.digest, failed=PENDING) for v in batch}
        self._note(key, pending)
        done: dict[str, Trial] = {}
        tried: Variant | None = None
        try:
            self._build_all(work, batch)
            for tried in batch:
                done[tried.text] = work.attempt(tried)
                self._tried.setdefault(key, set()).add(tried.text)
        except DeviceLost as e:
            if tried is not None:  # else it was the default, which kept the device busy
                done[tried.text] = Trial(tried.digest, failed=e.what)
            raise
        finally:
            # What was not reached is what it was before, if anything.
            known = {text: work.found.get(text, FORGOTTEN) for text in pending}
            self._note(key, known | done)

    def _build_all(self, work: Contest, variants: Sequence[Variant]) -> None:
        """Build candidates side by side while the default keeps the device busy; one that is refused says so later."""
        builds = Builds(self.runtime.device)
        try:
            for variant in variants:
                with suppress(WeftError):
                    builds.add(variant.text, [launch.build for launch in variant.launches])
            work.bench.busy(work.default, lambda: builds.done)
        finally:
            builds.drop()

    def _play_off(self, key: str, work: Contest) -> None:
        """Compare the fastest candidates, of this time and of earlier ones, once more, as long as there is time."""
        finalists: list[Variant] = []
        for text in work.finalists():
            try:
                finalists.append(work.bench.plan(key, text))
            except DeviceLost:
                raise
            except WeftError:
                continue  # such as no memory: it keeps the time that it has
        self._build_all(work, finalists)
        work.play_off([v for v in finalists if v.is_built], lambda: self.clock() >= self.deadline)

    def _choice(self, key: str, work: Contest) -> str | None:
        """Return the choice to note: none if only Weft brings its time, except for one here that is stale."""
        choice = work.choice()
        return None if choice in work.brought and self.table.own(key).choice not in work.brought else choice

    def _note(self, key: str, trials: Mapping[str, Trial]) -> None:
        self.table.note(key, Entry(None, trials))
        self.table.save()

    def _left(self, pick: Pick) -> int:
        """Return how many candidates of a problem for which there is no time are to be tried."""
        known = {} if self.again else self.table.beside(pick)
        return len(set(pick.candidates) - {pick.default, *known, *self._tried.get(pick.key, ())})

    def _row(self, problem: Problem, work: Contest | None, skipped: int) -> Tuned:
        pick = problem.pick
        trials = work.trials if work is not None else self.table.beside(pick)  # a look at each candidate takes time
        chosen = work.choice() if work is not None else pick.chosen
        us = {text: t.us for text, t in trials.items()}
        failed = {text: t.failed for text, t in trials.items() if t.failed}
        tried = len(self._tried.get(pick.key, ()))
        return Tuned(
            self.device, pick.key, problem.nodes, pick.default, chosen,
            us.get(pick.default), us.get(chosen), tried, skipped, failed,
        )  # fmt: skip
