"""Runs one exported network on one device; `benchmarks.zoo` runs it.

    python -m benchmarks.zoo.run_once FOLDER DEVICE

Prints one line of JSON. The network is asked for whole (`fallback="error"`); if nodes are refused, the rest is run with
those nodes on the CPU, and the refusals are kept.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.compare import difference


def main() -> None:
    """Run what the command line names."""
    folder, device = Path(sys.argv[1]), sys.argv[2]
    print(json.dumps(run_once(folder, device)))


def run_once(folder: Path, device: str) -> dict[str, Any]:
    """Return what loading and the first two runs took, where the nodes are, and how far the outputs are off."""
    import weft
    from weft.errors import UnsupportedOps

    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    with np.load(folder / "outputs.npz") as file:
        expected = [file[name] for name in file.files]
    model, refused = folder / "model.onnx", ""
    begun = time.perf_counter()
    try:
        session = weft.load(model, device, fallback="error", wait="all")
    except UnsupportedOps as e:
        refused = str(e)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says what `refused` keeps
            session = weft.load(model, device, wait="all")
    with session:
        loaded = time.perf_counter()
        found = [np.array(y) for y in session.run(inputs)]
        ran = time.perf_counter()
        again = [np.array(y) for y in session.run(inputs)]
        done = time.perf_counter()
        return {
            "whole": not refused,
            "refused": refused,
            "nodes": dict(session.report.nodes_by_device),
            "load": loaded - begun,
            "first": ran - loaded,
            "second": done - ran,
            "error": max(difference(found, expected), difference(again, expected)),
        }


if __name__ == "__main__":
    main()
