"""A BERT encoder as a PyTorch module, small, for what torch's exporters make of it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

HIDDEN, HEADS, INNER, LAYERS, WORDS, POSITIONS = 64, 4, 128, 2, 100, 64
LOWEST = torch.finfo(torch.float32).min


class Attention(nn.Module):  # type: ignore[misc]
    """Self-attention, by its parts or by torch's function for all of it."""

    def __init__(self, masked: str) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.masked = masked

    def split(self, x: Any) -> Any:
        """Return (batch, heads, rows, elements)."""
        return x.view(x.size(0), x.size(1), HEADS, HIDDEN // HEADS).transpose(1, 2)

    def forward(self, x: Any, mask: Any) -> Any:
        """Return the attention of every head, joined."""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.masked == "fill":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(HIDDEN // HEADS) + mask
            mixed = scores.softmax(-1) @ v
        mixed = mixed.transpose(1, 2).contiguous()
        return self.output(mixed.view(mixed.size(0), mixed.size(1), HIDDEN))


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and two products, each with what it read added and normalized."""

    def __init__(self, masked: str, form: str) -> None:
        super().__init__()
        self.attention, self.form = Attention(masked), form
        self.inner, self.outer = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN, eps=1e-12) for _ in range(2))

    def forward(self, x: Any, mask: Any) -> Any:
        """Return what the layer makes of x."""
        x = self.norms[0](self.attention(x, mask) + x)
        return self.norms[1](self.outer(F.gelu(self.inner(x), approximate=self.form)) + x)


class Encoder(nn.Module):  # type: ignore[misc]
    """Embeddings and layers; `masked` is how the mask is made, "product" or "fill", `form` that of GELU."""

    def __init__(self, masked: str, form: str) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.types, self.norm = nn.Embedding(2, HIDDEN), nn.LayerNorm(HIDDEN, eps=1e-12)
        self.layers = nn.ModuleList(Layer(masked, form) for _ in range(LAYERS))
        self.register_buffer("ids", torch.arange(POSITIONS).expand(1, -1))
        self.masked = masked

    def mask(self, attention_mask: Any, x: Any) -> Any:
        """Return what is added to scores: 0, or the lowest number."""
        kept = attention_mask[:, None, None, :].to(x.dtype)
        if self.masked == "product":
            return (1.0 - kept) * LOWEST
        gone = 1.0 - kept.expand(-1, 1, x.size(1), -1)
        return gone.masked_fill(gone.to(torch.bool), LOWEST)

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        """Return the last hidden state."""
        x = self.words(input_ids) + self.types(token_type_ids)
        x = self.norm(x + self.positions(self.ids[:, : input_ids.size(1)]))
        mask = self.mask(attention_mask, x)
        for layer in self.layers:
            x = layer(x, mask)
        return x
