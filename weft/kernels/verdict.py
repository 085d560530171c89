"""The verdicts of a device's self-test on its kinds of kernels, and whether a kind may be used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

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
    """What is known of the kernels on an open device. A kind is tested before its first use in the device's life."""

    known: bool = False
    """Whether nothing is left to be tested, or no test is wanted."""
    verify: Callable[[Any, Collection[str] | None], bool] = lambda runtime, templates: False
    """Has kernels of a device's runtime tested: those of these templates, or all. Returns whether some were wrong."""
    untested: bool = False
    """Whether some kinds are to be tested before their first use."""
    recalled: bool = False
    """Whether the verdicts of earlier starts have been read."""
    by_name: dict[str, Verdict] = field(default_factory=dict)
    """By the name of the kind or family."""
    notes: list[str] = field(default_factory=list)
    """A report's lines on kernels that are wrong or could not be tested."""
    seconds: float = 0.0
    """How long tests took, and reading kept verdicts."""
    finding: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that has kernels tested."""

    _concerned: frozenset[str] = frozenset()
    """The templates of these kinds, or their traits."""
    _anywhere: bool = False
    """Whether one of these kinds may have any template."""

    def leave(self, untested: Collection[SpecialKernel]) -> None:
        """Note that these kinds are to be tested before their first use, and no others."""
        self._anywhere = any(kind.is_anywhere for kind in untested)
        self._concerned = frozenset(template for kind in untested for template in kind.found_by)
        self.untested, self.recalled = bool(untested), True

    def lack(self, templates: Collection[str]) -> bool:
        """Tell whether something is to be tested before launches of these templates, and with these traits."""
        return self.untested and bool(templates) and (self._anywhere or not self._concerned.isdisjoint(templates))


def is_refused(kind: SpecialKernel, verdict: Verdict) -> bool:
    """Tell whether kernels must not be used; portable kernels are used even if they could not be tested."""
    return verdict.word == "wrong" or (verdict.word == "untested" and kind.needs_proof)


def told(kind: SpecialKernel, verdict: Verdict) -> str:
    """Return a report's line about kernels that are wrong or could not be tested."""
    if not is_refused(kind, verdict):
        return f"{kind.title} are used untested: {verdict.why}"
    return f"{kind.title} are not used{kind.instead}: {verdict.why}"
