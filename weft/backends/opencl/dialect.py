"""Kernels in OpenCL C 1.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from weft.backends.opencl.chain_text import chain_text
from weft.core.graph.dtypes import DType
from weft.kernels.chain import Level
from weft.kernels.dialect import Dialect, KernelParts, cut_to_bits, extended, with_suffix
from weft.kernels.formats import from_bits, is_coded, to_bits
from weft.kernels.source import Arg, KernelCode, defined

_RAW = {1: "uchar", 2: "ushort", 4: "uint", 8: "uint2", 16: "uint4"}
_TYPES = {
    DType.FLOAT32: "float",
    DType.FLOAT16: "half",
    DType.INT32: "int",
    DType.INT64: "long",
    DType.UINT8: "uchar",
    DType.INT8: "char",
    DType.BOOL: "uchar",
    DType.INT16: "short",
    DType.UINT16: "ushort",
    DType.UINT32: "uint",
    DType.UINT64: "ulong",
    DType.FLOAT64: "uint2",  # as two words, so that devices without doubles convert it
    DType.BFLOAT16: "ushort",
}


def _aligned(align: int) -> str:
    return f" __attribute__((aligned({align})))" if align else ""


@lru_cache(maxsize=64)
def _floats(text: str) -> str:
    """Return a text of the prelude or of functions beside kernels, which compute in f32 where they have literals."""
    return with_suffix(text, "f")


@dataclass(frozen=True)
class OpenCLDialect(Dialect):
    """OpenCL C. Constants are macros; fp16 is storage only (vload_half), so cl_khr_fp16 is not needed."""

    name: ClassVar[str] = "opencl"
    prelude: ClassVar[str] = "prelude.opencl.mako"
    exact_block: ClassVar[str] = "\n#pragma OPENCL FP_CONTRACT OFF\n"
    plus_product: ClassVar[str] = (
        f"f32 plus_product(f32 sum, f32 a, f32 b) {{{exact_block}"
        "  const f32 product = a * b;\n"
        "  return sum + product;\n"
        "}\n"
    )
    launch: ClassVar[Mapping[str, str]] = {
        **{f"LOCAL_{letter}": f"((int)get_local_id({axis}))" for axis, letter in enumerate("XYZ")},
        **{f"GROUP_{letter}": f"((int)get_group_id({axis}))" for axis, letter in enumerate("XYZ")},
        "GROUPS_X": "((int)get_num_groups(0))",
        "BARRIER": "barrier(CLK_LOCAL_MEM_FENCE)",
    }
    dot4: ClassVar[str] = """\
