"""Keep pyopencl's objects in a process that was forked after a driver had started.

A thread of the driver does not exist in the child: a lock that it held at the fork stays taken, and work that it had
is never done. So what releases an object there, as pyopencl does where it collects mapped memory, may wait for ever
(seen in Intel's runtime for CPUs). How such a process ends is `weft.backends.gpu.device.fork_guard`'s.
"""

from __future__ import annotations

import ctypes
import gc
import os
from functools import cache

OWNERS = ("pyopencl", "pyopencl._cl", "weft.backends.opencl.device")
"""The modules of what holds the driver's objects: pyopencl's own, and devices, whose events nothing else tracks."""


@cache
def guard() -> None:
    """Have processes that are forked from now on keep the driver's objects."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_keep_all)


def _keep_all() -> None:
    for each in gc.get_objects():
        if type(each).__module__ in OWNERS:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
