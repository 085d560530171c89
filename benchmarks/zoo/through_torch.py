"""Run the networks of the zoo through PyTorch's doors of Weft, and compare with what PyTorch computes.

    python -m benchmarks.zoo.through_torch --only "torchvision/*,transformers/bert" --door compile --device cpu

The doors are `torch.compile(model, backend="weft")`, which leaves to PyTorch what Weft lacks, and
`weft.torch.compile(model, example)`, which refuses it. Each network is a process of its own with a time limit, forked
from one that has imported PyTorch. A line of JSON a network says how many nodes are left to PyTorch, which ops these
are, how far the results are off, and the seconds of the first and the fastest of three later calls, beside PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import numpy as np

from benchmarks.zoo.compare import allowed, difference
from benchmarks.zoo.networks import NETWORKS

LATER = 3
"""How many calls are timed after the first."""


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="patterns of names, with commas")
    parser.add_argument("--door", choices=("compile", "export"), default="compile")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="high")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a network may take")
    given = parser.parse_args()
    import torch

    import weft.torch  # noqa: F401  (once, for all forks)

    torch.set_num_threads(1)
    patterns = given.only.split(",")
    totals: Counter[str] = Counter()
    for name in (n for n in NETWORKS if any(fnmatch(n, p) for p in patterns)):
        row = _apart(name, given)
        ending = "failed" if "failed" in row else "wrong" if not row["right"] else "parts" if row["left"] else "whole"
        totals[ending] += 1
        print(json.dumps({"network": name, "ending": ending, **row}), flush=True)
    print(json.dumps(totals))


def _apart(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a network, which a process of its own makes."""
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(its, name, given))
    child.start()
    its.close()
    try:
        if not mine.poll(given.limit):
            return {"failed": f"took more than {given.limit:.0f} s"}
        row: dict[str, Any] = mine.recv()
        return row
    except EOFError:
        return {"failed": "the process ended"}
    finally:
        child.kill()
        child.join()


def _send(pipe: Any, name: str, given: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    try:
        pipe.send(_row(name, given))
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        pipe.send({"failed": f"{type(e).__name__}: {str(e)[:1500]} ({where.filename}:{where.lineno})"})


def _row(name: str, given: argparse.Namespace) -> dict[str, Any]:
    import torch

    import weft.torch
    from weft.torch.dynamo import heard

    torch.manual_seed(0)
    model, arguments = NETWORKS[name]()
    model.eval()
    options = {"device": given.device, "precision": given.precision}
    with torch.no_grad(), heard() as made:
        wanted = _flat(model(*arguments))
        plain = _fastest(lambda: model(*arguments))
        begun = time.perf_counter()
        fast: Callable[..., Any]
        if given.door == "compile":
            fast = torch.compile(model, backend=weft.torch.backend, options=options)
        else:
            fast = weft.torch.compile(model, arguments, **options)
        found = _flat(fast(*arguments))
        first = time.perf_counter() - begun
        again = _flat(fast(*arguments))
        later = _fastest(lambda: fast(*arguments))
    apart = max(difference(found, wanted), difference(again, wanted))
    left = Counter(str(p).split(": ")[1] for graph in made for p in graph.refused.values())
    return {
        "left": sum(left.values()), "ops": dict(left), "nodes": sum(graph.nodes for graph in made),
        "graphs": len(made), "error": apart, "right": apart <= allowed(None), "first": round(first, 2),
        "later": round(later, 4), "pytorch": round(plain, 4),
    }


def _fastest(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(LATER):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def _flat(answer: Any) -> list[Any]:
    from torch.utils import _pytree as trees

    return [np.asarray(leaf.detach()) for leaf in trees.tree_leaves(answer) if hasattr(leaf, "detach")]


if __name__ == "__main__":
    main()
