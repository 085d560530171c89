/*
 * weft_backend.h - how to write a backend for Weft in C.
 *
 * A backend is a shared library. Name it <vendor>_<name>_backend.so, both parts of letters and digits, put it
 * into a folder, and name the folder (an absolute path):
 *
 *     gcc -std=c99 -O2 -shared -fPIC -I "$(python -c 'import weft.plugins; print(weft.plugins.include_dir())')" \
 *         -o /opt/acme/acme_npu_backend.so npu.c
 *     WEFT_DYNAMIC_BACKEND_PATHS=/opt/acme weft devices
 *
 * The library exports the three functions at the end of this file. Weft calls them once, in this order:
 * GetBackendId, GetVersion, BackendFactory. The last returns a table of functions, struct weft_backend.
 *
 * For each node of a network Weft asks `supports`. A node that is refused, with a reason, goes to the next
 * device in the user's order of preference. For each node that is taken, and for each change of shapes, Weft
 * calls `create`; then `execute` once a run; then `destroy`.
 *
 * Rules that hold everywhere
 *
 * - Strings are UTF-8 and end with a NUL. Pointers that Weft passes are valid during the call only, unless the
 *   text beside them says otherwise: copy what you need later.
 * - A message is written into a buffer of `size` bytes, its NUL included; snprintf does it right. It is shown to
 *   the user as it is, so write a sentence: what does not fit, and the number that does.
 * - Functions that return int32_t for success return 0, and anything else for a failure.
 * - Weft calls the functions of one device one at a time, from any thread. Calls for different devices may
 *   come at once, and absent, device_count and device_info, which are about none that is open, while one works.
 *   A function must not call back into Python.
 * - Memory that lives from run to run, in which a network keeps its state, is for backends in Python alone: here such
 *   a value is an ordinary input and output, which Weft copies after each run.
 * - Elements of a tensor lie densely in the order of its shape, the last dimension innermost (images: NCHW).
 * - Structures that Weft passes by pointer may grow at their end in a later minor version. Never copy or
 *   allocate one, and never index from one to the next.
 */
#ifndef WEFT_BACKEND_H
#define WEFT_BACKEND_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the backend interface; GetVersion returns it. Weft takes a backend whose major number is its own and
 * whose minor number is not above its own. Backends in Python and in C share the number, and an addition may be for
 * one of them: 1.2 and 1.4 added nothing to this file. */
#define WEFT_API_MAJOR 1u
#define WEFT_API_MINOR 5u

#if defined(__GNUC__)
#define WEFT_EXPORT __attribute__((visibility("default")))
#else
#define WEFT_EXPORT
#endif

/* ---- what a node is ----------------------------------------------------------------------------------------- */

/* Element types. New ones may come: refuse, in `supports`, every one that you do not know. */
enum weft_dtype {
    WEFT_NONE = 0, /* of an optional input that is missing */
    WEFT_FLOAT32 = 1,
    WEFT_FLOAT16 = 2, /* IEEE half precision, 2 bytes */
    WEFT_FLOAT64 = 3,
    WEFT_INT64 = 4,
    WEFT_INT32 = 5,
    WEFT_INT16 = 6,
    WEFT_INT8 = 7,
    WEFT_UINT64 = 8,
    WEFT_UINT32 = 9,
    WEFT_UINT16 = 10,
    WEFT_UINT8 = 11,
    WEFT_BOOL = 12, /* 1 byte, 0 or 1 */
    WEFT_BFLOAT16 = 13, /* the upper half of a FLOAT32, 2 bytes */
    WEFT_FLOAT8E4M3FN = 14, /* this and the next four: 1 byte */
    WEFT_FLOAT8E4M3FNUZ = 15,
    WEFT_FLOAT8E5M2 = 16,
    WEFT_FLOAT8E5M2FNUZ = 17,
    WEFT_FLOAT8E8M0 = 18,
    WEFT_FLOAT6E2M3 = 19, /* this and the next six: 1 byte each, in its lowest bits; the others mean nothing */
    WEFT_FLOAT6E3M2 = 20,
    WEFT_FLOAT4E2M1 = 21,
    WEFT_INT4 = 22,
    WEFT_UINT4 = 23,
    WEFT_INT2 = 24,
    WEFT_UINT2 = 25,
    WEFT_COMPLEX64 = 26, /* two FLOAT32: real and imaginary part */
    WEFT_COMPLEX128 = 27
};

