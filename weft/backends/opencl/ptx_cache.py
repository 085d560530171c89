"""Where kernels that OpenCL compiles for another API lie on disk; it can be asked without OpenCL."""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.opencl.build_options import given_to_compiler
from weft.backends.opencl.constants import header, late_constants
from weft.kernels.source import KernelSource

CACHE = "ptx"
"""The folder inside the cache."""
_FORM = "2"
"""The version of what is in it, part of each key."""


def key_of(
    device: tuple[str, str], source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
) -> str:
    """Return the key of a kernel with these constants, of which those that vary may be parameters.

    The other API knows its device by this name and driver.
    """
    known = header(source, values, late_constants(source, varying))
    return "\n".join((_FORM, *device, given_to_compiler(source, known)))
