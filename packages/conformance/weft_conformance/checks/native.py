"""The rules of `weft_backend.h` for C libraries (A19); `weft_conformance.native` holds them."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

from weft.core.contract.backend_options import Value
from weft.core.host import child_process
from weft.plugins.native import NativeCreator
from weft_conformance.kit import Kit, check
from weft_conformance.report import Finding

PATIENCE = 60.0
"""Seconds that a call of the library may take."""
MODULE = "weft_conformance.native.child"
VERDICTS = ("right", "wrong", "refused")
CRASH = "ended"


@check("native", "A19", "a library of C functions keeps the rules of weft_backend.h; it is tried in another process")
def native(kit: Kit) -> Iterable[Finding]:
    """Try the library in a child process; if it dies or hangs, another child goes on with the next rule."""
    from weft_conformance.native.rules import RULES  # late: they import checks that come later in the list

    creator = kit.choice.creator
    if not isinstance(creator, NativeCreator):
        yield kit.nothing("the library", f"{creator.id} is not a library of C functions")
        return
    left = list(RULES)
    while left:
        for rule, verdict, message in tried(creator.file, kit.choice.index, kit.choice.options, left):
            left = left[left.index(rule) + 1 :]
            if verdict == CRASH:
                kit.stop(f"the library {message}; here that would end the kit")
            yield kit.refused(rule, message) if verdict == "refused" else kit.judge(rule, message)


def tried(
    file: str, index: int, options: Mapping[str, Value], rules: Sequence[str], patience: float = PATIENCE
) -> Iterator[tuple[str, str, str]]:
    """Yield the rules that a child process tries, each with its result and a message.

    The result is "right", "wrong", "refused" or, as the last one, "ended": the process died, or a call took longer
    than `patience` seconds.
    """
    given = {"file": file, "index": index, "options": dict(options), "rules": list(rules), "patience": patience}
    rule, call, why = rules[0], "", ""
    with tempfile.TemporaryFile() as errors:
        program = child_process.program(MODULE)
        process = child_process.start(program, json.dumps(given), stdin=subprocess.DEVNULL, stderr=errors.fileno())
        assert process.stdout is not None
        try:
            for said in map(json.loads, process.stdout):
                rule, call = said.get("rule", rule), said.get("call", call)
                if "hung" in said:
                    why = f"did not return from {said['hung']} within {patience:g} seconds"
                for verdict in VERDICTS:
                    if verdict in said:
                        yield rule, verdict, said[verdict]
                        rule = ""
        finally:
            process.kill()
            status = process.wait()
            process.stdout.close()
        if rule:
            errors.seek(0)
            yield rule, CRASH, why or _death(status, call, errors.read().decode(errors="replace"))


def _death(status: int, call: str, errors: str) -> str:
    """Return how the process ended, and the last call that it reported."""
    how = f"ended the process with status {status}" if status >= 0 else f"ended the process by {_signal(-status)}"
    last = errors.strip().splitlines()[-1:]
    return f"{how} in or after {call}" + (f": {last[0][:200]}" if last else "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
