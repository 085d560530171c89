/*
 * A backend in C that keeps the rules of weft_backend.h, and breaks one where a macro says so (-DNO_NUL).
 *
 * It has buffers and a queue of its own, or with -DON_HOST neither. It computes Relu, Add of two tensors of one shape,
 * Add of a constant of one element for each of the last dimensions, and Not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "weft_backend.h"

enum { MOST = 64 };

typedef struct {
    size_t nbytes;
    char *data;
} buffer_t;

typedef struct device device_t;

typedef struct {
    device_t *device;
    char kind; /* 'R', 'A', 'C' (a constant is added), 'N' */
    size_t count, period;
    float *added;
#ifdef KEEPS_SHAPE
    const int64_t *shape;
    int32_t rank;
#endif
    char *a, *b, *y;
} state_t;

typedef struct {
    state_t *state;
    char *a, *b, *y;
    const weft_tensor *const *outputs;
} job_t;

struct device {
    job_t queue[MOST];
    int queued;
    char *late;
    const void *source;
    char *target;
    size_t nbytes;
};

#ifdef OPENS_ONCE
static int opened;
#endif
#if defined CRASHES || defined EXITS
static int live;
#define LIVE(change) (live += (change))
#else
#define LIVE(change) ((void)0)
#endif

static int32_t supports(void *device, const weft_node *n, char *reason, size_t size)
{
    (void)device;
    const weft_tensor *x = n->input_count ? n->inputs[0] : NULL;
#ifdef RETURNS_TWO
    if (n->op_type[0] == 'S') return 2;
#endif
#ifdef NO_REASON
    if (n->op_type[0] == 'S') return 0;
#endif
#ifdef NO_NUL
    if (n->op_type[0] == 'S') { memset(reason, 'x', 20 < size ? 20 : size); return 0; }
#endif
#ifdef IGNORES_SIZE
    if (n->op_type[0] == 'S') { strcpy(reason, "this backend has never heard of any such thing, and it says so at some length"); return 0; }
#endif
#ifdef NOT_UTF8
    if (n->op_type[0] == 'S') { snprintf(reason, size, "no op of this name, s'il vous pla\xeet"); return 0; }
#endif
#ifdef CHANGES_NODE
    if (x && x->rank) ((int64_t *)x->shape)[0] = 1;
#endif
#ifdef CALLS_PYTHON
    int (*ensure)(void), (*run)(const char *);
    void (*release)(int);
    *(void **)&ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    *(void **)&run = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    *(void **)&release = dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int held = ensure();
    run("1 + 1");
    release(held);
#endif
#ifndef TAKES_ANY_TYPE
    int32_t type = strcmp(n->op_type, "Not") ? WEFT_FLOAT32 : WEFT_BOOL;
    for (size_t k = 0; k < n->input_count; ++k)
        if (n->inputs[k]->dtype != type) {
            snprintf(reason, size, "it computes in float32 alone, and bool for Not");
            return 0;
        }
#endif
    if (!strcmp(n->op_type, "Relu") || !strcmp(n->op_type, "Not")) return 1;
    if (!strcmp(n->op_type, "Add")) {
        int64_t count = weft_elements(n->outputs[0]), other = weft_elements(n->inputs[1]);
        if (weft_elements(x) == count && other == count) return 1;
        if (weft_elements(x) == count && n->inputs[1]->constant && other && count % other == 0
            && n->inputs[1]->rank < x->rank) {
            int same = 1;
            for (int32_t k = 1; k <= n->inputs[1]->rank; ++k)
                same &= n->inputs[1]->shape[n->inputs[1]->rank - k] == x->shape[x->rank - k];
            if (same) return 1;
        }
        snprintf(reason, size, "it adds tensors of one shape, or a constant");
        return 0;
    }
    snprintf(reason, size, "it computes Relu, Add and Not, and no %s", n->op_type);
    return 0;
}

