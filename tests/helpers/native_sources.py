"""Backends in C for tests: one that tells what it sees, one with buffers and a queue of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.plugins import C_FACTORY, C_ID, C_UNUSED, C_VERSION, write
from weft.core.contract.backend import Backend, BackendInfo
from weft.core.registry.backend_registry import BackendRegistry, registry

LAYOUT = r"""
#include "weft_backend.h"
#define EACH_FIELD(F) \
    F(weft_tensor, name) F(weft_tensor, dtype) F(weft_tensor, rank) F(weft_tensor, shape) F(weft_tensor, nbytes) \
    F(weft_tensor, data) F(weft_tensor, offset) F(weft_tensor, constant) \
    F(weft_attribute, name) F(weft_attribute, kind) F(weft_attribute, count) F(weft_attribute, ints) \
    F(weft_attribute, floats) F(weft_attribute, strings) \
    F(weft_node, name) F(weft_node, op_type) F(weft_node, input_count) F(weft_node, inputs) \
    F(weft_node, output_count) F(weft_node, outputs) F(weft_node, attribute_count) F(weft_node, attributes) \
    F(weft_device_info, name) F(weft_device_info, driver) F(weft_device_info, software) F(weft_device_info, uuid) \
    F(weft_device_info, pci) \
    F(weft_backend, struct_size) F(weft_backend, version) F(weft_backend, supports) F(weft_backend, create) \
    F(weft_backend, execute) F(weft_backend, destroy) F(weft_backend, absent) F(weft_backend, device_count) \
    F(weft_backend, device_info) F(weft_backend, open) F(weft_backend, close) F(weft_backend, allocate) \
    F(weft_backend, free) F(weft_backend, upload) F(weft_backend, download) F(weft_backend, wait) \
    F(weft_backend, option_info) F(weft_backend, open_with) \
    F(weft_option_info, name) F(weft_option_info, doc) F(weft_option_info, kind) F(weft_option_info, default_int) \
    F(weft_option_info, default_float) F(weft_option_info, default_string)
#define PLACE(kind, field) offsetof(kind, field),
#define WRITTEN(kind, field) #kind "." #field " "
const size_t places[] = {EACH_FIELD(PLACE) sizeof(weft_tensor), sizeof(weft_attribute), sizeof(weft_node),
                         sizeof(weft_device_info), sizeof(weft_option_info), sizeof(weft_backend)};
const char fields[] = EACH_FIELD(WRITTEN) "weft_tensor weft_attribute weft_node weft_device_info "
                      "weft_option_info weft_backend";
const int32_t numbers[] = {
    WEFT_FLOAT32, WEFT_FLOAT16, WEFT_FLOAT64, WEFT_INT64, WEFT_INT32, WEFT_INT16, WEFT_INT8, WEFT_UINT64,
    WEFT_UINT32, WEFT_UINT16, WEFT_UINT8, WEFT_BOOL, WEFT_BFLOAT16, WEFT_FLOAT8E4M3FN, WEFT_FLOAT8E4M3FNUZ,
    WEFT_FLOAT8E5M2, WEFT_FLOAT8E5M2FNUZ, WEFT_FLOAT8E8M0, WEFT_FLOAT6E2M3, WEFT_FLOAT6E3M2, WEFT_FLOAT4E2M1,
    WEFT_INT4, WEFT_UINT4, WEFT_INT2, WEFT_UINT2, WEFT_COMPLEX64, WEFT_COMPLEX128, WEFT_NONE,
    WEFT_INT, WEFT_FLOAT, WEFT_STRING, WEFT_INTS, WEFT_FLOATS, WEFT_STRINGS,
    WEFT_BOOL_OPTION};
"""

ECHO = (
    r"""
#include <stdarg.h>
#include <stdio.h>
#include "weft_backend.h"

static void put(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list rest;
    va_start(rest, format);
    vsnprintf(text + used, size - used, format, rest);
    va_end(rest);
}

static void put_tensor(char *text, size_t size, const weft_tensor *t)
{
    put(text, size, " %s:%d:%d[", t->name, (int)t->dtype, (int)t->rank);
    for (int32_t k = 0; k < t->rank; ++k) put(text, size, "%s%d", k ? "," : "", (int)t->shape[k]);
    put(text, size, "]:%d:%s", (int)t->nbytes, t->data ? "data" : "-");
    if (t->constant && t->dtype == WEFT_FLOAT32) put(text, size, ":%g", *(const float *)t->constant);
    if (t->constant && t->dtype == WEFT_INT64) put(text, size, ":%d", (int)*(const int64_t *)t->constant);
}

