"""What writes PTX for Vulkan, on a driver for CPUs: its binaries are no PTX, but kept and read in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    compile_one = Programs._compiled

    def counted(self: Programs, wanted: Any) -> Any:
        compiled.append(wanted.source.entry)
        return compile_one(self, wanted)

    monkeypatch.setattr(Programs, "_compiled", counted)
    written = []
    for _ in range(2):
        writer = PtxWriter(raw_device(0), 0, ("a GPU", "its driver"))
        with writer.hold():
            written += [writer.write(SOURCE, values(4)), writer.write(SOURCE, values(4))]
        writer.close()
    assert len(set(written)) == 1 and written[0]
    assert len(compiled) == 1
    writer.write(SOURCE, values(5))
    assert len(compiled) == 2, "other constants make another kernel"
    writer.close()


def test_no_writer_is_found_for_a_device_of_another_make() -> None:
    assert all(PtxWriter.find(name, "") is None for name in (raw_device(0).name.strip(), "no such device"))