#ifdef SHARES_STATE
static state_t the_state;
#endif
static int32_t create(void *device, const weft_node *n, void **state, char *error, size_t size)
{
    (void)error; (void)size;
#ifdef SHARES_STATE
    state_t *made = &the_state;
#else
    state_t *made = calloc(1, sizeof *made);
#endif
    made->device = device;
    made->kind = n->op_type[0];
    made->count = (size_t)weft_elements(n->outputs[0]);
    if (made->kind == 'A' && n->inputs[1]->constant) {
        made->kind = 'C';
        made->period = (size_t)weft_elements(n->inputs[1]);
#ifdef KEEPS_CONSTANT
        made->added = (float *)n->inputs[1]->constant;
#else
        made->added = malloc(n->inputs[1]->nbytes);
        memcpy(made->added, n->inputs[1]->constant, n->inputs[1]->nbytes);
#endif
    }
#ifdef KEEPS_SHAPE
    made->shape = n->outputs[0]->shape;
    made->rank = n->outputs[0]->rank;
#endif
#ifdef CREATES_BESIDE
    state[1] = made;
#endif
    *state = made;
    LIVE(1);
#ifdef WRONG_STATUS
    return 1;
#endif
    return 0;
}

#ifdef STATIC_SCRATCH
static volatile size_t scratch_at, scratch_count;
#endif
#ifdef COUNT_RESETS
static volatile size_t left;
#endif

static void work(const job_t *job)
{
    const state_t *s = job->state;
    const float *a = (const float *)job->a, *b = (const float *)job->b;
    float *y = (float *)job->y;
    size_t count = s->count;
#ifdef KEEPS_SHAPE
    count = 1;
    for (int32_t k = 0; k < s->rank; ++k) count *= (size_t)s->shape[k];
#endif
#ifdef NOT_ALL
    --count;
#endif
    if (s->kind == 'N') {
#ifdef BOOL_IS_255
        for (size_t k = 0; k < count; ++k) job->y[k] = job->a[k] ? 0 : (char)255;
#else
        for (size_t k = 0; k < count; ++k) job->y[k] = !job->a[k];
#endif
        return;
    }
#if defined STATIC_SCRATCH
    scratch_count = count;
    scratch_at = 0;
    usleep(2000); /* as work on a device does, it lets others go first */
    for (; scratch_at < scratch_count; ++scratch_at) {
        size_t k = scratch_at;
        if (k < count) y[k] = s->kind == 'R' ? (a[k] < 0 ? 0 : a[k]) : a[k] + (b ? b[k] : s->added[k % s->period]);
    }
    return;
#elif defined COUNT_RESETS
    left = count;
    usleep(2000);
    for (; left; left -= left > 0) {
        size_t k = left - 1;
        if (k < count) y[k] = s->kind == 'R' ? (a[k] < 0 ? 0 : a[k]) : a[k] + (b ? b[k] : s->added[k % s->period]);
    }
    return;
#endif
    for (size_t k = 0; k < count; ++k) {
        if (s->kind == 'R') y[k] = a[k] < 0 ? 0 : a[k];
        else if (s->kind == 'C') y[k] = a[k] + s->added[k % s->period];
        else y[k] = a[k] + b[k];
    }
#ifdef WRITES_BEHIND
    y[count] = 0;
#endif
#ifdef WRITES_BEFORE
    y[-1] = 0;
#endif
#ifdef WRITES_INPUT
    ((float *)job->a)[0] = 1;
#endif
}

static char *at(const weft_tensor *t)
{
#ifdef ON_HOST
    return t->data;
#else
    return ((buffer_t *)t->data)->data + t->offset;
#endif
}

#ifndef ON_HOST
static void run_all(device_t *d)
{
    for (int k = 0; k < d->queued; ++k) {
#ifdef KEEPS_TENSORS
        d->queue[k].y = at(d->queue[k].outputs[0]);
#endif
        work(&d->queue[k]);
    }
    d->queued = 0;
}
#endif

#ifdef LATE_THREAD
static void *later(void *given)
{
    usleep(20000);
    work(given);
    return NULL;
}
#endif
#ifdef THREAD_LOCAL
static __thread device_t *of_thread;
#endif

