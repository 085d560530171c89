"""`weft cache`: what is kept on disk (compiled kernels, tuning tables, refused sources), and how to clear it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from weft import config
from weft.backends.gpu.tuning_tables import tuning_table
from weft.cli.command import FOUND_WRONG, Commands
from weft.cli.console import line, note, table
from weft.cli.json_output import JsonOption, answer
from weft.core.host.disk_cache import BLOB, file_refused, folders_refused, unfinished
from weft.kernels import compile_error

app = Commands(no_args_is_help=True, help="Show or clear the kernels and tuning tables that are kept on disk.")
_NAMES = {tuning_table.FOLDER: tuning_table.FILE, compile_error.FOLDER: compile_error.FILE}
LEFT = "unfinished"


def _folders() -> Iterator[Path]:
    """Yield the folders of the cache, leaving out links that lead elsewhere."""
    cache = config.cache_dir()
    if cache.is_dir():
        yield from (path for path in sorted(cache.iterdir()) if path.is_dir() and not path.is_symlink())


def _blobs() -> Iterator[tuple[str, Path]]:
    """Yield each file of the cache with its kind, and whatever else lies where such a file belongs."""
    for folder in _folders():
        name = _NAMES.get(folder.name, BLOB)
        for path in sorted(folder.iterdir()):
            if name.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
                yield folder.name, path
        yield from ((LEFT, path) for path in unfinished(folder))


def _not_used() -> Iterator[str]:
    """Yield a sentence for each folder or file of the cache that is not used because others can write it."""
    yield from folders_refused()
    for kind, path in _blobs():
        why = file_refused(path) if kind != LEFT else None
        if why:
            yield f"{path}: {why}"


def _note_no_folder() -> None:
    folder = config.cache_dir()
    if folder.exists() and not folder.is_dir():
        note(f"{folder} is no folder, so nothing is kept: name another in WEFT_CACHE_DIR")
    elif not folder.is_dir():
        note(f"{folder} is not there: it is made when something is first kept; `weft doctor` tells whether it can be")


@app.command()
def info(as_json: JsonOption = None) -> None:
    """Show where the cache lies and what is in it."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, path in _blobs():
        files[kind] += 1
        sizes[kind] += path.lstat().st_size
    facts = {
        "folder": config.cache_dir(),
        "enabled": config.cache_enabled(),
        "limit_bytes": config.cache_limit(),
        "kinds": {kind: {"files": files[kind], "bytes": sizes[kind]} for kind in files},
        "files": files.total(),
        "bytes": sizes.total(),
        "not_used": list(_not_used()),
    }
    answer(as_json, lambda: facts, lambda: _print(facts))


def _print(facts: Mapping[str, Any]) -> None:
    line(f"folder: {facts['folder']}" + ("" if facts["enabled"] else " (turned off by WEFT_CACHE=0)"))
    limit = facts["limit_bytes"] / 2**20
    line(f"limit: {limit:,g} MiB for what can be built again (WEFT_CACHE_MIB); what was least recently used goes first")
    _note_no_folder()
    counts = {**facts["kinds"], "all": facts}
    rows = [(kind, str(each["files"]), f"{each['bytes'] / 1024:.1f}") for kind, each in counts.items()]
    table(("kind", "files", "KiB"), rows, numbers=("files", "KiB"))
    for why in facts["not_used"]:
        line(f"not used: {why}")


@app.command()
def clear(
    keep_tuning: Annotated[bool, typer.Option("--keep-tuning", help="Keep what `weft tune` found.")] = False,
    as_json: JsonOption = None,
) -> None:
    """Remove compiled kernels, tuning tables, half-written files, and the sources of kernels that a compiler refused.

    Kernels are compiled again when they are needed. Files are removed even if the cache is switched off. The exit
    status is 1 if some cannot be removed.
    """
    _note_no_folder()
    if not config.cache_enabled():
        note("the cache is switched off by WEFT_CACHE, which leaves the files that are there; they are removed now")
    left = dict[str, str]()
    removed = size = 0
    for kind, path in _blobs():
        if keep_tuning and kind == tuning_table.FOLDER:
            continue
        try:
            bytes_ = path.lstat().st_size
            path.unlink()
        except OSError as e:
            left[str(path)] = e.strerror or str(e)
            note(f"{path} cannot be removed: {left[str(path)]}")
            continue
        removed, size = removed + 1, size + bytes_
    folder = config.cache_dir()
    answer(
        as_json,
        lambda: {"folder": folder, "removed": removed, "bytes": size, "left": left},
        lambda: line(f"removed {removed} files, {size / 1024:.1f} KiB, from {folder}"),
    )
    if left:
        note(f"{len(left)} files are left: make their folders writable, or remove them as the user who owns them")
        raise typer.Exit(FOUND_WRONG)
