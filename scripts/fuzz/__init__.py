"""A fuzzer of everything that enters Weft from outside: files, caches, other people's backends.

    python -m scripts.fuzz --seconds 3600 --jobs 2 --report fuzz.json
    python -m scripts.fuzz --target onnx-fields,weft-fields --device cpu,vulkan --seconds 600 --seed 7 --report r.json
    python -m scripts.fuzz --target onnx-bytes --device cpu --cases 200      a fixed number of cases each
    python -m scripts.fuzz --target onnx-bytes --device opencl --seed 7 --case 1234
    python -m scripts.fuzz --replay fuzz.findings/3
    python -m scripts.fuzz --list

A case is the number K of a target's stream S (`--seed`): the same files each time, on every machine. Each case
is made and looked at in a child process, so that one that crashes, hangs, takes too much memory or raises what it
must not is a *finding* and not the end. Its files, its seed and what was said are kept in the folder `FILE.findings`
beside the report; `--case` or `--replay` runs it again. A case that ends otherwise is counted under a word: "refused",
"right", "skipped: ...". The command ends with a table of these counts and exits with 1 if there are findings. It
runs at low priority (`--nice`), with caches of its own, and ends its children when it is interrupted.

A target is a class in a module of its own in `scripts/fuzz/targets`, which is found by being there (`--module NAME`
adds a module from elsewhere):

    @target
    class Caches(Target):
        name = "caches"
        about = "entries of the kernel cache"
        devices = ("opencl", "vulkan")

        def prepare(self) -> None: ...                                         # once a process; may be slow
        def make(self, draw: random.Random, folder: Path) -> None: ...         # write the files of one case
        def check(self, folder: Path) -> str: ...                              # look at them; return the word to count

`make` takes every choice from `draw`, so that a case depends only on its number. `check` reads nothing but the
folder, so that a kept case can be replayed. `check` catches a `WeftError` that is the right answer and
counts it ("refused"). Any other exception that leaves `check` is a finding, and so is `raise Finding(key, text)`, for
wrong numbers and the like; findings with one key are listed once, with their count. `self.device` is the device to
use; `self.scratch` is a folder that lasts as long as the process. `seconds` and `megabytes` limit one case.
"""

from __future__ import annotations

from scripts.fuzz.target import TARGETS, Finding, Target, find_targets, target

__all__ = ["TARGETS", "Finding", "Target", "find_targets", "target"]