static int32_t execute(void *state, const weft_tensor *const *in, const weft_tensor *const *out, char *error, size_t size)
{
    (void)error; (void)size;
    state_t *s = state;
    char *second = NULL;
    if (s->kind == 'A') second = at(in[1]);
#ifdef INDEXES
    if (s->kind == 'A') second = at(&in[0][1]);
#endif
    job_t job = {s, at(in[0]), second, at(out[0]), out};
#ifdef KEEPS_ADDRESSES
    if (!s->y) { s->a = job.a; s->b = job.b; s->y = job.y; }
    job.a = s->a; job.b = s->b; job.y = s->y;
#endif
#ifdef ALIGNED
    job.a = (char *)((uintptr_t)job.a & ~(uintptr_t)63);
#endif
#ifdef LEAKS_IN_RUNS
    if (!malloc(100)) return 1;
#endif
#ifdef CRASHES
    if (live > 3) *(volatile int *)8 = 1;
#endif
#ifdef EXITS
    if (live > 3) exit(3);
#endif
#ifdef CHANGES_TENSORS
    ((weft_tensor *)out[0])->nbytes = 0;
#endif
#ifdef LATE_THREAD
    static job_t jobs[MOST];
    static int next;
    pthread_t thread;
    jobs[next % MOST] = job;
    pthread_create(&thread, NULL, later, &jobs[next++ % MOST]);
    pthread_detach(thread);
    return 0;
#endif
#ifdef ON_HOST
    work(&job);
#else
    device_t *d = s->device;
#ifdef THREAD_LOCAL
    d = of_thread;
    if (!d) { snprintf(error, size, "this thread has not opened the device"); return 1; }
#endif
#ifdef WRITES_MESSAGE_LATE
    d->late = error;
#endif
#ifdef SHORT_QUEUE
    if (d->queued == 2) return 0;
#endif
    if (d->queued == MOST) run_all(d);
    d->queue[d->queued++] = job;
#endif
    return 0;
}

#ifndef ON_HOST
static int32_t wait_all(void *device, char *error, size_t size)
{
    (void)error; (void)size;
    device_t *d = device;
#ifdef HANGS
    if (d->queued) for (;;) sleep(1);
#endif
#ifdef IDLE_FAILS
    if (!d->queued) { snprintf(error, size, "there is nothing to wait for"); return 1; }
#endif
    run_all(d);
#ifdef WRITES_MESSAGE_LATE
    if (d->late) strcpy(d->late, "done");
    d->late = NULL;
#endif
    return 0;
}

static void *allocate(void *device, size_t nbytes)
{
    (void)device;
#ifdef HUGE_IS_THERE
    if (nbytes >> 40) nbytes = 1;
#endif
#ifdef SAME_BUFFER
    static buffer_t one;
    one.data = realloc(one.data, one.nbytes = one.nbytes < nbytes ? nbytes : one.nbytes);
    return &one;
#else
    char *data = nbytes >> 60 ? NULL : malloc(nbytes + 16);
    if (!data) return NULL;
    buffer_t *made = malloc(sizeof *made);
    made->nbytes = nbytes;
    made->data = data;
    return made;
#endif
}

static void free_buffer(void *device, void *buffer)
{
    (void)device; (void)buffer;
#if !defined SAME_BUFFER && !defined LEAKS_BUFFERS
    free(((buffer_t *)buffer)->data);
    free(buffer);
#endif
}

static int32_t upload(void *device, void *buffer, size_t offset, const void *source, size_t nbytes, char *error, size_t size)
{
    (void)device; (void)error; (void)size; (void)offset;
#ifdef UPLOADS_TO_START
    offset = 0;
#endif
    memcpy(((buffer_t *)buffer)->data + offset, source, nbytes);
#ifdef KEEPS_SOURCE
    device_t *d = device;
    d->source = source;
    d->target = ((buffer_t *)buffer)->data + offset;
    d->nbytes = nbytes;
#endif
#ifdef WRITES_SOURCE
    *(char *)source = 0;
#endif
    return 0;
}

static int32_t download(void *device, const void *buffer, size_t offset, void *target, size_t nbytes, char *error, size_t size)
{
    (void)device; (void)error; (void)size;
#ifdef KEEPS_SOURCE
    device_t *d = device;
    if (d->source) memcpy(d->target, d->source, d->nbytes);
    d->source = NULL;
#endif
#ifdef DOWNLOADS_FROM_START
    offset = 0;
#endif
#ifdef ROUNDS_UP
    nbytes = (nbytes + 15) / 16 * 16;
#endif
    memcpy(target, ((const buffer_t *)buffer)->data + offset, nbytes);
    return 0;
}
#endif

