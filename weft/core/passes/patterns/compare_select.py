"""Find choices by a comparison of floats, as exporters write activations: a Where that reads a Greater or its like."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.core.graph.graph import Node, infer_node, inferred
from weft.core.graph.later_constants import only_element
from weft.core.graph.op import new_op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.manager import PassContext
from weft.core.passes.reader import DEEPEST, Reader, reader_pass

COMPARE_SELECT = "weft::CompareSelect"
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
MOST_CHOICES = 2
"""Most Wheres that may read an And or Or: each comparison becomes a node for every Where, and no node may be added."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A Where that a condition decides, and whether it reads the condition's opposite."""

    where: Node
    opposite: bool


@reader_pass("Where")
def fuse_compare_select(reader: Reader, context: PassContext) -> None:
    """Replace Where(a > b, x, y), and other comparisons of floats, by one op if only such Wheres read the comparison.

    a, b, x and y must have one type. Conditions may be joined by And and Or, and reversed by Not. A constant that is
    one number in any shape becomes a scalar.
    """
    for kind in (*COMPARISONS, "And", "Or"):
        for node in reader.nodes(kind):
            condition = node.outputs[0]
            choices = _choices(reader, condition)
            compared = _compared(reader, node)
            few = kind in COMPARISONS or len(choices) <= MOST_CHOICES
            if few and compared and all(_is_of_one_type(reader, c.where, compared) for c in choices):
                for choice in choices:
                    x, y = choice.where.inputs[1:]
                    reader.put(choice.where, *_Spelling(reader, choice.where).of(condition, x, y, choice.opposite))


def _choices(reader: Reader, condition: str, depth: int = 0) -> list[_Choice]:
    """Return the Wheres that a condition decides, by itself or through Not; none if anything else reads it."""
    found = [_Choice(where, opposite=False) for where in reader.readers(condition, "Where")]
    count = len(found)
    for node in reader.readers(condition, "Not") if depth < DEEPEST else ():
        reversed_choices = _choices(reader, node.outputs[0], depth + 1)
        found += [_Choice(choice.where, not choice.opposite) for choice in reversed_choices]
        count += bool(reversed_choices)
    return found if reader.count(condition) == count else []


def _compared(reader: Reader, node: Node, depth: int = 0) -> list[str]:
    """Return what is compared to decide a condition; nothing if something else decides, or its parts are read twice."""
    if node.op.type in COMPARISONS:
        return list(node.inputs)
    found = []
    for value in node.inputs:
        part = reader.maker(value, *COMPARISONS, "And", "Or", "Not")
        inside = _compared(reader, part, depth + 1) if part and reader.is_read_once(value) and depth < DEEPEST else []
        if not inside:
            return []
        found += inside
    return found


def _is_of_one_type(reader: Reader, where: Node, compared: list[str]) -> bool:
    """Tell whether all of these values, and both choices of a Where, are floats of one type."""
    types = {reader.graph.specs[value].dtype for value in (*compared, *where.inputs[1:])}
    return len(types) == 1 and types.pop().is_float


class _Spelling:
    """Writes a Where as choices by one comparison each, of which the last makes the result of the Where."""

    def __init__(self, reader: Reader, where: Node) -> None:
        self.reader, self.where = reader, where

    def of(self, condition: str, x: str, y: str, opposite: bool, *, inner: bool = False) -> list[Node]:
        """Return the nodes that choose x where a condition holds, or where it does not, and else y."""
        node = self.reader.maker(condition, *COMPARISONS, "And", "Or", "Not")
        assert node is not None
        if opposite:
            # The opposite of a comparison is none: of NaN neither a > b nor a <= b holds.
            x, y = y, x
        if node.op.type == "Not":
            return self.of(node.inputs[0], x, y, True, inner=inner)
        if node.op.type in COMPARISONS:
            return [self._choice(node, x, y, inner)]
        first, second = node.inputs
        nodes = self.of(second, x, y, False, inner=True)
        rest = nodes[-1].outputs[0]
        x, y = (rest, y) if node.op.type == "And" else (x, rest)
        return [*nodes, *self.of(first, x, y, False, inner=inner)]

    def _choice(self, comparison: Node, x: str, y: str, inner: bool) -> Node:
        op, graph = new_op(COMPARE_SELECT, comparison=comparison.op.type), self.reader.graph
        name, outputs = self.where.name, self.where.outputs
        if inner:
            name = self.reader.names.fresh(f"{self.where.outputs[0]}.choice")
            outputs = (name,)
        node = Node(name, op, (*comparison.inputs, x, y), outputs)
        infer_node(graph, node)
        for value in dict.fromkeys(node.inputs):
            scalar = self._scalar(value)
            smaller = replace(node, inputs=tuple(scalar if i == value else i for i in node.inputs))
            if inferred(graph, smaller)[0] == graph.specs[outputs[0]]:
                node = smaller
        return node

    def _scalar(self, value: str) -> str:
        """Return a scalar constant in place of zeros in the shape of x, as exporters write them, else the value itself.

        A kernel has scalars in its text, and reads nothing.
        """
        graph = self.reader.graph
        number = only_element(graph.constants[value]) if value in graph.constants and graph.specs[value].shape else None
        if number is None:
            return value
        name = self.reader.names.fresh(f"{value}.scalar")
        graph.constants[name], graph.specs[name] = number, TensorSpec((), graph.specs[value].dtype)
        return name
