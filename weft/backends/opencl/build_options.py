"""What a compiler of OpenCL C is given beside a kernel's text."""

from __future__ import annotations

from weft.backends.opencl import ptx
from weft.config import opencl_build_options
from weft.kernels.source import KernelSource

BUILD_OPTIONS = ("-cl-std=CL1.2", "-cl-single-precision-constant")
"""The standard, and what makes a literal a float, for kernels that do not compute in float64.

No option loosens arithmetic: precision HIGH means fp32 with the errors that the language allows by default.
`-cl-mad-enable` would allow less accurate intermediate results. It gains nothing where contraction to fma
is already on, which is the language's default.
"""


def language_options(source: KernelSource) -> tuple[str, ...]:
    """Return the options that decide what a kernel's text means."""
    standard, *literals = BUILD_OPTIONS
    return (standard, *(literals if not source.computes_double else ()), *opencl_build_options())


def given_to_compiler(source: KernelSource, header: str) -> str:
    """Return all that decides a kernel's binary but for the driver and the device, for the keys of caches."""
    patch = (ptx.VERSION,) if source.has("covered") else ()
    return "\n".join((*patch, *language_options(source), source.digest, source.entry, header))
