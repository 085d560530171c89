"""The choices that ops leave to tuning: the problem, its candidates, the one that was taken, and who chose it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weft.backends.gpu.recording.launches import PlannedLaunch
from weft.core.graph.fused_op import RUNNING, Fused, value_number
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.chooser import Decision


class ChoiceSource(Protocol):
    """Chooses for a node: the tuning table of a device, or a tuner that tries one candidate after the other."""

    def choose(self, key: str, texts: Collection[str]) -> str | None:
        """Return the candidate for a problem, as text; None: the op's default."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Taken:
    """A decision, and the candidate that was taken. Printing it shows why."""

    decision: Decision
    text: str
    tuned: bool = True
    """Whether tuning chose it, if it is not the default; otherwise its kernel existed already."""

    def __str__(self) -> str:
        why = "tuning found it best" if self.tuned else "its kernel is there already, and it costs little more"
        return "\n".join([f"chosen by {self.decision.name!r}:", *self.decision.lines(self.text, why)])


@dataclass
class Choice:
    """One call of `KernelBuilder.choose`; candidates are known by their `repr`."""

    key: str
    decision: Decision
    chosen: str
    made: bool
    """Whether a table or the tuner chose it; False for the default where nothing was known."""
    launches: list[PlannedLaunch] = field(default_factory=list)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return the candidates of the decision."""
        return self.decision.texts

    @property
    def default(self) -> str:
        """Return the candidate that is taken without tuning."""
        return self.decision.default

    @property
    def microseconds(self) -> float:
        """Return what the work is expected to take, if the decision is in microseconds.

        Tuning may take a candidate that costs more, which it found to be no slower than the default.
        """
        return min(self.decision.candidates[text].cost for text in (self.chosen, self.default))

    @property
    def digest(self) -> str:
        """Return the hash of the sources, sizes and grids of the launches that the choice led to."""
        hashed = hashlib.blake2b(digest_size=16)
        for launch in self.launches:
            hashed.update(f"{launch.source.digest} {launch.grid} {list(launch.local)}\n".encode())
        return hashed.hexdigest()


def problem_key(name: str, facts: str, op: Op, inputs: Sequence[Tensor | None]) -> str:
    """Return the text by which a problem is found again: exactly the same one, with its types and fused steps.

    `name` and `facts` are those of the `Decision`.
    """
    arity = op.arity if isinstance(op, Fused) else len(inputs)
    types = ", ".join(t.dtype.value if t is not None else "none" for t in inputs[:arity])
    steps = op.steps if isinstance(op, Fused) else ()
    texts = [f"{s.op!r}({', '.join(_operand(i, inputs) for i in s.operands)})" for s in steps]
    seconds = op.second_outputs if isinstance(op, Fused) else ()
    stored = f" with second outputs {list(seconds)}" if seconds else ""
    return f"{name}({facts}) of {types}" + "".join(f" then {t}" for t in texts) + stored


def _operand(position: int, inputs: Sequence[Tensor | None]) -> str:
    if position < 0:
        return "it" if position == RUNNING else f"before {value_number(position, 0)}"
    tensor = inputs[position]
    if tensor is None:
        return "none"
    kind = "constant" if tensor.constant is not None else "tensor"
    return f"{kind} {tensor.dtype.value}{list(tensor.shape)}"
