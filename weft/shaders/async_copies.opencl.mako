## NVIDIA's asynchronous copies to work-group memory, as statements. A dialect may define them before, as in
## `ptx.opencl.mako`, which has the same SHARED_AT.
#ifndef COPY_16
#define SHARED_AT(pointer) ((uint)(ulong)(pointer))
// 16 bytes from global memory, of which only the first `bytes` are read; the rest becomes 0.
#define COPY_16(to, from, bytes) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" \
  :: "r"(SHARED_AT(to)), "l"((ulong)(from)), "r"(bytes) : "memory")
// Of bytes that other groups of the unit read, too.
#define COPY_16_CACHED(to, from) asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" \
  :: "r"(SHARED_AT(to)), "l"((ulong)(from)) : "memory")
#define END_OF_COPIES asm volatile("cp.async.commit_group;" ::: "memory")
// Waits for all of an item's own copies.
#define COPIES_ARRIVED asm volatile("cp.async.wait_group 0;" ::: "memory")
#endif
