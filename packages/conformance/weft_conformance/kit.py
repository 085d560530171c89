"""The kit itself: the list of checks, and the tools that a check gets."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ParamSpec

from weft import loading
from weft.core.contract.backend import Backend, BackendConfig, MemoryMode, Precision
from weft.core.contract.check_answers import NoReason
from weft.core.contract.error_context import ends_program
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, infer_shapes
from weft.core.graph.interpreter import outputs as expected
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.session import Session
from weft.errors import ModelError, UnsupportedOps, WeftError
from weft_conformance.cases.table import tolerance
from weft_conformance.drive import ask
from weft_conformance.networks import FORMS, JOINS, MOST_STEPS, STEPS, Blocks, Net, Step, difference
from weft_conformance.report import Finding, Verdict, is_sentence
from weft_conformance.streams import heard
from weft_conformance.watch import RAISED_BY, Call, Watch


@dataclass(frozen=True)
class Check:
    """A check of every backend; `look` yields the findings."""

    name: str
    rows: str
    """The rows of the contract that it is about."""
    description: str
    look: Callable[[Kit], Iterable[Finding]]


CHECKS: dict[str, Check] = {}
"""All checks, by name, in the order in which they are done."""

Looks = Callable[["Kit"], Iterable[Finding]]
Tried = ParamSpec("Tried")


def check(name: str, rows: str, description: str) -> Callable[[Looks], Looks]:
    """Add the decorated function to the checks."""

    def register(look: Looks) -> Looks:
        assert name not in CHECKS, f"two checks are called {name}"
        CHECKS[name] = Check(name, rows, description, look)
        return look

    return register


class Untried(Exception):
    """A check needs something that the backend refuses; the message says what, and why if it is known."""


@dataclass
class Kit:
    """A backend under examination, for the time of a block; `choice` is its device.

    Checks open backend objects with `opened`, sessions with `load`, and report with `supported`, `refused`
    and `wrong`.
    """

    choice: DeviceChoice
    precision: Precision = Precision.HIGH
    notes: dict[str, None] = field(default_factory=dict)
    stopped: str = ""
    """Why no further check is made; "" if checks go on."""
    seed: int = 0
    """The seed of the first random network; the next ones follow."""
    seconds: float = 0.0
    """For how long random networks are drawn; at least `networks` are."""
    networks: int = 64
    _current: str = ""
    _witness: Watch | None = None
    """Records every callback during a check, to tell which one an error came from."""

    @property
    def device(self) -> str:
        """Return the device's name: "acme:0"."""
        return self.choice.device

    @property
    def config(self) -> BackendConfig:
        """Return the configuration of every backend object."""
        return BackendConfig(precision=self.precision)

    def begin(self, check: str) -> None:
        """Begin a check: findings are its own from now on."""
        self._current = check

    def stop(self, why: str) -> None:
        """Make no further check: it would end this process."""
        self.stopped = why

    # -- findings ------------------------------------------------------------------------------------------

    def supported(self, subject: str, message: str = "") -> Finding:
        """Return the finding that something works."""
        return Finding(self._current, subject, Verdict.SUPPORTED, message)

    def wrong(self, subject: str, message: str) -> Finding:
        """Return the finding that something does not do what the contract says."""
        return Finding(self._current, subject, Verdict.WRONG, message)

    def refused(self, subject: str, reason: object) -> Finding:
        """Return the finding that something is refused; it is a fault if no sentence says why."""
        if is_sentence(reason):
            return Finding(self._current, subject, Verdict.REFUSED, str(reason))
        return Finding(self._current, subject, Verdict.NO_REASON, f"the reason is {reason!r}")

    def unexplained(self, subject: str, message: str) -> Finding:
        """Return the finding that something is refused, and in what way the reason is missing."""
        return Finding(self._current, subject, Verdict.NO_REASON, message)

    def nothing(self, subject: str, message: str) -> Finding:
        """Return the finding that there was nothing to run."""
        return Finding(self._current, subject, Verdict.NOTHING, message)

    def judge(self, subject: str, problem: str) -> Finding:
        """Return `wrong` if there is a problem, else `supported`."""
        return self.wrong(subject, problem) if problem else self.supported(subject)

    def attempt(self, subject: str, do: Callable[Tried, str], *args: Tried.args, **kwargs: Tried.kwargs) -> Finding:
        """Return the finding on what `do` returns (a problem, or "") or raises."""
        try:
            return self.judge(subject, do(*args, **kwargs))
        except BaseException as e:
            if ends_program(e):
                raise
            return self.raised(subject, e)

    def raised(self, subject: str, e: BaseException) -> Finding:
        """Return the finding on an exception: a refusal if it is one, by its kind; else something is wrong.

        A SystemExit or GeneratorExit is wrong too: only an interrupt, or what a signal handler raises, ends the kit.
        """
        if isinstance(e, Untried):
            return self.refused(subject, str(e))
        if isinstance(e, UnsupportedOps):
            return self.refused(subject, self.reason_of(e))
        if isinstance(e, NotImplementedError):
            return self.refused(subject, str(e))
        if isinstance(e, NoReason):
            return self.unexplained(subject, e.what)
        return self.wrong(subject, self.explain(e))

    def explain(self, e: BaseException) -> str:
        """Return an exception's class and message, the line that raised it or its cause, and the last callback."""
        text, first = explain(e)
        if not isinstance(first, Exception):
            text += ": a callback may not end the process"
        raised_by = getattr(first, RAISED_BY, "")
        if raised_by:
            return f"{text}; it came out of {raised_by}"
        latest = self._witness.latest if self._witness is not None else ""
        return f"{text}; before it, {latest}" if latest and not isinstance(first, WeftError) else text

    def reason_of(self, e: UnsupportedOps) -> str:
        """Return the backend's own reason from a refusal of nodes."""
        reasons = [r.reason for r in e.refusals if r.device == self.device] or e.problems
        return "; ".join(dict.fromkeys(reasons)) or e.what

    @property
    def declined(self) -> list[str]:
        """Return the first outputs of nodes for which `onCreate` has returned None in this check."""
        return self._witness.declined if self._witness is not None else []

    def note(self, text: str) -> None:
        """Add a remark to the report, once."""
        self.notes[text] = None

    # -- what is examined ----------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[Backend]:
        """Open a backend object of the device, and close it after the block."""
        backend = self.choice.open(self.config)
        try:
            yield backend
        finally:
            backend.close()

    def watch(self, before: Callable[[Call], None] | None = None) -> Watch:
        """Return a recorder of the callbacks of all backend objects that are made while it is entered."""
        return Watch(self.choice.creator, before)

    def load(self, graph: Graph, memory: MemoryMode = MemoryMode.NORMAL, fallback: str = "error") -> Session:
        """Return a session on this device alone, unless the CPU may take what it refuses."""
        own = {self.choice.creator.id: self.choice.given}
        return loading.load(
            graph, self.device, precision=self.precision, memory=memory, fallback=fallback, backend_options=own,
            overflow_check=False, wait="all",
        )

    def look(self, check: Check) -> list[Finding]:
        """Do a check; its exceptions are findings too, except exceptions that are meant to end the program."""
        self.begin(check.name)
        if self.stopped:
            return [self.nothing("the check itself", f"it was not made: {self.stopped}")]
        found: list[Finding] = []
        before, witness = self._witness, Watch(self.choice.creator, record=False)
        self._witness = witness
        with witness, heard(self._heard), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of numbers that are meant to overflow
            try:
                found.extend(check.look(self))
            except BaseException as e:
                if ends_program(e):
                    raise
                found.append(self.raised("the check itself", e))
        self._witness = before
        return found

    def _heard(self, stream: str, text: str) -> None:
        callback = self._witness.within if self._witness is not None else ""
        remark = f"{callback} writes to {stream}, which is the user's"
        if callback and text.strip() and not any(n.startswith(remark) for n in self.notes):
            self.note(f"{remark}: {text.strip()[:60]!r}")

    # -- networks --------------------------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> Blocks:
        """Return the ops that the backend takes, to make networks of; Untried if it takes none."""
        reasons: dict[str, None] = {}
        for form in FORMS:
            taken = tuple(islice((s for name, s in STEPS.items() if self._takes(form, name, s, reasons)), MOST_STEPS))
            if taken:
                return Blocks(form, taken, next((j for j in JOINS if self._joins(form, j, reasons)), ""))
        tried = f"networks are made of {', '.join(STEPS)}, and the backend takes none of them"
        raise Untried(f"{tried}: {'; '.join(list(reasons)[:3])}")

    def _takes(self, form: tuple[int, ...], name: str, step: Step, reasons: dict[str, None]) -> bool:
        if name == "Conv" and len(form) < 3:
            return False
        net = Net(form)
        return self._accepts(net.finish(step(net, "x")), reasons)

    def _joins(self, form: tuple[int, ...], kind: str, reasons: dict[str, None]) -> bool:
        net = Net(form)
        return self._accepts(net.finish(net.add(new_op(kind), "x", "x")), reasons)

    def _accepts(self, graph: Graph, reasons: dict[str, None]) -> bool:
        try:
            with self.opened() as backend:
                reason = ask(backend, infer_shapes(graph))
            if reason is None:
                self.load(graph).close()
                return True
            reasons[str(reason)] = None
        except UnsupportedOps as e:
            reasons[self.reason_of(e)] = None
        except ModelError as e:
            reasons[e.what] = None
        except BaseException as e:
            if ends_program(e):
                raise
            return True  # the backend took the op and failed; the checks that use the op report it
        return False

    def compare(self, graph: Graph, feeds: dict[str, Array], actual: Sequence[Array]) -> str:
        """Return how outputs differ from what the ops' references compute, "" if they do not."""
        wanted = expected(graph, feeds)
        return difference(actual, wanted, [self.bounds(len(graph.nodes))] * len(wanted))

    @property
    def dtype(self) -> DType:
        """Return the type that floats are stored in at the kit's precision."""
        return DType.FLOAT16 if self.precision is Precision.LOW else DType.FLOAT32

    def bounds(self, nodes: int) -> tuple[float, float]:
        """Return (rtol, atol) for the outputs of this many nodes of float32 in a row."""
        rtol, atol = tolerance(self.dtype, "reduction")
        return rtol * (nodes + 1), atol * (nodes + 1)


def explain(e: BaseException) -> tuple[str, BaseException]:
    """Return an exception's class, its message, and the line that raised it or its cause; and that cause."""
    first = e
    while first.__cause__ is not None:
        first = first.__cause__
    frames = traceback.extract_tb(first.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(e).__name__}: {e}{where}", first


def same_bits(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Tell whether two lists of arrays are equal to the last bit."""
    pairs = zip(first, second, strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)
