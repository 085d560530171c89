"""Backends in C that break the rules of `weft_backend.h` in every way that a loader can defend against.

One library is compiled for each kind of table; when it is loaded it reads its answers from the case's file.
A table may have NULL fields, a wrong size, or the version of another Weft; counts and strings may be out of range,
strings may lack their NUL, and each function may fail or answer nonsense at its n-th call. Pointers to nowhere and
writes out of bounds are not tried: a loader cannot defend against them, and they end the process.
"""

from __future__ import annotations

import ctypes
import logging
import random
import subprocess
from pathlib import Path

import numpy as np

import weft
from scripts.fuzz.target import Finding, Target, target
from weft.core.contract.backend import API_VERSION
from weft.errors import WeftError
from weft.ops.binary import Add
from weft.ops.unary import Relu, Tanh
from weft.plugins import include_dir
from weft.plugins.native_abi import BUFFERS, REQUIRED, CBackend

FUNCTIONS = [name for name, _ in CBackend._fields_ if name not in ("struct_size", "version")]
FACTS = (
    "major minor id size version null_table devices name_length software options option_kind option_name "
    "reason_length open_null allocate_null"
).split()
"""What a library says of itself, one number each."""
WAYS = 7
"""How a function goes wrong: it fails with a message, without one, with one that has no NUL, with bytes that are not
UTF-8, or with a status of -2^31; it says yes where that means nothing; or it fills the buffer with one message."""

