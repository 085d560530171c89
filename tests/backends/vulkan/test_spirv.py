"""Where SPIR-V comes from: compilers, the disk cache, the kernels in the wheel; errors of compilers and the driver."""

from __future__ import annotations

import stat
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.vulkan_kernels import ADD, NO_DIALECT, SCALE, kernel_source, values
from weft.backends.vulkan import glslang, pipeline_builder, spirv
from weft.backends.vulkan._vk import create
from weft.backends.vulkan.device import VulkanDevice, open_device
from weft.core.graph.dtypes import DType
from weft.core.host.disk_cache import DiskCache, seal
from weft.errors import CompileError, ConfigError, DeviceError
from weft.kernels.source import KernelCode, KernelSource


def test_a_kernel_that_is_refused_is_named_with_the_log_and_its_source_is_in_a_file(device: VulkanDevice) -> None:
    broken = kernel_source("float", "y[i] = A * nonsense[i];", DType.FLOAT32, "broken")
    with pytest.raises(CompileError) as caught:
        device.compile(broken, values(4))
    text = str(caught.value)
    line = next(i for i, t in enumerate(broken.text.splitlines(), 1) if "nonsense" in t)
    assert "the kernel 'broken' does not compile" in text and "undeclared identifier" in text
    assert f":{line}:" in text and "#version" not in text and "if (i < N)" not in text
    held = Path(caught.value.where.rpartition(": ")[2])
    assert held.suffix == ".comp" and broken.text.rstrip() in held.read_text()
    assert device.stats.compiles == 0
    device.compile(SCALE, values(4))


def test_spirv_targets_vulkan_1_1() -> None:
    compiler = glslang.find_compiler()
    assert compiler is not None and compiler.description
    made = compiler.compile(SCALE.text, "scale")
    assert made[:4] == glslang.SPIRV_MAGIC and made[4:8] == b"\x00\x03\x01\x00"
    assert compiler.compile(SCALE.text, "scale") == made


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", "''"),
        ("void main(){}", "'void main(){}'"),
        ("// a kernel\n#define N 4\n#version 450\nvoid main(){}", "'#define N 4'"),
        ("#version 110\nvoid main(){}", "'#version 110'"),
        ("#version\nvoid main(){}", "'#version'"),
    ],
)
def test_a_text_without_a_version_is_refused_and_nothing_printed(
    text: str, first: str, capfd: pytest.CaptureFixture[str]
) -> None:
    compiler = glslang.find_compiler()
    assert compiler is not None
    with pytest.raises(CompileError, match="the kernel 'odd' does not compile") as caught:
        compiler.compile(text, "odd")
    assert caught.value.why.endswith(f"has to come first, not {first}")
    assert capfd.readouterr() == ("", "")
    commented = "\n// a\n/* b ** #version 1 */ #version 450\nlayout(local_size_x=1) in;\nvoid main(){}"
    assert compiler.compile(commented, "even")


def unseen(name: str) -> KernelSource:
    return replace(SCALE, code=KernelCode(SCALE.text + f"// {name}\n"))


def test_no_compiler_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    assert glslang.find_compiler() is None
    with pytest.raises(CompileError, match="there is none") as caught:
        spirv.spirv_for(unseen("no compiler"))
    for hint in ("pip install slangpy", "GLSLANG_LIBRARY", "glslang-tools", "WEFT_NO_COMPILER"):
        assert hint in str(caught.value)
    assert caught.value.fix.startswith("unset WEFT_NO_COMPILER")


def test_the_disk_cache_spares_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    source = unseen("disk cache")
    first = spirv.spirv_for(source)
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    assert spirv.spirv_for(source) == first
    monkeypatch.setenv("WEFT_CACHE", "0")
    with pytest.raises(CompileError):
        spirv.spirv_for(source)


def test_shipped_kernels_need_no_compiler(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = unseen("shipped")
    compiler = glslang.find_compiler()
    assert compiler is not None
    archive = tmp_path / "spirv.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as f:
        f.writestr(spirv.shipped_name(source.digest), seal(source.digest, compiler.compile(source.text, "scale")))
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.setattr(spirv, "shipped", spirv.ShippedSet(archive))
    device.compile(source, values(4))
    with pytest.raises(CompileError):
        device.compile(unseen("not shipped"), values(4))
    archive.write_bytes(b"no zip")
    assert spirv.ShippedSet(archive).get(source.digest) is None


def test_shipped_kernels_that_changed_places_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = unseen("one"), unseen("other")
    archive = tmp_path / "spirv.zip"
    with zipfile.ZipFile(archive, "w") as f:
        for name, content in ((one, other), (other, one)):
            f.writestr(spirv.shipped_name(name.digest), seal(content.digest, glslang.SPIRV_MAGIC))
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.setattr(spirv, "shipped", spirv.ShippedSet(archive))
    compiler = glslang.find_compiler()
    assert compiler is not None
    for source in (one, other):
        assert spirv.spirv_for(source) == compiler.compile(source.text, source.entry)


def test_spirv_that_changed_places_is_compiled_anew(device: VulkanDevice, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path))
        right = [spirv.spirv_for(source) for source in (SCALE, ADD)]
        a, b = (tmp_path / "spirv").iterdir()
        kept = a.read_bytes(), b.read_bytes()
        a.write_bytes(kept[1])
        b.write_bytes(kept[0])
        assert [spirv.spirv_for(source) for source in (SCALE, ADD)] == right
        assert (a.read_bytes(), b.read_bytes()) == kept


