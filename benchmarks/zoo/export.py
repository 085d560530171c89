"""Exports one network of the zoo to ONNX, with inputs and the outputs that are right; `benchmarks.zoo` runs it.

    python -m benchmarks.zoo.export NETWORK EXPORTER FOLDER

The folder gets `model.onnx`, `inputs.npz`, `outputs.npz` and, last, `facts.json`. The outputs are ONNX Runtime's, or
PyTorch's where ONNX Runtime has no kernel for a node. If ONNX Runtime says that the file is invalid, or cannot run it,
the exporter made a mistake, and the network counts as not exported. So does a network that says nothing: one whose
outputs are all empty, or for which PyTorch and ONNX Runtime are apart by more than `STEADY` whichever weights of four
are drawn.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.compare import difference
from benchmarks.zoo.networks import NETWORKS

EXPORTERS = ("dynamo", "script")
"""`torch.onnx.export` with dynamo=True, and with dynamo=False, the older one of TorchScript."""
ATTEMPTS = 4
STEADY = 1e-3
"""The most that PyTorch and ONNX Runtime may be apart for a network to say whether a third one is right."""


def main() -> None:
    """Export the network that the command line names."""
    name, exporter, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    export(name, exporter, Path(folder))


def export(name: str, exporter: str, folder: Path) -> None:
    """Export one network; raise whatever PyTorch raises."""
    begun = time.perf_counter()
    for attempt in range(ATTEMPTS):
        drawn = _draw(name, exporter, folder, seed=attempt // 2, measured=attempt % 2 == 0)
        if drawn.apart is None or drawn.apart <= STEADY:
            break
    else:
        raise RuntimeError(f"PyTorch and ONNX Runtime are still apart by {drawn.apart:.1e} in attempt {ATTEMPTS}")
    if not any(y.size for y in drawn.outputs):
        raise RuntimeError(f"nothing is in the outputs, of shapes {[y.shape for y in drawn.outputs]}")
    np.savez(folder / "inputs.npz", **drawn.inputs)  # type: ignore[arg-type]  # its stubs take keywords for options
    np.savez(folder / "outputs.npz", *drawn.outputs)
    facts = {"oracle": drawn.oracle, "apart": drawn.apart, "attempt": attempt, "seconds": time.perf_counter() - begun}
    (folder / "facts.json").write_text(json.dumps(facts | drawn.counts))


@dataclass
class _Drawn:
    """A network of certain weights that was exported, and what is right for it."""

    inputs: dict[str, NDArray[Any]]
    outputs: list[NDArray[Any]]
    oracle: str
    apart: float | None
    counts: dict[str, int]


def _draw(name: str, exporter: str, folder: Path, seed: int, measured: bool) -> _Drawn:
    import onnx
    import torch

    torch.manual_seed(zlib.crc32(name.encode()) + seed)
    torch.set_num_threads(1)
    network, arguments = NETWORKS[name]()
    network.eval()
    scatter(network, arguments, measured)
    fed = _flat(arguments)
    with torch.no_grad():
        answer = [_array(t) for t in _flat(network(*arguments))]
    # Not under no_grad: PyTorch would take fused ops for inference that TorchScript's exporter does not know.
    names = [f"input{number}" for number in range(len(fed))]
    file = folder / "model.onnx"
    if exporter == "dynamo":
        torch.onnx.export(network, arguments, file, input_names=names, dynamo=True, verbose=False)
    else:
        torch.onnx.export(network, arguments, str(file), input_names=names, dynamo=False, opset_version=17)
    model = onnx.load(file, load_external_data=False)
    inputs = dict(zip(names, (_array(t) for t in fed), strict=True))
    inputs = {i.name: inputs[i.name] for i in model.graph.input if i.name in inputs}
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    counts = {"nodes": len(model.graph.node), "opset": opset}
    expected = _onnxruntime(file, inputs)
    if expected is None:
        return _Drawn(inputs, answer, "torch", None, counts)
    return _Drawn(inputs, expected, "onnxruntime", difference(answer, expected), counts)


def scatter(network: Any, arguments: tuple[Any, ...], measured: bool) -> None:
    """Scatter weights that start alike, and draw the statistics of batch norms or measure them on the example.

    Zeros and ones would hide which input or branch a result comes from. Signals that die out on the way leave scores so
    close that rounding decides on their order: measured statistics keep them up, but make deep networks chaotic.
    """
    import torch

    for weight in network.parameters():
        if weight.numel() > 1 and weight.is_floating_point() and bool((weight == weight.flatten()[0]).all()):
            weight.data += 0.1 * torch.randn_like(weight)

    def measure(module: Any, given: tuple[Any, ...]) -> None:
        if given[0].numel() >= 8 * given[0].shape[1]:  # of one element a channel, only zeros would be left
            others = [axis for axis in range(given[0].dim()) if axis != 1]
            module.running_mean.copy_(given[0].mean(others))
            module.running_var.copy_(given[0].var(others).clamp(min=1e-3))

    norms = [m for m in network.modules() if isinstance(getattr(m, "running_var", None), torch.Tensor)]
    if not measured:
        for norm in norms:
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.7, 1.4)
        return
    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    with torch.no_grad():
        if norms:
            network(*arguments)
    for hook in hooks:
        hook.remove()


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    return [t for item in value for t in _flat(item)] if isinstance(value, tuple | list) else [value]


def _array(tensor: Any) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().numpy()
    return array


def _onnxruntime(file: Path, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]] | None:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return None
    found: list[NDArray[Any]] = session.run(None, inputs)
    return found


if __name__ == "__main__":
    main()