/* Refuses every node, with all that it sees of it for a reason. */
static int32_t supports(void *device, const weft_node *n, char *text, size_t size)
{
    (void)device;
    text[0] = 0;
    put(text, size, "%s %s in", n->op_type, n->name);
    for (size_t k = 0; k < n->input_count; ++k) put_tensor(text, size, n->inputs[k]);
    put(text, size, " out");
    for (size_t k = 0; k < n->output_count; ++k) put_tensor(text, size, n->outputs[k]);
    for (size_t k = 0; k < n->attribute_count; ++k) {
        const weft_attribute *a = n->attributes[k];
        put(text, size, " %s/%d=", a->name, (int)a->kind);
        for (size_t i = 0; i < a->count; ++i) {
            if (a->ints) put(text, size, "%d,", (int)a->ints[i]);
            if (a->floats) put(text, size, "%g,", a->floats[i]);
            if (a->strings) put(text, size, "%s,", a->strings[i]);
        }
    }
    return 0;
}
"""
    + C_UNUSED
    + C_ID.replace("acme", "echo")
    + C_VERSION
    + C_FACTORY
)

VAULT = (
    r"""
#include <stdio.h>
#include <stdlib.h>
#include "weft_backend.h"

/* Buffers are numbers, not addresses; execute only notes what is to be done, and wait does it. */
enum { BUFFERS = 256, JOBS = 64 };
enum { CREATED, DESTROYED, ALLOCATED, FREED, OPENED, CLOSED, WAITS, LATE, COUNTERS };
int64_t counters[COUNTERS];
int32_t mode; /* 1: no card; 2: create fails; 3: execute fails, without a word; 4: the queue fails;
                 5: no memory; 6: upload fails; 7: open fails; 8: no reason; 9: a reason that is too long;
                 10: one without an end */

static char *memory[BUFFERS];
typedef struct { const char *what; size_t count, inputs; } state_t;
typedef struct { state_t *state; char *a, *b, *y; } job_t;
static job_t queue[JOBS];
static int queued;

static char *at(const weft_tensor *t) { return memory[(size_t)t->data - 1] + t->offset; }

static int32_t supports(void *device, const weft_node *n, char *reason, size_t size)
{
    if (mode == 8) return 0;
    if (mode == 9 || mode == 10) {
        for (size_t k = 0; k < size + (mode == 9 ? 4 : 0); ++k) reason[k] = 'x';
        return 0;
    }
    if (device != (void *)&counters) { snprintf(reason, size, "that is not the device that was opened"); return 0; }
    if (strcmp(n->op_type, "Add") && strcmp(n->op_type, "Clip")) {
        snprintf(reason, size, "the vault \xe2\x80\x9c" "adds\xe2\x80\x9d and clips: %s? \xff", n->op_type);
        return 0;
    }
    if (n->inputs[0]->dtype != WEFT_FLOAT32) { snprintf(reason, size, "float32 alone"); return 0; }
    if (n->op_type[0] == 'A') {
        int same = weft_elements(n->inputs[0]) == weft_elements(n->outputs[0])
                   && weft_elements(n->inputs[1]) == weft_elements(n->outputs[0]);
        if (!same) snprintf(reason, size, "the vault adds tensors of one shape");
        return same;
    }
    if (n->input_count > 2 && n->inputs[2]->dtype != WEFT_NONE) {
        snprintf(reason, size, "the vault clips from below alone");
        return 0;
    }
    return 1;
}

static int32_t create(void *device, const weft_node *n, void **state, char *error, size_t size)
{
    (void)device;
    if (mode == 2) { snprintf(error, size, "the firmware is too old for %s", n->name); return 7; }
    state_t *made = calloc(1, sizeof *made);
    made->what = strcmp(n->op_type, "Add") ? "clip" : "add";
    made->count = (size_t)weft_elements(n->outputs[0]);
    made->inputs = n->input_count;
    *state = made;
    ++counters[CREATED];
    return 0;
}

static int32_t execute(void *state, const weft_tensor *const *in, const weft_tensor *const *out, char *error,
                       size_t size)
{
    (void)error;
    (void)size;
    if (mode == 3) return -5;
    int has_second = ((state_t *)state)->inputs > 1 && in[1]->data;
    job_t job = {state, at(in[0]), has_second ? at(in[1]) : NULL, at(out[0])};
    queue[queued++] = job;
    return 0;
}

