"""Backends in native code: the library, its devices, and their creator."""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, c_char_p, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from weft.core.backend import Backend, BackendCreator, BackendInfo, DeviceInfo
from weft.errors import ClosedError, DeviceError
from weft.plugins.elf import why_cut_off
from weft.plugins.interface import (
    FUNCTIONS,
    Announced,
    MalformedError,
    checked_id,
    checked_version,
    version_of_file,
)
from weft.plugins.native_abi import BUFFERS, LEAST_SIZE, REQUIRED, CBackend, CDeviceInfo, Message, decoded

MOST_DEVICES = 64
"""A library that counts more devices is taken to be wrong: each of them is described, and listed."""


def load_library(file: Path) -> Announced:
    """Return the backend in a shared library; MalformedError says why there is none."""
    try:
        why = why_cut_off(file)
        if why is not None:
            raise MalformedError(f"it cannot be loaded: {why}")
        library = ctypes.CDLL(str(file))
    except OSError as e:
        raise MalformedError(f"it cannot be loaded: {str(e).removeprefix(f'{file}: ')}") from e
    missing = [name for name in FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise MalformedError(
            f"it exports no {' and no '.join(missing)}; in C++ the functions must be extern \"C\""
        )
    library.GetBackendId.restype = c_char_p
    library.GetVersion.restype, library.GetVersion.argtypes = None, (POINTER(c_uint32), POINTER(c_uint32))
    library.BackendFactory.restype = c_void_p
    id_ = _id_of(library.GetBackendId())
    major, minor = c_uint32(), c_uint32()
    library.GetVersion(major, minor)
    version = checked_version((major.value, minor.value), "GetVersion gave")
    creator = NativeCreator(_table_at(library.BackendFactory()), str(file))
    creator.api_version = version
    return Announced(id_, creator, "" if creator.version else _version_of(file))


@cache
def _version_of(file: Path) -> str:
    # A process loads a path once: what is put in its place later does not run here.
    try:
        return version_of_file(file.read_bytes())
    except OSError as e:
        raise MalformedError(f"it cannot be read: {e.strerror}") from e


def _id_of(given: bytes | None) -> str:
    if given is None:
        raise MalformedError("GetBackendId returned NULL")
    try:
        return checked_id(given.decode())
    except UnicodeDecodeError:
        raise MalformedError(f"GetBackendId returned {given!r}, which is not UTF-8") from None


def _table_at(address: int | None) -> CBackend:
    """Return a copy of a table, without the fields that are newer than this version of the interface."""
    if not address:
        raise MalformedError("BackendFactory returned nothing (NULL)")
    size = c_size_t.from_address(address).value
    if size < LEAST_SIZE:
        raise MalformedError(
            f"BackendFactory returned a table whose struct_size is {size}, where {LEAST_SIZE} is the least"
        )
    table = CBackend()
    ctypes.memmove(ctypes.addressof(table), address, min(size, ctypes.sizeof(table)))
    missing = [name for name in REQUIRED if not getattr(table, name)]
    if missing:
        raise MalformedError(f"the table that BackendFactory returned has no {' and no '.join(missing)}")
    missing = [name for name in BUFFERS if not getattr(table, name)]
    if 0 < len(missing) < len(BUFFERS):
        raise MalformedError(
            f"the table that BackendFactory returned has no {' and no '.join(missing)}; "
            f"own buffers need {', '.join(BUFFERS)}"
        )
    return table


class NativeDevice:
    """An open device. One call at a time; it closes once its creator and all its backends are done with it."""

    def __init__(self, table: CBackend, id: str, index: int) -> None:
        self.table, self.name = table, f"{id}:{index}"
        self.lock = threading.RLock()
        self.handle = c_void_p()
        self._users = 1
        if table.open:
            message = Message()
            status = table.open(index, ctypes.byref(self.handle), *message.clear())
            self.check(status, message, DeviceError, f"{self.name} cannot be opened", "open")

    def retain(self) -> NativeDevice:
        """Keep the device open until one more `release`."""
        with self.lock:
            if not self._users:
                raise ClosedError(f"{self.name} is closed")
            self._users += 1
        return self

    def release(self) -> None:
        """Give up one use; after the last one the device is closed."""
        with self.lock:
            self._users -= 1
            if not self._users and self.table.close:
                self.table.close(self.handle)

    @staticmethod
    def check(status: int, message: Message, kind: type[DeviceError], what: str, function: str) -> None:
        """Raise an error with C's message, word for word, unless the status is 0."""
        if status:
            raise kind(what, why=message.text() or f"{function} returned {status} and wrote no message")

    def wait(self) -> None:
        """Wait for what is queued."""
        if self.table.wait:
            with self.lock:
                message = Message()
                status = self.table.wait(self.handle, *message.clear())
                self.check(status, message, DeviceError, f"{self.name} failed", "wait")


class NativeCreator(BackendCreator):
    """Makes the backends of a library; a device is opened by the first and shared."""

    def __init__(self, table: CBackend, file: str) -> None:
        self._table, self._file = table, file
        self.version = decoded(table.version)
        self._lock = threading.Lock()
        self._devices: dict[int, NativeDevice] = {}

    def absent(self) -> str | None:
        """Return the library's reason why there is no device, or None."""
        with self._lock:
            if self._table.absent:
                message = Message()
                status = self._table.absent(*message.clear())
                if status:
                    return message.text().strip() or f"absent returned {status} and wrote no reason ({self._file})"
            count = self._count()
        if 0 < count <= MOST_DEVICES:
            return None
        if not count:
            return f"device_count returned 0: the library finds no device ({self._file})"
        return f"device_count returned {count}, which is not a number from 0 to {MOST_DEVICES} ({self._file})"

    def devices(self) -> list[DeviceInfo]:
        """Return the devices of the library, as it describes them."""
        if self.absent() is not None:
            return []
        with self._lock:
            # The library is asked again: what it says may have changed since.
            return [self._described(k) for k in range(min(self._count(), MOST_DEVICES))]

    def _count(self) -> int:
        return int(self._table.device_count()) if self._table.device_count else 1

    def _described(self, index: int) -> DeviceInfo:
        info = CDeviceInfo(self.id.encode(), Path(self._file).name.encode(errors="replace")[:127], 0)
        if self._table.device_info:
            self._table.device_info(index, ctypes.byref(info))
        return DeviceInfo(self.id, index, decoded(info.name), decoded(info.driver), bool(info.software))

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend on an open device."""
        from weft.plugins.native_backend import BufferBackend, NativeHostBackend

        with self._lock:
            if info.index not in self._devices:
                self._devices[info.index] = NativeDevice(self._table, self.id, info.index)
            device = self._devices[info.index].retain()
        made: type[Any] = BufferBackend if self._table.allocate else NativeHostBackend
        backend: Backend = made(info, device)
        return backend

    def close(self) -> None:
        """Close the devices, each when the last backend that uses it is closed."""
        with self._lock:
            devices, self._devices = self._devices, {}
        for device in devices.values():
            device.release()
