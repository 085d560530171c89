"""The transformer encoder in PyTorch: `benchmarks.minilm` with its weights, as a user of PyTorch writes it.

Linear layers with bias, `scaled_dot_product_attention`, `layer_norm` and `gelu`. The variant "masked" computes what
the ONNX network computes; "no mask" leaves the mask out, which is right where it is all ones and lets PyTorch choose
faster attention kernels.
"""

from __future__ import annotations

from typing import Any

import onnx
import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documents call it
from onnx import numpy_helper

from benchmarks.minilm import EPSILON, Sizes


class TorchEncoder:
    """The encoder as PyTorch runs it; call it with token ids, mask and token types."""

    variants = ("masked", "no mask")

    def __init__(self, model: onnx.ModelProto, heads: int = Sizes.heads) -> None:
        arrays = {t.name: numpy_helper.to_array(t).copy() for t in model.graph.initializer}
        self._weights = {name: torch.from_numpy(a) for name, a in arrays.items() if a.dtype.kind == "f"}
        for name, weight in self._weights.items():
            if name.startswith("encoder") and weight.dim() == 2:
                self._weights[name] = weight.T.contiguous()
        self._heads, self._masked, self._edges = heads, True, torch.float32
        self._layers = sum(name.endswith("attention.query.weight") for name in self._weights)

    def to(self, device: str, dtype: Any, variant: str, edges: Any = torch.float32) -> TorchEncoder:
        """Move the weights to a device and a type; `edges` is the type of the output."""
        self._weights = {name: w.to(device, dtype) for name, w in self._weights.items()}
        self._masked, self._edges = variant == "masked", edges
        return self

    def __call__(self, ids: Any, mask: Any, types: Any) -> list[Any]:
        """Return the last hidden states."""
        w = self._weights
        x = F.embedding(ids, w["embeddings.words"]) + F.embedding(types, w["embeddings.types"])
        x = self._norm(x + w["embeddings.positions"][: ids.shape[1]], "embeddings.LayerNorm")
        kept = mask[:, None, None, :].bool() if self._masked else None
        for number in range(self._layers):
            x = self._layer(x, kept, f"encoder.layer.{number}")
        return [x.to(self._edges)]

    def _layer(self, x: Any, mask: Any, at: str) -> Any:
        parts = [self._linear(x, f"{at}.attention.{part}") for part in ("query", "key", "value")]
        query, key, value = (p.unflatten(-1, (self._heads, -1)).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        x = self._norm(self._linear(mixed, f"{at}.attention.output") + x, f"{at}.attention.LayerNorm")
        inner = F.gelu(self._linear(x, f"{at}.intermediate"))
        return self._norm(self._linear(inner, f"{at}.output") + x, f"{at}.output.LayerNorm")

    def _linear(self, x: Any, name: str) -> Any:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, x: Any, name: str) -> Any:
        weight = self._weights[f"{name}.weight"]
        return F.layer_norm(x, weight.shape, weight, self._weights[f"{name}.bias"], EPSILON)
