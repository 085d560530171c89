"""A strict C backend for tests: the vault, with every call held against the rules of `weft_backend.h` first.

What is broken is noted in words; the numbers are right all the same. Sizes, lifetimes, what is queued, which device
a call is for, and that calls come one at a time are judged by the probe's own books, not by the vault's.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tests.helpers.native_sources import VAULT
from weft.plugins.native_abi import CBackend

JUDGE = r"""
enum { MOST = 4096, NOTES = 64 };
char broken[NOTES][160];
int64_t broken_count, judged;

#define RULE(holds, ...) do { ++judged; if (!(holds)) { \
    int64_t at = broken_count++; \
    if (at < NOTES) snprintf(broken[at], sizeof broken[0], __VA_ARGS__); } } while (0)

typedef struct {
    void *inner; int live; size_t inputs, outputs; weft_tensor seen[16]; int64_t shapes[16][8];
} seen_state;
static size_t buffer_size[MOST];
static seen_state states[MOST];
static int state_count, live_states, live_buffers, is_open, exported, busy, pending;
static size_t sizes_of[] = {0, 4, 2, 8, 8, 4, 2, 1, 8, 4, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 16};

#define ENTER(name) \
    RULE(!__atomic_exchange_n(&busy, 1, __ATOMIC_SEQ_CST), name " was called while another call ran"); \
    RULE(exported == 3, name " was called before BackendFactory returned")
#define LEAVE __atomic_store_n(&busy, 0, __ATOMIC_SEQ_CST)
#define OPENED(name) RULE(is_open && device == (void *)&counters, name " got a device that is not open")
#define MESSAGE(name, text) do { RULE(text && size > 0, name " got no room for a message"); \
    if (text && size) { text[size - 1] = 0; } } while (0)
#define DONE(name) RULE(!pending, name " was called while work was queued")

static void judge_tensor(const char *in, const weft_tensor *t, int has_data)
{
    RULE(t && t->name && t->shape, "%s got a tensor without name or shape", in);
    RULE(t->dtype >= WEFT_NONE && t->dtype <= WEFT_COMPLEX128, "%s got the element type %d", in, (int)t->dtype);
    if (t->dtype == WEFT_NONE) {
        RULE(!t->data && !t->constant, "%s got a missing input that lies somewhere", in);
        return;
    }
    RULE(t->nbytes == (size_t)weft_elements(t) * sizes_of[t->dtype], "%s got %zu bytes for %lld elements", in,
         t->nbytes, (long long)weft_elements(t));
    RULE(has_data || !t->data, "%s got memory, which is for execute alone", in);
    if (!has_data) return;
    RULE(!t->constant, "%s got a constant on the host", in);
    size_t k = (size_t)t->data;
    int known = k > 0 && k < MOST && buffer_size[k];
    RULE(known, "%s got a buffer that is not allocated", in);
    RULE(!known || t->offset + t->nbytes <= buffer_size[k], "%s got bytes %zu to %zu of a buffer of %zu", in, t->offset,
         t->offset + t->nbytes, known ? buffer_size[k] : 0);
    RULE(t->offset % sizes_of[t->dtype] == 0, "%s got an offset that splits an element", in);
}

static void judge_node(const char *in, const weft_node *n)
{
    RULE(n && n->name && n->op_type && n->op_type[0], "%s got a node without name or type", in);
    for (size_t k = 0; k < n->input_count; ++k) judge_tensor(in, n->inputs[k], 0);
    for (size_t k = 0; k < n->output_count; ++k) judge_tensor(in, n->outputs[k], 0);
    for (size_t k = 0; k < n->attribute_count; ++k) {
        const weft_attribute *a = n->attributes[k];
        int one = a->kind == WEFT_INT || a->kind == WEFT_FLOAT || a->kind == WEFT_STRING;
        RULE(a->name && a->name[0], "%s got an attribute without a name", in);
        RULE(!one || a->count == 1, "%s got %zu values of attribute %s", in, a->count, a->name);
        RULE(!a->ints == !(a->kind == WEFT_INT || a->kind == WEFT_INTS), "%s got integers of no kind", in);
        RULE(!a->floats == !(a->kind == WEFT_FLOAT || a->kind == WEFT_FLOATS), "%s got reals of no kind", in);
        RULE(!a->strings == !(a->kind == WEFT_STRING || a->kind == WEFT_STRINGS), "%s got texts of no kind", in);
    }
}

