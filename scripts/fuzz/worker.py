"""The child process that makes and looks at cases, and says of each what became of it.

It writes lines of JSON to the descriptor that it was given, since drivers write to the standard streams as they like:

    {"begin": K}                                          before case K
    {"end": K, "word": "refused"}                         after it
    {"end": K, "kind": ..., "key": ..., "text": ..., "folder": ...}     after a case that is a finding
    {"fault": text}                                       the target itself does not work
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import shutil
import sys
import traceback
import warnings
from pathlib import Path
from time import monotonic
from typing import Any

from scripts.fuzz.target import TARGETS, Finding, Target, case_stream


def main() -> None:
    """Work through the cases that the parent asked for."""
    order = json.loads(sys.argv[1])
    faulthandler.enable()
    quiet()
    with os.fdopen(order["answers"], "w", buffering=1) as answers:
        try:
            work(order, lambda **said: answers.write(json.dumps(said) + "\n"))
        except Exception:
            answers.write(json.dumps({"fault": traceback.format_exc()}) + "\n")
            raise


def quiet() -> None:
    """Keep back what Weft and numpy say of each of thousands of strange files."""
    warnings.simplefilter("ignore")
    logging.getLogger("weft").addHandler(logging.NullHandler())  # or they would be printed, as nobody else listens


def work(order: dict[str, Any], say: Any) -> None:
    """Look at the cases of an order: from `first` on, for so many `seconds` or until `last`."""
    scratch = Path(order["scratch"])
    end = monotonic() + order["seconds"]
    importlib.import_module(order["module"])  # and no other: each has imports of its own
    target = TARGETS[order["target"]](order["device"], scratch / "kept")
    target.scratch.mkdir(parents=True, exist_ok=True)
    target.prepare()
    number = order["first"]
    folder = scratch / "case"
    while number < order["last"] and monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        say(begin=number)
        became = outcome(target, order["seed"], number, folder)
        if "kind" in became:  # the next case must not take its files away
            became["folder"] = str(folder.rename(scratch / f"found{number}"))
        say(end=number, **became)
        number += 1
    target.close()


def outcome(target: Target, seed: int, number: int, folder: Path) -> dict[str, str]:
    """Return what became of one case, as the parent is told it."""
    try:
        target.make(case_stream(target.name, seed, number), folder)
        return {"word": target.check(folder)}
    except Finding as e:
        return {"kind": "wrong", "key": e.key, "text": e.text}
    except Exception as e:
        return {"kind": "exception", "key": key_of(e), "text": traceback.format_exc()}


def key_of(error: BaseException) -> str:
    """Return what is the same for all errors of one fault: their type, and where in Weft they come from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}weft{os.sep}" in f.filename]
    place = (
        f"{'/'.join(Path(frames[-1].filename).parts[-2:])}: {frames[-1].name}"
        if frames
        else "outside of weft"
    )
    return f"{type(error).__name__} in {place}"


if __name__ == "__main__":
    main()
