"""A session in a process of its own: a driver that crashes ends that process alone, and Python runs beside the others.

The two processes talk by pickles on a socket. Arrays lie in memory that both map: each side writes into files that it
made, which have no name, and the other opens them by /proc.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array, Shape
from weft.core.host.child_process import has_interpreter, program
from weft.errors import ConfigError, DeviceLost, WeftError
from weft.loading import load

ALIGNMENT = 64
PATIENCE = 10.0
"""Seconds that a process has to end."""
MOST_FILES = 16
"""How many files with inputs a session keeps: of batches, and of requests that run alone."""


@dataclass(frozen=True)
class _Place:
    """Where an array lies: the number of the file, its descriptor in the process that made it, its bytes."""

    file: int
    descriptor: int
    nbytes: int
    offset: int
    dtype: np.dtype[Any]
    shape: Shape


class _Own:
    """A file without a name that this process writes and the other one maps."""

    count = 0

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(nbytes, mmap.PAGESIZE)
        self.descriptor = os.memfd_create("weft")
        os.ftruncate(self.descriptor, self.nbytes)
        self.memory = np.frombuffer(mmap.mmap(self.descriptor, self.nbytes), np.uint8)
        _Own.count += 1
        self.number = _Own.count

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)

    def arrays(self, specs: Sequence[tuple[np.dtype[Any], Shape]]) -> list[tuple[Array, _Place]]:
        """Return arrays one behind the other."""
        made, at = [], 0
        for dtype, shape in specs:
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            array = self.memory[at : at + size].view(dtype).reshape(shape)
            made.append((array, _Place(self.number, self.descriptor, self.nbytes, at, dtype, shape)))
            at += _padded(max(size, 1))  # an empty array has an address of its own, too
        return made


class _Others:
    """The files of another process that this one maps: the `most` last ones that it used."""

    def __init__(self, process: int, most: int) -> None:
        self._process, self._most = process, most
        self._mapped: dict[int, Array] = {}

    def array(self, place: _Place) -> Array:
        memory = self._mapped.pop(place.file, None)
        if memory is None:
            descriptor = os.open(f"/proc/{self._process}/fd/{place.descriptor}", os.O_RDWR)
            try:
                memory = np.frombuffer(mmap.mmap(descriptor, place.nbytes), np.uint8)
            finally:
                os.close(descriptor)
        self._mapped[place.file] = memory
        for old in [*self._mapped][: -self._most]:
            del self._mapped[old]
        size = place.dtype.itemsize * int(np.prod(place.shape, dtype=np.int64))
        return memory[place.offset : place.offset + size].view(place.dtype).reshape(place.shape)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _room(specs: Sequence[tuple[np.dtype[Any], Shape]]) -> int:
    return sum(_padded(max(dtype.itemsize * int(np.prod(shape, dtype=np.int64)), 1)) for dtype, shape in specs)


class WorkerSession:
    """What a pool needs of a session, done by a session in another process; one thread at a time may use it."""

    def __init__(self, model: object, device: Any, options: Mapping[str, Any]) -> None:
        if not has_interpreter() or not hasattr(os, "memfd_create"):
            why = "it has no interpreter of its own" if hasattr(os, "memfd_create") else "the system is not Linux"
            raise ConfigError("this program cannot start processes for a pool", why=why, fix="leave processes= out")
        self._inputs: dict[int, _Place] = {}
        """Where the arrays of `input_arrays` lie, by their addresses."""
        self._files: list[_Own] = []
        self._alone: dict[object, dict[str, Array]] = {}
        """Arrays that inputs of requests which run alone are copied to, by their types and shapes."""
        try:
            asked = pickle.dumps((os.getpid(), model, device, dict(options)))
        except Exception as e:
            raise ConfigError(
                "the processes of a pool cannot get their network",
                why=str(e),
                fix="pass the path of the model, and options that can be pickled",
            ) from e
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", program(__name__), str(theirs.fileno()), *map(os.path.abspath, sys.path)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self._connection = Connection(ours.detach())
        self._others = _Others(self._process.pid, 1)
        self._is_closed = False
        self.graph: Graph
        try:
            self._connection.send_bytes(asked)
            self.graph = self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def process(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return list(self.graph.outputs)

    @property
    def is_closed(self) -> bool:
        """Tell whether it was closed."""
        return self._is_closed

    def new_inputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return arrays like these that the process reads where they are; those of the last calls stay valid."""
        specs = [(array.dtype, array.shape) for array in arrays.values()]
        file = _Own(_room(specs))
        made = dict(zip(arrays, file.arrays(specs), strict=True))
        self._files = [*self._files, file][-MOST_FILES:]
        self._inputs |= {_address(array): place for array, place in made.values()}
        kept = {each.number for each in self._files}
        self._inputs = {address: place for address, place in self._inputs.items() if place.file in kept}
        return {name: array for name, (array, _) in made.items()}

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs, in order; DeviceLost if the process has ended."""
        loose = {n: a for n, a in inputs.items() if isinstance(a, np.ndarray) and self._place(a) is None}
        if loose:
            key = tuple((name, array.dtype, array.shape) for name, array in loose.items())
            made = self._alone.pop(key, None)
            if made is None or any(self._place(array) is None for array in made.values()):  # their file has gone
                made = self.new_inputs(loose)
            self._alone[key] = made
            for old in [*self._alone][: -MOST_FILES // 2]:
                del self._alone[old]
            for name, array in loose.items():
                made[name][...] = array
            inputs = {**inputs, **made}
        places = {n: self._place(a) if isinstance(a, np.ndarray) else a for n, a in inputs.items()}
        self._send(places)
        return [self._others.array(each).copy() if isinstance(each, _Place) else each for each in self._answer()]

    def _place(self, array: Array) -> _Place | None:
        place = self._inputs.get(_address(array))
        fits = place is not None and (place.dtype, place.shape) == (array.dtype, array.shape)
        return place if fits and array.flags.c_contiguous else None

    def _send(self, value: object) -> None:
        try:
            self._connection.send(value)
        except OSError as e:
            raise self._lost() from e

    def _answer(self) -> Any:
        try:
            is_right, value = self._connection.recv()
        except (OSError, EOFError) as e:
            raise self._lost() from e
        if not is_right:
            raise value
        return value

    def _lost(self) -> DeviceLost:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        status = self._process.returncode
        ended = f"by {signal.Signals(-status).name}" if status is not None and status < 0 else f"with status {status}"
        return DeviceLost("the process of a session ended", why=f"it ended {ended}", fix="see what it printed before")

    def close(self) -> None:
        """End the process; one that does not end in time is killed."""
        self._is_closed = True
        self._connection.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


# -- in the process --------------------------------------------------------------------------------------------


def main(descriptor: str) -> None:
    """Load what comes first, then run what comes, until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    with Connection(int(descriptor)) as connection, suppress(EOFError, BrokenPipeError):
        parent, model, device, options = pickle.loads(connection.recv_bytes())
        session: Any = None

        def opened() -> Graph:
            nonlocal session
            session = load(model, **device, **options)
            graph: Graph = session.graph
            return replace(graph, nodes=[], constants={})

        _tell(connection, opened)
        if session is None:
            return
        others, own = _Others(parent, MOST_FILES), _Own(0)
        with session:
            while True:
                places = connection.recv()

                def done(places: Mapping[str, Any] = places) -> list[Any]:
                    nonlocal own
                    given = {n: others.array(each) if isinstance(each, _Place) else each for n, each in places.items()}
                    results = session.run(given)
                    arrays = [r for r in results if isinstance(r, np.ndarray)]
                    specs = [(a.dtype, a.shape) for a in arrays]
                    if _room(specs) > own.nbytes:
                        own = _Own(_room(specs))
                    made = iter(own.arrays(specs))
                    told = list[Any]()
                    for result in results:
                        if isinstance(result, np.ndarray):
                            target, place = next(made)
                            target[...] = result
                            told.append(place)
                        else:
                            told.append(result)
                    return told

                _tell(connection, done)


def _tell(connection: Connection, call: Callable[[], object]) -> None:
    """Send what a call returns, or its error."""
    try:
        answer: tuple[bool, object] = True, call()
    except Exception as e:
        answer = False, e if isinstance(e, WeftError) else RuntimeError(f"{type(e).__name__}: {e}")
    connection.send(answer)

