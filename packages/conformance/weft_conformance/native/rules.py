"""The rules that a library is tried with, a function each, which returns what is wrong, "" if nothing is."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from weft.errors import listing
from weft.plugins.native import MOST_DEVICES, MOST_OPTIONS
from weft.plugins.native_abi import BOOL, STRING, CBackend, CDeviceInfo, COptionInfo, Message
from weft_conformance.checks.table import all_rows
from weft_conformance.kit import Untried, same_bits
from weft_conformance.native.calls import Broken, Calls
from weft_conformance.native.memory import GUARD, Arena, Device, Library, Prepared
from weft_conformance.native.nodes import DECOY, UNKNOWN_TYPE, NodeWork, View, large_works, of_row
from weft_conformance.report import is_sentence

MOST_WORKS = 16
"""The most rows of the op table that are run."""
SHORT = (64, 8, 1)
"""Sizes of message buffers that later versions of Weft might pass."""
TOGETHER, ROUNDS = 0.5, 20
"""The least seconds and rounds for which two threads call the library at one time."""
WINDOWS, QUIET, MOST_WINDOWS, EACH, WARM_UP = 4, 2, 16, 25, 10
"""What leaks grows in four windows of `EACH` rounds in a row; if nothing grows in two in a row, nothing leaks."""
LEAST_LEAK, MEMORY = 8, "bytes of memory"
"""The least number of bytes that a round leaves behind if it leaks."""

Made = TypeVar("Made")
Filled = TypeVar("Filled", CDeviceInfo, COptionInfo)

Rule = Callable[["Trial"], str]
RULES: dict[str, Rule] = {}
"""The rules by their subjects, in the order in which they are tried."""


def rule(subject: str) -> Callable[[Rule], Rule]:
    """Add the decorated function to the rules, in order."""

    def register(look: Rule) -> Rule:
        RULES[subject] = look
        return look

    return register


class Trial:
    """A library under trial, and the nodes that it takes."""

    def __init__(self, library: Library) -> None:
        self.library, self.calls = library, library.calls
        self._table = self.table_now()
        self._works: list[NodeWork] | None = None
        self._large: NodeWork | None = None

    def table_now(self) -> bytes:
        """Return the bytes of the library's own table, as far as this version knows them."""
        size = ctypes.c_size_t.from_address(self.library.address).value
        return ctypes.string_at(self.library.address, min(size, ctypes.sizeof(CBackend)))

    def problems(self) -> str:
        """Return the rules that calls broke, and forget them."""
        self.calls.end()
        if self.table_now() != self._table:
            self.calls.broken("the table that BackendFactory returned has changed; make it static const")
        found, self.calls.problems = list(self.calls.problems), {}
        return listing(found, most=3)

    @contextmanager
    def device(self) -> Iterator[Device]:
        """Open the device for a block."""
        opened = Device(self.library)
        try:
            yield opened
        finally:
            opened.close()

    def takes(self, device: Device, work: NodeWork) -> bool:
        """Ask whether the library takes a node."""
        status, _ = self.calls.message("supports", device.handle, ctypes.byref(View(work, constants=True).node))
        return status == 1

    @property
    def works(self) -> list[NodeWork]:
        """Return some rows that the library takes, one of each op, and one with constants; Untried if it takes none."""
        if self._works is None:
            found: dict[tuple[str, bool], NodeWork] = {}
            with self.device() as device:
                for work in table_works():
                    kind = (work.op.type, any(t is not None and t.constant is not None for t in work.inputs))
                    fits = len(found) < MOST_WORKS and kind not in found and all(t.nbytes for t in work.tensors)
                    if fits and self.takes(device, work):
                        found[kind] = work
            self._works = list(found.values())
        if not self._works:
            raise Untried("the library takes no row of the op table, so none of its nodes was run")
        return self._works

    @property
    def large(self) -> NodeWork:
        """Return a node on 1.2 MB; a small one if the library takes none."""
        if self._large is None:
            with self.device() as device:
                self._large = next((w for w in large_works() if self.takes(device, w)), None) or self.works[0]
        return self._large


