"""Time the start of ResNet-50 up to its first result: on a machine that never ran it, and on later starts.

    python -m benchmarks.startup --devices vulkan,opencl --precision low,high --json startup.json
    python -m benchmarks.startup --network qwen-genai --precision low

Every start is a process of its own (start_once.py). For each device and precision the first one finds all caches
empty, the second one those that the first left. That holds for the drivers' caches too (~/.nv/ComputeCache and
~/.cache/nvidia of NVIDIA's, Mesa's, PoCL's): HOME and the variables that move them point into a fresh folder, or
a first start would be one in name only. A start is counted from the end of `import weft` to the first result; the
file is written, and in the page cache, before. Kernels that are tested or compiled after the first run are there at
"all kernels", from the same moment on; "self-test" says how long tests took, wherever they are. The first result of
a language model with a state (qwen-genai, of `benchmarks.decoders`) is that of a prompt of 500 words, and "word" is the
next one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from math import inf, isinf
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from benchmarks import models
from benchmarks.decoders import DECODERS, save
from benchmarks.facts import command, variables
from benchmarks.gpt2 import GPT2, gpt2
from benchmarks.options import output, words

FIRST, SECOND = 3.0, 1.0
"""Seconds that a first and a second start may take."""
FIRST_TEXT, SECOND_TEXT = 5.0, inf
"""The same for a language model with a state."""
FOLDERS = {
    "HOME": "home", "XDG_CACHE_HOME": "home/.cache", "WEFT_CACHE_DIR": "weft",
    "CUDA_CACHE_PATH": "cuda", "__GL_SHADER_DISK_CACHE_PATH": "gl",
    "MESA_SHADER_CACHE_DIR": "mesa", "MESA_GLSL_CACHE_DIR": "mesa", "POCL_CACHE_DIR": "pocl",
}
"""The variables that say where caches lie: Weft's, NVIDIA's, Mesa's, PoCL's."""
TIMEOUT = 600.0
DECODER, CACHED = "gpt2", 128
"""The name of a language model, GPT-2 in fp16, and the words in its cache when it starts."""
TEXTS = tuple(f"{name}-genai" for name in DECODERS)
NETWORKS = (*models.MODELS, DECODER, *TEXTS)
HEADERS = (
    "device", "precision", "import", "first start", "of it load", "run", "word", "all kernels", "self-test",
    "second start", "word", "met",
)


@dataclass
class Start:
    """The starts on one device at one precision; each list has the seconds of every repetition."""

    device: str
    precision: str
    name: str = ""
    bars: tuple[float, float] = FIRST, SECOND
    """Seconds that a first and a second start may take."""
    first: list[dict[str, float]] = field(default_factory=list)
    second: list[dict[str, float]] = field(default_factory=list)
    failed: str = ""

    def seconds(self, which: str, what: str) -> float | None:
        """Return the median of one time of the "first" or "second" starts, if there are any."""
        times = [times[what] for times in getattr(self, which) if what in times]
        return median(times) if times else None

    @property
    def met(self) -> bool | None:
        """Tell whether both bars are reached; None if they were not measured."""
        first, second = self.seconds("first", "start"), self.seconds("second", "start")
        return None if first is None or second is None else first < self.bars[0] and second < self.bars[1]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=words(("vulkan", "opencl", "cpu")), default=["vulkan", "opencl"])
    parser.add_argument("--precision", type=words(("high", "normal", "low")), default=["low", "high"])
    parser.add_argument("--network", default="resnet50", choices=NETWORKS)
    parser.add_argument("--repeats", type=int, default=3, help="first and second starts of each; medians are shown")
    parser.add_argument("--quick", action="store_true", help="a trial: small pictures, one repetition")
    parser.add_argument("--json", type=output, metavar="FILE", help="write everything to this file")
    options = parser.parse_args(arguments)
    options.repeats = 1 if options.quick else options.repeats
    return options


def main() -> None:
    """Run what the command line asks for."""
    options = parse(sys.argv[1:])
    print(__doc__.split("\n\n")[2].strip() + "\n", flush=True)
    if variables():
        print(f"not passed on to the starts: {', '.join(f'{n}={v}' for n, v in variables().items())}", flush=True)
    with tempfile.TemporaryDirectory(prefix="weft-startup-") as folder:
        model = Path(folder) / f"{options.network}.onnx"
        write_model(options.network, 64 if options.quick else 224, model)
        found = []
        for device in options.devices:
            for precision in options.precision:
                found.append(measure(model, device, precision, options.repeats))
                print(_line(found[-1]), flush=True)
    print("\n" + table(found, bars=not options.quick))
    if options.quick:
        print("a trial with small pictures: its times mean nothing, so there are no bars")
    if options.json:
        options.json.write_text(json.dumps(_facts() | {"starts": [asdict(s) for s in found]}, indent=1))


def write_model(network: str, image: int, path: Path) -> None:
    """Write a network to a file: for pictures of this size, or for a word behind `CACHED` others."""
    if network in TEXTS:
        name, form = network.split("-")
        save(name, form, path.parent)
        return
    if network == DECODER:
        model, sizes = gpt2(GPT2, half=True), {"batch": 1, "words": 1, "past": CACHED, "past + words": CACHED + 1}
        for value in (*model.graph.input, *model.graph.output):
            for extent in value.type.tensor_type.shape.dim:
                if extent.dim_param:
                    extent.dim_value = sizes[extent.dim_param]
    else:
        model = models.MODELS[network](1, **({} if network.startswith("minilm") else {"image": image}))
    onnx.save(model, path)


def measure(model: Path, device: str, precision: str, repeats: int) -> Start:
    """Start a network on one device with empty caches, then with those that it left; `repeats` times."""
    found = Start(device, precision, bars=(FIRST_TEXT, SECOND_TEXT) if model.stem in TEXTS else (FIRST, SECOND))
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="weft-startup-") as folder:
            for kept in (found.first, found.second):
                try:
                    answer = _start(model, device, precision, Path(folder))
                except (RuntimeError, subprocess.TimeoutExpired) as e:
                    found.failed = str(e)
                    return found
                found.name = answer["device"]
                kept.append(answer["seconds"])
    return found


def _start(model: Path, device: str, precision: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.start_once", str(model), device, precision]
    ended = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT)
    if ended.returncode:
        said = ended.stderr.strip().rpartition("Traceback")[2].splitlines()
        error = [line for line in said[1:] if not line.startswith("  File") and not line.startswith("    ")]
        raise RuntimeError("; ".join(map(str.strip, error))[:400] or f"status {ended.returncode}")
    answer: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return answer


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a start whose caches lie in `folder`; make those that are missing.

    It leaves out Weft's other variables: users do not start without self-tests or tuned choices. It leaves out
    PYTHONDONTWRITEBYTECODE too: pip compiles what users install.
    """
    moved = {name: str(folder / place) for name, place in FOLDERS.items()}
    for place in moved.values():
        Path(place).mkdir(parents=True, exist_ok=True)
    # Packages and drivers that were installed for the user alone lie under the HOME that the process no longer has.
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    kept = {name: value for name, value in os.environ.items() if name not in (*variables(), "PYTHONDONTWRITEBYTECODE")}
    return {**kept, "PYTHONUSERBASE": site.getuserbase(), "XDG_DATA_HOME": data, **moved}


