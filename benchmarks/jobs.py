"""Networks in processes of their own: several are prepared at a time, and only one is timed while all others wait.

A process exports its network, computes the reference, loads the sessions and compiles the peers; then it says so and
waits for its turn (`begin`). What is timed has the machine for itself: the others neither compute nor copy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Record, file_stem

READY = "ready to be timed"
"""The line by which a process says that it waits for its turn."""
OWN = ("--networks", "--batch", "--jobs", "--gpus", "--json", "--page", "--resume", "--budget")
"""Options of the command that are not passed on: each process has its own, or none."""
THREADS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS", "WEFT_BUILD_PROCESSES")
"""Variables that say how many cores a process may use while others prepare, too."""


def begin() -> None:
    """Say that everything is prepared, and wait for the turn; torch gets all cores again."""
    print(READY, flush=True)
    sys.stdin.readline()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(os.cpu_count() or 1)


def side_by_side(
    module: str, arguments: Sequence[str], cases: Sequence[tuple[str, int]], jobs: int, record: Record, gpus: int = 1
) -> None:
    """Measure each network at its batch size by `python -m module` with the arguments given, and take over its rows.

    The networks are dealt out to the GPUs, whose memory holds them all at once.
    """
    waiting = [(network, batch) for network, batch in cases if f"{network} x{batch}" not in record.done]
    turns = threading.Semaphore(jobs)
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for number, (network, batch) in enumerate(waiting):
            turns.acquire()
            path = Path(folder) / f"{file_stem(network, batch)}.json"
            own = ["--networks", network, "--batch", str(batch), "--json", str(path), "--waits", "--no-gemm"]
            gpu = ["--gpu", str(number % gpus)] if gpus > 1 else []  # the last one counts
            command = [sys.executable, "-m", module, *_passed_on(arguments), *own, *gpu]
            started.append(_Process(f"{network} x{batch}", command, path, turns, jobs))
        for process in started:
            process.ready.wait()
        print(f"[{record.seconds:4.0f} s] {len(started)} networks are prepared", flush=True)
        for process in started:
            record.part(process.what, lambda p=process: p.measure(record))  # type: ignore[misc]
        for process in started:
            process.end()


def _passed_on(arguments: Sequence[str]) -> Iterator[str]:
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in OWN:
            yield word
        elif not equals:
            next(words, None)


class _Process:
    """One network's process; `ready` is set when it waits for its turn, or when it ended before."""

    def __init__(self, what: str, command: Sequence[str], path: Path, turns: threading.Semaphore, jobs: int) -> None:
        self.what, self.ready = what, threading.Event()
        self._path, self._turns = path, turns
        environment = os.environ | dict.fromkeys(THREADS, str(max(1, (os.cpu_count() or 1) // jobs)))
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._freeing():
            for line in self._process.stdout or ():
                if line.strip() == READY:
                    break
        for line in self._process.stdout or ():
            print(f"  {line}", end="", flush=True)

    @contextmanager
    def _freeing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._turns.release()
            self.ready.set()

    def measure(self, record: Record) -> None:
        """Let the process take its rows, and take them over; RuntimeError if it failed as a whole."""
        self.end(go=True)
        if not self._path.exists():
            raise RuntimeError(f"its process ended with status {self._process.returncode} before the first row")
        record.take_over(self._path)
        if self._process.returncode:
            raise RuntimeError(f"its process ended with status {self._process.returncode}")

    def end(self, go: bool = False) -> None:
        """Give the process its turn, or stop it, and wait until it has ended."""
        if self._process.poll() is None:
            if go and self._process.stdin is not None:
                self._process.stdin.write("go\n")
                self._process.stdin.flush()
            else:
                self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
