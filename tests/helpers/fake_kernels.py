"""Kinds of special kernels that no hardware has: right, wrong, crashing, hanging. Child processes import them too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.core.contract.session_config import Precision
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import SpecialKernel, register_special
from weft.ops.attention import Attention
from weft.ops.matmul import MatMul
from weft.ops.softmax import Softmax

WANTED: set[str] = set()
"""The kinds that the hardware claims, as far as this process knows: none but in a test that says so."""
TESTED = "tested in process "
"""Begins what a kind says that names its process."""


def _fake(name: str, check: Callable[[Any], str | None]) -> SpecialKernel:
    def present(caps: DeviceCaps) -> bool:
        return name in WANTED

    def disable(caps: DeviceCaps) -> DeviceCaps:
        return replace(caps, max_local_items=caps.max_local_items // 2)

    return register_special(name, f"kernels that are {name}", present, disable, check=check)


def _crash(runtime: Any) -> None:
    os.abort()


def _hang(runtime: Any) -> None:
    time.sleep(1000)


def _noise(runtime: Any) -> None:
    os.write(1, b"a driver says something without the end of a line")


def _leave(runtime: Any) -> None:
    os._exit(3)


def _raise(runtime: Any) -> None:
    raise KeyError("a binding's")


def _recover(runtime: Any) -> str | None:
    """Fail once for each cache."""
    seen = Path(os.environ["WEFT_CACHE_DIR"]) / "recovering"
    if seen.exists():
        return None
    seen.touch()
    return "the device was lost"


RIGHT = register_special(
    "right",
    "kernels that are right",
    lambda caps: "right" in WANTED,
    lambda caps: caps,
    lambda: (
        one_node(MatMul(), (5, 7), (7, 3), constants=(1,), precision=Precision.LOW),
        one_node(MatMul(), (1, 2, 9, 20), (1, 2, 20, 17), precision=Precision.NORMAL),
        one_node(Attention(heads=2, packed=1), (1, 12, 48)),
    ),
)
WRONG = register_special(
    "wrong",
    "kernels that are wrong",
    lambda caps: "wrong" in WANTED,
    lambda caps: replace(caps, max_local_items=caps.max_local_items // 2),
    lambda: (one_node(Softmax(), (5, 33), tolerance=1e-12),),  # which no fp32 keeps to
)
CRASHING = _fake("crashing", _crash)
HANGING = _fake("hanging", _hang)
NOISY = _fake("noisy", _noise)
LEAVING = _fake("leaving", _leave)
RAISING = _fake("raising", _raise)
RECOVERING = _fake("recovering", _recover)
NAMED = _fake("named", lambda runtime: f"{TESTED}{os.getpid()}")
