"""Which instructions of a kernel's SPIR-V a driver must compute as the text says."""

from __future__ import annotations

import pytest

from tests.helpers.vulkan_kernels import SCALE, values
from weft.backends.vulkan import glslang
from weft.backends.vulkan.device import VulkanDevice
from weft.backends.vulkan.exact_arithmetic import with_exact_arithmetic, with_special_values
from weft.backends.vulkan.spirv_module import PRESERVE, Decoration, Module, Op, read

LESS = 184
HEAD = """#version 450
layout(std430, set = 0, binding = 0) buffer X { float x[]; };
layout(std430, set = 0, binding = 1) buffer V { vec4 v[]; };
"""


def compiled(body: str, before: str = "") -> Module:
    """Return the module of a kernel with this body."""
    compiler = glslang.find_compiler()
    assert compiler is not None
    module = read(compiler.compile(f"{HEAD}{before}void main() {{ {body} }}\n", "test"))
    assert module is not None
    return module


def exact(module: Module) -> dict[int, list[bool]]:
    """Return for each opcode, in order, whether its results are to be computed exactly."""
    given = (words for op, words in module.outside if op == Op.DECORATE)
    decorated = {words[0] for words in given if words[1] == Decoration.NO_CONTRACTION}
    found: dict[int, list[bool]] = {}
    for function in module.functions:
        for op, words in function:
            if len(words) > 1:
                found.setdefault(op, []).append(words[1] in decorated)
    return found


def test_steps_are_exact() -> None:
    made = exact(compiled("float _v = x[0]; _v = ((_v) * (x[1])); _v = ((_v) + (x[2])); x[3] = log(exp(_v));"))
    assert made[Op.MULTIPLY] == made[Op.ADD] == [True]
    assert made[Op.EXT_INST] == [True, True]


def test_functions_beside_the_kernel_are_exact() -> None:
    made = exact(compiled("x[0] = f(x[1]);", "float f(float a) { return a < 0.0 ? a * 2.0 + 1.0 : a; }\n"))
    assert made[Op.MULTIPLY] == made[Op.ADD] == made[LESS] == [True]


@pytest.mark.parametrize(
    "statement",
    [
        "sum += x[k] * x[k + 1];",
        "sum = sum + x[k] * x[k + 1];",
        "sum += x[k] * x[k + 1] + x[k + 2] * x[k + 3];",
        "sums[k % 2] += x[k] * x[k + 1];",
        "if (k > 2) sum += x[k] * x[k + 1];",
    ],
)
def test_a_sum_of_products_is_not(statement: str) -> None:
    body = f"float sum = 0.0; float sums[2]; for (int k = 0; k < 8; k++) {{ {statement} }} x[0] = sum + sums[0];"
    made = exact(compiled(body))
    assert set(made[Op.MULTIPLY]) == {False}
    assert made[Op.ADD] == [False] * (len(made[Op.ADD]) - 1) + [True], "the last addition adds no product"


def test_nor_a_sum_of_scaled_vectors() -> None:
    made = exact(compiled("vec4 sum = vec4(0.0); for (int k = 0; k < 8; k++) sum += x[k] * v[k]; v[9] = sum * 2.0;"))
    assert made[Op.ADD] == [False] and made[Op.VECTOR_TIMES_SCALAR] == [False, True]


def test_a_product_that_is_added_to_another_variable_is_exact() -> None:
    made = exact(compiled("float a = x[0], b = x[1]; b = a + x[2] * x[3]; x[4] = b;"))
    assert made[Op.MULTIPLY] == made[Op.ADD] == [True]


def test_what_is_already_exact_is_decorated_once() -> None:
    module = compiled("precise float a = x[0] * x[1] + x[2]; x[3] = a;")
    given = [words[0] for op, words in module.outside if op == Op.DECORATE and words[1] == Decoration.NO_CONTRACTION]
    assert len(given) == len(set(given)) == 2


def modes(spirv: bytes) -> list[int]:
    """Return the widths of floats whose special values a module has preserved."""
    module = read(spirv)
    assert module is not None
    return [words[2] for op, words in module.outside if op == Op.EXECUTION_MODE and words[1] == PRESERVE]


@pytest.mark.parametrize(("real", "widths"), [("float", [32]), ("double", [32, 64])])
def test_special_values_are_preserved_of_the_floats_that_a_kernel_has(real: str, widths: list[int]) -> None:
    compiler = glslang.find_compiler()
    assert compiler is not None
    made = compiler.compile(f"{HEAD}void main() {{ x[0] = float({real}(x[1]) * {real}(x[2])); }}\n", "test")
    assert modes(made) == []
    assert modes(with_special_values(made, (32, 64))) == widths
    assert with_special_values(made, ()) == made
    assert len(with_special_values(made, (32,))) == len(made) + 8 + 28 + 16, "a capability, an extension and a mode"


def test_llvmpipe_preserves_special_values(device: VulkanDevice) -> None:
    assert 32 in device.parts.context.physical.preserved_widths
    device.compile(SCALE, values(4))  # the validation layer looks at the module


def test_what_is_no_module_stays_as_it_is() -> None:
    for blob in (b"nonsense", b"\x03\x02\x23\x07", bytes(64), b"\x07\x23\x02\x03" * 9):
        assert with_exact_arithmetic(blob) == with_special_values(blob, (32,)) == blob
