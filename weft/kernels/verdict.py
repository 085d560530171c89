"""The verdicts of a device's self-test on its kinds of kernels, and whether a kind may be used."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from weft.kernels.special import SpecialKernel


@dataclass(frozen=True)
class Verdict:
    """What the test of one kind found."""

    why: str | None
    """Why the kind must not be used, or None."""
    seconds: float = 0.0
    lasting: bool = True
    """Whether the verdict is about the kernels, and not only about this start."""
    until: float | None = None
    """The time (seconds since 1970) at which a lasting verdict expires; None: never."""
    ran: bool = True
    """Whether the kernels ran; if not, `why` says what prevented it, and nothing is known of them."""

    @property
    def word(self) -> str:
        """Return "right", "wrong", or "untested" if something else than the kernels failed."""
        if self.why is None:
            return "right"
        return "wrong" if self.lasting and self.ran else "untested"

    @property
    def is_fault(self) -> bool:
        """Tell whether the kernels ran and failed."""
        return self.why is not None and self.ran


@dataclass
class Verdicts:
    """What the self-test found on an open device; it runs once in the device's life."""

    known: bool = False
    """Whether the self-test has ended, or is not wanted."""
    by_name: dict[str, Verdict] = field(default_factory=dict)
    """By the name of the kind or family."""
    notes: list[str] = field(default_factory=list)
    """A report's lines on kernels that are wrong or could not be tested."""
    seconds: float = 0.0
    """How long the self-test took, or reading kept verdicts."""
    finding: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that has the kernels tested."""


def is_refused(kind: SpecialKernel, verdict: Verdict) -> bool:
    """Tell whether kernels must not be used; portable kernels are used even if they could not be tested."""
    return verdict.word == "wrong" or (verdict.word == "untested" and kind.needs_proof)


def told(kind: SpecialKernel, verdict: Verdict) -> str:
    """Return a report's line about kernels that are wrong or could not be tested."""
    if not is_refused(kind, verdict):
        return f"{kind.title} are used untested: {verdict.why}"
    return f"{kind.title} are not used{kind.instead}: {verdict.why}"