static int32_t p_supports(void *device, const weft_node *n, char *reason, size_t size)
{
    ENTER("supports"); OPENED("supports"); MESSAGE("supports", reason); judge_node("supports", n);
    int32_t takes = supports(device, n, reason, size);
    LEAVE;
    return takes;
}

static int32_t p_create(void *device, const weft_node *n, void **state, char *error, size_t size)
{
    ENTER("create"); OPENED("create"); MESSAGE("create", error); judge_node("create", n);
    RULE(state && !*state, "create got a state that is not NULL");
    void *inner = NULL;
    int32_t status = create(device, n, &inner, error, size);
    seen_state *s = NULL;
    for (int k = 0; k < state_count && !s; ++k) if (!states[k].live) s = &states[k];
    if (!s) s = &states[state_count++];
    if (!status) {
        s->inner = inner; s->live = 1; s->inputs = n->input_count; s->outputs = n->output_count;
        for (size_t k = 0; k < s->inputs + s->outputs && k < 16; ++k) {
            const weft_tensor *t = k < s->inputs ? n->inputs[k] : n->outputs[k - s->inputs];
            s->seen[k] = *t;
            for (int32_t d = 0; d < t->rank && d < 8; ++d) s->shapes[k][d] = t->shape[d];
        }
        ++live_states;
        *state = s;
    }
    LEAVE;
    return status;
}

static int32_t p_execute(void *state, const weft_tensor *const *in, const weft_tensor *const *out, char *error,
                         size_t size)
{
    seen_state *s = state;
    ENTER("execute"); MESSAGE("execute", error);
    RULE(is_open, "execute was called on a device that is closed");
    int known = s >= states && s < states + state_count && s->live;
    RULE(known, "execute got a state that was destroyed or never made");
    if (!known) { LEAVE; return 1; }
    for (size_t k = 0; k < s->inputs + s->outputs && k < 16; ++k) {
        const weft_tensor *t = k < s->inputs ? in[k] : out[k - s->inputs];
        int same = t->rank == s->seen[k].rank && t->dtype == s->seen[k].dtype;
        for (int32_t d = 0; same && d < t->rank && d < 8; ++d) same = t->shape[d] == s->shapes[k][d];
        RULE(same, "execute got another shape or type than create");
        judge_tensor("execute", t, t->dtype != WEFT_NONE);
        for (size_t j = 0; j < s->outputs && t != out[j]; ++j)
            RULE(t->data != out[j]->data || t->offset + t->nbytes <= out[j]->offset
                 || out[j]->offset + out[j]->nbytes <= t->offset || !t->nbytes || !out[j]->nbytes,
                 "execute got an output that overlaps another tensor");
    }
    int32_t status = execute(s->inner, in, out, error, size);
    pending += !status;
    LEAVE;
    return status;
}

static void p_destroy(void *state)
{
    seen_state *s = state;
    ENTER("destroy"); DONE("destroy");
    RULE(is_open, "destroy was called on a device that is closed");
    int known = s >= states && s < states + state_count && s->live;
    RULE(known, "destroy got a state that was destroyed or never made");
    if (known) { s->live = 0; --live_states; destroy(s->inner); }
    LEAVE;
}

static int32_t p_open(int32_t index, void **device, char *error, size_t size)
{
    ENTER("open"); MESSAGE("open", error);
    RULE(index >= 0 && index < 2, "open got device %d of 2", (int)index);
    int32_t status = open_device(index, device, error, size);
    is_open += !status;
    LEAVE;
    return status;
}

static void p_close(void *device)
{
    ENTER("close"); OPENED("close"); DONE("close");
    RULE(is_open > 1 || !live_states, "close was called with %d states that are not destroyed", live_states);
    RULE(is_open > 1 || !live_buffers, "close was called with %d buffers that are not freed", live_buffers);
    --is_open;
    close_device(device);
    LEAVE;
}

static void *p_allocate(void *device, size_t nbytes)
{
    ENTER("allocate"); OPENED("allocate");
    RULE(nbytes > 0, "allocate was asked for 0 bytes");
    void *buffer = allocate(device, nbytes);
    if (buffer) { buffer_size[(size_t)buffer] = nbytes; ++live_buffers; }
    LEAVE;
    return buffer;
}

