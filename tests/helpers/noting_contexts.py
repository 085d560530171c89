"""Contexts of backends that note what they are told and may refuse it, for the tests of contract row A10."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import weft
from tests.helpers.fakes import Creator, Mock, mock, registered
from tests.helpers.nets import chain
from weft.core.contract.backend import Backend

NOTICES = ("before_load", "after_load", "before_unload", "after_unload")


class Told(weft.BackendContext):
    """Notes what it is told; answers `answer[notice]`, which may be an exception."""

    def __init__(self, creator: WithContext) -> None:
        self.creator = creator

    def _hear(self, what: str, network: int) -> bool:
        self.creator.heard.append((self.creator.id, what, network))
        answer = self.creator.answers.get(what, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def before_load(self, network: int) -> bool:
        return self._hear("before_load", network)

    def after_load(self, network: int) -> bool:
        return self._hear("after_load", network)

    def before_unload(self, network: int) -> bool:
        return self._hear("before_unload", network)

    def after_unload(self, network: int) -> bool:
        return self._hear("after_unload", network)


Heard = list[tuple[str, str, int]]


class WithContext(Creator):
    """A creator whose contexts note what they hear in one list."""

    def __init__(self, made: type[Backend] = Mock, heard: Heard | None = None) -> None:
        super().__init__(made)
        self.heard: Heard = [] if heard is None else heard
        self.answers: dict[str, bool | Exception] = {}
        self.contexts = 0

    def create_context(self) -> weft.BackendContext | None:
        self.contexts += 1
        return Told(self)


@contextmanager
def two_backends() -> Iterator[tuple[WithContext, WithContext]]:
    heard: Heard = []
    one, two = WithContext(mock("Relu"), heard), WithContext(mock(), heard)
    with registered(one, "one"), registered(two, "two"):
        yield one, two


def network(device: str | list[str] = "acme") -> weft.OptimizedNetwork:
    return weft.optimize(chain("Relu", "Tanh"), device)


def said(heard: Heard) -> list[tuple[str, int]]:
    return [(what, n) for _, what, n in heard]