def look(trial: Trial, subject: str) -> tuple[str, str]:
    """Return the result of a rule, "right", "wrong" or "refused", and a message."""
    refused, problem = "", ""
    try:
        problem = RULES[subject](trial)
    except Untried as e:
        refused = str(e)
    except Broken as e:
        problem = str(e)
    broken = "; ".join(filter(None, (problem, trial.problems())))
    if broken:
        return "wrong", broken
    return ("refused", refused) if refused else ("right", "")


@cache
def table_works() -> tuple[NodeWork, ...]:
    """Return the work of each row of the op table; made once a process, which takes half a second."""
    return tuple(of_row(row) for row in all_rows())


def _ran(device: Device, work: NodeWork, node: Prepared, *, least_aligned: bool = False) -> str:
    """Run a node once and return what is wrong with its outputs."""
    arena = Arena(device, work, least_aligned=least_aligned)
    node.execute(arena)
    device.wait()
    problem = _judged(arena)
    arena.free()
    return problem


def _judged(arena: Arena) -> str:
    """Return what is wrong with the outputs of a run, or that they still changed when the run should be over."""
    problem = arena.work.difference(arena.outputs())
    if not problem:
        return ""
    time.sleep(0.1)
    if not arena.work.difference(arena.outputs()):
        last = "wait" if arena.device.has_queue else "execute"
        return f"{arena.work.name}: the outputs were written after {last} had returned"
    return f"{arena.work.name}: {problem}"


def _first(problems: Iterator[str]) -> str:
    return next(filter(None, problems), "")


# -- the table -------------------------------------------------------------------------------------------------------


@rule("the table")
def table(trial: Trial) -> str:
    """Look at the table's size and version."""
    fields = [(name, getattr(CBackend, name)) for name, _ in CBackend._fields_]
    raw = trial.table_now()
    size = ctypes.c_size_t.from_address(trial.library.address).value
    newest = ctypes.sizeof(CBackend)
    if size not in [f.offset + f.size for _, f in fields]:
        known = "more than this version of the interface has" if size > newest else "and ends inside a field"
        return f"struct_size is {size}, {known}; write sizeof(weft_backend), which is {newest}"
    held = CBackend()
    ctypes.memmove(ctypes.byref(held), raw, len(raw))
    try:
        (held.version or b"").decode()
    except UnicodeDecodeError:
        return f"the version {held.version!r} is not UTF-8"
    return ""


def _ended(name: str, raw: bytes) -> str:
    """Return what is wrong with a text in an array of chars."""
    text, end, _ = raw.partition(b"\0")
    if not end:
        return f"{name} does not end with a NUL within its {len(raw)} bytes"
    try:
        text.decode()
    except UnicodeDecodeError:
        return f"{name} is not UTF-8: {text[:40]!r}"
    return ""


@rule("devices and options")
def about(trial: Trial) -> str:
    """Ask what devices and options there are."""
    calls = trial.calls
    for size in (Message.SIZE, *SHORT) if calls.has("absent") else ():
        calls.message("absent", size=size)
    number = int(calls.plain("device_count")) if calls.has("device_count") else 1
    for k in range(min(number, MOST_DEVICES) if calls.has("device_info") else 0):
        room = _Behind(CDeviceInfo(b"name", b"driver", 0))
        calls.plain("device_info", k, ctypes.byref(room.structure))
        raw, fields = bytes(room.structure), [getattr(CDeviceInfo, each) for each in ("name", "driver", "uuid", "pci")]
        words = zip(("name", "driver", "UUID", "PCI address"), fields, strict=True)
        texts = (_ended(f"the {what} of device {k}", raw[f.offset : f.offset + f.size]) for what, f in words)
        problem = _first(texts) or room.problem("device_info")
        if problem:
            return problem
        if room.structure.software not in (0, 1):
            return f"device_info gave {room.structure.software} for software of device {k}, which is neither 0 nor 1"
    for k in range(MOST_OPTIONS if calls.has("option_info") else 0):
        option = _Behind(COptionInfo())
        if calls.plain("option_info", k, ctypes.byref(option.structure)):
            break
        problem = _option(k, option.structure) or option.problem("option_info")
        if problem:
            return problem
    return ""


