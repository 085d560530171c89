## Cooperative matrices whose elements a kernel sets and reads, as types and statements. A dialect may define them
## before: tests emulate them on devices without matrix units.
#ifndef MULTIPLY_ADD
#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MATRIX_SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define MATRIX_OF_ZEROS(name) MATRIX_SUMS name = MATRIX_SUMS(0.0)
#define MULTIPLY_ADD(sums, a, b) sums = coopMatMulAdd(a, b, sums)
// Sixteen rows of sixteen halves from an array of vectors: where they begin, and the vectors from row to row.
#define LOAD_A(matrix, from, at, stride) coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define LOAD_B(matrix, from, at, stride) coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define SCALE_SUMS(sums, by) sums = sums * (by)
#define ADD_SUMS(to, sums) to = to + sums
#define WARP_BARRIER subgroupBarrier()
#define SHUFFLE_XOR(to, from, mask) to = subgroupShuffleXor(from, mask)
#endif
