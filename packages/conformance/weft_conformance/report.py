"""What the kit found: one finding for each thing tried, and the report that counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum


class Verdict(Enum):
    """What became of one thing that was tried."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    WRONG = "wrong"
    NO_REASON = "no reason"
    """It was refused, and nothing says why."""
    NOTHING = "nothing to run"
    """It is not about this backend, rewrites left nothing to do, or the kit had been stopped."""

    @property
    def is_bad(self) -> bool:
        """Tell whether the backend breaks its contract here."""
        return self in (Verdict.WRONG, Verdict.NO_REASON)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried: the check, its subject (a row, a node, a pair of layouts), and the verdict."""

    check: str
    subject: str
    verdict: Verdict
    message: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.subject}: {self.verdict.value}" + (f": {self.message}" if self.message else "")


@dataclass(frozen=True)
class ConformanceReport:
    """What `run` returns. `ok` is False if anything is wrong or a reason is missing."""

    device: str
    precision: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """What is allowed and worth knowing: refusals that came after `why_not` agreed, options not granted."""

    @property
    def ok(self) -> bool:
        """Tell whether the backend kept its contract in everything that was tried."""
        return not any(f.verdict.is_bad for f in self.findings)

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """Return the findings in which the backend broke its contract."""
        return tuple(f for f in self.findings if f.verdict is Verdict.WRONG)

    def counts(self, check: str = "") -> Mapping[Verdict, int]:
        """Return how often each verdict was given, by one check or by all."""
        found = Counter(f.verdict for f in self.findings if check in ("", f.check))
        return {verdict: found[verdict] for verdict in Verdict}

    @property
    def checks(self) -> tuple[str, ...]:
        """Return the names of the checks that found something, in order."""
        return tuple(dict.fromkeys(f.check for f in self.findings))

    def to_json(self) -> dict[str, object]:
        """Return the report as what `json.dump` takes."""
        findings = [asdict(f) | {"verdict": f.verdict.value} for f in self.findings]
        counts = {verdict.value: n for verdict, n in self.counts().items()}
        return {
            "device": self.device,
            "precision": self.precision,
            "ok": self.ok,
            "counts": counts,
            "findings": findings,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {verdict.value}" for verdict, n in self.counts().items())
        lines = [f"{self.device}, precision {self.precision}: {counts}"]
        lines += [str(f) for f in self.findings if f.verdict.is_bad]
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


def is_sentence(reason: object) -> bool:
    """Tell whether a reason is a text of at least two words."""
    return isinstance(reason, str) and len(reason.split()) > 1
