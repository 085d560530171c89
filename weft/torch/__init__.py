"""Weft as a backend of PyTorch; importing this imports torch.

    fast = torch.compile(model, backend="weft", options={"device": "vulkan"})  # found without an import
    fast = weft.torch.compile(model, (example,), device="vulkan")  # exported once, and no guards
"""

from __future__ import annotations

from weft.torch.device_state import write_back_all as write_back
from weft.torch.dynamo import backend
from weft.torch.explanation import Explanation, explain
from weft.torch.module import CompiledModule, compile

__all__ = ["CompiledModule", "Explanation", "backend", "compile", "explain", "write_back"]