class _Behind(Generic[Filled]):
    """A structure for a function to fill, with a guard behind it."""

    def __init__(self, structure: Filled) -> None:
        size = ctypes.sizeof(structure)
        self._room = ctypes.create_string_buffer(bytes(structure) + b"\xfe" * GUARD)
        self._size = size
        self.structure: Filled = type(structure).from_buffer(self._room)

    def problem(self, function: str) -> str:
        """Return what is wrong if something was written behind it."""
        whole = self._room.raw[self._size : self._size + GUARD] == b"\xfe" * GUARD
        return "" if whole else f"{function} wrote behind the end of its structure"


def _option(index: int, info: COptionInfo) -> str:
    raw = bytes(info)
    for name in ("name", "doc", *(("default_string",) if info.kind == STRING else ())):
        field = getattr(COptionInfo, name)
        problem = _ended(f"the {name} of option {index}", raw[field.offset : field.offset + field.size])
        if problem:
            return problem
    if info.kind == BOOL and info.default_int not in (0, 1):
        return f"the default of option {index} is {info.default_int}, and its kind has 0 and 1 alone"
    return ""


# -- support of nodes ------------------------------------------------------------------------------------------------


@rule("answers of supports")
def answers(trial: Trial) -> str:
    """Ask about every row of the op table, with a long and a short buffer for the reason."""
    asked: dict[str, int] = {}
    with trial.device() as device:
        for work in table_works():
            view = View(work, constants=True)
            before = view.content()
            status, reason = trial.calls.message("supports", device.handle, ctypes.byref(view.node))
            if status not in (0, 1):
                return f"{work.name}: it returned {status}, which is neither 1 nor 0"
            if view.content() != before:
                return f"{work.name}: it changed the node that it was shown"
            if not status and not is_sentence(reason):
                return f"{work.name}: it refused, and its reason is {reason!r}"
            asked[work.op.type] = asked.get(work.op.type, 0) + 1
            for size in SHORT if asked[work.op.type] < 3 else ():
                again, _ = trial.calls.message("supports", device.handle, ctypes.byref(view.node), size=size)
                if again != status:
                    return f"{work.name}: it returned {status}, and with room for {size} bytes of a reason {again}"
    return ""


@rule("element types of later versions")
def later_types(trial: Trial) -> str:
    """Ask about nodes that the library takes, with inputs of a type that it cannot know."""
    works = trial.works
    with trial.device() as device:
        for work in works:
            view = View(work, constants=True)
            view.retype(UNKNOWN_TYPE)
            status, _ = trial.calls.message("supports", device.handle, ctypes.byref(view.node))
            if status:
                return f"supports took {work.op.type} with inputs of an element type that no header has, {UNKNOWN_TYPE}"
    return ""


# -- devices and buffers -----------------------------------------------------------------------------------------


@rule("opening and closing")
def opening(trial: Trial) -> str:
    """Reopen the device after it was closed; open it twice at one time if each set of options opens it."""
    work = trial.works[0]
    for _ in range(3):
        with trial.device() as device:
            problem = _life(device, work)
        if problem:
            return f"opened again after it was closed: {problem}"
    if not trial.calls.has("open_with"):
        return ""
    first = Device(trial.library)
    with trial.device() as second:
        problem = _life(second, work)
        first.close()
        problem = problem or _life(second, work)
    return f"while it was open twice, or one of both was closed: {problem}" if problem else ""


def _life(device: Device, work: NodeWork) -> str:
    """Create a node, run it, and destroy it."""
    node = Prepared(device, work)
    problem = _ran(device, work, node)
    node.destroy()
    return problem


