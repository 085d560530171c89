"""Every error that Weft raises, in one tree.

    WeftError
    |- ConfigError            an option, a device name or an environment variable is not valid
    |- ModelError             the model file or graph is wrong or not understood
    |  |- UnsupportedOps      nodes that no front end or no backend takes, all of them at once
    |  |- ValueNeeded         a shape follows from a value that only a run computes
    |- PassError              a pass broke what it declares, or failed
    |- InputError             an array handed to a session does not fit
    |- BackendError           a backend broke its contract, or was registered wrongly
    |- DeviceError            the device, its driver or its memory
    |  |- NoDevice            no usable device with that name
    |  |- OutOfMemory         memory that the device cannot provide
    |  |- CompileError        a kernel that the device's compiler refused
    |  |- DeviceLost          the device stopped responding
    |- ExecutionError         a node failed while it was prepared or run
    |- ClosedError            use of a session, pool or device after it was closed
    |- QueueFull              more requests wait than a pool takes
    |- CannotCopy             a session, runtime or buffer was to be pickled or copied; a TypeError, too
    |- CannotShare            memory that other libraries do not reach; a BufferError, too

A message has up to four parts: what happened, where, why (with numbers), and what to do next.

Two answers are no errors: a `Reason` says why a device cannot be used, a `Refusal` why a device does not run a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

    from weft.core.graph.graph import Graph


MOST_OF_A_REASON = 500
"""The most characters of someone else's text that a message shows."""
MOST_LISTED = 20
"""The most problems or names that a message lists."""


def brief(text: str, most: int = MOST_OF_A_REASON) -> str:
    """Return a text cut to `most` characters for a message, with the number of characters left out."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"


def listed(items: Sequence[str], most: int = MOST_LISTED) -> list[str]:
    """Return the first `most` items for a message, and, if there are others, how many: "and 7 more"."""
    left = len(items) - most
    return [*items[:most], f"and {left} more"] if left > 0 else list(items)


def listing(items: Sequence[str], separator: str = "; ", *, most: int = MOST_LISTED) -> str:
    """Return what `listed` returns as one text."""
    return separator.join(listed(items, most))


_NAMES = re.compile(r"'[^']*'")
"""Names in a message, by which what is said of two nodes may differ."""
LONGEST_NAME = 120
"""The most characters of a node's name that a problem shows."""
MOST_NAMED = 3
"""The most nodes that a message names where it says the same of all of them."""


class Problem(str):
    """What is wrong with one node: its name, and what is said of it. Messages list those alike as one."""

    node: str
    said: str

    def __new__(cls, node: str, said: str) -> Problem:
        """Return the sentence; `said` begins with what separates it from the name."""
        made = super().__new__(cls, f"{brief(repr(node), LONGEST_NAME)}{said}")
        made.node, made.said = node, said
        return made


def grouped(problems: Iterable[str], most: int = MOST_LISTED) -> list[str]:
    """Return the lines that tell problems: one for all that differ only in names, which names the first nodes.

    What is said is that of the first: "'a', 'b', 'c' and 1,997 more (Neg): ...". At most `most` lines, as `listed`.
    """
    alike: dict[str, list[str]] = {}
    for each in problems:
        alike.setdefault(_NAMES.sub("''", each.said if isinstance(each, Problem) else each), []).append(each)
    lines = []
    for those in alike.values():
        nodes = [brief(repr(each.node), LONGEST_NAME) for each in those if isinstance(each, Problem)]
        first, left = those[0], len(nodes) - MOST_NAMED
        if len(nodes) > 1 and isinstance(first, Problem):
            shown = ", ".join(nodes[:MOST_NAMED]) + (f" and {left:,} more" if left > 0 else "")
            lines.append(shown + first.said)
        else:
            lines.append(first)
    return listed(lines, most)


def said_of(e: BaseException) -> str:
    """Return an exception for the `why` of another: one line, without the labels of a message of Weft."""
    return e.short if isinstance(e, WeftError) else f"{type(e).__name__}: {e}"


