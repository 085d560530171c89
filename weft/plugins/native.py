"""Backends in native code: the library, its devices, and their creator."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from weft.core.contract.backend import Backend, BackendCreator, BackendInfo, BackendOption, DeviceInfo
from weft.core.contract.backend_options import NO_OPTIONS, Options, defaults
from weft.errors import ClosedError, DeviceError
from weft.plugins.interface import (
    FUNCTIONS,
    Announced,
    MalformedError,
    checked_id,
    usable_version,
    version_of_file,
)
from weft.plugins.native_abi import (
    BOOL,
    BUFFERS,
    FLOAT,
    INT,
    LEAST_SIZE,
    REQUIRED,
    STRING,
    CBackend,
    CDeviceInfo,
    COptionInfo,
    Message,
    OptionsView,
    decoded,
)

MOST_OPTIONS = 64
"""The most options of a library; `option_info` of a faulty one may never end the list."""
MOST_DEVICES = 64
"""The most devices of a library; a higher count is taken for a fault, because each device is described and listed."""


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
        raise MalformedError(f"it exports no {' and no '.join(missing)}; in C++ the functions must be extern \"C\"")
    library.GetBackendId.restype = c_char_p
    library.GetVersion.restype, library.GetVersion.argtypes = None, (POINTER(c_uint32), POINTER(c_uint32))
    library.BackendFactory.restype = c_void_p
    id_ = _id_of(library.GetBackendId())
    major, minor = c_uint32(), c_uint32()
    library.GetVersion(major, minor)
    version = usable_version((major.value, minor.value), "GetVersion gave")
    address = library.BackendFactory()
    creator = NativeCreator(_table_at(address), str(file), address)
    creator.api_version = version
    return Announced(id_, creator, "" if creator.version else _version_of(file))


@cache
def _version_of(file: Path) -> str:
    # A process loads a path only once: a file that replaces it later does not run here.
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
    fields = [getattr(CBackend, name) for name, _ in CBackend._fields_]
    # Copy whole fields only: a part of a pointer is no pointer.
    known = max(field.offset + field.size for field in fields if field.offset + field.size <= size)
    ctypes.memmove(ctypes.addressof(table), address, known)
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


def _options_of(table: CBackend) -> tuple[BackendOption, ...]:
    """Return the options that a library declares; MalformedError says what is wrong with them."""
    if not table.option_info:
        return ()
    if not table.open_with:
        raise MalformedError("the table that BackendFactory returned has option_info and no open_with to give them to")
    found: list[BackendOption] = []
    for index in range(MOST_OPTIONS + 1):
        info = COptionInfo(kind=INT)
        status = table.option_info(index, ctypes.byref(info))
        if status:
            return tuple(found)
        found.append(_option(index, info))
    raise MalformedError(f"option_info never says that there are no more options, after {MOST_OPTIONS}")


def _option(index: int, info: COptionInfo) -> BackendOption:
    values = {
        INT: info.default_int,
        FLOAT: info.default_float,
        STRING: decoded(info.default_string),
        BOOL: bool(info.default_int),
    }
    if info.kind not in values:
        raise MalformedError(f"option_info gave option {index} the kind {info.kind}, which is no kind of an option")
    made = BackendOption(decoded(info.name), values[info.kind], decoded(info.doc))
    why = made.problem()
    if why is not None:
        raise MalformedError(f"option_info: {why}")
    return made


class NativeDevice:
    """An open device: it takes one call at a time, and closes when its creator and all its backends released it."""

    def __init__(self, table: CBackend, id: str, index: int, options: Options = NO_OPTIONS) -> None:
        self.table, self.name = table, f"{id}:{index}"
        self.lock = threading.RLock()
        self.handle = c_void_p()
        self._users = 1
        message, status, function = Message(), 0, "open_with" if table.open_with else "open"
        if table.open_with:
            given = OptionsView(options)
            status = table.open_with(index, given.count, given.pointers, ctypes.byref(self.handle), *message.clear())
        elif table.open:
            status = table.open(index, ctypes.byref(self.handle), *message.clear())
        self.check(status, message, DeviceError, f"{self.name} cannot be opened", function)

    def retain(self) -> NativeDevice:
        """Keep the device open until one more `release`."""
        with self.lock:
            if not self._users:
                raise ClosedError(f"{self.name} is closed", fix="open the device again: load a new session")
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

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Wait for the queued work of all sessions, and let no session queue more until the block ends."""
        with self.lock:
            self.wait()
            yield

    def wait(self) -> None:
        """Wait for what is queued."""
        if self.table.wait:
            with self.lock:
                message = Message()
                status = self.table.wait(self.handle, *message.clear())
                self.check(status, message, DeviceError, f"{self.name} failed", "wait")


