"""What writes PTX for Vulkan, on a driver for CPUs: its binaries are no PTX, but kept and read in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.opencl_kernels import SOURCE, values
from weft.backends.opencl.discovery import raw_device
from weft.backends.opencl.programs import Programs
from weft.backends.opencl.ptx_writer import PtxWriter


def test_a_kernel_is_compiled_once_and_kept_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    compiled: list[str] = []
    ptx = Programs.ptx

    def counted(self: Programs, *given: object) -> bytes:
        compiled.append(SOURCE.entry)
        return ptx(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Programs, "ptx", counted)
    written = []
    for _ in range(2):
        writer = PtxWriter(raw_device(0), 0)
        with writer.hold():
            written += [writer.write(SOURCE, values(4)), writer.write(SOURCE, values(4))]
        writer.close()
    assert len(set(written)) == 1 and written[0]
    assert len(compiled) == 1
    writer.write(SOURCE, values(5))
    assert len(compiled) == 2, "other constants make another kernel"
    writer.close()


def test_no_writer_is_found_for_a_device_of_another_make() -> None:
    assert PtxWriter.find(raw_device(0).name.strip()) is None and PtxWriter.find("no such device") is None
