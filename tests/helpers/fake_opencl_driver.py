"""An OpenCL driver in C that lists one device on which no kernel compiles, for the loader to find.

It answers what pyopencl asks of a platform and a device, makes contexts, queues and programs that are empty, and
refuses to build them, or ends the process, or is never done. No header of OpenCL is needed: a driver hands out
objects that begin with a table of functions, whose places the loader's interface fixes.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { void **table; } Object;
static void *table[160];
static Object platform = {table}, cards[8], made = {table};

static int text(const char *value, size_t room, void *out, size_t *size)
{
    if (size) *size = strlen(value) + 1;
    if (out && room < strlen(value) + 1) return -30;
    if (out) strcpy(out, value);
    return 0;
}

static int number(uint64_t value, size_t bytes, size_t room, void *out, size_t *size)
{
    if (size) *size = bytes;
    if (out && room < bytes) return -30;
    if (out) memcpy(out, &value, bytes);
    return 0;
}

static int platforms(unsigned most, void **out, unsigned *count)
{
    if (count) *count = 1;
    if (out && most) out[0] = &platform;
    return 0;
}

static int about_platform(void *p, unsigned what, size_t room, void *out, size_t *size)
{
    (void)p;
    switch (what) {
    case 0x0900: return text("FULL_PROFILE", room, out, size);
    case 0x0901: return text("OpenCL 1.2 fake", room, out, size);
    case 0x0902: return text(PLATFORM, room, out, size);
    case 0x0903: return text("Nobody", room, out, size);
    case 0x0904: return text("cl_khr_icd", room, out, size);
    case 0x0920: return text("FAKE", room, out, size);
    }
    return -30;
}

static int devices(void *p, uint64_t kind, unsigned most, void **out, unsigned *count)
{
    (void)p;
    if (!(kind & TYPE) && kind != 1 && kind != 0xFFFFFFFF) return -1;
    if (count) *count = COUNT;
    for (unsigned k = 0; out && k < most && k < COUNT; k++) out[k] = &cards[k];
    return 0;
}

static int bytes(const void *value, size_t many, size_t room, void *out, size_t *size)
{
    if (size) *size = many;
    if (out && room < many) return -30;
    if (out) memcpy(out, value, many);
    return 0;
}

/* Card k has the bus 0x65 - 0x10 k and a UUID that begins with 0xA0 + k. */
static int about_device(void *d, unsigned what, size_t room, void *out, size_t *size)
{
    const uint32_t k = (uint32_t)((Object *)d - cards), bus = 0x65 - 0x10 * k, place[4] = {0, bus, 0, 0};
    const uint8_t uuid[16] = {(uint8_t)(0xA0 + k), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const uint8_t topology[24] = {1, [21] = (uint8_t)bus, 0, 0};
    const char *known = EXTENSIONS;
    switch (what) {
    case 0x106A: return strstr(known, "uuid") ? bytes(uuid, 16, room, out, size) : -30;
    case 0x410F: return strstr(known, "khr_pci") ? bytes(place, 16, room, out, size) : -30;
    case 0x4008: return strstr(known, "cl_nv") ? number(bus, 4, room, out, size) : -30;
    case 0x4009: return strstr(known, "cl_nv") ? number(0, 4, room, out, size) : -30;
    case 0x400A: return strstr(known, "cl_nv") ? number(0, 4, room, out, size) : -30;
    case 0x4037: return strstr(known, "cl_amd") ? bytes(topology, 24, room, out, size) : -30;
    case 0x1000: return number(TYPE, 8, room, out, size);
    case 0x1001: return number(VENDOR, 4, room, out, size);
    case 0x1002: return number(4, 4, room, out, size);
    case 0x1010: case 0x101F: case 0x1023: return number(1 << 30, 8, room, out, size);
    case 0x1027: case 0x1028: return number(1, 4, room, out, size);
    case 0x102B: return text("card of the day", room, out, size);
    case 0x102C: return text("Nobody", room, out, size);
    case 0x102D: return text("1.0", room, out, size);
    case 0x102E: return text("FULL_PROFILE", room, out, size);
    case 0x102F: return text("OpenCL 1.2 fake", room, out, size);
    case 0x1030: return text(known, room, out, size);
    case 0x1031: return number((uint64_t)(uintptr_t)&platform, 8, room, out, size);
    }
    return -30;
}

static void *make(int *code)
{
    if (code) *code = 0;
    return &made;
}

static void *create_context(void *a, unsigned b, void *c, void *d, void *e, int *code)
{
    (void)a, (void)b, (void)c, (void)d, (void)e;
    return make(code);
}

static int about_context(void *c, unsigned what, size_t room, void *out, size_t *size)
{
    (void)c;
    return what == 0x1081 ? number((uint64_t)(uintptr_t)&cards[0], 8, room, out, size) : -30;
}

static void *create_queue(void *a, void *b, uint64_t c, int *code)
{
    (void)a, (void)b, (void)c;
    return make(code);
}

static void *create_program(void *a, unsigned b, void *c, void *d, int *code)
{
    (void)a, (void)b, (void)c, (void)d;
    return make(code);
}

static int about_program(void *p, unsigned what, size_t room, void *out, size_t *size)
{
    (void)p;
    return what == 0x1161 ? number((uint64_t)(uintptr_t)&made, 8, room, out, size) : -30;
}

static int keep(void *object) { (void)object; return 0; }

static int build(void) { BUILD }

static int about_build(void *p, void *d, unsigned what, size_t room, void *out, size_t *size)
{
    (void)p, (void)d, (void)what;
    return text("error: unknown target CPU 'generic'", room, out, size);
}

static int nothing(void) { return -59; }

__attribute__((visibility("default"))) void *clGetExtensionFunctionAddress(const char *name)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) cards[i].table = table;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) table[i] = (void *)nothing;
    table[0] = (void *)platforms, table[1] = (void *)about_platform;
    table[2] = (void *)devices, table[3] = (void *)about_device;
    table[4] = (void *)create_context, table[6] = table[7] = (void *)keep;
    table[8] = (void *)about_context, table[9] = (void *)create_queue, table[10] = table[11] = (void *)keep;
    table[26] = (void *)create_program, table[28] = table[29] = (void *)keep;
    table[30] = (void *)build, table[32] = (void *)about_program, table[33] = (void *)about_build;
    return strcmp(name, "clIcdGetPlatformIDsKHR") ? NULL : (void *)platforms;
}

__attribute__((visibility("default"))) int clGetPlatformInfo(void *p, unsigned w, size_t r, void *o, size_t *s)
{
    return about_platform(p, w, r, o, s);
}
"""
CPU, GPU, ACCELERATOR = 2, 4, 8
REFUSES, ABORTS = "return -11;", "abort();"