class Reason(str):
    """Why a device cannot be used, as one sentence that also gives `what` is wrong and a `fix` apart.

    A creator's `absent` and `unusable` may return one in the place of a plain text; `weft doctor` then lists its `fix`.
    """

    what: str
    fix: str
    """What to do about it; "" if that is not known."""

    def __new__(cls, what: str, fix: str = "") -> Reason:
        """Return the sentence "what: fix"."""
        made = super().__new__(cls, f"{what}: {fix}" if fix else what)
        made.what, made.fix = what, fix
        return made

    @classmethod
    def of(cls, text: str) -> Reason:
        """Return a sentence as a reason; a plain text gives no fix."""
        return text if isinstance(text, Reason) else cls(text)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a device does not run a node."""

    node: str
    op: str
    device: str
    reason: str

    def __str__(self) -> str:
        return self.problem()

    def problem(self, where: str = "") -> Problem:
        """Return it as what is wrong with the node, which is somewhere else now (" on cpu:0")."""
        return Problem(self.node, f" ({self.op}){where}: {self.device}: {self.reason}")


class WeftError(Exception):
    """The root of all errors of Weft; says what happened, where, why and what to do next."""

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        parts = [what]
        parts += [f"  {label}: {text}" for label, text in (("where", where), ("why", why), ("next", fix)) if text]
        super().__init__("\n".join(parts))

    def __reduce__(self) -> tuple[object, ...]:
        return _remade, (type(self), self.args), vars(self)

    @property
    def short(self) -> str:
        """Return what happened and why in one line, to quote in another message."""
        return f"{self.what} ({self.why})" if self.why else self.what

    def placed(self, where: str) -> Self:
        """Change where it happened, and return the same error."""
        WeftError.__init__(self, self.what, where=where, why=self.why, fix=self.fix)
        return self

    def reworded(self, what: str) -> Self:
        """Change what happened, and return the same error."""
        WeftError.__init__(self, what, where=self.where, why=self.why, fix=self.fix)
        return self


def _remade(kind: type[WeftError], arguments: tuple[object, ...]) -> WeftError:
    """Return an error from a pickle: its class may ask for more than the message."""
    made = kind.__new__(kind, *arguments)
    made.args = arguments
    return made


class ConfigError(WeftError):
    """An option, a device name or an environment variable is not valid."""


class ModelError(WeftError):
    """The model is malformed, inconsistent, or asks for something outside its own folder."""


class UnsupportedOps(ModelError):
    """Some nodes cannot run; `problems` lists each node with every reason, and the message those that are alike as one.

    If backends were asked, `refusals` has a row for each refusal: node, op, device and reason. If a front end lacks
    the ops, `by_op` says how many nodes of each there are, and `others` is the network without those nodes.
    """

    def __init__(
        self, what: str, problems: Sequence[str], *, fix: str = "", refusals: tuple[Refusal, ...] = (),
        by_op: Mapping[str, int] | None = None, others: Graph | None = None,
    ) -> None:
        self.problems, self.refusals, self.by_op, self.others = tuple(problems), refusals, by_op or {}, others
        super().__init__(what, why="\n    ".join(("", *grouped(problems))), fix=fix)


class ValueNeeded(ModelError):
    """A shape follows from a value that is not known before a run: input `index` of the node, or all if that is None.

    A session plans such a network in stages, so it raises this only where no run can tell the value either.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "", index: int | None = None) -> None:
        self.index = index
        known = "it follows from values of its inputs" if index is None else f"input {index} is not a constant"
        super().__init__(what, where=where, why=why or known, fix=fix)


class PassError(WeftError):
    """A pass over the graph failed, or its result is not what it declares; the message names the pass."""


class InputError(WeftError):
    """An array handed to a session has the wrong name, shape or type."""


class BackendError(WeftError):
    """A backend broke the device contract, or its registration collides with another."""


class DeviceError(WeftError):
    """The device or its driver failed, or refused a request."""


class NoDevice(DeviceError):
    """There is no usable device with the requested name."""


class OutOfMemory(DeviceError):
    """The device cannot provide the requested memory."""


LESS_MEMORY = "use a smaller batch, precision low or memory limit"
"""The advice of every `OutOfMemory` about a network; some add to it."""


class CompileError(DeviceError):
    """A kernel did not compile; the message shows the compiler's log and names a file with the source."""


class DeviceLost(DeviceError):
    """The device stopped responding while it was working."""


class ExecutionError(WeftError):
    """A node failed while it was prepared or run; the message names node, op and device."""


class ClosedError(WeftError):
    """The session, pool or device was closed before this call."""


class QueueFull(WeftError):
    """More requests wait than a pool takes; nothing was done with this one."""


class CannotCopy(WeftError, TypeError):
    """A session, a runtime, a registry or a buffer was to be pickled or copied, which holds open devices."""


class CannotShare(WeftError, BufferError):
    """Memory was to be shared by DLPack that cannot be: it is a device's own, or of a type that DLPack lacks."""


def is_fatal(e: BaseException) -> bool:
    """Tell whether an error says that a session, or its device, is of no use any more: only another one may work."""
    lost = isinstance(e, DeviceError) and not isinstance(e, (CompileError, OutOfMemory))
    return lost or isinstance(e, (ClosedError, BackendError))
