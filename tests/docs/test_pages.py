"""The pages of docs/: their code runs and prints what they show, and their links work."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers.docs_page import FRESH, WHEEL, Block, Shell, matches, read
from tests.helpers.warm_python import ADDRESS, SEARCHED, WarmPython
from weft.backends.gpu.device.device import GpuDevice
from weft.cli.app import app_of

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
USED = [ROOT / "docs/use.md", *(ROOT / "docs/guides").glob("*.md")]
LINKED = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_code_of_page(
    page: Path, tmp_path: Path, warm_python: WarmPython, request: pytest.FixtureRequest
) -> None:
    """Pages register ops and backends for good, so each runs in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": SEARCHED, ADDRESS: warm_python.address}
    if FRESH in page.read_text(encoding="utf-8"):
        environment[WHEEL] = str(request.getfixturevalue("wheel"))
    script = ("-W", "error", "-m", "tests.helpers.docs_page")
    done = warm_python.run(*script, page, cwd=tmp_path, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def _sections(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = []
    for link in links:
        path, _, section = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (section and section not in _sections(target)):
            missing.append(link)
    # Files are also named as code, from the root of the repository.
    named = re.findall(r"`((?:weft|packages|examples|tests|scripts|docs|benchmarks)/[\w./-]+)`", text)
    missing += [path for path in named if not (ROOT / path).exists()]
    assert not missing


def _names_something(dotted: str) -> bool:
    """Tell whether "weft.module.name" is a module, or a name that its module contains."""
    *folders, last = dotted.split(".")
    for found in (ROOT.joinpath(*folders, last), ROOT.joinpath(*folders, f"{last}.py")):
        if found.exists():
            return True
    if ROOT.joinpath(*folders).is_dir():
        text = "".join(f.read_text(encoding="utf-8") for f in ROOT.joinpath(*folders).glob("*.py"))
    elif ROOT.joinpath(*folders).with_suffix(".py").exists():
        text = ROOT.joinpath(*folders).with_suffix(".py").read_text(encoding="utf-8")
    else:
        return bool(folders[1:]) and _names_something(".".join(folders))  # a method, or an option of a backend
    return re.search(rf"\b{last}\b", text) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_modules_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`(weft(?:\.\w+)+)", page.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not _names_something(name)) == []


def test_the_words_are_of_classes_that_exist() -> None:
    page = (ROOT / "docs/words.md").read_text(encoding="utf-8")
    words, _, others = page.partition("## Names that do not follow")
    cells = [row.rpartition(" | ")[2] for row in words.splitlines() if row.startswith("| ")]
    cells += [row.split(" | ")[0] for row in others.splitlines() if row.startswith("| ")]
    named = re.findall(r"`([\w.]+)`", "\n".join(cells))
    code = "".join(f.read_text(encoding="utf-8") for f in (ROOT / "weft").rglob("*.py"))
    assert len(named) > 40
    missing = [name for name in named if not re.search(rf"(class|def) {name.rpartition('.')[2]}\b", code)]
    fields = re.compile(r"^    (\w+)(?:: | = )", re.M)
    known = set(fields.findall(code))
    assert [n for n in missing if not _names_something(f"weft.{n}") and n.rpartition(".")[2] not in known] == []


def test_every_environment_variable_is_described() -> None:
    used = set(re.findall(r'(?:environ\.get|_switch)\("(\w+)"', (ROOT / "weft/config.py").read_text(encoding="utf-8")))
    told = "".join(page.read_text(encoding="utf-8") for page in USED)
    assert used
    assert {name for name in used if f"`{name}" not in told} == set()


def test_every_command_is_described() -> None:
    told = "".join(page.read_text(encoding="utf-8") for page in USED)
    commands = [command.name for command in app_of().registered_commands]
    assert len(commands) > 5
    assert [c for c in commands if f"`weft {c}" not in told] == []


def test_every_method_of_a_gpu_device_is_described() -> None:
    told = (ROOT / "docs/add-a-backend.md").read_text(encoding="utf-8")
    methods = [name for name, what in vars(GpuDevice).items() if callable(what) and not name.startswith("_")]
    assert len(methods) > 15
    assert [name for name in methods if f"`{name}(" not in told] == []


def test_reading_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\nx = 1\n```\n\n<!-- save: a/b.mako -->\n```mako\ny\n```\n")
    assert read(page) == [Block(3, "python", "x = 1\n", "", ""), Block(8, "mako", "y\n", "save", "a/b.mako")]


def test_the_shell_keeps_its_folder_and_variables(tmp_path: Path) -> None:
    shell = Shell(tmp_path, fresh=False)
    assert shell.run(f'mkdir {tmp_path}/there && cd {tmp_path}/there && export A="b c"') == ""
    assert shell.run('echo "$A" in $(basename "$PWD")') == "b c in there\n"
    assert shell.run("weft --version").startswith("weft ")


@pytest.mark.parametrize(
    ("expected", "actual", "is_same"),
    [
        ("a\nb\n", "a  \nb", True),
        ("a ... c", "a b\nb c", True),
        ("a ... c", "a b", False),
        ("...", "", True),
        ("a.b", "axb", False),
    ],
)
def test_comparison_of_outputs(expected: str, actual: str, is_same: bool) -> None:
    assert matches(expected, actual) is is_same
