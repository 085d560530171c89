"""Leave a driver alone in a process that was forked after it had started.

A thread of the driver does not exist in the child: a lock that it held at the fork stays taken, and work that it had
is never done. So what releases an object there, as pyopencl does where it collects mapped memory, may wait for ever,
and so does the driver's own end of the process (seen in Intel's runtime for CPUs).
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
    """Have processes that are forked from now on keep the driver's objects, and end without asking the driver."""
    if not hasattr(os, "register_at_fork"):
        return
    libc = ctypes.CDLL(None)
    # Only glibc tells at its end with which status. It flushes its streams first: what is registered last runs first.
    if hasattr(libc, "on_exit"):
        os.register_at_fork(after_in_child=_keep_all)
        os.register_at_fork(after_in_child=lambda: libc.on_exit(libc._exit, None))
        os.register_at_fork(after_in_child=lambda: libc.on_exit(libc.fcloseall, None))


def _keep_all() -> None:
    for each in gc.get_objects():
        if type(each).__module__ in OWNERS:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