static int is_buffer(const void *buffer) { return buffer && (size_t)buffer < MOST && buffer_size[(size_t)buffer]; }

static void p_free(void *device, void *buffer)
{
    ENTER("free"); OPENED("free"); DONE("free");
    RULE(is_buffer(buffer), "free got a buffer that is not allocated");
    if (is_buffer(buffer)) { free_buffer(device, buffer); buffer_size[(size_t)buffer] = 0; --live_buffers; }
    LEAVE;
}

static int fits(const char *name, const void *buffer, size_t offset, const void *host, size_t nbytes)
{
    RULE(is_buffer(buffer), "%s got a buffer that is not allocated", name);
    size_t has = is_buffer(buffer) ? buffer_size[(size_t)buffer] : 0;
    RULE(offset + nbytes <= has, "%s got bytes %zu to %zu of a buffer of %zu", name, offset, offset + nbytes, has);
    RULE(host && nbytes, "%s got nothing to copy", name);
    return host && offset + nbytes <= has;
}

static int32_t p_upload(void *device, void *buffer, size_t offset, const void *source, size_t nbytes, char *error,
                        size_t size)
{
    ENTER("upload"); OPENED("upload"); DONE("upload"); MESSAGE("upload", error);
    int32_t status = fits("upload", buffer, offset, source, nbytes)
                   ? upload(device, buffer, offset, source, nbytes, error, size) : 1;
    LEAVE;
    return status;
}

static int32_t p_download(void *device, const void *buffer, size_t offset, void *target, size_t nbytes, char *error,
                          size_t size)
{
    ENTER("download"); OPENED("download"); DONE("download"); MESSAGE("download", error);
    int32_t status = fits("download", buffer, offset, target, nbytes)
                   ? download(device, buffer, offset, target, nbytes, error, size) : 1;
    LEAVE;
    return status;
}

static int32_t p_wait(void *device, char *error, size_t size)
{
    ENTER("wait"); OPENED("wait"); MESSAGE("wait", error);
    int32_t status = wait_all(device, error, size);
    pending = 0;
    LEAVE;
    return status;
}

static const weft_backend probe = {
    .struct_size = sizeof(weft_backend), .version = "1.0", .supports = p_supports, .create = p_create,
    .execute = p_execute, .destroy = p_destroy, .device_count = device_count, .device_info = device_info,
    .open = p_open, .close = p_close, .allocate = p_allocate, .free = p_free, .upload = p_upload,
    .download = p_download, .wait = p_wait};

const char *GetBackendId(void)
{ RULE(exported == 0, "GetBackendId was not the first call"); exported = 1; return "probe"; }
void GetVersion(uint32_t *major, uint32_t *minor)
{ RULE(exported == 1, "GetVersion was not the second call"); exported = 2; *major = 1; *minor = 0; }
const weft_backend *BackendFactory(void)
{ RULE(exported == 2, "BackendFactory was not the third call"); exported = 3; (void)table; return &probe; }
"""
# More room than the vault's own tests need: the kit makes many tensors and many nodes.
PROBE = VAULT[: VAULT.index("const char *GetBackendId")].replace("BUFFERS = 256", "BUFFERS = 4095") + JUDGE
PROBE = PROBE.replace("JOBS = 64", "JOBS = 4096")


@dataclass
class Probe:
    """The probe's books, and its table to call as Weft does."""

    library: ctypes.CDLL

    @property
    def judged(self) -> int:
        """Return how many rules were held against calls."""
        return ctypes.c_int64.in_dll(self.library, "judged").value

    @property
    def broken(self) -> list[str]:
        """Return what was broken, in words."""
        count = ctypes.c_int64.in_dll(self.library, "broken_count").value
        notes = ((ctypes.c_char * 160) * 64).in_dll(self.library, "broken")
        return [notes[k].value.decode() for k in range(min(count, 64))]

    def table(self) -> CBackend:
        """Return the table, after the three calls in their order."""
        self.library.GetBackendId()
        major, minor = ctypes.c_uint32(), ctypes.c_uint32()
        self.library.GetVersion(ctypes.byref(major), ctypes.byref(minor))
        self.library.BackendFactory.restype = ctypes.POINTER(CBackend)
        table: CBackend = self.library.BackendFactory().contents
        return table
