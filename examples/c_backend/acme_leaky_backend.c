/*
 * A backend in C: Relu and LeakyRelu on float32, in the host's memory. weft_backend.h explains each function.
 *
 *     gcc -std=c99 -O2 -shared -fPIC -I "$(python -c 'import weft.plugins; print(weft.plugins.include_dir())')" \
 *         -o acme_leaky_backend.so acme_leaky_backend.c
 *     weft run model.onnx --backend-path . --device leaky+cpu
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "weft_backend.h"

typedef struct {
    float slope; /* of the negative half */
    size_t count;
    int is_relu;
} leaky_state;

static int32_t supports(void *device, const weft_node *node, char *reason, size_t size)
{
    (void)device;
    if (strcmp(node->op_type, "Relu") != 0 && strcmp(node->op_type, "LeakyRelu") != 0) {
        snprintf(reason, size, "Acme computes Relu and LeakyRelu, not %s", node->op_type);
        return 0;
    }
    if (node->inputs[0]->dtype != WEFT_FLOAT32) {
        snprintf(reason, size, "Acme computes in float32 alone, and '%s' is of another type", node->inputs[0]->name);
        return 0;
    }
    return 1;
}

static int32_t create(void *device, const weft_node *node, void **state, char *error, size_t size)
{
    (void)device;
    leaky_state *made = malloc(sizeof *made);
    if (!made) {
        snprintf(error, size, "the host has no memory for the state of '%s'", node->name);
        return 1;
    }
    made->is_relu = strcmp(node->op_type, "Relu") == 0;
    made->slope = (float)weft_float(node, "alpha", 0.0); /* Relu has no alpha */
    made->count = (size_t)weft_elements(node->inputs[0]);
    *state = made;
    return 0;
}

static int32_t execute(void *state, const weft_tensor *const *inputs, const weft_tensor *const *outputs, char *error,
                       size_t size)
{
    const leaky_state *node = state;
    const float *x = inputs[0]->data;
    float *y = outputs[0]->data;
    if (isnan(node->slope)) {
        snprintf(error, size, "the slope of '%s' is not a number: set alpha to a finite value", outputs[0]->name);
        return 1;
    }
    if (node->is_relu) { /* 0 for -infinity, of which a slope of 0 makes what is not a number */
        for (size_t k = 0; k < node->count; ++k) y[k] = x[k] < 0.0f ? 0.0f : x[k];
    } else {
        for (size_t k = 0; k < node->count; ++k) y[k] = x[k] < 0.0f ? x[k] * node->slope : x[k];
    }
    return 0;
}

static void destroy(void *state)
{
    free(state);
}

static void device_info(int32_t index, weft_device_info *info)
{
    (void)index;
    snprintf(info->name, sizeof info->name, "Acme leaky unit");
    info->software = 1;
}

static const weft_backend table = {
    .struct_size = sizeof(weft_backend),
    .version = "1.0",
    .supports = supports,
    .create = create,
    .execute = execute,
    .destroy = destroy,
    .device_info = device_info,
};

const char *GetBackendId(void)
{
    return "leaky";
}

void GetVersion(uint32_t *major, uint32_t *minor)
{
    *major = WEFT_API_MAJOR;
    *minor = WEFT_API_MINOR;
}

const weft_backend *BackendFactory(void)
{
    return &table;
}
