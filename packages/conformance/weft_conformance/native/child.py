"""The process in which a library is tried. It reports its findings line by line to the parent.

Each line is JSON: {"rule": subject} begins a rule, {"call": name} is the function that is called next, {"wrong",
"refused" or "right": message} ends the rule.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.contract.backend_options import Options
from weft.plugins.native import NativeCreator, load_library
from weft_conformance.native.calls import Calls
from weft_conformance.native.memory import Library
from weft_conformance.native.rules import Trial, look


def main(argument: str) -> None:
    """Try a library with some rules; `argument` is JSON: file, index, options, rules, patience."""
    given = json.loads(argument)
    # The library may write to stdout.
    told = os.dup(1)
    os.dup2(2, 1)

    def tell(**said: str) -> None:
        os.write(told, json.dumps(said).encode() + b"\n")

    calls = None
    for subject in given["rules"]:
        tell(rule=subject)
        if calls is None:
            tell(call="BackendFactory")
            creator = load_library(Path(given["file"])).creator
            assert isinstance(creator, NativeCreator)
            calls = Calls(creator.table, _teller(tell))
            calls.listen()
            threading.Thread(target=_end_if_hung, args=(calls, given["patience"], tell), daemon=True).start()
            trial = Trial(Library(calls, given["index"], Options(given["options"]), creator.address))
        verdict, message = look(trial, subject)
        tell(**{verdict: message})


def _teller(tell: Callable[..., None]) -> Callable[[str], None]:
    """Return a function that reports a call, unless the last one was of the same function."""
    last = ""

    def told(name: str) -> None:
        nonlocal last
        if name != last:
            last = name
            tell(call=name)

    return told


def _end_if_hung(calls: Calls, patience: float, tell: Callable[..., None]) -> None:
    """End the process if a call takes longer than `patience` seconds."""
    while True:
        time.sleep(patience / 20)
        called = calls.under_way
        if called is not None and time.monotonic() - called[1] > patience:
            tell(hung=called[0])
            os._exit(1)
