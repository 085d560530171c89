"""Run two networks one after the other on a device: what the first makes stays there, for the second to read.

    python two_networks.py encoder.onnx decoder.onnx --device vulkan

The first network's outputs become the second one's inputs, in order. Both get random inputs of their declared shapes;
sizes that are left open are 1.
"""

from __future__ import annotations

import argparse

import numpy as np

import weft
from weft.extend import Array


def random_inputs(session: weft.Session) -> list[Array]:
    """Return random numbers for each input."""
    rng = np.random.default_rng(0)
    shapes = [tuple(d if isinstance(d, int) else 1 for d in shape) for shape in session.inputs.values()]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def main() -> None:
    """Run both networks, and say what was copied."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    with weft.load(args.first, args.device) as first, weft.load(args.second, args.device) as second:
        between = first.run(*random_inputs(first), outputs=weft.Buffer)
        results = second.run(*between)
        print("between the networks:", *between)
        for name, result in zip(second.outputs, results, strict=True):
            print(f"{name}: {result.dtype}{list(result.shape)}, mean {result.mean():.4f}")
        print(f"copied to the second network: {second.transfers.to_devices} bytes")
        for buffer in between:
            buffer.close()


if __name__ == "__main__":
    main()
