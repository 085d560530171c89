## NVIDIA's asynchronous copies to work-group memory, as statements. A dialect may define them before, as in
## `ptx.opencl.mako`, of which this needs SHARED_AT.
#ifndef COPY_16
// 16 bytes from global memory, of which only the first `bytes` are read; the rest becomes 0.
#define COPY_16(to, from, bytes) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" \
  :: "r"(SHARED_AT(to)), "l"((ulong)(from)), "r"(bytes) : "memory")
#define END_OF_COPIES asm volatile("cp.async.commit_group;" ::: "memory")
// Waits for all of an item's own copies.
#define COPIES_ARRIVED asm volatile("cp.async.wait_group 0;" ::: "memory")
#endif
