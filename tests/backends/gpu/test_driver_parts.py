"""Cards that an API does not list: which part of their driver is missing, above all in containers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers.cli import Cli
from weft.backends.gpu.device import driver_parts
from weft.backends.gpu.device.cards import Visible
from weft.backends.opencl import discovery
from weft.backends.opencl.creator import OpenCLCreator
from weft.backends.vulkan import physical
from weft.backends.vulkan.creator import VulkanCreator
from weft.errors import DeviceError

NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
LIB = "usr/lib/x86_64-linux-gnu"
GRAPHICS, COMPUTE = f"{LIB}/libGLX_nvidia.so.0", f"{LIB}/libnvidia-opencl.so.1"
RUN = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all ..."
Machine = Callable[..., None]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return what makes this machine seem to have cards of some vendors, and some files."""

    def made(*files: str, cards: tuple[str, ...] = (NVIDIA,), kind: str = "0x030200") -> None:
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).touch()
        for number, vendor in enumerate(cards):
            place = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
            place.mkdir(parents=True)
            (place / "vendor").write_text(f"{vendor}\n")
            (place / "class").write_text(f"{kind}\n")

    monkeypatch.setattr(driver_parts, "ROOT", tmp_path)
    return made


def told(api: str) -> tuple[str, str, bool]:
    """Return the one thing that is missing, what to do, and whether it is a failure."""
    creator: Any = {"opencl": OpenCLCreator, "vulkan": VulkanCreator}[api]()
    (found,) = creator.unlisted()
    return found.reason.what, found.reason.fix, found.broken


@pytest.mark.parametrize(
    ("api", "files", "cards", "what", "fix", "broken"),
    [
        ("vulkan", [".dockerenv"], [NVIDIA], "the container was not given /dev/nvidiactl", RUN, False),
        ("vulkan", [".dockerenv", "dev/nvidiactl"], [], "NVIDIA_DRIVER_CAPABILITIES lacks graphics", RUN, True),
        ("vulkan", ["run/.containerenv", "dev/nvidiactl", COMPUTE], [NVIDIA], "lacks graphics", RUN, True),
        ("vulkan", [".dockerenv", "dev/nvidiactl", GRAPHICS], [NVIDIA], "no /etc/vulkan/icd.d", "_icd.json", True),
        ("vulkan", ["dev/nvidiactl"], [NVIDIA], "libGLX_nvidia.so.0 is not there", "libnvidia-gl", False),
        ("vulkan", [], [NVIDIA], "its kernel driver is not loaded", "install NVIDIA's driver", False),
        ("opencl", [".dockerenv", "dev/nvidiactl", GRAPHICS], [NVIDIA], "lacks compute", RUN, True),
        ("opencl", [".dockerenv", "dev/nvidiactl", COMPUTE], [NVIDIA], "no /etc/OpenCL/vendors", "nvidia.icd", True),
        ("opencl", ["dev/nvidiactl", COMPUTE], [NVIDIA], "where the loader looks", "nvidia.icd", True),
        ("vulkan", [".dockerenv"], [AMD], "not given /dev/dri/renderD*", "--device /dev/kfd --device /dev/dri", False),
        ("opencl", [".dockerenv", "dev/dri/renderD128"], [AMD], "not given /dev/kfd", "--device /dev/kfd", False),
        ("vulkan", ["dev/dri/renderD128"], [AMD], "libvulkan_radeon.so is not there", "mesa-vulkan-drivers", False),
        ("opencl", ["dev/dri/renderD128", "dev/kfd"], [AMD], "libamdocl64.so", "rocm-opencl-runtime", False),
        ("opencl", [".dockerenv"], [INTEL], "not given /dev/dri/renderD*", "docker run --device /dev/dri ...", False),
        ("opencl", ["dev/dri/renderD128"], [INTEL], "libigdrcl.so is not there", "apt install intel-opencl-icd", False),
        ("vulkan", ["dev/dri/renderD128", f"{LIB}/libvulkan_intel.so"], [INTEL], "no /usr/share", "reinstall", True),
    ],
)
def test_what_is_missing_of_a_cards_driver_is_told_with_what_to_do(
    api: str, files: list[str], cards: list[str], what: str, fix: str, broken: bool, machine: Machine
) -> None:
    machine(*files, cards=tuple(cards))
    found = told(api)
    assert what in found[0] and fix in found[1] and found[2] is broken


@pytest.mark.parametrize(("contained", "fix"), [(False, "sudo usermod -aG"), (True, "docker run --group-add")])
def test_a_device_file_of_a_group_is_told_with_the_group(
    contained: bool, fix: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("dev/dri/renderD128", *([".dockerenv"] if contained else []), cards=(INTEL,))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    what, to_do, broken = told("vulkan")
    assert "/dev/dri/renderD128 cannot be opened" in what and fix in to_do and broken


@pytest.mark.parametrize(
    ("files", "cards", "kind"),
    [
        ([], [], "0x030000"),
        ([], ["0x1af4"], "0x030000"),
        ([], [NVIDIA, INTEL], "0x040300"),
        (["dev/nvidiactl", GRAPHICS, "etc/vulkan/icd.d/nvidia_icd.json"], [NVIDIA], "0x030000"),
    ],
    ids=["no card", "a vendor without a driver of its own", "a sound card", "all is there"],
)
def test_nothing_is_told_where_nothing_is_missing(
    files: list[str], cards: list[str], kind: str, machine: Machine
) -> None:
    machine(*files, cards=tuple(cards), kind=kind)
    assert VulkanCreator().unlisted() == []


def test_a_vendor_that_the_api_lists_lacks_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(cards=(NVIDIA, INTEL))
    monkeypatch.setattr(OpenCLCreator, "listed_vendors", lambda self: {0x10DE})
    assert [each.vendor for each in OpenCLCreator().unlisted()] == ["Intel"]


def test_doctor_tells_it_beside_the_software_device_that_is_listed(
    cli: Cli, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(".dockerenv", "dev/nvidiactl")
    monkeypatch.setattr("weft.cli.doctor.trial_run", lambda device: 0.0)
    checks = {c["name"]: c for c in json.loads(cli("doctor", "--json", status=1).out)["checks"]}
    assert checks["vulkan"]["status"] == "PASS"
    assert checks["NVIDIA in vulkan"]["status"] == "FAIL" and checks["NVIDIA in vulkan"]["fix"] == RUN
    assert "lacks compute" in checks["NVIDIA in opencl"]["found"]


def test_the_error_of_an_absent_api_tells_it_too(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(".dockerenv", "dev/nvidiactl", COMPUTE)

    def refused() -> None:
        raise DeviceError("Vulkan has no driver to work with")

    monkeypatch.setattr(physical, "listed_devices", refused)
    monkeypatch.setattr(discovery, "listed_devices", lambda: ([], Visible()))
    absent = weft.registry.absent()
    assert "NVIDIA_DRIVER_CAPABILITIES lacks graphics" in absent["vulkan"] and RUN in absent["vulkan"]
    assert "no /etc/OpenCL/vendors" in absent["opencl"] and "nvidia.icd" in absent["opencl"]
