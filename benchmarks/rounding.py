"""About the error that fp16 itself leaves: `python -m benchmarks.rounding --networks shufflenet_v2_x1_0`.

ONNX Runtime computes the network in fp32 on the CPU, with batch norms folded, and once each with its weights, its
values and both rounded to fp16. A value is rounded where a device that fuses would write it to memory: not if it is
moved only, and not if its one reader is an element-wise node. Sums and everything between are fp32. What is left is an
estimate, from one input, of the format's error with these weights: devices write other values, too, and fewer.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.measure import Array, Workload, build, relative_error
from benchmarks.options import apart

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ELEMENTWISE = ("Add", "Clip", "Div", "Erf", "HardSigmoid", "HardSwish", "Mul", "Relu", "Sigmoid", "Sub", "Tanh")
MOVES = ("Concat", "Flatten", "MaxPool", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the network as ONNX Runtime simplifies it for any device, with batch norms in the weights."""
    import onnxruntime as ort

    with TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def with_rounded_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the network with the weights of its convolutions and products rounded to fp16."""
    found = _copy(model)
    weights = {name for node in model.graph.node if node.op_type in PRODUCTS for name in node.input[1:2]}
    for tensor in found.graph.initializer:
        if tensor.name in weights:
            rounded = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return found


def with_rounded_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the network with the values rounded to fp16 that a device would write to memory."""
    found = _copy(model)
    readers = Counter(name for node in model.graph.node for name in node.input)
    fused = {n for node in model.graph.node if node.op_type in ELEMENTWISE for n in node.input if readers[n] == 1}
    whole = fused | {output.name for output in model.graph.output}
    nodes = []
    for node in _copy(model).graph.node:
        nodes.append(node)
        name = node.output[0]
        if node.op_type not in MOVES and name not in whole:
            node.output[0] = f"{name}_fp32"
            nodes.append(helper.make_node("Cast", [f"{name}_fp32"], [f"{name}_fp16"], to=onnx.TensorProto.FLOAT16))
            nodes.append(helper.make_node("Cast", [f"{name}_fp16"], [name], to=onnx.TensorProto.FLOAT))
    del found.graph.node[:], found.graph.value_info[:]
    found.graph.node.extend(nodes)
    return found


def errors(case: Workload) -> dict[str, float]:
    """Return the errors by norm: of the folded network in fp32, and with its weights, its values and both rounded."""
    model = folded(case.model)
    rounded = {name: _rounded(a) for name, a in case.inputs.items()}
    weights = with_rounded_weights(model)
    return {
        "fp32": _error(model, case.inputs, case),
        "weights": _error(weights, case.inputs, case),
        "values": _error(with_rounded_values(model), rounded, case),
        "both": _error(with_rounded_values(weights), rounded, case),
    }


def main() -> None:
    """Print the errors of the networks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = partial(apart, separator=",")
    parser.add_argument("--networks", type=names, required=True, help="names as benchmarks.gpu takes them")
    for name in parser.parse_args().networks:
        found = errors(build(name, 1))
        print(f"{name:32s}" + "".join(f"  {what} {error:.1e}" for what, error in found.items()), flush=True)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    found = onnx.ModelProto()
    found.CopyFrom(model)
    return found


def _rounded(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array


def _error(model: onnx.ModelProto, inputs: Mapping[str, Array], case: Workload) -> float:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # so that no pair of casts goes
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return relative_error(session.run(None, dict(inputs)), case.outputs)


if __name__ == "__main__":
    main()
