"""The verdict of a self-test on one kind of kernels, and whether the kind may be used."""

from __future__ import annotations

from dataclasses import dataclass

from weft.kernels.special import KernelFamily, SpecialKernel


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


def is_refused(kind: SpecialKernel, verdict: Verdict) -> bool:
    """Tell whether kernels must not be used; portable kernels are used even if they could not be tested."""
    return verdict.word == "wrong" or (verdict.word == "untested" and not isinstance(kind, KernelFamily))


def told(kind: SpecialKernel, verdict: Verdict) -> str:
    """Return a report's line about kernels that are wrong or could not be tested."""
    if not is_refused(kind, verdict):
        return f"{kind.title} are used untested: {verdict.why}"
    if not isinstance(kind, KernelFamily):
        return f"{kind.title} are not used: {verdict.why}"
    instead = f"{kind.fallback} are" if kind.fallback else "nodes that need them go to the next device"
    return f"{kind.title} are not used, {instead}: {verdict.why}"
