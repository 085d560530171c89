"""Starts one network in a process that does nothing else; `benchmarks.startup` runs it.

    python -m benchmarks.start_once MODEL DEVICE PRECISION

Prints seconds as one line of JSON. Nothing but the standard library is imported before the clock runs. A model that is
called NAME-genai keeps a state: it runs a prompt, then a word.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft import Session


PROMPT = 500
"""Words of a prompt."""


def main() -> None:
    """Import Weft, load the model, run it once, wait for all of its kernels; print what each took."""
    model, device, precision = sys.argv[1:]
    begun = time.perf_counter()
    import weft

    imported = time.perf_counter()
    is_text = model.endswith("-genai.onnx")
    with weft.load(model, device, precision=precision, fallback="error", state=is_text) as session:
        ready = time.perf_counter()
        inputs = _words(PROMPT, 0) if is_text else _inputs(session)
        fed = time.perf_counter()
        session.run(inputs)
        done = time.perf_counter()
        times = {"import": imported - begun, "load": ready - imported, "run": done - fed}
        if is_text:
            session.run(_words(1, PROMPT))
            times["word"] = time.perf_counter() - done
        session.wait_all()
        times["all"] = time.perf_counter() - imported
        found = times | {"start": times["load"] + times["run"], "selftest": _selftest(session)}
    print(json.dumps({"seconds": found, "device": _name(device)}))


def _words(count: int, past: int) -> dict[str, Any]:
    import numpy as np

    return {"input_ids": np.ones((1, count), np.int64), "attention_mask": np.ones((1, past + count), np.int64)}


def _inputs(session: Session) -> dict[str, Any]:
    import numpy as np

    return {name: np.ones(shape, session.graph.specs[name].dtype.numpy) for name, shape in session.inputs.items()}


def _selftest(session: Session) -> float:
    """Return what the tests of special kernels took, as part of the load; reading a verdict counts too."""
    runtimes = {id(r): r for p in session.pipelines if (r := getattr(p.backend, "runtime", None)) is not None}
    return sum(float(r.verdicts.seconds) for r in runtimes.values())


def _name(device: str) -> str:
    import weft

    id_, _, index = device.partition(":")
    known = {(d.id, d.index): f"{d.name}, {d.driver}" for d in weft.devices()}
    return known[id_, int(index or 0)]


if __name__ == "__main__":
    main()
