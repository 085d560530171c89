"""What the package promises as a whole: light imports, clean layers, complete names."""

from __future__ import annotations

import ast
import gc
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import weft
import weft_conformance
from tests.helpers.warm_python import WarmPython
from weft import errors
from weft.errors import WeftError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "weft"
KIT = ROOT / "packages" / "conformance" / "weft_conformance"
SOURCES = sorted((*PACKAGE.rglob("*.py"), *KIT.rglob("*.py")))


def name_of(path: Path) -> str:
    """Return the module's name."""
    parts = path.relative_to(KIT.parent if path.is_relative_to(KIT) else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def in_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- importing -----------------------------------------------------------------------------------------------


def test_importing_weft_loads_nothing_heavy() -> None:
    heavy = ["cffi", "importlib.metadata", "mako", "onnx", "PIL", "pyopencl", "pygments", "rich", "typer", "vulkan"]
    code = f"import sys, weft; print([m for m in {heavy} if m in sys.modules])"
    assert in_python(code).strip() == "[]"


def test_importing_the_ops_makes_few_of_them_dataclasses() -> None:
    """Those that a pass creates an instance of; to make all took a tenth of a second of each start."""
    code = """
import weft.ops
from weft.core.graph.op import op_types
print(*(name for name, op in op_types().items() if "__dataclass_params__" in vars(op)))
"""
    assert len(in_python(code).split()) < 12


def test_the_base_install_runs_on_the_cpu() -> None:
    code = """
import sys
for missing in ("pyopencl", "vulkan", "cffi", "slangpy", "PIL", "onnxruntime"):
    sys.modules[missing] = None
import numpy, weft
from weft import models
assert [d.id for d in weft.devices()] == ["cpu"], weft.devices()
assert set(weft.registry.absent()) == {"opencl", "vulkan", "ort"}
with weft.load(models.path("shapes")) as session:
    y, = session.run(numpy.zeros((1, 3, 128, 128), "float32"))
    print(y.shape, *session.report.nodes_by_device)
"""
    assert in_python(code).strip() == "(1, 5, 64, 64) cpu"


def test_without_onnx_weft_imports_and_says_what_is_missing() -> None:
    code = """
import sys
sys.modules["onnx"] = None
import weft
try:
    weft.load("model.onnx", device="cpu")
except weft.WeftError as e:
    print(e)
"""
    assert "pip install onnx" in in_python(code)


# -- layers --------------------------------------------------------------------------------------------------

LAYERS = {
    "weft.errors": -1,
    "weft.config": 0,
    "weft.core": 1,
    "weft.kernels": 2,
    "weft.ops": 3,
    "weft.backends": 4,
    "weft.frontends": 4,
    "weft.models": 4,
    "weft.plugins": 4,
    "weft.buffers": 5,
    "weft.extend": 5,
    "weft.loading": 5,
    "weft.serving": 6,
    "weft": 7,
    "weft.onnx_backend": 7,
    "weft.cli": 8,
    "weft.__main__": 9,
    "weft_conformance": 10,
    "weft.torch": 7,
}
"""A module imports from its own layer and from those below."""


def layer_of(module: str) -> str:
    """Return the longest name in LAYERS that the module lies under."""
    parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next(name for name in names if name in LAYERS and (name != "weft" or module == "weft"))


@pytest.fixture(scope="module", autouse=True)
def _no_trees_for_others() -> Iterator[None]:
    """Drop the syntax trees after the last test here: with them, each garbage collection takes half a second."""
    yield
    nodes_of.cache_clear()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    gc.disable()  # there is no garbage, and to look for it among all these nodes takes most of the time
    try:
        return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    finally:
        gc.enable()


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return the modules of Weft that a file imports, anywhere in it, for other than type checking."""
    return tuple(_imports_in(path))


def _imports_in(path: Path) -> Iterator[str]:
    for_types = {
        id(inner)
        for outer in nodes_of(path)
        if isinstance(outer, ast.If) and isinstance(outer.test, ast.Name) and outer.test.id == "TYPE_CHECKING"
        for inner in ast.walk(outer)
    }
    for found in nodes_of(path):
        if id(found) in for_types:
            continue
        if isinstance(found, ast.Import):
            yield from (a.name for a in found.names if a.name.split(".")[0] in ("weft", "weft_conformance"))
        elif isinstance(found, ast.ImportFrom) and (found.module or "").split(".")[0] in ("weft", "weft_conformance"):
            assert not found.level, f"{path} imports relatively"
            for alias in found.names:
                inner = f"{found.module}.{alias.name}"
                yield inner if is_module(inner) else str(found.module)


@cache
def is_module(name: str) -> bool:
    bases = (root.joinpath(*name.split(".")) for root in (ROOT, KIT.parent))
    return any(base.is_dir() or base.with_suffix(".py").is_file() for base in bases)


def test_imports_point_downwards() -> None:
    wrong = [
        f"{name_of(path)} imports {imported}"
        for path in SOURCES
        for imported in imports_of(path)
        if (own := layer_of(name_of(path))) != (other := layer_of(imported)) and LAYERS[other] >= LAYERS[own]
    ]
    assert wrong == []


CORE = ["graph", "contract", "registry", "memory", "host", "buffers", "passes", "placement", "saved", "session"]
"""The folders of the core, lowest first."""
LATE = {("weft.core.placement.optimized_network", "weft.core.saved.network_file")}
"""`OptimizedNetwork.save` is a method, and what writes the file knows the class: it is imported when it is called."""


def test_the_folders_of_the_core_build_on_each_other() -> None:
    wrong = []
    for path in (PACKAGE / "core").rglob("*.py"):
        own = name_of(path).split(".")
        for imported in imports_of(path):
            other = imported.split(".")
            if len(own) < 3 or other[:2] != ["weft", "core"] or len(other) < 3:
                continue
            if CORE.index(other[2]) > CORE.index(own[2]) and (name_of(path), imported) not in LATE:
                wrong.append(f"{name_of(path)} imports {imported}")
    assert not wrong


GPU = [
    "device", "memory", "recording", "tuning_tables", "lowering", "packing", "runtime", "execution", "pipeline",
    "backend", "tuning", "selftest", "creator",
]
"""The folders and files of what OpenCL and Vulkan share, lowest first."""


def test_the_folders_of_the_gpu_door_build_on_each_other() -> None:
    wrong = []
    for path in (PACKAGE / "backends" / "gpu").rglob("*.py"):
        own = name_of(path).split(".")
        for imported in imports_of(path):
            other = imported.split(".")
            inside = min(len(own), len(other)) > 3 and other[:3] == ["weft", "backends", "gpu"]
            if inside and GPU.index(other[3]) > GPU.index(own[3]):
                wrong.append(f"{name_of(path)} imports {imported}")
    assert not wrong


SESSION = [
    "load_gate", "arguments", "notices", "overflow", "pipeline", "report", "executable", "open_devices",
    "loader", "plans", "left_weights", "prefetch", "state", "capacities", "stage_loader", "rests", "run",
    "stages_ahead", "network_plan", "planner", "growing", "later", "session", "load_options", "runtime",
]
"""The modules that run a network, lowest first: a runtime calls its sessions, and these what they own."""


def test_what_runs_a_network_is_called_from_above_alone() -> None:
    for path in (PACKAGE / "core" / "session").glob("[!_]*.py"):
        for imported in imports_of(path):
            other = imported.removeprefix("weft.core.session.")
            if other != imported:
                assert SESSION.index(other) < SESSION.index(path.stem), f"{name_of(path)} imports {imported}"


BORROWED = {"weft.backends.vulkan.ptx_kernels": "opencl"}
"""Modules that use another backend: NVIDIA's OpenCL driver has the only compiler to PTX that needs no SDK."""


def test_backends_know_only_what_they_share() -> None:
    wrong = []
    for path in (p for p in SOURCES if "backends" in p.parts):
        own = path.relative_to(PACKAGE / "backends").parts[0]
        known = {own, "gpu"} if own in ("opencl", "vulkan") else {own}
        known.add(BORROWED.get(name_of(path), own))
        for imported in imports_of(path):
            other = imported.split(".")[2:3]
            if imported.startswith("weft.backends.") and other and other[0] not in known:
                wrong.append(f"{name_of(path)} imports {imported}")
    assert wrong == []


def test_front_ends_see_the_core_and_the_ops() -> None:
    for path in (PACKAGE / "frontends").rglob("*.py"):
        for imported in imports_of(path):
            assert not re.match(r"weft\.(backends|kernels|cli|loading)\b", imported), f"{path}: {imported}"


@pytest.mark.parametrize("folder", ["core", "ops", "kernels", "backends/gpu"])
def test_shared_code_names_no_api(folder: str) -> None:
    allowed = {
        # The names of devices that users see, and of languages that dialects are for.
        "core/contract/backend.py", "core/contract/session_config.py", "core/registry/device_choice.py",
        "core/session/load_options.py",
        "kernels/dialect.py", "kernels/source.py",
    }
    for path in (PACKAGE / folder).rglob("*.py"):
        names = {n.lower() for n in words_of_code(path)}
        if str(path.relative_to(PACKAGE)) not in allowed:
            assert not {n for n in names if "opencl" in n or "vulkan" in n}, path


def words_of_code(path: Path) -> Iterator[str]:
    """Give the names and strings in a file, docstrings left out."""
    prose = {
        id(node.value)
        for node in nodes_of(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes_of(path):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_examples_use_public_doors_alone() -> None:
    """`weft`, `weft.extend`, and the families of ops, whose classes backends ask for."""
    public = re.compile(r"weft|weft\.extend|weft\.ops\.(?!gpu\b)\w+")
    found = {(p.name, name) for p in (ROOT / "examples").rglob("*.py") for name in imports_of(p)}
    assert found and {(path, name) for path, name in found if not public.fullmatch(name)} == set()


# -- names and sizes -----------------------------------------------------------------------------------------


def test_public_names_are_complete() -> None:
    assert weft.__all__ == sorted(weft.__all__)
    public = {n for n, v in vars(weft).items() if not n.startswith("_") and not is_submodule(n, v)}
    # The built-in backends are registered there; a user names them by id.
    assert public - {"annotations", "CpuCreator", "OpenCLCreator", "OrtCreator", "VulkanCreator"} == set(weft.__all__)


def is_submodule(name: str, value: object) -> bool:
    return type(value).__name__ == "module" and is_module(f"weft.{name}")


def test_every_module_imports_and_exports_what_it_says() -> None:
    packages = (weft, weft_conformance)
    for found in chain(*(pkgutil.walk_packages(each.__path__, f"{each.__name__}.") for each in packages)):
        if found.name.startswith("weft.torch") and importlib.util.find_spec("torch") is None:
            continue  # CI has no PyTorch
        if found.name != "weft.__main__":
            module = importlib.import_module(found.name)
            for name in getattr(module, "__all__", ()):
                assert hasattr(module, name), f"{found.name} exports {name}"


# -- one door each -------------------------------------------------------------------------------------------


def test_one_door_each() -> None:
    wrong = []
    for path in SOURCES:
        for node in nodes_of(path):
            reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            prints = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if reads and path.name != "config.py":
                wrong.append(f"{name_of(path)} reads the environment")
            if prints and "cli" not in path.parts:
                wrong.append(f"{name_of(path)} prints")
    assert wrong == []


# -- errors ----------------------------------------------------------------------------------------------------

QUOTED = (
    "weft_conformance.*",  # a finding of the kit
    "weft.ops.*", "weft.core.graph.op", "weft.core.graph.*_op", "weft.core.graph.run_sized", "weft.core.graph.graph",
    "weft.core.placement.optimized_network",  # rules of ops: "the inputs of node ... do not fit"
    "weft.frontends.onnx.attributes", "weft.frontends.onnx.building", "weft.frontends.onnx.importers",
    "weft.frontends.onnx.nodes", "weft.frontends.tflite.*",  # problems of a list
    "weft.backends.gpu.tuning.candidate_timing", "weft.backends.opencl.programs",  # caught where they are called
    "weft.cli.trial_run",  # says again what a child said
)
"""Modules whose errors others quote; those say what to do next."""


def test_an_error_that_reaches_a_user_says_what_to_do_next() -> None:
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, WeftError)}
    silent = []
    for path in SOURCES:
        module = name_of(path)
        if any(fnmatchcase(module, pattern) for pattern in QUOTED):
            continue
        for node in nodes_of(path):
            made = node.exc if isinstance(node, ast.Raise) else None
            if not (isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id in kinds):
                continue
            if not any(keyword.arg in ("fix", None) for keyword in made.keywords):
                silent.append(f"{module}:{made.lineno}")
    assert silent == []


# -- the tests -------------------------------------------------------------------------------------------------


def test_no_test_imports_a_test() -> None:
    # The device of an example runs the tests of every device: there they are what is examined, not a helper.
    runs_others = ROOT / "tests" / "examples" / "test_cuda_example.py"
    wrong = []
    may_import = re.compile(r"\bfrom[\s\\]+tests\b(?!\.helpers\b)")
    for path in {*(ROOT / "tests").rglob("*.py")} - {runs_others}:
        for node in nodes_of(path) if may_import.search(path.read_text(encoding="utf-8")) else ():
            if isinstance(node, ast.ImportFrom) and re.match(r"tests\b(?!\.helpers\b)", node.module or ""):
                wrong.append(f"{path.relative_to(ROOT)} imports {node.module}")
    assert wrong == []


# -- which Pythons ---------------------------------------------------------------------------------------------


def test_the_kit_is_of_the_version_of_weft_that_it_needs() -> None:
    wanted = (KIT.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert weft_conformance.__version__ == weft.__version__
    assert f'dependencies = ["weft=={weft.__version__}"]' in wanted


def test_any_newer_python_will_do_for_pip_the_scripts_and_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.cli import doctor

    assert re.search(r'^requires-python = ">=3\.10"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    found = doctor.python_check()
    assert (found.status, found.fix) == (doctor.PASS, "")
    monkeypatch.setattr(sys, "version_info", (3, 9, 0, "final", 0))
    assert doctor.python_check().fix == "use Python 3.10 or newer"


# -- the README ----------------------------------------------------------------------------------------------


def test_the_readme_opens_with_the_purpose_and_two_commands() -> None:
    opening = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    for command in ("scripts/demo", "scripts/test"):
        assert re.search(rf"^{command}$", opening, re.M)
        assert (ROOT / command).stat().st_mode & 0o111
    assert "install" in opening


def test_scripts_name_in_their_head_what_they_install() -> None:
    for name, more in (("demo", "Intel's runtime"), ("test", "gcc")):
        head = (ROOT / "scripts" / name).read_text(encoding="utf-8").split("set -euo pipefail")[0]
        for what in (".venv", "mesa-vulkan-drivers", "pocl-opencl-icd", more):
            assert what in head


def blocks(language: str, page: str = "README.md") -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_the_python_of_the_readme_runs_and_prints_what_it_shows(tmp_path: Path, warm_python: WarmPython) -> None:
    """It registers an op and a backend for good, so it runs in a process of its own."""
    (tmp_path / "model.onnx").write_bytes((PACKAGE / "models" / "shapes.onnx").read_bytes())
    assert len(blocks("python")) > 3
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = ("-W", "error", "-m", "tests.helpers.docs_page", ROOT / "README.md")
    done = warm_python.run(*script, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def small_model() -> bytes:
    """Return a network of few kernels with the input of the one that the README shows: each command compiles them."""
    from onnx import TensorProto

    from tests.helpers.onnx_models import make_model, node

    nodes = [node("Conv", "image w", "a", pads=[1] * 4), node("Relu", "a", "b"), node("GlobalAveragePool", "b", "y")]
    image, weights = (TensorProto.FLOAT, ("n", 3, 128, 128)), np.full((4, 3, 3, 3), 0.1, np.float32)
    return bytes(make_model(nodes, {"image": image}, constants={"w": weights}).SerializeToString())


GUIDES = ["docs/use.md", *(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs/guides").glob("*.md"))]


def test_the_commands_of_the_readme_and_of_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.helpers.cli import try_only_others
    from weft.cli import main

    try_only_others(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(small_model())
    shown = [block for page in ("README.md", *GUIDES) for block in blocks("shell", page)]
    commands = [line for block in shown for line in block.splitlines() if line.startswith("weft ")]
    assert len(commands) >= 10
    for command in commands:
        with pytest.raises(SystemExit) as caught:
            main(command.split("#")[0].split()[1:])
        assert not caught.value.code, command


def test_other_blocks_of_the_readme_are_of_known_kinds() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^```(\w+)$", text, re.M)) <= {"py", "python", "shell", "text"}