@rule("buffers")
def buffers(trial: Trial) -> str:
    """Allocate, upload, download and free; ask for more memory than there can be."""
    if not trial.calls.has("allocate"):
        raise Untried("the library has no buffers of its own")
    rng = np.random.default_rng(5)
    with trial.device() as device:
        sizes = (1, 3, 64, 1000, 65_537, 1_200_001, 1)
        held = [(device.allocate(n), rng.integers(0, 256, n, np.uint8)) for n in sizes]
        if len({buffer for buffer, _ in held}) < len(held):
            return "allocate returned a buffer that it had returned before and that was not freed"
        for buffer, data in held:
            device.upload(buffer, 0, data)
        for buffer, data in held:
            third = data.size // 3
            data[third : 2 * third] = rng.integers(0, 256, third, np.uint8)
            if third:
                device.upload(buffer, third, data[third : 2 * third])
        for buffer, data in held:
            if not np.array_equal(device.download(buffer, 0, data.size), data):
                return f"{data.size:,} bytes that were uploaded, the middle of them last, came back as others"
            late = data.size // 2
            if not np.array_equal(device.download(buffer, late, data.size - late), data[late:]):
                return f"a download from byte {late:,} on gave other bytes than lie there"
        for k, (buffer, _) in enumerate(held):
            device.free(buffer)
            for other, data in held[k + 1 :]:
                if not np.array_equal(device.download(other, 0, data.size), data):
                    return "a buffer changed when another was freed"
        if trial.calls.plain("allocate", device.handle, 1 << 62):
            return f"allocate returned a buffer of {1 << 62:,} bytes, which no memory has; NULL says that there is none"
    return ""


# -- nodes -------------------------------------------------------------------------------------------------------


@rule("runs")
def runs(trial: Trial) -> str:
    """Run a node of each op between guards."""
    with trial.device() as device:
        return _first(_life(device, work) for work in trial.works)


@rule("structures of later versions")
def later_structures(trial: Trial) -> str:
    """Run nodes with longer structures, as a later minor version may pass."""
    with trial.device() as device:
        for work in trial.works:
            node = Prepared(device, work, roomy=True)
            problem = _ran(device, work, node)
            node.destroy()
            if problem:
                return f"{problem}; never index from one structure to the next, nor copy one"
    return ""


@rule("pointers of a call that is over")
def pointers(trial: Trial) -> str:
    """Overwrite what `create` and `execute` were shown once they have returned."""
    with trial.device() as device:
        decoy = device.allocate(DECOY.nbytes) if device.has_buffers else DECOY.ctypes.data
        for work in (*trial.works, trial.large):
            node = Prepared(device, work, overwrites=True)
            problem = _ran(device, work, node)
            if problem:
                return f"when what create was shown is gone: {problem}; copy what execute needs"
            arena = Arena(device, work)
            node.execute(arena, overwritten_with=decoy)
            device.wait()
            problem = _judged(arena)
            if problem:
                return f"when what execute was shown is gone: {problem}; copy what queued work needs"
            node.destroy()
            arena.free()
        if device.has_buffers:
            device.free(decoy)
    return ""


@rule("other memory in each run")
def elsewhere(trial: Trial) -> str:
    """Run a node again with its tensors elsewhere; the second run must not write to the first run's memory."""
    with trial.device() as device:
        for work in trial.works:
            node = Prepared(device, work)
            arenas = [Arena(device, work) for _ in range(3)]
            for k, arena in enumerate(arenas):
                node.execute(arena)
                device.wait()
                if not all(later.is_untouched() for later in arenas[k + 1 :]):
                    return f"{work.name}: run {k + 1} wrote to memory that it was not given"
                problem = _first(_judged(one) for one in arenas[: k + 1])
                if problem:
                    return f"run {k + 1}, with tensors elsewhere than in the run before: {problem}"
            node.destroy()
            for arena in arenas:
                arena.free()
    return ""


@rule("addresses")
def addresses(trial: Trial) -> str:
    """Run nodes on host memory at addresses that are aligned for their elements and no more."""
    if trial.calls.has("allocate"):
        raise Untried("the library has buffers of its own")
    with trial.device() as device:
        for work in trial.works:
            node = Prepared(device, work)
            problem = _ran(device, work, node, least_aligned=True)
            node.destroy()
            if problem:
                return f"at an address that is a multiple of the element's size alone: {problem}"
    return ""


