"""The tuner: for each choice that ops leave open, run the candidates on the device and keep the fastest correct one.

The problems that take the most of the network's time come first, and in each the most promising candidates. Candidates
are noted on disk before they run, so that one that ends the process is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.device.kernel_builds import Builds, thread_count
from weft.backends.gpu.execution import GpuExecution
from weft.backends.gpu.recording.launches import access
from weft.backends.gpu.recording.schedule import schedule
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.candidate_timing import STEADY, Contest
from weft.backends.gpu.tuning.node_bench import NodeBench, Variant
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.backends.gpu.tuning_tables.tuning_table import FORGOTTEN, Entry, Trial, TuningTable
from weft.core.session.pipeline import Pipeline, Task
from weft.errors import ConfigError, DeviceLost, OutOfMemory, WeftError
from weft.kernels.chooser import Decision

PENDING = "the process ended while it was built or run"


@dataclass
class Problem:
    """A problem that several nodes of a network may share, with one of them to try candidates on."""

    choice: Choice
    task: Task
    nodes: int = 0
    weight: float = 0.0
    """Seconds that all of these nodes take in one run."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result for one problem; times are microseconds of one node on the device."""

    device: str
    problem: str
    nodes: int
    default: str
    choice: str
    default_us: float | None
    us: float | None
    """None if nothing was measured, now or before."""
    tried: int
    skipped: int
    """Candidates that the budget left untried, now and before."""
    failed: Mapping[str, str]

    @property
    def gain(self) -> float | None:
        """Return how many times faster the choice is than the default; None if one of them has no time."""
        return self.default_us / self.us if self.default_us and self.us else None


Progress = Callable[[int, int], None]


def tune_pipelines(
    pipelines: Iterable[Pipeline], *, budget: float = 60.0, again: bool = False,
    clock: Callable[[], float] = perf_counter, progress: Progress | None = None,
) -> list[Tuned]:
    """Tune the choices that loaded pipelines leave open on their GPUs, for at most `budget` seconds on each device.

    Nothing else should run on the devices meanwhile, including these sessions, or times mean nothing. ConfigError for
    sessions with memory "limit", which keep no weights to try candidates with. The most promising candidates of every
    problem are tried before the others. Candidates that were timed or failed before are not tried again, unless
    `again`. New choices serve sessions that are loaded or resized from now on.
    """
    rows: list[Tuned] = []
    for runtime, group in by_runtime(pipelines):
        if any(pipeline.thrifty for pipeline in group):
            why = 'with memory="limit" it keeps no weights to try candidates with'
            raise ConfigError("this session cannot be tuned", why=why, fix='load the model with memory="normal"')
        runtime.verdicts.verify(runtime, None)
        tuner = _Tuner(runtime, group[0].device, clock() + budget, again, clock)
        try:
            with runtime.device.building():
                rows += tuner.tune_all(open_problems(group), progress)
        finally:
            runtime.device.keep()
    return rows


def by_runtime(pipelines: Iterable[Pipeline]) -> list[tuple[GpuRuntime, list[Pipeline]]]:
    """Return the GPUs that run pipelines, each with its pipelines."""
    found: dict[int, tuple[GpuRuntime, list[Pipeline]]] = {}
    for pipeline in pipelines:
        if isinstance(pipeline.backend, GpuBackend):
            runtime = pipeline.backend.runtime
            found.setdefault(id(runtime), (runtime, []))[1].append(pipeline)
    return list(found.values())


def open_problems(pipelines: Sequence[Pipeline]) -> list[Problem]:
    """Return the distinct problems of some pipelines on one device, in descending order of time."""
    out: dict[str, Problem] = {}
    for pipeline in pipelines:
        times = _times(pipeline)
        for task in pipeline.tasks:
            if isinstance(task.execution, GpuExecution):
                open_ = [p for p in task.execution.choices if p.launches and len(p.candidates) > 1]
                for choice in open_:
                    problem = out.setdefault(choice.key, Problem(choice, task))
                    problem.weight += sum(times.get(id(launch), 0.0) for launch in choice.launches)
                for key in {choice.key for choice in open_}:
                    out[key].nodes += 1
    return sorted(out.values(), key=lambda p: -p.weight)