def test_spirv_that_the_driver_refuses_is_compiled_anew_in_the_same_load(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = unseen("refused")
    key = f"{source.digest} {glslang.TOOLCHAIN}"
    DiskCache("spirv").put(key, glslang.SPIRV_MAGIC + bytes(16))

    def refusing(function: Any, device: Any, info: Any, handle: str, what: str) -> Any:
        if handle == "VkShaderModule" and info.codeSize == 20:  # what real drivers do with such code is not defined
            raise DeviceError(what)
        return create(function, device, info, handle, what)

    monkeypatch.setattr(pipeline_builder, "create", refusing)
    device.compile(source, values(4))
    assert "compiled again" in caplog.text
    held = DiskCache("spirv").get(key)
    assert held is not None and len(held) > 20, "the next start is clean"


@pytest.mark.parametrize("header", [b"", bytes(40), struct.pack("<IIII16s", 32, 1, 1, 2, b"another device")])
def test_a_drivers_cache_of_another_device_is_thrown_away(header: bytes, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path))
        first = open_device(0, NO_DIALECT)
        first.compile(SCALE, values(4))
        first.close()
        (file,) = (tmp_path / "vulkan-pipelines").iterdir()
        whole = file.read_bytes()
        key = first._held.pipelines._key
        DiskCache("vulkan-pipelines").put(key, header + b"and what follows")
        second = open_device(0, NO_DIALECT)
        assert not file.exists()
        second.compile(SCALE, values(4))
        second.close()
        assert len(file.read_bytes()) == len(whole)


def test_a_drivers_cache_that_hardly_grows_is_written_at_the_end(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path))
        device = open_device(0, NO_DIALECT)
        device.compile(SCALE, values(4))
        device.keep()
        (file,) = (tmp_path / "vulkan-pipelines").iterdir()
        first = file.stat().st_ino
        device._held.pipelines._kept_bytes += 1 << 20  # as of a driver that keeps more than this one
        for n in range(5, 8):
            device.compile(SCALE, values(n))
            device.keep()
            assert file.stat().st_ino == first
        device.close()
        assert file.stat().st_ino != first


def test_compilers_are_looked_for_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = glslang._slangpy_library()
    assert inside is not None and "slangpy" not in sys.modules
    monkeypatch.setattr(glslang, "_slangpy_library", lambda: None)
    monkeypatch.setenv("GLSLANG_LIBRARY", inside)
    found = glslang.find_compiler()
    assert found is not None and inside in found.description
    monkeypatch.setenv("GLSLANG_LIBRARY", "/nowhere/libslang-glslang.so")
    with pytest.raises(ConfigError, match="GLSLANG_LIBRARY"):
        glslang.find_compiler()
    monkeypatch.delenv("GLSLANG_LIBRARY")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert glslang.find_compiler() is None
    for name in ("glslc", "glslangValidator"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
        found = glslang.find_compiler()
        assert found is not None and found.description == str(tmp_path / name)


def fake_program(folder: Path, script: str) -> Callable[[str], bytes]:
    """Return `compile` of a program that is a shell script; it is called with ... -o TARGET SOURCE."""
    program = folder / "glslangValidator"
    program.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
    program.chmod(stat.S_IRWXU)
    return lambda text: glslang.CommandCompiler(str(program), "-V").compile(text, "scale")


def test_a_program_on_the_path_compiles(tmp_path: Path) -> None:
    (tmp_path / "made.spv").write_bytes(glslang.SPIRV_MAGIC + bytes(16))
    good = fake_program(tmp_path, f'grep -q main "$last" && cp {tmp_path}/made.spv "$3"')
    assert good("void main() {}") == glslang.SPIRV_MAGIC + bytes(16)
    bad = fake_program(tmp_path, 'echo "ERROR: $last:2: wrong"; exit 1')
    with pytest.raises(CompileError) as caught:
        bad("first\nsecond\n")
    assert "ERROR: scale:2: wrong" in str(caught.value) and "second" not in str(caught.value)


def test_messages_have_words_for_driver_codes() -> None:
    from weft.backends.vulkan._vk import check, words

    assert words(-4) == "the device stopped answering (VK_ERROR_DEVICE_LOST)"
    with pytest.raises(DeviceError, match="VkResult -77"):
        check(-77, "a thing cannot be done")
    check(0, "nothing")