/* An input or output of a node. An optional input that is missing is there too, with dtype WEFT_NONE. */
typedef struct weft_tensor {
    const char *name;
    int32_t dtype; /* enum weft_dtype */
    int32_t rank;
    const int64_t *shape; /* `rank` sizes; never NULL; a size may be 0 */
    size_t nbytes;
    /* Where the elements are: at `offset` bytes in `data`. Only in `execute`; elsewhere, and for a missing input,
     * NULL. In a backend without own buffers `data` is an address on the host, aligned for its elements, and
     * `offset` is 0. Otherwise `data` is what `allocate` returned, and tensors may share it. */
    void *data;
    size_t offset;
    /* The elements of a constant, on the host; only in `supports` and `create`, and NULL where the value is not
     * known. In `execute` a constant lies in `data` as every input does. */
    const void *constant;
} weft_tensor;

enum weft_kind { WEFT_INT = 1, WEFT_FLOAT = 2, WEFT_STRING = 3, WEFT_INTS = 4, WEFT_FLOATS = 5, WEFT_STRINGS = 6 };

/* An attribute, named as ONNX names it. Attributes that a model leaves out are listed with their default; those
 * without a default are not listed. A list may be empty; an empty list is of kind WEFT_INTS. An element type
 * (Cast's `to`) is a string: "float32". */
typedef struct weft_attribute {
    const char *name;
    int32_t kind; /* enum weft_kind */
    size_t count; /* 1 for WEFT_INT, WEFT_FLOAT and WEFT_STRING */
    const int64_t *ints;        /* of WEFT_INT and WEFT_INTS, else NULL */
    const double *floats;       /* of WEFT_FLOAT and WEFT_FLOATS, else NULL */
    const char *const *strings; /* of WEFT_STRING and WEFT_STRINGS, else NULL */
} weft_attribute;

/* A node. Inputs and outputs are in the order of the ONNX operator; outputs that nobody uses may be missing at
 * the end. Shapes are numbers already, and attributes fit the newest version of the operator that Weft knows. */
typedef struct weft_node {
    const char *name;    /* that of its first output */
    const char *op_type; /* "Conv", "Relu" ... */
    size_t input_count;
    const weft_tensor *const *inputs;
    size_t output_count;
    const weft_tensor *const *outputs;
    size_t attribute_count;
    const weft_attribute *const *attributes;
} weft_node;

/* ---- what a backend is -------------------------------------------------------------------------------------- */

/* A device, as `weft devices` shows it. Weft fills in defaults; write what you know better. */
typedef struct weft_device_info {
    char name[128];
    char driver[128];
    int32_t software; /* 1 if the work is done by the host's CPU */
    char uuid[64];    /* as the vendor's tools print it, "GPU-4b2c...", or empty (1.3) */
    char pci[32];     /* its PCI address, "0000:65:00.0", or empty (1.3) */
} weft_device_info;

/* The kind of an option that is on or off; its values are 0 and 1, of kind WEFT_INT. (1.1) */
enum { WEFT_BOOL_OPTION = 7 };

/* An option that users may set for a backend, as `weft devices --options` shows it. (1.1) */
typedef struct weft_option_info {
    char name[64];  /* small letters, digits and _; a letter first */
    char doc[256];  /* one sentence */
    int32_t kind;   /* WEFT_INT, WEFT_FLOAT, WEFT_STRING or WEFT_BOOL_OPTION */
    int64_t default_int; /* of WEFT_INT, and of WEFT_BOOL_OPTION: 0 or 1 */
    double default_float;
    char default_string[128];
} weft_option_info;

/*
 * The functions of a backend. The table must stay as it is while the library is loaded: make it `static const`.
 * Name the fields that you set (.supports = ...), so that all others are NULL.
 *
 * `device` is what `open` or `open_with` gave for the device, and NULL where there is neither.
 */
