"""Weft's side of the measurement.

Host to host: `Session.run`, from numpy arrays to numpy arrays, everything included.

Device: `device_ms` is the span from the start of the first launch to the end of the last: conversions of the input's
layout and type, and every gap between launches, count; the transfers of inputs and outputs do not. On Vulkan it is
taken in a session of its own, loaded with `profile="span"`, which has timestamps at both ends alone. On OpenCL, where
events about double the gap after each launch, it is that of runs without them that wait in the queue as a whole
(queued.py). If the single launches are asked for, a session with `profile=True` times them: `stamped_ms` is the span
then, which on Vulkan keeps launches from overlapping, and `busy_ms` the sum of the launches; on NVIDIA's OpenCL no
event is shorter than 4 us. `tuned` is how many launches' kernels a table chose. `arrays_ms` is host to host with the
session's own arrays (`Session.input_arrays`, `output_arrays`), which the caller filled before: in fp16 at low.

Compared with the reference are the first output, the last one of the timed runs, the last ones with timestamps or
events, and that of the last run that waited in the queue; the error is the largest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import weft
from benchmarks.measure import Array, Counts, Row, Workload, file_stem, middle, timed_result, warm_up

PRECISIONS = {"high": "fp32", "normal": "normal", "low": "fp16"}
"""Weft's names of precisions, and what the rows call them."""
GLSL = "glsl"
"""What the rows call Vulkan with kernels in GLSL, where it would run OpenCL's as PTX (on Hopper): `vulkan.ptx=no`."""
TRANSFERS = ("upload ", "download ")
"""How the events of transfers begin."""


def device_of(name: str) -> str:
    """Return the device of a name on the command line."""
    return "vulkan" if name == GLSL else name


def row(case: Workload, device: str, precision: str, counts: Counts, *, tables: bool = True) -> Row:
    """Load, check and time a network on one device, with the tables of tuned choices or without.

    WeftError if the device does not take all of it.
    """
    return prepared(case, device, precision, counts, tables=tables)()


def prepared(
    case: Workload,
    device: str,
    precision: str,
    counts: Counts,
    *,
    tables: bool = True,
    beside: bool = False,
    device_times: bool = True,
    launches: Path | None = None,
) -> Callable[[], Row]:
    """Load a network in the sessions that a row takes; return what checks and times it, once, and closes them.

    Without `device_times` the row has host times alone.
    `beside` names the row "untuned", because there is one with the tables as well. A file in the folder `launches` gets
    the name and the median microseconds of each launch, taken with timestamps.
    """
    api = device_of(device)
    queued = device_times and api == "opencl"
    who = f"weft {device}{' untuned' if beside else ''}"
    found = Row(case.network, case.batch, who, PRECISIONS[precision])
    if case.flops:
        found.more["gflop"] = case.flops / 1e9
    options = ({} if tables else {"tuning": False}) | ({"ptx": False} if device == GLSL else {})
    load = partial(
        weft.load, case.model, api, precision=precision, fallback="error", backend_options={api: options}, wait="all"
    )
    with ExitStack() as opened:
        start = time.perf_counter()
        plain = opened.enter_context(load())
        found.more["load_s"] = time.perf_counter() - start
        found.more["tuned"] = _tuned(plain)
        spanned = opened.enter_context(load(profile="span")) if device_times and not queued else None
        stamped = opened.enter_context(load(profile=True)) if device_times and launches is not None else None
        sessions = opened.pop_all()

    def take() -> Row:
        with sessions:
            found.compare(plain.run(case.inputs), case)
            last = found.time(lambda: plain.run(case.inputs), counts)
            found.compare(last, case)
            found.note = _told(plain.report.notes)
            _time_arrays(found, plain, case, counts)
            awake = replace(counts, wake=None)  # the runs before have loaded the device
            if spanned is not None:
                _span(found, case, spanned, awake)
            if stamped is not None and launches is not None:
                _launch_times(found, case, stamped, awake, launches)
            if queued:
                _queued_times(found, case, plain, awake)
        return found

    return take


