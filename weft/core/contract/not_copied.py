"""What holds open devices, and so can be neither copied nor pickled."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from weft.errors import CannotCopy


class NotCopied:
    """A base of classes whose objects are refused by `pickle` and `copy`: CannotCopy says what to do instead.

    A copy would share the devices of its original, whose memory it would free when it is closed.
    """

    _noun: ClassVar[str]
    _in_a_worker: ClassVar[str]
    """What to do in place of pickling, as an error says it."""
    _a_second: ClassVar[str]
    """What to do in place of copying."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise self._refusal("pickled", self._in_a_worker)

    def __copy__(self) -> NoReturn:
        raise self._refusal("copied", self._a_second)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise self._refusal("copied", self._a_second)

    def _refusal(self, done: str, fix: str) -> CannotCopy:
        why = "it holds open devices, their memory and threads, which belong to it and to this process"
        return CannotCopy(f"a {self._noun} cannot be {done}", why=why, fix=fix)