typedef struct weft_backend {
    size_t struct_size;  /* sizeof(weft_backend): tells Weft which fields this library knows */
    const char *version; /* the backend's own version, or NULL; networks saved with another one are refused */

    /* -- required -- */

    /* Return 1 if the node can run here. Otherwise return 0 and write the reason; it must not be empty. */
    int32_t (*supports)(void *device, const weft_node *node, char *reason, size_t size);

    /* Prepare a node for these shapes: choose kernels, make tables, copy constants. Put what `execute` needs into
     * *state, which is NULL before. Nothing should be left to allocate or compile in `execute`. */
    int32_t (*create)(void *device, const weft_node *node, void **state, char *error, size_t size);

    /* Run a node: read the inputs, write the outputs. They have the shapes and types that `create` saw, and do
     * not overlap. Return when the outputs are written, or, in a backend with `wait`, when the work is queued. */
    int32_t (*execute)(void *state, const weft_tensor *const *inputs, const weft_tensor *const *outputs, char *error,
                       size_t size);

    /* Free a state. Called once for every `create` that returned 0, before the device is closed. */
    void (*destroy)(void *state);

    /* -- optional: devices -- */

    /* Return 0 if there is a device; otherwise 1, and write why there is none and how to get one. */
    int32_t (*absent)(char *reason, size_t size);

    /* Return the number of devices, 64 at most; without it there is one. Not called if `absent` says that there is
     * none. */
    int32_t (*device_count)(void);

    /* Describe the device `index`, from 0. */
    void (*device_info)(int32_t index, weft_device_info *info);

    /* Open a device; networks that are loaded at the same time share it. */
    int32_t (*open)(int32_t index, void **device, char *error, size_t size);

    /* Close a device; nothing uses it any more. At the latest when the process ends (exit, not a signal), after all
     * states are destroyed and all buffers are freed. */
    void (*close)(void *device);

    /* -- optional: own buffers; all four or none -- */

    /* Return a buffer of `nbytes` (at least 1), or NULL if there is no memory. It need not be an address. */
    void *(*allocate)(void *device, size_t nbytes);

    void (*free)(void *device, void *buffer);

    /* Copy from the host into a buffer, from the buffer's byte `offset` on. */
    int32_t (*upload)(void *device, void *buffer, size_t offset, const void *source, size_t nbytes, char *error,
                      size_t size);

    /* Copy from a buffer to the host. */
    int32_t (*download)(void *device, const void *buffer, size_t offset, void *target, size_t nbytes, char *error,
                        size_t size);

    /* -- optional: a queue -- */

    /* Wait for all that `execute` has queued. Called before buffers are uploaded to, downloaded from or freed,
     * before states are destroyed, and at the end of a run. A failure of queued work is reported here. */
    int32_t (*wait)(void *device, char *error, size_t size);

    /* -- optional: options that users set; both or `open_with` alone (1.1) -- */

    /* Describe the option `index`, from 0, and return 0; return 1 if there are no more, of 64 at most. Called when
     * the library is loaded. */
    int32_t (*option_info)(int32_t index, weft_option_info *info);

    /* Open a device in the place of `open`, with a value for each option: the user's, or the default. A device that
     * networks with different options use is opened once for each. `options` are `count` pointers. */
    int32_t (*open_with)(int32_t index, size_t count, const weft_attribute *const *options, void **device, char *error,
                         size_t size);
} weft_backend;

/* ---- what the library exports ------------------------------------------------------------------------------- */

/* Return the id that users name the backend by: letters, digits and _, a letter first. It must be unique. */
WEFT_EXPORT const char *GetBackendId(void);

/* Write WEFT_API_MAJOR and WEFT_API_MINOR. */
WEFT_EXPORT void GetVersion(uint32_t *major, uint32_t *minor);

/* Return the backend's table. */
WEFT_EXPORT const weft_backend *BackendFactory(void);

/* ---- helpers ------------------------------------------------------------------------------------------------ */

/* Return the attribute of that name, or NULL. */
static inline const weft_attribute *weft_find(const weft_node *node, const char *name)
{
    for (size_t k = 0; k < node->attribute_count; ++k)
        if (strcmp(node->attributes[k]->name, name) == 0) return node->attributes[k];
    return NULL;
}

/* Return an integer attribute, or `otherwise` if there is none. */
static inline int64_t weft_int(const weft_node *node, const char *name, int64_t otherwise)
{
    const weft_attribute *found = weft_find(node, name);
    return found && found->kind == WEFT_INT ? found->ints[0] : otherwise;
}

/* Return a real attribute, or `otherwise` if there is none. */
static inline double weft_float(const weft_node *node, const char *name, double otherwise)
{
    const weft_attribute *found = weft_find(node, name);
    return found && found->kind == WEFT_FLOAT ? found->floats[0] : otherwise;
}

/* Return the number of elements of a tensor. */
static inline int64_t weft_elements(const weft_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t k = 0; k < tensor->rank; ++k) count *= tensor->shape[k];
    return count;
}

#ifdef __cplusplus
}
#endif

#endif
