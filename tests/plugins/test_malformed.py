"""Contract row A21: whatever is wrong with a file, a warning says it, and the other files load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.plugins import (
    C_FACTORY,
    C_ID,
    C_TABLE,
    C_VERSION,
    COUNT,
    PY_CLASS,
    PY_FACTORY,
    PY_ID,
    PY_VERSION,
    c_source,
    in_new_process,
    needs_compiler,
    new_registry,
    py_source,
    write,
)
from weft.core.registry.backend_registry import BackendRegistry


def check(folder: Path, kind: str, reason: str, caplog: pytest.LogCaptureFixture) -> BackendRegistry:
    """Scan a folder in which a malformed file lies between two good ones."""
    made = c_source if kind == "so" else py_source
    write(folder / f"acme_a_backend.{kind}", made("first"))
    write(folder / f"acme_z_backend.{kind}", made("last"))
    registry = new_registry()
    registry.rescan([folder])
    assert registry.ids() == ["cpu", "first", "last"]
    ((origin, why),) = registry.failures.items()
    assert origin == str(folder / f"acme_bad_backend.{kind}") and reason in why, why
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("weft.plugins", "WARNING")
    assert origin in record.message and reason in record.message
    return registry


def py(id: str = PY_ID, version: str = PY_VERSION, factory: str = PY_FACTORY) -> str:
    return PY_CLASS + id + version + factory


PYTHON = {
    "no functions": ("", "it has no function GetBackendId and no GetVersion and no BackendFactory"),
    "no id": (py(id=""), "it has no function GetBackendId"),
    "no version": (py(version=""), "it has no function GetVersion"),
    "no factory": (py(factory=""), "it has no function BackendFactory"),
    "a name for a function": (py(id="GetBackendId = 'acme'\n"), "it has no function GetBackendId"),
    "null id": (py(id="def GetBackendId(): return None\n"), "GetBackendId returned None, which is not a string"),
    "id of another type": (py(id="def GetBackendId(): return b'acme'\n"), "returned b'acme', which is not a string"),
    "empty id": (py(id="def GetBackendId(): return ''\n"), "GetBackendId returned an empty id"),
    "blank id": (py(id="def GetBackendId(): return ' '\n"), "GetBackendId returned an empty id"),
    "id that cannot be one": (py(id="def GetBackendId(): return 'a b'\n"), "'a b' cannot be a backend id"),
    "id that is no device": (py(id="def GetBackendId(): return 'Auto'\n"), "AUTO is not a device"),
    "taken id": (py(id="def GetBackendId(): return 'CPU'\n"), "the id 'CPU' is taken (held by 'cpu'"),
    "id raises": (py(id="def GetBackendId(): 1 / 0\n"), "GetBackendId failed: ZeroDivisionError: division by zero"),
    "id takes an argument": (py(id="def GetBackendId(x): pass\n"), "GetBackendId failed: TypeError"),
    "version is text": (py(version="def GetVersion(): return '1.0'\n"), "returned '1.0', which is not a pair"),
    "version is one number": (py(version="def GetVersion(): return 1\n"), "GetVersion returned 1, which is not a pair"),
    "version is None": (py(version="def GetVersion(): pass\n"), "GetVersion returned None, which is not a pair"),
    "version of three": (py(version="def GetVersion(): return 1, 0, 0\n"), "returned (1, 0, 0), which is not a pair"),
    "version of floats": (py(version="def GetVersion(): return 1.0, 0\n"), "returned (1.0, 0), which is not a pair"),
    "version of bools": (py(version="def GetVersion(): return True, 0\n"), "returned (True, 0), which is not a pair"),
    "negative version": (py(version="def GetVersion(): return 1, -1\n"), "returned (1, -1), which is not a pair"),
    "version raises": (py(version="def GetVersion(): raise OSError('x')\n"), "GetVersion failed: OSError: x"),
    "factory returns nothing": (py(factory="def BackendFactory(): pass\n"), "BackendFactory returned nothing"),
    "factory raises": (py(factory="def BackendFactory(): raise OSError('no card')\n"), "failed: OSError: no card"),
    "factory exits": (py(factory="def BackendFactory(): raise SystemExit\n"), "BackendFactory failed: SystemExit"),
    "factory returns a number": (py(factory="def BackendFactory(): return 3\n"), "returned 3, which is not a backend"),
    "factory returns a class": (py(factory="def BackendFactory(): return int\n"), "'int'>, which is not a backend"),
    "creator that is abstract": (
        py(factory="from weft import BackendCreator\ndef BackendFactory(): return BackendCreator\n"),
        "of which no object can be made: TypeError",
    ),
    "syntax error": ("def GetBackendId(: pass", "it cannot be imported: SyntaxError: invalid syntax"),
    "nested too deep": (f"a = {'-' * 20_000}1", "it cannot be imported: "),
    "null bytes": ("a = '\0'", "it cannot be imported: "),
    "not UTF-8": ("\udcff", "it cannot be imported: SyntaxError"),
    "import error": ("import no_module_of_this_name", "it cannot be imported: ModuleNotFoundError"),
    "error at import": ("raise RuntimeError('no\\nlicence')", "it cannot be imported: RuntimeError: no licence"),
    "exit at import": ("import sys; sys.exit('bye')", "it cannot be imported: SystemExit: bye"),
}


@pytest.mark.parametrize("case", PYTHON)
def test_A21_python(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, reason = PYTHON[case]
    (tmp_path / "acme_bad_backend.py").write_bytes(source.encode(errors="surrogateescape"))
    check(tmp_path, "py", reason, caplog)


def c(id: str = C_ID, version: str = C_VERSION, factory: str = C_FACTORY, table: str = C_TABLE) -> str:
    return table + id + version + factory


def table_without(*fields: str, more: str = "") -> str:
    """Return C whose table lacks fields, and has others."""
    source = C_TABLE
    for field in fields:
        source = source.replace(f".{field} = {field}", f".{field} = NULL")
    return source.replace(".supports", f"{more} .supports")


USED = "\nconst void *used(void) { return (const void *)&table; }\n"
"""So that a table that nobody returns is no warning of the compiler."""
KEPT = "\nvoid *kept[] = {(void *)supports, (void *)create, (void *)execute, (void *)destroy};\n"
C_CASES = {
    "no functions": (c("", "", "") + USED, "it exports no GetBackendId and no GetVersion and no BackendFactory"),
    "no id": (c(id="const char *GetBackendld(void) { return 0; }\n"), "it exports no GetBackendId; in C++"),
    "no version": (c(version=""), "it exports no GetVersion; in C++ the functions must be extern"),
    "no factory": (c(factory=USED), "it exports no BackendFactory"),
    "null id": (c(id=C_ID.replace('"acme"', "NULL")), "GetBackendId returned NULL"),
    "empty id": (c(id=C_ID.replace("acme", "")), "GetBackendId returned an empty id"),
    "id that is no text": (c(id=C_ID.replace("acme", "\\xff\\xfe")), "which is not UTF-8"),
    "id that cannot be one": (c(id=C_ID.replace("acme", "a:1")), "'a:1' cannot be a backend id"),
    "taken id": (c(id=C_ID.replace("acme", "cpu")), "the id 'cpu' is taken (held by 'cpu'"),
    "another version": (c(version=C_VERSION.replace("= 1", "= 4000000000u")), "written for version 4000000000.0"),
    "factory returns nothing": (c(factory=C_FACTORY.replace("&table", "NULL") + USED), "returned nothing (NULL)"),
    "small table": (c(table=C_TABLE.replace("sizeof table", "8")), "struct_size is 8, where"),
    "empty table": (c(table=C_TABLE.replace("sizeof table", "0")), "struct_size is 0, where"),
    "no supports": (c(table=table_without("supports")) + KEPT, "has no supports"),
    "no execute, no destroy": (c(table=table_without("execute", "destroy")) + KEPT, "has no execute and no destroy"),
    "half of the buffers": (
        c(table="#include <stdlib.h>\nstatic void *get(void *d, size_t n) { (void)d; return malloc(n); }\n"
          + table_without(more=".allocate = get,")),
        "has no free and no upload and no download; own buffers need",
    ),
    "undefined symbol": (c() + "int absent(void);\nint call(void) { return absent(); }\n", "undefined symbol: absent"),
}


@needs_compiler
@pytest.mark.parametrize("more", range(9))
def test_A21_of_a_table_that_ends_within_a_pointer_nothing_is_called(more: int, tmp_path: Path) -> None:
    absent = "static int32_t gone(char *text, size_t size) { (void)size; text[0] = 'x'; text[1] = 0; return 1; }\n"
    source = c(table=C_TABLE.replace("static int32_t supports", f"{absent}static int32_t supports", 1))
    cut = source.replace("sizeof table", f"offsetof(weft_backend, absent) + {more}, .absent = gone")
    write(tmp_path / "acme_npu_backend.so", cut)
    registry = new_registry()
    registry.rescan([tmp_path])
    assert registry.failures == {}
    assert registry.absent() == ({"acme": "x"} if more == 8 else {})


@needs_compiler
@pytest.mark.parametrize("case", C_CASES)
def test_A21_native(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, reason = C_CASES[case]
    write(tmp_path / "acme_bad_backend.so", source)
    check(tmp_path, "so", reason, caplog)


@needs_compiler
@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "it cannot be loaded: file too short"), (b"print(3)\n" * 99, "it cannot be loaded: invalid ELF header")],
    ids=["empty", "text"],
)
def test_A21_what_is_no_library(
    content: bytes, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "acme_bad_backend.so").write_bytes(content)
    check(tmp_path, "so", reason, caplog)


@needs_compiler
@pytest.mark.parametrize("part", [0.01, 0.1, 0.5])
def test_A21_part_of_a_library(part: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy that was interrupted; the system's loader would end the process."""
    file = write(tmp_path / "acme_bad_backend.so", c_source("half"))
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * part)])
    check(tmp_path, "so", "it cannot be loaded: the file is cut off: it has ", caplog)


