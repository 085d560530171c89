"""All networks of the zoo by name, "torchvision/resnet18"; making one imports PyTorch, listing them does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from benchmarks.zoo.diffusion import DIFFUSERS, diffusers_network
from benchmarks.zoo.language import TRANSFORMERS, transformers_network
from benchmarks.zoo.vision import TIMM, TORCHVISION, timm_network, torchvision_network

Made: TypeAlias = "tuple[Any, tuple[Any, ...]]"
"""A module of PyTorch and the arguments to call it with."""

NETWORKS: dict[str, Callable[[], Made]] = {
    **{f"torchvision/{name}": partial(torchvision_network, made) for name, made in TORCHVISION.items()},
    **{f"timm/{name}": partial(timm_network, made) for name, made in TIMM.items()},
    **{f"transformers/{name}": partial(transformers_network, made) for name, made in TRANSFORMERS.items()},
    **{f"diffusers/{name}": partial(diffusers_network, made) for name, made in DIFFUSERS.items()},
}