def _times(pipeline: Pipeline) -> dict[int, float]:
    """Return the seconds of each planned launch of a pipeline, on whatever its memory holds."""
    backend = pipeline.backend
    assert isinstance(backend, GpuBackend)
    backend.recording.wait()
    device, run = backend.device, backend.recording.run
    launches = [*run.separate, *run.undivided]
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
    """Sort by the better of two ranks: the order in which algorithms list candidates, and that of estimated costs."""
    costs = {v.text: decision.candidates[v.text].cost for v in variants}
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
    """The candidates of each problem that this tuner has tried."""
    _is_warm: bool = False

    @property
    def table(self) -> TuningTable:
        return self.runtime.tuning

    def tune_all(self, problems: Sequence[Problem], progress: Progress | None) -> list[Tuned]:
        """Try the best few candidates of every problem, then the rest of each."""
        found: dict[str, Tuned] = {}
        for k, problem in enumerate(problems):
            found[problem.choice.key] = self.tune(problem, thread_count(self.runtime.device))
            if progress is not None:
                progress(k + 1, 2 * len(problems))
        for k, problem in enumerate(problems, len(problems)):
            if found[problem.choice.key].skipped and self.clock() < self.deadline:
                found[problem.choice.key] = self.tune(problem)
            if progress is not None:
                progress(k + 1, 2 * len(problems))
        return list(found.values())

    def tune(self, problem: Problem, most: int | None = None) -> Tuned:
        """Try the untried candidates of a problem, at most `most`, while there is time."""
        if self.clock() >= self.deadline:
            return self._row(problem, None, self._left(problem.choice))
        try:
            return self._tune(problem, most)
        except DeviceLost:
            raise
        except WeftError as e:  # such as no memory for this node: smaller ones may have room
            return replace(self._row(problem, None, 0), failed={problem.choice.default: e.what})

    def _tune(self, problem: Problem, most: int | None) -> Tuned:
        task, choice = problem.task, problem.choice
        assert isinstance(task.execution, GpuExecution)
        made = task.execution
        with NodeBench(
            self.runtime, made.op, *made.planned[choice.key],
            label=made.label, target=replace(made.target, tuning=None), clock=self.clock,
        ) as bench:
            work = Contest(bench, bench.plan(choice.key, choice.default))
            rest = self._untried(problem, work)
            if rest or not work.begun:
                work.begin(0.0 if self._is_warm else STEADY)
                self._is_warm = True
            size, left = thread_count(self.runtime.device), len(rest) if most is None else most
            while rest and left > 0 and self.clock() < self.deadline:
                batch, rest, left = rest[:size], rest[size:], left - size
                self._try_all(choice.key, work, batch)
            if most is None or not rest:
                self._play_off(choice.key, work)
            if self._tried.get(choice.key) or not rest:
                self.table.note(choice.key, Entry(work.choice(), work.trials))
                self.table.save()
        return self._row(problem, work, len(rest))

    def _untried(self, problem: Problem, work: Contest) -> list[Variant]:
        """Return the candidates without a trial, the most promising first."""
        key, out = problem.choice.key, []
        for text in problem.choice.candidates:
            try:
                variant = work.default if text == work.default.text else work.bench.plan(key, text)
            except OutOfMemory:
                continue  # no fault of the candidate: next time there may be room
            except WeftError as e:
                work.trials[text] = Trial("", failed=e.what)  # no hash, so it is rendered again each time
                continue
            afresh = self.again and text not in self._tried.get(key, ())
            known = self.table.known(key, text, variant.digest)
            if known is not None:
                work.trials[text] = known  # kept if there is no time to try it again
            if variant is not work.default and (known is None or afresh):
                out.append(variant)
        return _most_promising_first(out, problem.choice.decision)

    def _try_all(self, key: str, work: Contest, batch: Sequence[Variant]) -> None:
        """Build some candidates in threads, then try each; until then each is noted as failed."""
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
            if tried is not None:  # if None, the default lost the device while it kept it busy
                done[tried.text] = Trial(tried.digest, failed=e.what)
            raise
        finally:
            # Candidates that were not reached get their earlier trials back.
            known = {text: work.trials.get(text, FORGOTTEN) for text in pending}
            self._note(key, known | done)

    def _build_all(self, work: Contest, variants: Sequence[Variant]) -> None:
        """Build candidates in threads while the default keeps the device busy; a refused one fails when it is tried."""
        builds = Builds(self.runtime.device)
        with builds.ending():
            builds.together(launch.build for variant in variants for launch in variant.launches)
            for variant in variants:
                with suppress(WeftError):
                    builds.add(variant.text, [launch.build for launch in variant.launches])
            work.bench.busy(work.default, lambda: builds.done)

    def _play_off(self, key: str, work: Contest) -> None:
        """Compare the fastest candidates, of this time and earlier ones, again while there is time."""
        finalists: list[Variant] = []
        for text in work.finalists():
            try:
                finalists.append(work.bench.plan(key, text))
            except DeviceLost:
                raise
            except WeftError:
                continue  # such as no memory: it keeps its time
        self._build_all(work, finalists)
        work.play_off([v for v in finalists if v.is_built], lambda: self.clock() >= self.deadline)

    def _note(self, key: str, trials: Mapping[str, Trial]) -> None:
        self.table.note(key, Entry(None, trials))
        self.table.save()

    def _left(self, choice: Choice) -> int:
        """Return how many candidates of a problem are left to try."""
        known = {} if self.again else self.table.beside(choice)
        return len(set(choice.candidates) - {choice.default, *known, *self._tried.get(choice.key, ())})

    def _row(self, problem: Problem, work: Contest | None, skipped: int) -> Tuned:
        choice = problem.choice
        trials = work.trials if work is not None else self.table.beside(choice)  # a look at each candidate takes time
        chosen = work.choice() if work is not None else choice.chosen
        us = {text: t.us for text, t in trials.items()}
        failed = {text: t.failed for text, t in trials.items() if t.failed}
        tried = len(self._tried.get(choice.key, ()))
        return Tuned(
            device=self.device, problem=choice.key, nodes=problem.nodes, default=choice.default, choice=chosen,
            default_us=us.get(choice.default), us=us.get(chosen), tried=tried, skipped=skipped, failed=failed,
        )
