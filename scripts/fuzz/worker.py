"""The child process that makes and checks cases, and reports the result of each.

It writes lines of JSON to the descriptor that it was given, since drivers write to the standard streams as they like:

    {"begin": K}                                          before case K
    {"end": K, "held": M, "word": "refused"}              after it, with the megabytes that the process holds
    {"end": K, "held": M, "kind": ..., "key": ..., "text": ..., "folder": ...}      after a case that is a finding
    {"settled": M}                                        at the end: megabytes without kernels that nobody uses
    {"fault": text}                                       the target itself does not work
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import logging
import os
import shutil
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from scripts.fuzz.target import DEVICES, TARGETS, Finding, Target, case_stream
from scripts.memory import resident_megabytes
from weft import registry
from weft.backends.gpu.creator import GpuCreator


def main() -> None:
    """Run the cases that the parent ordered."""
    order = json.loads(sys.argv[1])
    faulthandler.enable()
    quiet()
    with os.fdopen(order["answers"], "w", buffering=1) as answers:
        try:
            work(order, lambda **said: answers.write(json.dumps(said) + "\n"))
        except Exception:
            answers.write(json.dumps({"fault": traceback.format_exc()}) + "\n")
            sys.exit(1)  # the parent may read what stderr has of a second account before it is whole


def quiet() -> None:
    """Silence what Weft and numpy say about thousands of strange files."""
    warnings.simplefilter("ignore")
    logging.getLogger("weft").addHandler(logging.NullHandler())  # otherwise Python prints what no handler takes


def work(order: dict[str, Any], say: Any) -> None:
    """Check the cases of an order: from `first` on, for `seconds` seconds or until `last`."""
    scratch = Path(order["scratch"])
    end = monotonic() + order["seconds"]
    importlib.import_module(order["module"])  # only this one: each module has imports of its own
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
        if "kind" in became:  # keep its files from the next case
            became["folder"] = str(folder.rename(scratch / f"found{number}"))
        say(end=number, held=resident_megabytes(), **became)
        number += 1
    target.close()
    say(settled=settled())


def settled() -> float:
    """Return the megabytes that this process holds after open devices have dropped their unused kernels.

    A device holds up to 256 of them by design (the option `kernels_kept`), which is no growth without end.
    """
    for name in DEVICES:
        creator = registry.find(name)
        if isinstance(creator, GpuCreator) and creator.is_open(0):
            creator.runtime(0).device.hold_kernels(0)
    gc.collect()
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    return resident_megabytes()


def outcome(target: Target, seed: int, number: int, folder: Path) -> dict[str, str]:
    """Return the report on one case for the parent."""
    try:
        target.make(case_stream(target.name, seed, number), folder)
        return {"word": target.check(folder)}
    except Finding as e:
        return {"kind": "wrong", "key": e.key, "text": e.text}
    except Exception as e:
        return {"kind": "exception", "key": key_of(e), "text": traceback.format_exc()}


def key_of(error: BaseException) -> str:
    """Return what all errors of one fault share: their type, and their place in Weft."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}weft{os.sep}" in f.filename]
    place = (
        f"{'/'.join(Path(frames[-1].filename).parts[-2:])}: {frames[-1].name}"
        if frames
        else "outside of weft"
    )
    return f"{type(error).__name__} in {place}"


if __name__ == "__main__":
    main()
