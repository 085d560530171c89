"""Finds the OpenCL driver that pip installed, and shows it to the loader.

`pip install ".[opencl-cpu]"` installs Intel's OpenCL runtime for CPUs (x86-64, Linux). The loader would not find it:
its `.icd` file names a folder of the machine that packed it. So, while pyopencl's loader starts, `PYOPENCL_HOME`,
which pyopencl sets, names a folder with an `.icd` file for the library, which it searches beside the system's folder.
The system's drivers stay as they are, and so does the environment after that. Nothing is added if `OCL_ICD_VENDORS` or
`OPENCL_VENDOR_PATH` select drivers, if the system has the same runtime, or if pyopencl does not use its own
loader.
"""

from __future__ import annotations

import ctypes
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from weft import config
from weft.errors import Reason

log = logging.getLogger("weft.opencl")

PACKAGES = "intel-opencl-rt intel-cmplr-lib-rt"
"""The packages to install with pip."""
_PACKAGE = "intel-opencl-rt"
_LIBRARY = "libintelocl.so"
_SYSTEM = Path("/etc/OpenCL/vendors")


@contextmanager
def offered() -> Iterator[None]:
    """Let the OpenCL loader find the driver that pip installed, if the loader starts within the block."""
    library = _usable()
    if library is None:
        yield
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="weft-opencl-")
    except OSError as e:
        log.warning("%s is not shown to the OpenCL loader: no temporary folder can be made: %s", library, e)
        yield
        return
    with folder as home:
        own = Path(home) / ".libs"
        own.mkdir()
        for icd in _folder_of_wheel().glob("*.icd"):
            shutil.copy(icd, own)
        (own / "intel-cpu.icd").write_text(f"{library}\n", encoding="utf-8")
        with config.replaced("PYOPENCL_HOME", home):
            yield


def problem() -> Reason | None:
    """Return why a driver that pip installed is not used and what to do, or None."""
    return _found()[1]


def libraries() -> list[str]:
    """Return the file names of the driver libraries that the loader may have loaded, as far as known."""
    folders = (_SYSTEM, _folder_of_wheel(), *config.opencl_vendors())
    names = {name for folder in folders for name in _names_in(folder)}
    library = _found()[0]
    return sorted(names | ({library.name} if library else set()))


def _usable() -> Path | None:
    library, why = _found()
    if why is not None:
        log.info("%s", why)
    return library


def _found() -> tuple[Path | None, Reason | None]:
    """Return the library to show to the loader; else the reason why not, if users should know it."""
    library = _installed()
    if library is None or config.opencl_vendors() or _LIBRARY in _names_in(_SYSTEM):
        return None, None
    if not _folder_of_wheel().is_dir():
        why = "pyopencl has another loader than its wheel brings, which does not look here for drivers"
        fix = f"write {library} into an .icd file where that loader looks"
        return None, Reason(f"{_PACKAGE} is not used, as {why}", fix)
    try:
        ctypes.CDLL(str(library))
    except OSError as e:
        what = f"{_PACKAGE} is installed and cannot be loaded ({e})"
        return None, Reason(what, f"pip install --upgrade {PACKAGES}")
    return library, None


@lru_cache(maxsize=1)
def _installed() -> Path | None:
    """Return the path of Intel's runtime library where pip put it, or None."""
    if sys.platform != "linux":
        return None
    try:
        files = distribution(_PACKAGE).files or ()
    except PackageNotFoundError:
        return None
    for file in files:
        if file.name == _LIBRARY:
            path = Path(str(file.locate()))
            path = path.parent.resolve() / path.name
            return path if path.is_file() else None
    return None


def _folder_of_wheel() -> Path:
    """Return the folder of the loader in pyopencl's wheel; the loader searches it for drivers, too."""
    return Path(str(import_module("pyopencl").__file__)).parent / ".libs"


def _names_in(place: Path) -> set[str]:
    """Return the file names of the libraries that a folder's .icd files name; `place` may be one such file."""
    try:
        files = [place] if place.is_file() else sorted(place.glob("*.icd"))
        texts = [file.read_text(encoding="utf-8").strip() if file.suffix == ".icd" else str(file) for file in files]
    except (OSError, UnicodeDecodeError):
        return set()
    return {Path(text).name for text in texts if text}
