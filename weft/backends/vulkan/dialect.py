"""Kernels in Vulkan GLSL 4.50."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from weft.backends.vulkan import pushed_numbers
from weft.backends.vulkan.pushed_constants import FIRST_ID
from weft.core.graph.dtypes import DType
from weft.kernels.dialect import (
    Dialect,
    KernelParts,
    View,
    cut_to_bits,
    extended,
    is_word_pair,
    with_suffix,
)
from weft.kernels.formats import from_bits, is_coded, to_bits
from weft.kernels.source import Arg, ConstantKind, KernelCode, KernelSource, defined

_RAW = {1: "uint8_t", 2: "uint16_t", 4: "uint", 8: "uvec2", 16: "uvec4"}
_TYPES = {
    DType.FLOAT32: "float",
    DType.FLOAT16: "float16_t",
    DType.INT32: "int",
    DType.INT64: "ivec2",
    DType.UINT8: "uint8_t",
    DType.INT8: "int8_t",
    DType.BOOL: "uint8_t",
    DType.INT16: "int16_t",
    DType.UINT16: "uint16_t",
    DType.UINT32: "uint",
    DType.UINT64: "uvec2",
    DType.FLOAT64: "uvec2",
    DType.BFLOAT16: "uint16_t",
}
_VECTORS = {DType.FLOAT32: "vec4", DType.FLOAT16: "f16vec4"}
"""Four elements at once; of other types, elements are accessed one by one."""
_TWOS = {DType.FLOAT32: "vec2", DType.FLOAT16: "f16vec2"}
_MATRICES = "GL_KHR_cooperative_matrix"
_EXTENSIONS = {
    1: "#extension GL_EXT_shader_8bit_storage : require\n",
    2: "#extension GL_EXT_shader_16bit_storage : require\n",
}


def _declared(constants: Sequence[tuple[str, ConstantKind]], before: int = 0) -> str:
    """Return the lines that declare the ints among constants that come behind so many others."""
    ids = ((i, name) for i, (name, kind) in enumerate(constants, before + FIRST_ID) if kind == "int")
    return "\n".join(f"layout(constant_id = {i}) const int {name} = 1;" for i, name in ids)


@dataclass(frozen=True)
class GlslDialect(Dialect):
    """GLSL: ints are specialization constants, so one SPIR-V serves every shape, and floats are pushed."""

    name: ClassVar[str] = "glsl"
    prelude: ClassVar[str] = "prelude.glsl.mako"
    plus_product: ClassVar[str] = (
        "f32 plus_product(f32 sum, f32 a, f32 b) {\n"
        "  const f32 product = a * b;\n"
        "  return sum + product;\n"
        "}\n"
    )
    dot4: ClassVar[str] = (
        "int DOT4(uint a, uint b, int sum) { return sum + dotPacked4x8EXT(TO_I32(a), TO_I32(b)); }\n"
    )
    dot4_extensions: ClassVar[tuple[str, ...]] = ("GL_EXT_integer_dot_product",)
    reinterprets: ClassVar[tuple[str, str, str]] = ("floatBitsToUint(v)", "uintBitsToFloat(v)", "uint(v)")
    launch: ClassVar[Mapping[str, str]] = {
        **{f"LOCAL_{letter.upper()}": f"int(gl_LocalInvocationID.{letter})" for letter in "xyz"},
        **{f"GROUP_{letter.upper()}": f"int(gl_WorkGroupID.{letter})" for letter in "xyz"},
        "GROUPS_X": "int(gl_NumWorkGroups.x)",
        "BARRIER": "barrier()",
    }
    exchange_extensions: ClassVar[tuple[str, ...]] = ("GL_KHR_shader_subgroup_shuffle",)
    kept_loop: ClassVar[tuple[str, tuple[str, ...]]] = ("[[dont_unroll]] ", ("GL_EXT_control_flow_attributes",))

    def assemble(self, parts: KernelParts) -> KernelCode:
        """Return version, extensions, constants, buffers, prelude, work-group arrays, functions and main."""
        sizes = sorted({a.dtype.itemsize for a in parts.args} & _EXTENSIONS.keys())
        lines = ["#version 450\n" + "".join(_EXTENSIONS[s] for s in sizes)]
        lines += [f"#extension {name} : require" for name in parts.extensions]
        if _MATRICES in parts.extensions:
            lines.append("#pragma use_vulkan_memory_model")
        lines.append("layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;")
        lines.append(_declared(parts.constants))
        lines.append(pushed_numbers.declarations(parts.constants, FIRST_ID))
        for i, a in enumerate(parts.args):
            access = (
                "restrict " if a.written else "restrict readonly "
            )  # bound pieces of one buffer do not overlap
            views = [(v.type, v.name) for v in parts.views if v.arg == a.name]
            for element, name in ((self._element(a), a.name), *views):
                block = f"{access}buffer B_{name} {{ {element} {name}[]; }};"
                lines.append(f"layout(std430, set = 0, binding = {i}) {block}")
        # A literal without a suffix is a float here.
        suffixed = (lambda text: with_suffix(text, "lf")) if parts.computes_double else str
        own = [f"shared {s.type} {s.name}[{s.size}];" for s in parts.shared]
        own += map(suffixed, parts.functions)
        return KernelCode(
            suffixed(parts.body),
            "\n".join([*lines, ""]),
            defined(self.launch.items()),
            suffixed(parts.prelude),
            self.formats(parts),
            "\n".join(["", *own, f"void main() {{  // {parts.entry}\n"]),
            "\n}\n",
            tuple(parts.shared),
            tuple(parts.macros),
            tuple(parts.traits),
            late=True,
        )

    def from_group(self, source: KernelSource, axis: int) -> KernelSource | None:
        """Return a kernel whose work-groups begin at FIRST_GROUP along an axis, with its further constants declared."""
        made = super().from_group(source, axis)
        if made is None:
            return None
        before = len(source.constants)
        start = f"{made.code.start}{_declared(made.constants[before:], before)}\n"
        return replace(made, code=replace(made.code, start=start))

    def _element(self, arg: Arg) -> str:
        if arg.raw_bytes:
            return _RAW[arg.raw_bytes]
        if arg.kind == "wide":
            return "uvec4"
        if arg.in_fours and arg.dtype in _VECTORS:
            return _VECTORS[arg.dtype]
        return self._scalar(arg)

    def _scalar(self, arg: Arg) -> str:
        """Return the type of a linear element in memory."""
        if arg.double:
            return "double"
        return _TYPES.get(arg.dtype, "uint8_t")

    def load(self, arg: Arg, index: str) -> str:
        """Return an element as f32, double or i32; of an int64 the lower half."""
        if is_coded(arg.dtype):
            return from_bits(arg.dtype, f"uint({arg.name}[{index}])")
        if arg.double:
            return f"{arg.name}[{index}]"
        if arg.dtype is DType.FLOAT64:
            return f"from_float64({arg.name}[{index}].x, {arg.name}[{index}].y)"
        if arg.dtype.is_float:
            return f"float({arg.name}[{index}])"
        return extended(arg.dtype, f"int({arg.name}[{index}]{'.x' if is_word_pair(arg.dtype) else ''})")

    def store(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores an element."""
        kind = self._scalar(arg)
        if is_word_pair(arg.dtype):
            return f"{arg.name}[{index}] = {kind}({value}, ({value}) < 0 ? -1 : 0);"
        if arg.dtype is DType.FLOAT64 and not arg.double:
            return f"{arg.name}[{index}] = uvec2(low_of_float64({value}), high_of_float64({value}));"
        if is_coded(arg.dtype):
            return f"{arg.name}[{index}] = {kind}({to_bits(arg.dtype, value)});"
        if not arg.dtype.is_float and arg.dtype.itemsize < 4:
            # Weft requires only storage of bytes and halves; converting floats would need arithmetic on them.
            return f"{arg.name}[{index}] = {kind}({cut_to_bits(arg.dtype, f'int({value})')});"
        return f"{arg.name}[{index}] = {kind}({value});"

    def load_high(self, arg: Arg, index: str) -> str:
        """Return the upper half of an integer, widened to 64 bits."""
        if arg.raw_bytes:
            return super().load_high(arg, index)
        if arg.dtype is DType.UINT64:
            return f"int({arg.name}[{index}].y)"
        return f"{arg.name}[{index}].y" if arg.dtype is DType.INT64 else super().load_high(arg, index)

    def store_pair(self, arg: Arg, index: str, low: str, high: str) -> str:
        """Return the statement that stores an integer given as two halves."""
        if is_word_pair(arg.dtype):
            return f"{arg.name}[{index}] = {_TYPES[arg.dtype]}({low}, {high});"
        return super().store_pair(arg, index, low, high)

    def load4(self, arg: Arg, index: str) -> str:
        """Return four elements as vec4."""
        return f"vec4({arg.name}[{index}])" if arg.dtype in _VECTORS else super().load_quad(arg, index)

    def store4(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores a vec4."""
        if arg.dtype not in _VECTORS:
            return f"{{ const f32x4 _w = {value}; {super().store_quad(arg, index, '_w')} }}"
        return f"{arg.name}[{index}] = {self._element(arg)}({value});"

    def store2(self, arg: Arg, index: str, first: str, second: str) -> str:
        """Return the statement that stores a vec2."""
        return f"{arg.name}_twos[{index}] = {_TWOS[arg.dtype]}(vec2({first}, {second}));"

    def twos_view(self, arg: Arg) -> View | None:
        """Return the argument as an array of vectors of two."""
        return View(arg.name, _TWOS[arg.dtype], f"{arg.name}_twos")

    def quad_view(self, arg: Arg) -> View | None:
        """Return the argument as an array of vectors of four, if there are such of its type."""
        return View(arg.name, _VECTORS[arg.dtype], f"{arg.name}_quads") if arg.dtype in _VECTORS else None

    def load_quad(self, arg: Arg, index: str) -> str:
        """Return four elements of a linear argument at once."""
        return f"vec4({arg.name}_quads[{index}])" if arg.dtype in _VECTORS else super().load_quad(arg, index)

    def store_quad(self, arg: Arg, index: str, value: str) -> str:
        """Return the statement that stores four elements of a linear argument at once."""
        if arg.dtype not in _VECTORS:
            return super().store_quad(arg, index, value)
        return f"{arg.name}_quads[{index}] = {_VECTORS[arg.dtype]}({value});"

    def load_lane(self, arg: Arg, index: str, lane: str) -> str:
        """Return one lane of a vec4 in memory."""
        if arg.dtype not in _VECTORS:
            return self.load(arg, f"({index}) * 4 + {lane}")
        return f"vec4({arg.name}[{index}])[{lane}]"
