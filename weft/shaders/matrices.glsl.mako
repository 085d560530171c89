## Cooperative matrices whose elements a kernel sets and reads, as types and statements, so that tests can emulate them.
#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MATRIX_C coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define MULTIPLY_ADD(c, a, b) c = coopMatMulAdd(a, b, c)
#define SHUFFLE_XOR(to, from, mask) to = subgroupShuffleXor(from, mask)