SOURCE = r"""
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "weft_backend.h"

/* What the library does, as numbers: facts, then for each function the call that goes wrong, and how. */
enum { FACTS = @FACTS@, FUNCTIONS = @FUNCTIONS@ };
enum { @ENUM_FACTS@ };
enum { @ENUM_FUNCTIONS@ };
static int64_t facts[FACTS], fails_at[FUNCTIONS], fails_how[FUNCTIONS], calls[FUNCTIONS];
static weft_backend table;

static void fill(char *text, size_t size, char with) { for (size_t k = 0; k < size; ++k) text[k] = with; }

/* Return how this call goes wrong, or 0. */
static int64_t wrong(int function)
{
    int64_t call = ++calls[function];
    return fails_at[function] && (call == fails_at[function] || fails_at[function] < 0) ? fails_how[function] : 0;
}

/* Write a message as the way of going wrong wants it; return the status. */
static int32_t say(int64_t how, char *text, size_t size)
{
    switch (how) {
    case 0: return 0;
    case 1: snprintf(text, size, "it is too hot, by %d degrees", 17); return 1;
    case 2: return 7;
    case 3: fill(text, size, 'x'); return 1;
    case 4: snprintf(text, size, "\xff\xfe\xc0%s", "no"); return 2;
    case 5: return INT_MIN;
    case 6: return 2;
    default: fill(text, size - 1, 'y'); text[size - 1] = 0; return -1;
    }
}

static int32_t supports(void *device, const weft_node *n, char *reason, size_t size)
{
    (void)device;
    int64_t how = wrong(F_supports);
    if (how) { int32_t status = say(how, reason, size); return how == 6 ? 3 : how == 5 ? status : 0; }
    if (strcmp(n->op_type, "Relu") && strcmp(n->op_type, "Add")) {
        size_t length = (size_t)facts[A_reason_length];
        fill(reason, length < size ? length : size, 'r');
        if (length < size) reason[length] = 0;
        return 0;
    }
    return 1;
}
typedef struct { int adds; int64_t count; } state_t;
static int32_t create(void *d, const weft_node *n, void **s, char *e, size_t size)
{
    (void)d;
    int64_t how = wrong(F_create);
    if (how) return say(how, e, size);
    state_t *made = malloc(sizeof *made);
    made->adds = n->op_type[0] == 'A';
    made->count = weft_elements(n->outputs[0]);
    *s = made;
    return 0;
}
static int32_t execute(void *s, const weft_tensor *const *i, const weft_tensor *const *o, char *e, size_t size)
{
    int64_t how = wrong(F_execute);
    if (how) return say(how, e, size);
    const state_t *state = s;
    const float *a = (const float *)((const char *)i[0]->data + i[0]->offset);
    const float *b = state->adds ? (const float *)((const char *)i[1]->data + i[1]->offset) : a;
    float *y = (float *)((char *)o[0]->data + o[0]->offset);
    for (int64_t k = 0; k < state->count; ++k) y[k] = state->adds ? a[k] + b[k] : a[k] > 0 ? a[k] : 0;
    return 0;
}
static void destroy(void *s) { ++calls[F_destroy]; free(s); }
static int32_t absent(char *reason, size_t size) { return say(wrong(F_absent), reason, size); }
static int32_t device_count(void) { return (int32_t)facts[A_devices]; }
static void device_info(int32_t index, weft_device_info *info)
{
    (void)index;
    int64_t length = facts[A_name_length];
    fill(info->name, sizeof info->name, 'n');
    if (length < (int64_t)sizeof info->name) info->name[length] = 0;
    if (wrong(F_device_info)) fill(info->driver, sizeof info->driver, '\xff');
    info->software = (int32_t)facts[A_software];
}
static int32_t open_device(int32_t index, void **device, char *error, size_t size)
{
    (void)index;
    int64_t how = wrong(F_open);
    *device = facts[A_open_null] ? NULL : &facts;
    return say(how, error, size);
}
static void close_device(void *device) { (void)device; ++calls[F_close]; }
static void *allocate(void *device, size_t nbytes)
{
    (void)device;
    return wrong(F_allocate) ? NULL : malloc(nbytes);
}
static void free_buffer(void *device, void *buffer) { (void)device; ++calls[F_free]; free(buffer); }
static int32_t upload(void *device, void *buffer, size_t offset, const void *source, size_t nbytes, char *error,
                      size_t size)
{
    (void)device;
    int64_t how = wrong(F_upload);
    if (how) return say(how, error, size);
    memcpy((char *)buffer + offset, source, nbytes);
    return 0;
}
static int32_t download(void *device, const void *buffer, size_t offset, void *to, size_t nbytes, char *error,
                        size_t size)
{
    (void)device;
    int64_t how = wrong(F_download);
    if (how) return say(how, error, size);
    memcpy(to, (const char *)buffer + offset, nbytes);
    return 0;
}
static int32_t wait_all(void *device, char *error, size_t size)
{ (void)device; return say(wrong(F_wait), error, size); }
static int32_t option_info(int32_t index, weft_option_info *info)
{
    if (index >= facts[A_options]) return 1;
    if (facts[A_option_name] < 0) fill(info->name, sizeof info->name, 'o');
    else snprintf(info->name, sizeof info->name, "option%d", facts[A_option_name] ? 0 : (int)index);
    fill(info->doc, sizeof info->doc, wrong(F_option_info) ? '\xff' : 'd');
    fill(info->default_string, sizeof info->default_string, 's');
    info->kind = (int32_t)facts[A_option_kind];
    return 0;
}
static int32_t open_with(int32_t index, size_t count, const weft_attribute *const *options, void **device, char *error,
                         size_t size)
{
    (void)index;
    int64_t how = wrong(F_open_with);
    for (size_t k = 0; k < count; ++k) if (!options[k]->name[0]) return 99;
    *device = facts[A_open_null] ? NULL : &facts;
    return say(how, error, size);
}

/* Tell the library what to do; the bits of `present` say which functions are in its table. */
WEFT_EXPORT void tell(const int64_t *given, const int64_t *at, const int64_t *how, uint64_t present)
{
    static char version[300];
    memcpy(facts, given, sizeof facts);
    memcpy(fails_at, at, sizeof fails_at);
    memcpy(fails_how, how, sizeof fails_how);
    memset(calls, 0, sizeof calls);
    memset(&table, 0, sizeof table);
    table.struct_size = (size_t)facts[A_size];
    if (facts[A_version] == 1) snprintf(version, sizeof version, "2.%d", 7);
    if (facts[A_version] == 2) fill(version, sizeof version - 1, '\xff');
    table.version = facts[A_version] ? version : NULL;
@FILL@
}
WEFT_EXPORT int64_t called(int32_t function) { return calls[function]; }
WEFT_EXPORT const char *GetBackendId(void)
{
    static const char *ids[] = {"acme", NULL, "", " ", "a b", "cpu", "\xff\xff", "auto", "acme:1", "0"};
    return ids[facts[A_id]];
}
WEFT_EXPORT void GetVersion(uint32_t *major, uint32_t *minor)
{ *major = (uint32_t)facts[A_major]; *minor = (uint32_t)facts[A_minor]; }
WEFT_EXPORT const weft_backend *BackendFactory(void) { return facts[A_null_table] ? NULL : &table; }
"""
C_NAMES = {"open": "open_device", "close": "close_device", "free": "free_buffer", "wait": "wait_all"}