def _line(start: Start) -> str:
    if start.failed:
        return f"{start.device} {start.precision}: {start.failed}"
    each = ", ".join(f"{which} {_all(getattr(start, which))} s" for which in ("first", "second"))
    return f"{start.device} {start.precision} on {start.name}: {each}"


def _all(starts: Sequence[Mapping[str, float]]) -> str:
    return " ".join(f"{times['start']:.2f}" for times in starts)


def table(starts: Sequence[Start], *, bars: bool = True) -> str:
    """Return the medians, in seconds, as a table of Markdown, with the bars unless they mean nothing."""
    headers = HEADERS if bars else HEADERS[:-1]
    lines = ["| " + " | ".join(headers) + " |", "|---" * len(headers) + "|"]
    if bars and starts:
        first, second = starts[0].bars
        lines.append(f"| bars | | | < {first:g} | | | | | | {'-' if isinf(second) else f'< {second:g}'} | | |")
    for s in starts:
        begun = (s.seconds("first", what) for what in ("start", "load", "run", "word", "all", "selftest"))
        times = [s.seconds("second", "import"), *begun]
        cells = [_number(value) for value in (*times, *(s.seconds("second", what) for what in ("start", "word")))]
        met = {None: "not measured", True: "yes", False: "NO"}[s.met]
        lines.append(f"| {' | '.join([s.device, s.precision, *cells, *([met] if bars else [])])} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _facts() -> dict[str, object]:
    import weft

    return {
        "date": str(date.today()),
        "command": command("benchmarks.startup"),
        "weft": weft.__version__,
        "python": platform.python_version(),
        "not_passed_on": variables(),
        "brings_spirv": (Path(weft.__file__).parent / "spirv.zip").exists(),
    }


if __name__ == "__main__":
    main()