def _told(notes: Sequence[str]) -> str:
    """Return what a report says of a precision that was computed as another, and of kernels that are not used.

    Each note begins with the device.
    """
    return "; ".join(note.partition(": ")[2] for note in notes if "was computed as" in note or "are not used" in note)


def _tuned(session: weft.Session) -> int:
    recordings = [getattr(p.backend, "recording", None) for p in session.pipelines]
    return sum(r.tuned for r in recordings if r is not None)


def _time_arrays(found: Row, session: weft.Session, case: Workload, counts: Counts) -> None:
    """Time runs from and to the session's own arrays."""
    inputs, outputs = session.input_arrays(), session.output_arrays()
    for name, array in inputs.items():
        array[...] = case.inputs[name]
    found.compare(session.run(inputs, outputs=outputs), case)
    taken = timed_result(lambda: session.run(inputs, outputs=outputs), counts.at_once)
    found.compare(taken.last, case)
    found.more["arrays_ms"], found.more["arrays_p90_ms"] = taken.median, taken.p90


def _span(found: Row, case: Workload, session: weft.Session, counts: Counts) -> None:
    """Take the span of all launches of a run."""
    spans: list[float] = []

    def sample() -> list[Array]:
        outputs = session.run(case.inputs)
        spans.extend(_spans(session))
        return outputs

    warm_up(sample, counts)
    spans.clear()
    found.compare(timed_result(sample, replace(counts.at_once, one_core=False)).last, case)
    found.more["launches"] = len(session.report.launches)
    if spans:
        found.device_ms, found.device_p90_ms = middle(spans)
    else:
        found.note = "; ".join(filter(None, (found.note, "the device gives no times")))


def _spans(session: weft.Session) -> list[float]:
    """Return the milliseconds of the last run's launches together, for each part of the network on a device."""
    return [value * 1e3 for (_, name), value in session.profile.counters.items() if name == "span"]


def _launch_times(found: Row, case: Workload, session: weft.Session, counts: Counts, folder: Path) -> None:
    """Take the time of each launch, and write the medians to a file in the folder."""
    spans: list[float] = []
    each: list[list[float]] = []
    names: list[str] = []

    def sample() -> list[Array]:
        outputs = session.run(case.inputs)
        spans.extend(_spans(session))
        launches = [e for e in session.profile.events if not e.name.startswith(TRANSFERS)]
        names[:] = [e.name for e in launches]
        each.append([e.seconds * 1e6 for e in launches])
        return outputs

    warm_up(sample, counts)
    spans.clear()
    each.clear()
    found.compare(timed_result(sample, replace(counts.at_once, one_core=False)).last, case)
    api = found.who.replace(" ", "_")
    path = folder / f"{file_stem(case.network, case.batch)}_{api}_{found.precision}.json"
    path.write_text(json.dumps(list(zip(names, np.median(each, 0).tolist(), strict=True)), indent=0))
    if spans:
        found.more["stamped_ms"] = float(np.median(spans))
        found.more["busy_ms"] = float(np.median(np.sum(each, 1))) / 1e3


def _queued_times(found: Row, case: Workload, session: weft.Session, counts: Counts) -> None:
    """Take the span of runs that wait in the queue as a whole."""
    from benchmarks.queued import QueuedRun

    session.run(case.inputs)
    queued = QueuedRun(session)
    warm_up(queued.milliseconds, counts)
    times = [t for _ in range(counts.iterations) if (t := queued.milliseconds()) is not None]
    found.compare(queued.outputs(), case)
    found.more["launches"] = queued.launches
    if times:
        found.device_ms, found.device_p90_ms = middle(times)
    else:
        found.note = "; ".join(filter(None, (found.note, "the host is too slow for the queue to give times")))
