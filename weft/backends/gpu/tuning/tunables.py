"""What ops leave to tuning: which candidates there were for which problem, which was taken, and its source."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from weft.core.graph.fused_op import RUNNING, Fused
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.kernels.algorithms import Decision

if TYPE_CHECKING:
    from weft.backends.gpu.lowering.launch_builder import PlannedLaunch


class Choices(Protocol):
    """Who decides for a node: the tuning table of a device, or a tuner that tries one candidate after the other."""

    def choose(self, key: str, texts: Collection[str]) -> str | None:
        """Return the candidate for a problem, as text; None: the op's default."""
        ...


@dataclass
class Pick:
    """One call of `KernelBuilder.choose`; candidates are known by their `repr`."""

    key: str
    decision: Decision
    chosen: str
    made: bool
    """Whether a table or the tuner chose it; False for the default where nothing was known."""
    launches: list[PlannedLaunch] = field(default_factory=list)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return what was offered."""
        return self.decision.texts

    @property
    def default(self) -> str:
        """Return what is taken untuned."""
        return self.decision.default

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
    return f"{name}({facts}) of {types}" + "".join(f" then {t}" for t in texts)


def _operand(position: int, inputs: Sequence[Tensor | None]) -> str:
    tensor = None if position == RUNNING else inputs[position]
    if tensor is None:
        return "it" if position == RUNNING else "none"
    kind = "constant" if tensor.constant is not None else "tensor"
    return f"{kind} {tensor.dtype.value}{list(tensor.shape)}"
