"""Finding Vulkan devices: what they are said to be, and why there are none; without a device these tests fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.vulkan_kernels import NO_DIALECT
from weft.backends.vulkan.device import VulkanDevice, absent_reason, enumerate_devices, open_device
from weft.errors import NoDevice


def test_devices_are_described() -> None:
    assert absent_reason() is None
    found = enumerate_devices()
    assert found, "these tests need a Vulkan device: apt install mesa-vulkan-drivers"
    for index, info in enumerate(found):
        assert (info.id, info.index) == ("vulkan", index)
        assert info.name and info.driver and str(info.details["api"]).startswith("Vulkan 1.")
        assert info.software == (info.details["type"] == "CPU") == ("llvmpipe" in info.name)
    assert [d.software for d in found] == sorted(d.software for d in found), "hardware comes first"


def test_a_wrong_index_names_what_there_is() -> None:
    with pytest.raises(NoDevice, match="there is no Vulkan device 99") as caught:
        open_device(99, NO_DIALECT)
    assert "vulkan:0" in str(caught.value)


def test_caps_are_the_limits_of_the_device(device: VulkanDevice) -> None:
    caps = device.caps
    assert caps.max_local_items >= 128 and min(caps.max_grid) >= 65535 and caps.local_memory >= 16384
    assert 1 << 27 <= caps.max_buffer_range < 1 << 32
    assert caps.max_allocation >= 1 << 30
    assert 256 % caps.offset_alignment == 0
    assert caps.fp16_storage and caps.int8_storage
    assert caps.compute_units >= 1
    assert caps.software == device.info.software


def in_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_no_vulkan() -> None:
    code = (
        "import sys, weft.backends.vulkan.probe, weft.backends.vulkan.spirv\n"
        "print('vulkan' in sys.modules)"
    )
    assert in_python(code).strip() == "False"


def test_a_missing_package_is_explained() -> None:
    code = (
        "import sys; sys.modules['vulkan'] = None\n"
        "from weft.backends.vulkan.probe import absent_reason; print(absent_reason())"
    )
    assert "pip install vulkan cffi" in in_python(code)


def test_a_missing_loader_is_explained() -> None:
    code = (
        "import ctypes, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'vulkan': raise OSError('Cannot find Vulkan SDK version')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from weft.backends.vulkan.probe import absent_reason; print(absent_reason())"
    )
    assert "apt install libvulkan1" in in_python(code)


def test_a_missing_driver_is_explained() -> None:
    code = (
        "from weft.backends.vulkan.probe import absent_reason; print(absent_reason())\n"
        "from weft.backends.vulkan.device import enumerate_devices; print(enumerate_devices())"
    )
    nowhere = {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}
    said = in_python(code, WEFT_VULKAN_VALIDATION="0", **nowhere)
    assert "mesa-vulkan-drivers" in said and said.strip().endswith("[]")


def test_a_missing_validation_layer_is_explained(tmp_path: Path) -> None:
    code = "from weft.backends.vulkan.probe import absent_reason; print(absent_reason())"
    said = in_python(code, VK_LAYER_PATH=str(tmp_path))
    assert "apt install vulkan-validationlayers" in said
