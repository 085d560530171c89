## Loads of cooperative matrices as the products of `matmul_matrix.glsl.mako` stage them: A in an array of uvec4, B of uvec2.
## They take where a matrix begins, and the vectors from row to row. TURNED: the rows in memory are its columns. A dialect
## may define them before, as those of `matrices.glsl.mako`.
#ifndef LOAD_A_WIDE
#define LOAD_A_WIDE(matrix, from, at, stride) coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define LOAD_A_TURNED(matrix, from, at, stride) coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutColumnMajor)
#define LOAD_B_NARROW(matrix, from, at, stride) coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define LOAD_B_TURNED(matrix, from, at, stride) coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutColumnMajor)
#endif