@dataclass(frozen=True)
class Cards:
    """How many devices a driver lists, of which vendor, with which extensions for their identity."""

    count: int = 1
    vendor: int = 0xFA4E
    extensions: str = ""


@cache
def _compiled(platform: str, kind: int, build: str, cards: Cards) -> bytes:
    with TemporaryDirectory() as folder:
        (Path(folder) / "driver.c").write_text(SOURCE)
        options = [f'-DPLATFORM="{platform}"', f"-DTYPE={kind}u", f"-DBUILD={build}"]
        options += [f"-DCOUNT={cards.count}u", f"-DVENDOR={cards.vendor}", f'-DEXTENSIONS="{cards.extensions}"']
        command = ["gcc", "-std=gnu99", "-Wall", "-O1", *options, "-shared", "-fPIC", "-o", "driver.so", "driver.c"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return (Path(folder) / "driver.so").read_bytes()


def install(
    folder: Path, platform: str = "Fake", kind: int = CPU, build: str = REFUSES, cards: Cards = Cards()
) -> Path:
    """Write a driver and its .icd file into a folder for `OCL_ICD_VENDORS`; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    name = platform.split()[0].lower()
    library = folder / f"libfake{name}.so"
    library.write_bytes(_compiled(platform, kind, build, cards))
    (folder / f"{name}.icd").write_text(f"{library}\n")
    return folder