@target
class CBackends(Target):
    """Loads the library of a case, asks it for its devices, and runs a network on it."""

    name = "c-backends"
    about = "C backends whose table, answers or calls break the rules of the header"
    devices = ("cpu",)

    def prepare(self) -> None:
        """Compile the library."""
        logging.disable(logging.WARNING)
        self.home = self.scratch / "backends"
        self.home.mkdir(exist_ok=True)
        source, file = self.scratch / "backend.c", self.home / "acme_fuzz_backend.so"
        filled = "\n".join(
            f"    if (present >> {k} & 1) table.{name} = {C_NAMES.get(name, name)};" for k, name in enumerate(FUNCTIONS)
        )
        text = SOURCE.replace("@FILL@", filled)
        text = text.replace("@FACTS@", str(len(FACTS))).replace("@FUNCTIONS@", str(len(FUNCTIONS)))
        text = text.replace("@ENUM_FACTS@", ", ".join(f"A_{name}" for name in FACTS))
        source.write_text(text.replace("@ENUM_FUNCTIONS@", ", ".join(f"F_{name}" for name in FUNCTIONS)))
        command = ["cc", "-std=c99", "-O1", "-shared", "-fPIC", f"-I{include_dir()}", "-o", str(file), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        self.library = ctypes.CDLL(str(file))
        self.library.called.restype = ctypes.c_int64
        self.network = _network()

    def make(self, draw: random.Random, folder: Path) -> None:
        """Write the library's instructions: facts, the functions it has, and which call of each goes wrong, and how."""
        facts = _good()
        present = set(FUNCTIONS)
        if draw.random() < 0.5:
            present -= set(BUFFERS) if draw.random() < 0.9 else {draw.choice(BUFFERS)}
        for name in FUNCTIONS:
            if name not in REQUIRED and name not in BUFFERS and draw.random() < 0.3:
                present.discard(name)
        for _ in range(draw.choice((0, 0, 1, 1, 2))):
            _spoil(facts, present, draw)
        at, how = dict.fromkeys(FUNCTIONS, 0), dict.fromkeys(FUNCTIONS, 0)
        for name in draw.sample(FUNCTIONS, draw.choice((0, 1, 1, 2, 3))):
            at[name], how[name] = draw.choice((1, 1, 2, 3, 5, 8, -1)), draw.randint(1, WAYS)
        numbers = [*(facts[f] for f in FACTS), *at.values(), *how.values()]
        numbers.append(sum(1 << k for k, name in enumerate(FUNCTIONS) if name in present))
        (folder / "told.txt").write_text(" ".join(map(str, numbers)))

    def check(self, folder: Path) -> str:
        """Return what became of the library; all its states, buffers and devices must be released."""
        numbers = [int(n) for n in (folder / "told.txt").read_text().split()]
        facts, functions = len(FACTS), len(FUNCTIONS)
        arrays = [
            (ctypes.c_int64 * len(part))(*part)
            for part in (numbers[:facts], numbers[facts : facts + functions], numbers[facts + functions : -1])
        ]
        self.library.tell(*arrays, ctypes.c_uint64(numbers[-1]))
        word = self._used()
        counted = {name: self.library.called(k) for k, name in enumerate(FUNCTIONS)}
        failed = dict(zip(FUNCTIONS, numbers[facts : facts + functions], strict=True))
        size = numbers[FACTS.index("size")]
        ends = {name: getattr(CBackend, name).offset + getattr(CBackend, name).size for name in FUNCTIONS}
        present = {name for k, name in enumerate(FUNCTIONS) if numbers[-1] >> k & 1 and ends[name] <= size}
        _hold(counted, failed, present)
        return word

    def _used(self) -> str:
        x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
        with weft.Runtime(dynamic_backend_paths=[self.home]) as runtime:
            if runtime.registry.failures:
                return "skipped at load, with a reason"
            reasons = runtime.registry.absent()
            if "acme" in reasons:
                return "absent, with a reason" if reasons["acme"].strip() else "absent without a reason"
            try:
                with weft.load(self.network, ["acme", "cpu"], runtime=runtime, shapes={"x": (2, 3)}) as session:
                    outputs = [session.run(x)[0]]
                    session.resize({"x": (4, 3)})
                    outputs.append(session.run(np.concatenate([x, x]))[0])
                    placed = "on the library" if "acme" in session.report.nodes_by_device else "elsewhere"
            except WeftError as e:
                if not (e.what and (e.where or e.why)):
                    raise Finding("an error that says too little", repr(e)) from e
                return f"an error: {type(e).__name__}"
        for got, given in zip(outputs, (x, np.concatenate([x, x])), strict=True):
            if not np.allclose(got, np.tanh(np.maximum(given, 0) + given), atol=1e-6):
                raise Finding("wrong numbers", f"{got} for {given}")
        return f"right, {placed}"


def _good() -> dict[str, int]:
    facts = dict.fromkeys(FACTS, 0)
    sizes = {"size": ctypes.sizeof(CBackend), "major": API_VERSION[0], "minor": API_VERSION[1]}
    return facts | sizes | {"devices": 1, "name_length": 5, "reason_length": 12, "option_kind": 1, "options": 2}


def _spoil(facts: dict[str, int], present: set[str], draw: random.Random) -> None:
    """Change one thing that a library says of itself, or remove a function."""
    odd = (-1, 0, 1, 2, 63, 64, 65, 127, 128, 255, 1023, 1024, 4096, 2**31 - 1, -(2**31))
    kind = draw.randrange(9)
    if kind == 0:
        present.discard(draw.choice(FUNCTIONS))
    elif kind == 1:
        facts[draw.choice(("major", "minor"))] = draw.choice((0, 1, 2, 3, 2**32 - 1))
    elif kind == 2:
        facts["id"] = draw.randrange(10)
    elif kind == 3:  # never above the table's real size: Weft would read beyond it, as it is told to
        facts["size"] = draw.randrange(ctypes.sizeof(CBackend) + 1)
    elif kind == 4:
        facts["version"], facts["null_table"] = draw.randrange(3), int(draw.random() < 0.2)
    elif kind == 5:
        facts["devices"] = draw.choice(odd)
    elif kind == 6:
        facts["name_length"], facts["software"] = draw.randrange(200), draw.choice(odd)
    elif kind == 7:
        facts["options"], facts["option_kind"] = draw.choice((1, 2, 64, 65, 2**31 - 1)), draw.choice((*range(9), -1))
        facts["option_name"] = draw.choice((-1, 0, 1))
    else:
        facts["reason_length"], facts["open_null"] = draw.choice((0, 1, 1022, 1023, 1024)), draw.randrange(2)


def _network() -> weft.Graph:
    """Return tanh(relu(x) + x), of which the library computes all but the tanh."""
    nodes = [
        weft.Node("relu", Relu(), ("x",), ("a",)),
        weft.Node("add", Add(), ("a", "x"), ("b",)),
        weft.Node("tanh", Tanh(), ("b",), ("y",)),
    ]
    return weft.Graph("fuzzed", ["x"], ["y"], nodes, {"x": weft.TensorSpec(("n", 3), weft.DType.FLOAT32)})


def _hold(counted: dict[str, int], failed: dict[str, int], present: set[str]) -> None:
    """Raise Finding unless each state and buffer was released once, and each opened device was closed."""
    pairs = [("create", "destroy"), ("allocate", "free")]
    if "close" in present:
        pairs += [(opens, "close") for opens in ("open", "open_with") if counted[opens]]
    for made, freed in pairs:
        lost = counted[made] - counted[freed]
        bad = sum(1 for call in range(1, counted[made] + 1) if failed[made] and failed[made] in (call, -1))
        if lost != bad:
            raise Finding(f"{made} and {freed} do not match", f"{counted}, of which {bad} calls of {made} failed")
