"""An attention as a problem for the chooser, and a plan: that problem with its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Shape, row_major
from weft.core.graph.masks import replaces_from
from weft.core.graph.tensor import Tensor
from weft.kernels.chooser import Facts
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import Inputs
from weft.kernels.launch import KernelBuilder
from weft.ops.attention import Attention, Extents

APART = ("QD", "KD", "VD", "YD")
"""The steps from element to element of a head, which are given where they are not 1."""


@dataclass(frozen=True)
class AttentionProblem:
    """The facts that decide an attention's kernel: sizes, offsets and steps of heads, element types, the device."""

    each: Extents
    places: tuple[tuple[str, int], ...]
    """Sizes and steps of queries, keys, values, mask and result, by the names of the kernels' constants."""
    mask: bool
    in_fp16: bool
    """Whether all inputs and the output are fp16."""
    caps: DeviceCaps
    capped: bool = False
    """Whether scores are capped."""

    @property
    def apart(self) -> str:
        """Return which of Q, K, V and Y have the elements of a head apart, and rows side by side, as images do."""
        return "".join(name[0] for name, _ in self.places if name in APART)

    def lies_in(self, piece: int) -> bool:
        """Tell whether the rows of all heads start at multiples of so many elements, and have a multiple of them.

        That holds for those whose elements are not `apart`.
        """
        together = [letter for letter in "QKVY" if letter not in self.apart]
        starts = [value for name, value in self.places if name[0] in together and name[1:] in ("0", "B", "H", "S")]
        return all(value % piece == 0 for value in (*starts, self.each.depth, self.each.width))

    def facts(self) -> Facts:
        """Return the facts by which tuning tables find a problem."""
        cap = {"capped": True} if self.capped else {}
        return {**dict(self.places), "batch": self.each.lead[0], "mask": self.mask, **cap}


@dataclass(frozen=True)
class AttentionPlan:
    """An attention's problem with its tensors."""

    k: KernelBuilder
    problem: AttentionProblem
    scale: float
    softcap: float
    unusual: dict[str, bool | str]
    """What kernels' text depends on besides sizes: flags of the op that are set, whether heads share keys, `apart`."""
    y: Tensor
    reads: dict[str, Tensor]
    """Arguments by their names."""

    @classmethod
    def of(cls, op: Attention, k: KernelBuilder, inputs: Inputs, y: Tensor) -> AttentionPlan:
        """Return the offsets and steps of Q, K, V, the mask and the result, in any form."""
        given = [t for t in inputs[: op.count()] if t is not None]
        each = op.extents([t.shape for t in given])
        heads = each.lead[1] if len(each.lead) == 2 else 1
        ints = {"HEADS": heads, "QUERIES": each.queries, "COUNT": each.keys, "D": each.depth, "E": each.width}
        if each.shared > 1:
            ints["SHARED"] = each.shared
        tensors = given * 3 if op.packed else given
        placed = [k.by_steps(t) for t in tensors]
        for number, (letter, (t, steps, first)) in enumerate(zip("QKVY", (*placed, k.by_steps(y)), strict=True)):
            if letter != "Y":
                ints[f"{letter}0"] = first + (number * (t.shape[-1] // 3) * steps[-1] if op.packed else 0)
            each_row = each.width if letter in "VY" else each.depth
            ints |= _steps(letter, steps, each_row if op.heads else 0)
        reads = dict(zip(("q_in", "k_in", "v_in"), (t for t, *_ in placed), strict=True))
        mask = inputs[op.count()] if len(inputs) > op.count() else None
        if mask is not None:
            reads["mask"] = mask
            ints |= _mask_steps(mask.shape, each)
        in_fp16 = all(t.dtype is DType.FLOAT16 for t in (*reads.values(), y))
        problem = AttentionProblem(each, tuple(ints.items()), mask is not None, in_fp16, k.caps, op.softcap != 0)
        lowest_hides = op.lowest_hides and mask is not None and mask.dtype is DType.FLOAT16
        flags = {
            "zero_hidden": op.zero_hidden, "zero_nan": op.zero_nan, "lowest_hides": lowest_hides,
            "shared": each.shared > 1, "capped": problem.capped,
        }
        unusual: dict[str, bool | str] = {name: True for name, is_set in flags.items() if is_set}
        if op.low_replaces and mask is not None:
            unusual["replaces"] = f"{replaces_from(mask.dtype)!r}"
        if problem.apart:
            unusual["apart"] = problem.apart
        return cls(k, problem, op.scale, op.softcap, unusual, k.by_steps(y)[0], reads)

    def numbers(self, unit: float = 1.0) -> dict[str, float]:
        """Return what scores are multiplied by, in units of which powers are taken.

        With a cap, SCALE makes the argument of the tanh, and CAP what the tanh is multiplied by.
        """
        if not self.softcap:
            return {"SCALE": self.scale / unit}
        return {"SCALE": self.scale / self.softcap, "CAP": self.softcap / unit}


def _steps(letter: str, steps: tuple[int, ...], side_by_side: int) -> dict[str, int]:
    """Return the steps from batch to batch, head to head and row to row of Q, K, V or the result.

    `side_by_side` is the number of elements of a head where heads lie in a row, else 0. If the elements of a head are
    apart, their step comes last.
    """
    *_, row, element = steps
    if side_by_side:
        batch, head = steps[0], side_by_side * element
    else:
        batch, head = steps[0], steps[1] if len(steps) == 4 else 0
    found = {f"{letter}B": batch, f"{letter}H": head, f"{letter}S": row}
    return found if element == 1 else {**found, f"{letter}D": element}


def _mask_steps(shape: Shape, each: Extents) -> dict[str, int]:
    """Return the steps of a mask: 0 along axes in which it is repeated."""
    full = (1,) * (len(each.scores) - len(shape)) + tuple(shape)
    steps = [0 if size == 1 else step for size, step in zip(full, row_major(full), strict=True)]
    batch, head = (steps[0], steps[1]) if len(each.lead) == 2 else (steps[0], 0)
    return {"MB": batch, "MH": head, "MS": steps[-2], "MK": steps[-1]}