def test_A21_a_library_in_python_and_python_in_a_library(tmp_path: Path) -> None:
    (tmp_path / "acme_a_backend.so").write_text(py_source())
    (tmp_path / "acme_b_backend.py").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(99))
    registry = new_registry()
    registry.rescan([tmp_path])
    assert registry.ids() == ["cpu"] and len(registry.failures) == 2


def test_A21_an_interrupt_is_nobodys_failure(tmp_path: Path) -> None:
    write(tmp_path / "acme_bad_backend.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        new_registry().rescan([tmp_path])


def test_A21_a_file_is_executed_once(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        write(tmp_path / name / f"acme_{name}_backend.py", COUNT + py_source(name if name == "good" else ""))
    registry = new_registry()
    registry.rescan([tmp_path / "good", tmp_path / "bad"])
    for _ in range(3):
        registry.ids(), registry.devices(), registry.absent(), registry.failures, registry.origins()
    assert (tmp_path / "good" / "count").read_text() == (tmp_path / "bad" / "count").read_text() == "x"
    one, two = registry.derive([tmp_path / "good"]), registry.derive([tmp_path / "good"])
    assert one.find("good") is not two.find("good")
    assert (tmp_path / "good" / "count").read_text() == "x", "the module is kept, the creator is each one's own"
    assert sorted(p.name for p in (tmp_path / "good").iterdir()) == ["acme_good_backend.py", "count"]


def test_A21_the_program_goes_on(tmp_path: Path) -> None:
    """All of them in one folder, in a program of its own: it runs, and says what it skipped."""
    for k, (source, _) in enumerate(PYTHON.values()):
        (tmp_path / f"acme_{k}_backend.py").write_bytes(source.encode(errors="surrogateescape"))
    code = """
import numpy, weft
from weft import models
with weft.load(models.path("shapes"), device="cpu") as session:
    session.run(numpy.zeros((1, 3, 128, 128), "float32"))
print(len(weft.registry.failures), weft.registry.ids())
"""
    count = len(PYTHON)
    assert in_new_process(code, folders=str(tmp_path)).strip() == f"{count} ['cpu', 'opencl', 'vulkan', 'ort']"
