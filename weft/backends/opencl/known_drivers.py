"""What is known of OpenCL drivers by their platforms' names, and of NVIDIA's GPUs by their compute capability."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.backends.gpu.device.known_drivers import KnownDriver, best_match, read_table
from weft.kernels.matrix_shapes import MatrixShape

TABLE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class OpenCLDriver(KnownDriver):
    """A driver, by a part of its platform's name."""

    obeys: tuple[str, ...] = ()
    """The variables for hiding cards that it obeys itself."""
    most_local_memory: int = 0
    """Bytes of work-group memory beyond which launches fail, whatever it reports; 0: no such limit."""
    most_items: int = 0
    """Items of a work-group beyond which they fail: its compiler ignores the size of the work-group and may use so many
    registers that no more fit. 0: no such limit."""
    registers: int = 0
    """Registers of a compute unit, of which its compiler is told how many each item may use; 0: it is told nothing."""
    compiles_one_at_a_time: bool = False
    """Whether threads of a process compile in turn, so that child processes gain."""
    tells_capability: bool = False
    """Whether its devices have a compute capability."""
    first_of_cpus: bool = False
    """Whether it comes before other drivers for CPUs, because it is the fastest."""
    ignored: bool = False
    """Whether its devices are left out: an emulation of FPGAs is the same CPU again."""
    needs_linker: bool = False
    """Whether it ends the process where the system has no linker."""


def driver_of(device: Any) -> OpenCLDriver:
    """Return what is known of the driver of one of pyopencl's devices."""
    return driver_named(device.platform.name)


def driver_named(platform: str) -> OpenCLDriver:
    """Return what is known of the driver of a platform."""
    drivers = [OpenCLDriver(**{**each, "obeys": tuple(each.get("obeys", ()))}) for each in read_table(TABLE)["drivers"]]
    return best_match(drivers, platform) or OpenCLDriver()


def granted(capability: tuple[int, int]) -> frozenset[str]:
    """Return what GPUs of a compute capability can do: names of `DeviceCaps`, and `faster_as_ptx`.

    With the latter, networks were found to take less time by PTX than by GLSL (benchmarks/README.md).
    """
    return frozenset(name for each in _of(capability) for name in each["grants"])


def matrices_of(capability: tuple[int, int]) -> tuple[MatrixShape, ...]:
    """Return the products of matrices that GPUs of a compute capability have instructions for."""
    return tuple(sorted(MatrixShape(*shape) for each in _of(capability) for shape in each.get("matrices", ())))


def _of(capability: tuple[int, int]) -> Iterator[dict[str, Any]]:
    for each in read_table(TABLE)["capabilities"]:
        if tuple(each["first"]) <= capability <= tuple(each.get("last", capability)):
            yield each