@rule("states")
def states(trial: Trial) -> str:
    """Create all nodes, run them in two orders, and destroy them one by one."""
    works = [*trial.works, trial.large, *trial.works]
    with trial.device() as device:
        nodes = [Prepared(device, work) for work in works]
        for k, node in enumerate((*nodes, *reversed(nodes))):
            problem = _ran(device, node.work, node)
            if problem:
                return f"with {len(nodes)} states at one time, run {k + 1}: {problem}"
        while nodes:
            nodes.pop(0).destroy()
            problem = _first(_ran(device, node.work, node) for node in nodes[:3])
            if problem:
                return f"after another state was destroyed: {problem}"
    return ""


@rule("queued work")
def queued(trial: Trial) -> str:
    """Queue several runs before one wait, and wait where nothing is queued."""
    work = trial.large
    with trial.device() as device:
        device.wait()
        node = Prepared(device, work)
        for _ in range(4):
            arenas = [Arena(device, work) for _ in range(3)]
            for arena in arenas:
                node.execute(arena)
            device.wait()
            problem = _first(map(_judged, arenas))
            if problem:
                return f"of three runs: {problem}"
            device.wait()
            for arena in arenas:
                arena.free()
        node.destroy()
    return ""


@rule("calls from any thread")
def threads(trial: Trial) -> str:
    """Make each call of a run from a thread of its own, one after the other."""
    work = trial.works[0]
    device = _in_thread(partial(Device, trial.library))
    node = _in_thread(partial(Prepared, device, work))
    for _ in range(2):
        arena = _in_thread(partial(Arena, device, work))
        _in_thread(partial(node.execute, arena))
        _in_thread(device.wait)
        problem = _in_thread(partial(_judged, arena))
        if problem:
            return f"with each call from another thread: {problem}"
        _in_thread(arena.free)
    _in_thread(node.destroy)
    _in_thread(device.close)
    return ""


def _in_thread(do: Callable[[], Made]) -> Made:
    """Return what a call returns in a thread of its own, or raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


@rule("several devices")
def several(trial: Trial) -> str:
    """Work on two devices at one time, if there are two, while a third thread asks what devices there are."""
    work, calls = trial.large, trial.calls
    indices = [trial.library.number]
    if calls.has("open_with"):
        indices *= 2
    elif calls.has("device_count") and calls.plain("device_count") > 1:
        indices.append((trial.library.number + 1) % calls.plain("device_count"))
    if len(indices) < 2 and not any(map(calls.has, ("absent", "device_count", "device_info"))):
        raise Untried("there is one device and nothing to ask about it, so no two calls come at one time")
    devices = [Device(trial.library._replace(number=k)) for k in indices]
    nodes = [Prepared(device, work) for device in devices]
    problem = _first(_ran(d, work, n) for d, n in zip(devices, nodes, strict=True))
    if problem:
        return problem
    with calls.several_threads():
        problem = _together(trial, [partial(_again, d, work, n) for d, n in zip(devices, nodes, strict=True)])
    for node, device in zip(nodes, devices, strict=True):
        node.destroy()
        device.close()
    return problem


def _again(device: Device, work: NodeWork, node: Prepared) -> str:
    """Run a node for some time, and compare its bits, which is quick."""
    arena = Arena(device, work)
    node.execute(arena)
    device.wait()
    alone = arena.outputs()
    problem = work.difference(alone)
    arena.free()
    end, rounds = time.monotonic() + TOGETHER, 0
    while not problem and (rounds < ROUNDS or time.monotonic() < end):
        arena, rounds = Arena(device, work), rounds + 1
        node.execute(arena)
        device.wait()
        problem = "" if same_bits(arena.outputs(), alone) else f"run {rounds} gave other bits than the run before"
        arena.free()
    return f"while calls for another device, or about devices, were under way: {problem}" if problem else ""


def _together(trial: Trial, works: Sequence[Callable[[], str]]) -> str:
    problems: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            _asked(trial.calls, trial.library.number)

    def do(work: Callable[[], str]) -> None:
        try:
            problems.append(work())
        except Exception as e:  # of a thread of the trial's own
            problems.append(str(e))

    asking = threading.Thread(target=ask, daemon=True)
    started = [threading.Thread(target=do, args=(work,), daemon=True) for work in works]
    for thread in (asking, *started):
        thread.start()
    for thread in started:
        thread.join()
    over.set()
    asking.join()
    return _first(iter(problems))


def _asked(calls: Calls, index: int) -> None:
    """Make the calls that need no open device."""
    if calls.has("absent"):
        calls.message("absent")
    if calls.has("device_count"):
        calls.plain("device_count")
    if calls.has("device_info"):
        calls.plain("device_info", index, ctypes.byref(CDeviceInfo(b"name", b"driver", 0)))


# -- leaks -----------------------------------------------------------------------------------------------------------


@rule("what is given back")
def given_back(trial: Trial) -> str:
    """Count what the process holds while nodes, buffers and devices are created and freed."""
    works = trial.works

    def nodes(device: Device) -> None:
        for work in works[:3]:
            Prepared(device, work).destroy()

    def run(device: Device, node: Prepared, arena: Arena) -> None:
        node.execute(arena)
        device.wait()

    def buffer(device: Device) -> None:
        device.free(device.allocate(100_000))

    def reopened() -> None:
        with trial.device():
            pass

    with trial.device() as device:
        problem = _grown(trial, "create and destroy", partial(nodes, device))
        if device.has_buffers:
            problem = problem or _grown(trial, "allocate and free", partial(buffer, device))
        node, arena = Prepared(device, works[0]), Arena(device, works[0])
        problem = problem or _grown(trial, "execute", partial(run, device, node, arena))
        node.destroy()
        arena.free()
    return problem or _grown(trial, "open and close", reopened)


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    ))


CACHED = [size for size in range(24, 1033, 16) for _ in range(16)]
"""Sizes of chunks that fill a thread's cache in glibc: up to 16 chunks of each size up to 1,032 bytes."""


