"""Integers that stand for sizes which are still open, so that a network can be prepared once for all of them.

A `SymbolicInt` is a polynomial in open sizes, with whole-number quotients of such polynomials as further unknowns. It
computes as an int does. Each has a value for the sizes of the moment, which answers every comparison; the comparison
is noted as a **guard** in `OpenSizes`. What was computed with these numbers holds for all sizes for which all guards
give the same answers. What cannot be noted (`int(size)`, a float, numpy) raises, so nothing can take a number for
granted unseen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array

Monomial = tuple[int, ...]
"""The unknowns that are multiplied, by their numbers, in order; empty for the number 1."""
Terms = tuple[tuple[Monomial, int], ...]
"""The coefficient of each monomial, in order; none is 0."""
Relation = Callable[[int, int], bool]


class NotSymbolic(TypeError):
    """A size that is still open would have to be a number."""


class OpenSizes:
    """The open sizes of one preparation, their values at the moment, and the guards that it noted."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.guards: dict[tuple[Terms, Relation], bool] = {}
        """The answer to each comparison of a polynomial with 0."""
        self.failed = ""
        """Why what was computed does not hold for other sizes; empty if it does."""
        self.shown = False
        """Whether a text shows a value of the moment."""
        self._values: list[int] = []
        self._quotients: list[tuple[Terms, Terms] | None] = []
        """By unknown: what is divided by what; None for an open size."""
        self._known: dict[tuple[Terms, Terms], int] = {}
        self._equal: dict[int, Terms] = {}
        """Open sizes that an equation among the guards gives, by unknown."""
        self.inferred: dict[object, Any] = {}
        """What composites inferred from these sizes, whose guards are noted: equal nodes ask once."""

    def begin_again(self, other: OpenSizes, values: Mapping[str, int]) -> None:
        """Know what `other` knew when it was copied, and have these values, by name, for which its guards hold."""
        self.guards, self._equal = dict(other.guards), dict(other._equal)
        self.failed, self.shown, self.inferred = "", False, {}
        for at, quotient in enumerate(self._quotients):
            if quotient is None:
                self._values[at] = values[self.names[self._quotients[:at].count(None)]]
            else:
                below = self.value(quotient[1])
                self._values[at] = self.value(quotient[0]) // below if below else 0

    def copy(self) -> OpenSizes:
        """Return the guards and equations so far, for `begin_again`."""
        out = OpenSizes()
        out.guards, out._equal = dict(self.guards), dict(self._equal)
        return out

    def size(self, name: str, value: int) -> SymbolicInt:
        """Return a new open size with its value at the moment."""
        self.names.append(name)
        return SymbolicInt(self, ((self._unknown(value, None),), 1),)

    def _unknown(self, value: int, quotient: tuple[Terms, Terms] | None) -> int:
        self._values.append(value)
        self._quotients.append(quotient)
        return len(self._values) - 1

    def fail(self, why: str) -> NotSymbolic:
        """Note that the result holds for the sizes of the moment alone, and return the error to raise."""
        self.failed = self.failed or why
        return NotSymbolic(why)

    def value(self, terms: Terms) -> int:
        """Return the value of a polynomial at the moment."""
        return _value(terms, self._values)

    def quotient(self, above: Terms, below: Terms) -> int | SymbolicInt:
        """Return the whole-number quotient of two polynomials."""
        exact, rest = _divided(above, below)
        if not rest:
            return self.number(exact)
        divisor = self.value(below)
        if divisor == 0:
            raise ZeroDivisionError("an open size is divided by 0")
        if below and len(below) == 1 and not below[0][0]:
            if len(rest) == 1 and not rest[0][0]:  # from 0 on, and below the divisor
                return self.number(exact)
        else:
            self.answer(below, operator.ne)
            exact, rest = (), above
        key = (rest, below)
        if key not in self._known:
            self._known[key] = self._unknown(self.value(rest) // divisor, key)
        return self.number(_sum(exact, (((self._known[key],), 1),)))

    def number(self, terms: Terms) -> int | SymbolicInt:
        """Return a polynomial, as an int if it is one."""
        if not terms:
            return 0
        if len(terms) == 1 and not terms[0][0]:
            return terms[0][1]
        return SymbolicInt(self, *terms)

    def answer(self, terms: Terms, relation: Relation) -> bool:
        """Return whether a polynomial has that relation to 0, and note it as a guard unless it always has."""
        terms = self.reduced(terms)
        if not terms or (len(terms) == 1 and not terms[0][0]):
            return relation(terms[0][1] if terms else 0, 0)
        found = relation(self.value(terms), 0)
        self.guards[terms, relation] = found
        if (relation is operator.eq and found) or (relation is operator.ne and not found):
            self._solve(terms)
        return found

    def _solve(self, terms: Terms) -> None:
        """Learn what an open size is from an equation, the newest one first."""
        for monomial, factor in reversed(terms):
            (unknown,) = monomial if len(monomial) == 1 else (None,)
            if unknown is None or abs(factor) != 1 or self._quotients[unknown] is not None:
                continue
            if any(unknown in m for m, _ in terms if m != monomial):
                continue
            rest = tuple((m, -c * factor) for m, c in terms if m != monomial)
            self._equal = {u: _substituted(t, {unknown: rest}) for u, t in self._equal.items()}
            self._equal[unknown] = rest
            return

    def reduced(self, terms: Terms) -> Terms:
        """Return a polynomial with open sizes replaced by what they are known to be."""
        if not self._equal or not any(u in self._equal for m, _ in terms for u in m):
            return terms
        return _substituted(terms, self._equal)

    def sums(self) -> dict[int, Terms]:
        """Return what the equations among the guards say, each solved for the unknown that is a sum of others, if any.

        Of `past + new - all = 0` that is `all`: what the sum is then follows from sizes that stand for themselves.
        """
        known: dict[int, Terms] = {}
        for unknown, terms in self._equal.items():
            left = _substituted(_sum((((unknown,), 1),), _negated(terms)), known)
            signs = {m[0]: c for m, c in left if len(m) == 1 and abs(c) == 1 and self._quotients[m[0]] is None}
            own = [u for u in signs if all(c * signs[u] < 0 for m, c in left if m and m != (u,))]
            chosen = next(iter(own or signs), None)
            if chosen is None or any(chosen in m for m, _ in left if m != (chosen,)):
                continue
            rest = tuple((m, -c * signs[chosen]) for m, c in left if m != (chosen,))
            known = {u: _substituted(t, {chosen: rest}) for u, t in known.items()}
            known[chosen] = rest
        return known

    def derived(self) -> set[str]:
        """Return the names of the open sizes that are sums of others, as `sums` has them."""
        named = (self.name(unknown) for unknown, terms in self.sums().items() if any(m for m, _ in terms))
        return {name for name in named if name is not None}

    def with_values(self, terms: Terms, values: Mapping[str, int], sums: Mapping[int, Terms]) -> Terms:
        """Return a polynomial with numbers in the place of some open sizes, by name, and others as they are `sums`."""
        terms, known = _substituted(terms, sums), dict[int, Terms]()
        for unknown in {u for monomial, _ in terms for u in monomial}:
            quotient = self._quotients[unknown]
            if quotient is None:
                number = values.get(self.name(unknown) or "")
                if number is not None:
                    known[unknown] = _constant(number)
                continue
            above, below = (self.with_values(t, values, sums) for t in quotient)
            if all(not m for m, _ in (*above, *below)) and below:
                known[unknown] = _constant(sum(c for _, c in above) // below[0][1])
        return _substituted(terms, known) if known else terms

    def name(self, unknown: int) -> str | None:
        """Return the name of an open size; None for a quotient."""
        if self._quotients[unknown] is not None:
            return None
        return self.names[self._quotients[:unknown].count(None)]

    def quotient_of(self, unknown: int) -> tuple[Terms, Terms] | None:
        """Return what is divided by what; None for an open size."""
        return self._quotients[unknown]

    def evaluator(
        self, wanted: Sequence[Terms], *, guarded: bool = True
    ) -> Callable[[Mapping[str, int]], list[int] | None]:
        """Return what computes polynomials for sizes by name; None where these break a guard, if it is `guarded`."""
        names, quotients = list(self.names), list(self._quotients)
        ranges = _ranges(self.guards) if guarded else []
        open_at = [k for k, q in enumerate(quotients) if q is None]
        divided = [(at, *q) for at, q in enumerate(quotients) if q is not None]

        def evaluate(sizes: Mapping[str, int]) -> list[int] | None:
            values = [0] * len(quotients)
            for at, name in zip(open_at, names, strict=True):
                values[at] = sizes[name]
            for at, above, below in divided:
                divisor = _value(below, values)
                if not divisor:
                    return None
                values[at] = _value(above, values) // divisor
            for terms, low, high, but in ranges:
                value = _value(terms, values)
                if value in but or (low is not None and value < low) or (high is not None and value > high):
                    return None
            return [_value(terms, values) for terms in wanted]

        return evaluate


class SymbolicInt:
    """A polynomial in open sizes; see the module."""

    __slots__ = ("_sizes", "terms")

    def __init__(self, sizes: OpenSizes, *terms: tuple[Monomial, int]) -> None:
        self._sizes, self.terms = sizes, terms

    @property
    def sizes(self) -> OpenSizes:
        """Return the open sizes that it is a polynomial in."""
        return self._sizes

    def __repr__(self) -> str:
        self._sizes.shown = True
        return str(self._sizes.value(self.terms))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def _of(self, other: object) -> Terms | None:
        """Return another number as a polynomial in the same sizes; None if it is something else."""
        if type(other) is SymbolicInt:
            return other.terms if other._sizes is self._sizes else None
        if isinstance(other, (int, np.integer)):
            return (((), int(other)),) if other else ()
        return None

    # -- arithmetic --------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Any:
        terms = self._of(other)
        return NotImplemented if terms is None else self._sizes.number(_sum(self.terms, terms))

    __radd__ = __add__

    def __sub__(self, other: object) -> Any:
        terms = self._of(other)
        return NotImplemented if terms is None else self._sizes.number(_sum(self.terms, _negated(terms)))

    def __rsub__(self, other: object) -> Any:
        terms = self._of(other)
        return NotImplemented if terms is None else self._sizes.number(_sum(terms, _negated(self.terms)))

    def __mul__(self, other: object) -> Any:
        terms = self._of(other)
        return NotImplemented if terms is None else self._sizes.number(product(self.terms, terms))

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Any:
        terms = self._of(other)
        return NotImplemented if terms is None else self._sizes.quotient(self.terms, terms)

    def __rfloordiv__(self, other: object) -> Any:
        terms = self._of(other)
        return NotImplemented if terms is None else self._sizes.quotient(terms, self.terms)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self

    def __neg__(self) -> Any:
        return self._sizes.number(_negated(self.terms))

    def __pos__(self) -> SymbolicInt:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __ceil__(self) -> SymbolicInt:
        return self

    __floor__ = __trunc__ = __ceil__

    # -- comparisons, which are guards -------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        terms = self._of(other)
        return False if terms is None else self._answer(terms, operator.eq)

    def __ne__(self, other: object) -> bool:
        terms = self._of(other)
        return True if terms is None else not self._answer(terms, operator.eq)

    def __lt__(self, other: object) -> bool:
        return self._ordered(other, operator.lt)

    def __le__(self, other: object) -> bool:
        return self._ordered(other, operator.le)

    def __gt__(self, other: object) -> bool:
        return self._ordered(other, operator.gt)

    def __ge__(self, other: object) -> bool:
        return self._ordered(other, operator.ge)

    def __bool__(self) -> bool:
        return self != 0

    def _ordered(self, other: object, relation: Relation) -> bool:
        terms = self._of(other)
        return NotImplemented if terms is None else self._answer(terms, relation)

    def _answer(self, terms: Terms, relation: Relation) -> bool:
        return self._sizes.answer(_sum(self.terms, _negated(terms)), relation)

    # -- what no guard could note ------------------------------------------------------------------------

    def _refuse(self, *_: object) -> Any:
        raise self._sizes.fail("a size would have to be known as a number")

    # A set or a dict takes numbers with other hashes for different without asking, and so without a guard.
    __hash__ = _refuse
    __index__ = __int__ = __float__ = __complex__ = __round__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __invert__ = _refuse


def integer(value: Any) -> Any:
    """Return a number as an int of Python, or the `SymbolicInt` that it is."""
    return value if type(value) is SymbolicInt else int(value)


def int_array(values: Sequence[Any], dtype: Any = np.int64) -> Array:
    """Return an array of integers; its elements are objects if one of them is a `SymbolicInt`."""
    if any(type(v) is SymbolicInt for v in values):
        out = np.empty(len(values), object)
        out[:] = values
        return out
    return np.array(values, dtype)


class LaterConstant:
    """A constant of which the elements follow from open sizes: an op, and the arrays or later constants it reads.

    It has a shape and a type, and looks like an array that nobody may read: that raises.
    """

    def __init__(self, sizes: OpenSizes, op: Any, inputs: Sequence[Any], output: int, spec: Any) -> None:
        self.op, self.inputs, self.output, self.spec = op, tuple(inputs), output, spec
        self._sizes = sizes
        self.shape = spec.shape
        self.dtype = spec.dtype.numpy
        self.ndim = len(spec.shape)

    @property
    def size(self) -> Any:
        """Return the number of elements."""
        return self.spec.size

    @property
    def nbytes(self) -> Any:
        """Return the bytes of the elements."""
        return self.spec.size * self.spec.dtype.itemsize

    def __getattr__(self, name: str) -> Any:
        raise self._sizes.fail(f"the elements of a constant follow from open sizes ({name} was asked for)")

    def __array__(self, *_: object, **__: object) -> Array:
        raise self._sizes.fail("the elements of a constant follow from open sizes")

    def _refuse(self, *_: object) -> Any:
        raise self._sizes.fail("the elements of a constant follow from open sizes")

    __getitem__ = __iter__ = __len__ = __bool__ = __int__ = __float__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = object.__hash__


def has_open_size(shape: Sequence[Any]) -> bool:
    """Tell whether one of some sizes is a `SymbolicInt`."""
    return any(type(d) is SymbolicInt for d in shape)


def key_of(value: Any) -> object:
    """Return what equal polynomials share, in place of each in a value: they have no hash."""
    if isinstance(value, (tuple, list)):
        return tuple(map(key_of, value))
    return ("open", value.terms) if type(value) is SymbolicInt else value


def shape_text(shape: Sequence[Any]) -> str:
    """Return a shape as a text that holds for all open sizes, which are "?" in it."""
    return f"({', '.join('?' if type(d) is SymbolicInt else str(d) for d in shape)}{',' * (len(shape) == 1)})"


def is_symbolic(value: Any) -> bool:
    """Tell whether a constant follows from open sizes."""
    return isinstance(value, LaterConstant) or (isinstance(value, np.ndarray) and value.dtype == object)


def known(value: Any) -> Array | None:
    """Return a constant; None if there is none, or if it follows from open sizes."""
    return None if value is None or is_symbolic(value) else value


def whole(array: Array, dtype: DType) -> Array:
    """Return an array of objects as one of numbers, if none of them is a `SymbolicInt`."""
    if array.dtype != object or any(type(v) is SymbolicInt for v in array.reshape(-1)):
        return array
    return array.astype(dtype.numpy)


# -- polynomials -----------------------------------------------------------------------------------------------


def _ranges(guards: Mapping[tuple[Terms, Relation], bool]) -> list[tuple[Terms, int | None, int | None, set[int]]]:
    """Return polynomials with the least and the greatest value that guards leave to them, and values that they exclude.

    Most guards compare one of few sums with a number, so these are far fewer than the guards.
    """
    found: dict[Terms, tuple[list[int], list[int], set[int]]] = {}
    for (terms, relation), answer in guards.items():
        number = sum(factor for monomial, factor in terms if not monomial)
        lows, highs, but = found.setdefault(tuple(t for t in terms if t[0]), ([], [], set()))
        if relation in (operator.eq, operator.ne):
            if (relation is operator.eq) is answer:
                lows.append(-number)
                highs.append(-number)
            else:
                but.add(-number)
            continue
        below, above = (relation(k, 0) is answer for k in (-1, 1))
        assert below is not above, relation
        with_it = relation(0, 0) is answer
        if below:
            highs.append(-number - (not with_it))
        else:
            lows.append(-number + (not with_it))
    return [
        (terms, max(lows, default=None), min(highs, default=None), but)
        for terms, (lows, highs, but) in found.items()
    ]


def _constant(number: int) -> Terms:
    return (((), number),) if number else ()


def _made(found: Mapping[Monomial, int]) -> Terms:
    return tuple(sorted((m, c) for m, c in found.items() if c))


def _sum(a: Terms, b: Terms) -> Terms:
    if not b:
        return a
    found = dict(a)
    for monomial, factor in b:
        found[monomial] = found.get(monomial, 0) + factor
    return _made(found)


def _negated(a: Terms) -> Terms:
    return tuple((m, -c) for m, c in a)


def product(a: Terms, b: Terms) -> Terms:
    """Return the product of two polynomials."""
    found: dict[Monomial, int] = {}
    for left, p in a:
        for right, q in b:
            key = tuple(sorted((*left, *right)))
            found[key] = found.get(key, 0) + p * q
    return _made(found)


def _substituted(terms: Terms, known: Mapping[int, Terms]) -> Terms:
    out: Terms = ()
    for monomial, factor in terms:
        part: Terms = (((), factor),)
        for unknown in monomial:
            part = product(part, known.get(unknown, (((unknown,), 1),)))
        out = _sum(out, part)
    return out


def _value(terms: Terms, values: Sequence[int]) -> int:
    total = 0
    for monomial, factor in terms:
        for unknown in monomial:
            factor *= values[unknown]
        total += factor
    return total


def _divided(above: Terms, below: Terms) -> tuple[Terms, Terms]:
    """Return an exact part of a quotient, and the rest, of which the quotient by `below` remains to be added."""
    if above == below:
        return (((), 1),), ()
    if len(below) != 1:
        return (), above
    (by, factor), exact, rest = below[0], {}, {}
    for monomial, c in above:
        left = list(monomial)
        for unknown in by:
            if unknown not in left:
                break
            left.remove(unknown)
        else:
            exact[tuple(left)] = c // factor
            c -= c // factor * factor
        if c:
            rest[monomial] = c
    return _made(exact), _made(rest)
