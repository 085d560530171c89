"""Backends in single Python files."""

from __future__ import annotations

import hashlib
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from weft.core.blame import sent_by_signal
from weft.plugins.interface import MalformedError, guarded, version_of_file

_modules: dict[Path, tuple[tuple[int, int, int], ModuleType, str]] = {}
_loading: set[Path] = set()


class _Loader(SourceFileLoader):
    """Compiles the file each time: nothing is written beside it, and a changed file is never taken for the old one."""

    version = ""
    """That of the text which was compiled last."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file."""
        source = self.get_data(self.path)
        self.version = version_of_file(source)
        return self.source_to_code(source, self.path)


def load_module(file: Path) -> tuple[ModuleType, str]:
    """Return the module of a file, executed once for as long as the file does not change, and its version."""
    if file in _loading:
        raise MalformedError("it asks, while it is imported, for folders to be searched in which it lies")
    _loading.add(file)
    try:
        stat = file.stat()
        state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = _modules.get(file)
        if known is None or known[0] != state:
            _modules[file] = known = (state, *_executed(file))
        return known[1:]
    except OSError as e:
        if sent_by_signal(e):
            raise
        raise MalformedError(f"it cannot be read: {e.strerror}") from e
    finally:
        _loading.discard(file)


def _executed(file: Path) -> tuple[ModuleType, str]:
    digest = hashlib.sha256(str(file).encode(errors="surrogateescape")).hexdigest()[:12]
    name = f"_weft_backend_{digest}_{file.stem}"
    loader = _Loader(name, str(file))
    spec = spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up
    try:
        guarded(lambda: loader.exec_module(module), "it cannot be imported")
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module, loader.version