#ifdef __NV_CL_C_VERSION
int DOT4(uint a, uint b, int sum) {
  int made;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(sum));
  return made;
}
#else
int DOT4(uint a, uint b, int sum) {
  const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return sum + products.x + products.y + products.z + products.w;
}
#endif
"""
    """In OpenCL C 1.2 only NVIDIA's compiler has the instruction by name; others find it."""
    reinterprets: ClassVar[tuple[str, str, str]] = ("as_uint(v)", "as_float(v)", "((uint)(v))")

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return prelude, signature, work-group arrays and body.

        Arguments are `restrict`: no element is written through one and accessed through another, since bound pieces
        of one buffer do not overlap. Constants are macros that `compile` defines, or arguments that it puts at
        LATE_CONSTANTS.
        """
        params = ", ".join(f"{self._pointer(a)} restrict {a.name}" for a in parts.args)
        locals_ = "\n".join(f"  __local {s.type} {s.name}[{s.size}]{_aligned(s.align)};" for s in parts.shared)
        size = "__attribute__((reqd_work_group_size(LX, LY, LZ)))"
        return KernelCode(
            parts.body if parts.computes_double else with_suffix(parts.body, "f"),
            "#ifndef LATE_CONSTANTS\n#define LATE_CONSTANTS\n#endif\n",
            defined(self.launch.items()),
            _floats(parts.prelude),
            tuple(map(_floats, self.formats(parts))),
            f"\n{size}\n__kernel void {parts.entry}({params} LATE_CONSTANTS) {{\n{locals_}\n",
            "\n}\n",
            tuple(parts.shared),
            tuple(parts.macros),
            tuple(parts.traits),
            late=True,
        )

    def chain(self, levels: Sequence[Level], args: Sequence[Arg], items: int) -> str:
        """Return the text of one kernel that does what several do, one after the other."""
        return chain_text(levels, args, items, self._pointer)

    def _pointer(self, arg: Arg) -> str:
        """Return the type by which a kernel reaches an argument."""
        return f"__global {'' if arg.written else 'const '}{self._element(arg)}*"

    def _element(self, arg: Arg) -> str:
        if arg.raw_bytes:
            return _RAW[arg.raw_bytes]
        if arg.in_fours and arg.dtype is DType.FLOAT32:
            return "float4"
        if arg.double:
            return "double"
        return _TYPES.get(arg.dtype, "uchar")

    def load(self, arg: Arg, index: str) -> str:
        """Return an element as f32, double or i32; of an int64 the lower half."""
        if arg.dtype is DType.FLOAT16:
            return f"vload_half({index}, {arg.name})"
        if arg.kind == "raw" and arg.dtype.itemsize == 8:
            return f"(int){arg.name}[{index}].x"
        if is_coded(arg.dtype):
            return from_bits(arg.dtype, f"(uint){arg.name}[{index}]")
        if arg.dtype is DType.FLOAT64 and not arg.double:
            return f"from_float64({arg.name}[{index}].x, {arg.name}[{index}].y)"
        if arg.dtype.is_float:
            return f"{arg.name}[{index}]"
        return extended(arg.dtype, f"(int){arg.name}[{index}]")

    def store(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an element."""
        if arg.dtype is DType.FLOAT16:
            return f"vstore_half_rte({value}, {index}, {arg.name});"
        if arg.dtype is DType.FLOAT64 and not arg.double:
            return f"{arg.name}[{index}] = (uint2)(low_of_float64({value}), high_of_float64({value}));"
        stored = to_bits(arg.dtype, value) if is_coded(arg.dtype) else cut_to_bits(arg.dtype, value, "(int)")
        return f"{arg.name}[{index}] = {stored};"

    def load4(self, arg: Arg, index: str) -> str:
        """Return four elements as float4."""
        if arg.dtype is DType.FLOAT16:
            return f"load_half4({index}, {arg.name})"
        if arg.dtype is not DType.FLOAT32:
            return super().load_quad(arg, index)
        return f"{arg.name}[{index}]"

    def store4(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores a float4."""
        if arg.dtype is DType.FLOAT16:
            return f"store_half4({value}, {index}, {arg.name});"
        if arg.dtype is not DType.FLOAT32:
            return f"{{ const f32x4 _w = {value}; {super().store_quad(arg, index, '_w')} }}"
        return f"{arg.name}[{index}] = {value};"

    def shared_number(self, array: str, index: str) -> str:
        """Return a number of an array of float4: vectors have no elements by index."""
        return f"((__local f32*){array})[{index}]"

    def store8(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores eight halves at once, or two float4."""
        if arg.dtype is DType.FLOAT16:
            return f"store_half8({first}, {second}, {index}, {arg.name});"
        return super().store8(arg, index, first, second)

    def store_words(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores two words at once."""
        return f"((__global uint2*){arg.name})[({index}) / 2] = (uint2)({first}, {second});"

    def store2(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores two halves or floats at once."""
        if arg.dtype is DType.FLOAT16:
            return f"vstore_half2_rte((float2)({first}, {second}), {index}, (__global half*){arg.name});"
        return f"vstore2((float2)({first}, {second}), {index}, (__global float*){arg.name});"

    def load_quad(self, arg: Arg, index: str) -> str:
        """Return four elements of a linear argument at once; every buffer starts at a multiple of 16 bytes."""
        if arg.dtype is DType.FLOAT16:
            return f"load_half4({index}, {arg.name})"
        if arg.dtype is not DType.FLOAT32:
            return super().load_quad(arg, index)
        return f"((__global const float4*){arg.name})[{index}]"

    def store_quad(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores four elements of a linear argument at once."""
        if arg.dtype is DType.FLOAT16:
            return f"store_half4({value}, {index}, {arg.name});"
        if arg.dtype is not DType.FLOAT32:
            return super().store_quad(arg, index, value)
        return f"((__global float4*){arg.name})[{index}] = {value};"

    def load_lane(self, arg: Arg, index: str, lane: str) -> str:
        """Return one lane of a float4 in memory."""
        if arg.dtype is DType.FLOAT16:
            return f"vload_half(({index}) * 4 + {lane}, {arg.name})"
        if arg.dtype is not DType.FLOAT32:
            return self.load(arg, f"({index}) * 4 + {lane}")
        return f"((__global const float*){arg.name})[({index}) * 4 + {lane}]"