static void work(const job_t *job)
{
    const float *a = (const float *)job->a, *b = (const float *)job->b;
    float *y = (float *)job->y;
    for (size_t k = 0; k < job->state->count; ++k) {
        if (job->state->what[0] == 'a') y[k] = a[k] + b[k];
        else y[k] = b && (a[k] < b[0] || b[0] != b[0]) ? b[0] : a[k]; /* of Clip's bounds, the lower */
    }
}

static int32_t wait_all(void *device, char *error, size_t size)
{
    (void)device;
    int was = queued;
    queued = 0;
    ++counters[WAITS];
    if (was && mode == 4) { snprintf(error, size, "the queue stopped at job 1 of %d", was); return 1; }
    for (int k = 0; k < was; ++k) work(&queue[k]);
    return 0;
}

static void destroy(void *state) { counters[LATE] += queued; ++counters[DESTROYED]; free(state); }

static int32_t absent(char *reason, size_t size)
{
    if (mode == 1) snprintf(reason, size, "no card is plugged in: buy one");
    return mode == 1;
}
static int32_t device_count(void) { return 2; }
static void device_info(int32_t index, weft_device_info *info)
{
    snprintf(info->name, sizeof info->name, "vault %d", (int)index);
    info->software = index == 1;
}
static int32_t open_device(int32_t index, void **device, char *error, size_t size)
{
    if (mode == 7) { snprintf(error, size, "device %d is in use", (int)index); return 1; }
    *device = &counters;
    ++counters[OPENED];
    return 0;
}
static void close_device(void *device) { (void)device; ++counters[CLOSED]; }

static void *allocate(void *device, size_t nbytes)
{
    (void)device;
    if (mode == 5) return NULL;
    for (size_t k = 0; k < BUFFERS; ++k)
        if (!memory[k]) { memory[k] = malloc(nbytes); ++counters[ALLOCATED]; return (void *)(k + 1); }
    return NULL;
}
static void free_buffer(void *device, void *buffer)
{
    (void)device;
    counters[LATE] += queued;
    ++counters[FREED];
    free(memory[(size_t)buffer - 1]);
    memory[(size_t)buffer - 1] = NULL;
}
static int32_t upload(void *device, void *buffer, size_t offset, const void *source, size_t nbytes, char *error,
                      size_t size)
{
    (void)device;
    counters[LATE] += queued;
    if (mode == 6) { snprintf(error, size, "the bus is asleep"); return 1; }
    memcpy(memory[(size_t)buffer - 1] + offset, source, nbytes);
    return 0;
}
static int32_t download(void *device, const void *buffer, size_t offset, void *target, size_t nbytes, char *error,
                        size_t size)
{
    (void)device; (void)error; (void)size;
    counters[LATE] += queued;
    memcpy(target, memory[(size_t)buffer - 1] + offset, nbytes);
    return 0;
}

static const weft_backend table = {
    .struct_size = sizeof(weft_backend), .version = "2.7", .supports = supports, .create = create,
    .execute = execute, .destroy = destroy, .absent = absent, .device_count = device_count,
    .device_info = device_info, .open = open_device, .close = close_device, .allocate = allocate,
    .free = free_buffer, .upload = upload, .download = download, .wait = wait_all};
"""
    + C_ID.replace("acme", "vault")
    + C_VERSION
    + C_FACTORY
)


def loaded(folder: Path, source: str, name: str = "acme_test_backend.so", *options: str) -> BackendRegistry:
    """Return a registry with a C backend in it, the CPU before it."""
    write(folder / name, source, *options)
    return registry.derive([folder])


@dataclass
class Vault:
    """The library with everything, its registry, and its own account of what happened."""

    registry: BackendRegistry
    library: ctypes.CDLL
    folder: Path

    @property
    def counters(self) -> dict[str, int]:
        names = ("created", "destroyed", "allocated", "freed", "opened", "closed", "waits", "late")
        return dict(zip(names, (ctypes.c_int64 * 8).in_dll(self.library, "counters"), strict=True))

    def mode(self, number: int) -> None:
        ctypes.c_int32.in_dll(self.library, "mode").value = number

    def backend(self, index: int = 0) -> Backend:
        return self.registry.find("vault").onCreate(BackendInfo("vault", index))


@contextmanager
def vault_in(folder: Path) -> Iterator[Vault]:
    """Give a vault, and check in the end that it has everything back and that nothing came too early."""
    own = loaded(folder, VAULT, "acme_vault_backend.so")
    made = Vault(own, ctypes.CDLL(str(folder / "acme_vault_backend.so")), folder)
    yield made
    made.mode(0)
    own.close()
    after = made.counters
    assert after["created"] == after["destroyed"] and after["allocated"] == after["freed"]
    assert after["opened"] == after["closed"] and after["late"] == 0