class NativeCreator(BackendCreator):
    """Makes the backends of a library. The first opens the device; those with the same options share it."""

    def __init__(self, table: CBackend, file: str, address: int) -> None:
        self.table, self.file = table, file
        self.address = address
        """The address of the library's own table; `table` is a copy."""
        self.version = decoded(table.version)
        self.options = _options_of(table)
        self._lock = threading.Lock()
        self._devices: dict[tuple[int, Options], NativeDevice] = {}

    def absent(self) -> str | None:
        """Return the library's reason why there is no device, or None."""
        with self._lock:
            if self.table.absent:
                message = Message()
                status = self.table.absent(*message.clear())
                if status:
                    return message.text().strip() or f"absent returned {status} and wrote no reason ({self.file})"
            count = self._count()
        if 0 < count <= MOST_DEVICES:
            return None
        if not count:
            return f"device_count returned 0: the library finds no device ({self.file})"
        return f"device_count returned {count}, which is not a number from 0 to {MOST_DEVICES} ({self.file})"

    def devices(self) -> list[DeviceInfo]:
        """Return the devices of the library, as it describes them."""
        if self.absent() is not None:
            return []
        with self._lock:
            # Ask the library again: its answer may have changed.
            return [self._described(k) for k in range(min(self._count(), MOST_DEVICES))]

    def _count(self) -> int:
        return int(self.table.device_count()) if self.table.device_count else 1

    def _described(self, index: int) -> DeviceInfo:
        info = CDeviceInfo(self.id.encode(), Path(self.file).name.encode(errors="replace")[:127], 0)
        if self.table.device_info:
            self.table.device_info(index, ctypes.byref(info))
        name, driver, uuid, pci = map(decoded, (info.name, info.driver, info.uuid, info.pci))
        return DeviceInfo(self.id, index, name, driver, bool(info.software), uuid=uuid, pci=pci)

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend on an open device."""
        from weft.plugins.native_backend import BufferBackend, NativeHostBackend

        key = (info.index, Options({**defaults(self), **info.options}))
        with self._lock:
            if key not in self._devices:
                self._devices[key] = NativeDevice(self.table, self.id, *key)
            device = self._devices[key].retain()
        made: type[Any] = BufferBackend if self.table.allocate else NativeHostBackend
        backend: Backend = made(info, device)
        return backend

    def close(self) -> None:
        """Close the devices, each when the last backend that uses it is closed."""
        with self._lock:
            devices, self._devices = self._devices, {}
        for device in devices.values():
            device.release()


# -- whether the library is complete ----------------------------------------------------------------------


_MAGIC = b"\x7fELF"
_LOAD = 1


def why_cut_off(file: Path) -> str | None:
    """Return why an ELF file is cut off; None if it is complete, or no ELF file."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        header = opened.read(64)
        if len(header) < 64 or not header.startswith(_MAGIC):
            return None
        order, is_wide = "<" if header[5] == 1 else ">", header[4] == 2
        (start,) = struct.unpack_from(order + ("Q" if is_wide else "I"), header, 32 if is_wide else 28)
        each, count = struct.unpack_from(order + "HH", header, 54 if is_wide else 42)
        opened.seek(start)
        table = opened.read(each * count)
    # In a program header: the offset of a segment in the file, and its number of bytes there.
    number, *places = ("Q", 8, 32) if is_wide else ("I", 4, 16)
    end = start + each * count
    if each >= (56 if is_wide else 32) and len(table) == each * count:
        for at in range(0, len(table), each):
            if struct.unpack_from(order + "I", table, at)[0] == _LOAD:
                offset, length = (struct.unpack_from(f"{order}{number}", table, at + int(p))[0] for p in places)
                end = max(end, offset + length)
    return f"the file is cut off: it has {size:,} bytes of at least {end:,}" if end > size else None