@cache
def _malloc() -> tuple[Callable[[int], int], Callable[[int], None]]:
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    return library.malloc, library.free


def _fill_cache_of_thread() -> None:
    """Fill the thread's cache of freed chunks: glibc counts them as in use, so their number must not change."""
    malloc, free = _malloc()
    for chunk in [malloc(size) for size in CACHED]:
        free(chunk)


@cache
def _mallinfo() -> Callable[[], _MallInfo] | None:
    found = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if found is not None:
        found.restype = _MallInfo
    return found


def _held_now(trial: Trial) -> dict[str, int]:
    """Return what the process holds, as far as this system tells."""
    trial.calls.end()
    gc.collect()
    held = {}
    counted = _mallinfo()
    if counted is not None:
        _fill_cache_of_thread()
        info = counted()
        held[MEMORY] = info.uordblks + info.hblkhd
    process = Path("/proc/self")
    if process.is_dir():
        held["threads"] = len(os.listdir(process / "task"))
        held["open files"] = len(os.listdir(process / "fd"))
    return held


def _grown(trial: Trial, what: str, do: Callable[[], None]) -> str:
    """Return what the process holds more of after every window of rounds, "" if nothing.

    The process is one of the kit's own: what others free there would hide a leak.
    """
    for _ in range(WARM_UP):
        do()
    held, grown = _held_now(trial), list[dict[str, float]]()
    while len(grown) < MOST_WINDOWS:
        for _ in range(EACH):
            do()
        before, held = held, _held_now(trial)
        each = {name: (held[name] - before[name]) / EACH for name in held}
        grown.append({n: more for n, more in each.items() if more >= (LEAST_LEAK if n == MEMORY else 1)})
        if len(grown) >= QUIET and not any(grown[-QUIET:]):
            break
        last = grown[-WINDOWS:]
        always = [name for name in last[0] if all(name in window for window in last)]
        if len(last) == WINDOWS and always:
            left = [f"{min(window[name] for window in last):,.0f} {name}" for name in always]
            return f"each round of {what} left {' and '.join(left)} behind"
    return ""