static void destroy(void *state)
{
    state_t *s = state;
    (void)s;
    LIVE(-1);
#if !defined LEAKS_STATES && !defined SHARES_STATE
#ifndef KEEPS_CONSTANT
    free(s->added);
#endif
    free(s);
#endif
}

#ifdef LEAVES_THREAD
static void *idle(void *given) { for (;;) pause(); return given; }
#endif
#ifdef CHANGES_TABLE
static weft_backend *the_table(void);
#endif

static int32_t open_with(int32_t index, size_t count, const weft_attribute *const *options, void **device, char *error, size_t size)
{
    (void)index; (void)count; (void)options; (void)error; (void)size;
#ifdef OPENS_ONCE
    if (opened++) { snprintf(error, size, "the device is in use"); return 1; }
#endif
#ifdef OPENS_BESIDE
    device[1] = NULL;
#endif
#ifdef LEAVES_THREAD
    pthread_t thread;
    pthread_create(&thread, NULL, idle, NULL);
#endif
#ifdef LEAVES_FILE
    if (open("/dev/null", O_RDONLY) < 0) return 1;
#endif
#ifdef CHANGES_TABLE
    the_table()->version = "2";
#endif
    device_t *made = calloc(1, sizeof *made);
    if (!made) { snprintf(error, size, "the host has no memory for a device"); return 1; }
#ifdef THREAD_LOCAL
    of_thread = made;
#endif
    *device = made;
    return 0;
}

#ifdef SIZE_IN_FIELD
static int32_t open_device(int32_t index, void **device, char *error, size_t size)
{
    return open_with(index, 0, NULL, device, error, size);
}
#endif

static void close_device(void *device)
{
    (void)device;
#ifndef LEAKS_DEVICES
    free(device);
#endif
}

static int32_t absent(char *reason, size_t size)
{
#ifdef ABSENT_WRITES
    (void)size;
    memset(reason, 'x', 100);
#else
    (void)reason; (void)size;
#endif
    return 0;
}

static int32_t device_count(void)
{
#ifdef COUNT_RESETS
    left = 1;
#endif
    return 1;
}

static void device_info(int32_t index, weft_device_info *info)
{
    (void)index;
    snprintf(info->name, sizeof info->name, "kept");
#ifdef LONG_NAME
    memset(info->name, 'x', sizeof info->name);
#endif
#ifdef INFO_BEHIND
    info->pci[sizeof info->pci] = 1;
#endif
    info->software = 1;
#ifdef HALF_SOFTWARE
    info->software = 7;
#endif
}

#ifndef SIZE_IN_FIELD
static int32_t option_info(int32_t index, weft_option_info *info)
{
    if (index) return 1;
    snprintf(info->name, sizeof info->name, "fast");
    snprintf(info->doc, sizeof info->doc, "Be fast.");
    info->kind = WEFT_BOOL_OPTION;
#ifdef LONG_DOC
    memset(info->doc, 'x', sizeof info->doc);
#endif
#ifdef DEFAULT_IS_TWO
    info->default_int = 2;
#endif
    return 0;
}
#endif

#ifdef CHANGES_TABLE
static weft_backend table = {
#else
static const weft_backend table = {
#endif
    .struct_size =
#ifdef SIZE_IN_FIELD
    offsetof(weft_backend, option_info) + 4
#else
    sizeof(weft_backend)
#endif
#ifdef SIZE_TOO_LARGE
    + 8
#endif
    , .version =
#ifdef VERSION_NOT_UTF8
    "\xff"
#else
    "1"
#endif
    , .supports = supports, .create = create, .execute = execute, .destroy = destroy, .absent = absent,
    .device_count = device_count, .device_info = device_info, .close = close_device,
#ifdef SIZE_IN_FIELD
    .open = open_device,
#else
    .option_info = option_info, .open_with = open_with,
#endif
#ifndef ON_HOST
    .allocate = allocate, .free = free_buffer, .upload = upload, .download = download, .wait = wait_all,
#endif
};
#ifdef CHANGES_TABLE
static weft_backend *the_table(void) { return &table; }
#endif

const char *GetBackendId(void) { return "kept"; }
void GetVersion(uint32_t *major, uint32_t *minor) { *major = WEFT_API_MAJOR; *minor = WEFT_API_MINOR; }
const weft_backend *BackendFactory(void) { return &table; }
