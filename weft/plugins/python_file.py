"""Backends in single Python files, and the modules beside them that they import.

Each folder is a package under a private name, so that `from .acme_common import Table` finds `acme_common.py`
beside the file. Such a module is executed once, whichever files import it. Nothing is written into the folder, and
`sys.path` stays as it is.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from weft.core.contract.error_context import sent_by_signal
from weft.plugins.interface import MalformedError, guarded, version_of_file

PREFIX = "_weft_backends_"
_folders: dict[str, Path] = {}
"""The folder of each private package."""
_sources: dict[str, tuple[Path, bytes]] = {}
"""For each module its file, and the text of that file and of the files that it imports."""
_loading: set[Path] = set()


class _Loader(SourceFileLoader):
    """Compiles the file each time: no bytecode is written beside it, and none of an older text is used."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file."""
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the file, and note what it was made of."""
        file = Path(self.path)
        made_of = _made_of(file, _package_of(module))
        super().exec_module(module)
        _sources[module.__name__] = file, made_of


class _Finder(MetaPathFinder):
    """Finds the modules of the private packages; it knows no others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the file of a module in one of the folders."""
        package, _, inside = fullname.partition(".")
        folder = _folders.get(package)
        file = None if folder is None else _file_of(folder, inside.split("."))
        return None if file is None else _spec(fullname, file)


def load_module(file: Path) -> tuple[ModuleType, str]:
    """Return the module of a file and its version.

    It is executed once, until the file or a module beside it that it imports changes; a scan calls `forget_changed`
    before it loads from a folder.
    """
    if file in _loading:
        raise MalformedError("while it is being imported, it starts a search of the folder that it lies in")
    _loading.add(file)
    try:
        name = f"{_package(file.parent)}.{_stem(file)}"
        made_of = _made_of(file, ())
        if _sources.get(name) != (file, made_of) or name not in sys.modules:
            _execute(name, file)
        return sys.modules[name], version_of_file(made_of)
    except OSError as e:
        if sent_by_signal(e):
            raise
        raise MalformedError(f"it cannot be read: {e.strerror}") from e
    finally:
        _loading.discard(file)


def _package(folder: Path) -> str:
    """Return the name of the private package of a folder, which is made the first time."""
    name = PREFIX + hashlib.sha256(str(folder).encode(errors="surrogateescape")).hexdigest()[:12]
    if name not in _folders:
        package = ModuleType(name, f"The backends in {folder}.")
        package.__path__ = []  # a package; only `_Finder` finds its modules
        _folders[name] = folder
        sys.modules[name] = package
        if not any(isinstance(f, _Finder) for f in sys.meta_path):
            sys.meta_path.append(_Finder())
    return name


def _stem(file: Path) -> str:
    """Return the name of a file as a module: a link may lead to a file of any name."""
    plain = re.sub(r"\W", "_", file.stem)
    return plain if file.name == f"{plain}.py" else f"{plain}_{hashlib.sha256(file.name.encode()).hexdigest()[:12]}"


def _execute(name: str, file: Path) -> None:
    spec = _spec(name, file)
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up
    loader = spec.loader
    assert loader is not None
    try:
        guarded(lambda: loader.exec_module(module), "it cannot be imported")
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _spec(name: str, file: Path) -> ModuleSpec:
    spec = spec_from_file_location(name, file, loader=_Loader(name, str(file)))
    assert spec is not None
    # No search path: with one, Python's own finder would come before `_Finder` and write bytecode.
    spec.submodule_search_locations = [] if file.name == "__init__.py" else None
    return spec


def _package_of(module: ModuleType) -> tuple[str, ...]:
    """Return where a module lies within its folder: the names of the packages."""
    assert module.__spec__ is not None
    return tuple((module.__spec__.parent or "").split(".")[1:])


# -- what a file is made of --------------------------------------------------------------------------------------


def forget_changed(folder: Path) -> None:
    """Drop the modules of a folder whose files have changed; the next import executes them again."""
    package = _package(folder)
    for name in [n for n in _sources if n.startswith(f"{package}.")]:
        if not _is_as_it_was(name, folder):
            sys.modules.pop(name, None)
            _sources.pop(name, None)


def _is_as_it_was(name: str, folder: Path) -> bool:
    inside, (file, made_of) = name.split(".")[1:], _sources[name]
    try:
        found = _file_of(folder, inside) or file  # `file` if a link of another name led to it
        return found == file and _made_of(file, _parents(file, inside)) == made_of
    except OSError as e:  # the next import meets this error again, and reports it
        if sent_by_signal(e):
            raise
        return False


def _parents(file: Path, inside: Sequence[str]) -> tuple[str, ...]:
    return tuple(inside if file.name == "__init__.py" else inside[:-1])


def _made_of(file: Path, package: tuple[str, ...]) -> bytes:
    """Return the text of a file and of the modules beside it that it imports, directly or not."""
    root = file.parents[len(package) - 1] if package and file.name == "__init__.py" else file.parents[len(package)]
    found: dict[Path, bytes] = {}
    left = [(file, package)]
    while left:
        each, inside = left.pop()
        if each in found:
            continue
        found[each] = each.read_bytes()
        for names in _imported(found[each], inside):
            other = _file_of(root, names)
            if other is not None:
                left.append((other, _parents(other, names)))
    more = (str(f.relative_to(root)).encode() + b"\0" + found[f] for f in sorted(found) if f != file)
    return b"\0".join([found[file], *more])


def _imported(source: bytes, package: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
    """Return the modules that relative imports of a text may mean; none where Python cannot parse it.

    Executing the text raises the reason: SyntaxError, or MemoryError and RecursionError where it nests too deep.
    """
    try:
        return _relative_imports(source, package)
    except Exception as e:
        if sent_by_signal(e):
            raise
        return ()


@lru_cache(maxsize=1024)
def _relative_imports(source: bytes, package: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            inside = (*package[: len(package) - node.level + 1], *(node.module or "").split("."))
            base = tuple(filter(None, inside))
            found += (base[:k] for k in range(1, len(base) + 1))
            found += ((*base, alias.name) for alias in node.names)
    return found


def _file_of(folder: Path, inside: Sequence[str]) -> Path | None:
    """Return the file of a module, given as names from its folder on, or None if there is none."""
    place = folder.joinpath(*inside)
    for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if all(inside) and file.is_file():
            return file
    return None
