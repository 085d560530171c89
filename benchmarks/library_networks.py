"""Any network of timm, torchvision and transformers by its name, so that others than those of the table can be timed.

`timm/resnext50_32x4d` and `torchvision/wide_resnet50_2@288` take a picture, of 288 x 288 here, `torchvision/r3d_18` a
video of 16 pictures. `transformers/bert@384` is the encoder or decoder of that type with the configuration that it has
by default, on 384 tokens; those that take pictures or sound have those of their configuration, or of the size that is
asked for. The answer is the hidden state. `transformers/llama:hidden_size=2048:num_hidden_layers=16` changes values of
the configuration; those of timm and torchvision are what their makers take.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.exported import Exported, videos
from benchmarks.options import apart

LIBRARIES = ("timm/", "torchvision/", "transformers/")
"""What the name of a network begins with that is not in the table."""
TOKENS, SAMPLES, PICTURE, VIDEO = 128, 16_000, 224, 112
"""The usual sizes: of a text, of a second of sound, and of a picture or video where the configuration says none."""


@dataclass(frozen=True)
class Asked:
    """A network of a library as its name says it; ValueError where a name says none."""

    library: str
    model: str
    size: int
    """Of the input; 0 for the usual one."""
    options: Mapping[str, Any]
    """Values of the configuration by name."""

    @classmethod
    def by(cls, name: str) -> Asked:
        """Return what LIBRARY/MODEL[@SIZE][:OPTION=VALUE]... asks for."""
        known, *options = apart(name, ":")
        known, at, size = known.partition("@")
        library, _, model = known.partition("/")
        if f"{library}/" in LIBRARIES and not model:
            raise ValueError(f"{name} names no network of {library}")
        if f"{library}/" not in LIBRARIES:
            raise ValueError(f"{name} is no network of the table, and does not begin with {' or '.join(LIBRARIES)}")
        if at and not (size.isdecimal() and int(size)):
            raise ValueError(f"{name}: {size!r} is no size of an input")
        return cls(library, model, int(size or 0), dict(_option(name, option) for option in options))


def _option(name: str, option: str) -> tuple[str, Any]:
    key, _, value = option.partition("=")
    if not key or not value:
        raise ValueError(f"{name}: {option!r} is no OPTION=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def named(name: str) -> Exported:
    """Return a network of a library; ValueError if its name says none or the library has none of that name."""
    asked = Asked.by(name)
    make = {"timm": _timm, "torchvision": _torchvision, "transformers": _transformers}[asked.library]
    try:
        return make(asked.model, asked.size, asked.options)
    except (KeyError, TypeError, ValueError, RuntimeError) as e:
        raise ValueError(f"{asked.library} has no network {asked.model!r} of one input: {e}") from e


def vision(name: str, **options: Any) -> Callable[[], Any]:
    """Return what makes a network of torchvision."""

    def make() -> Any:
        _import_torchvision()
        import torchvision

        taken = inspect.signature(torchvision.models.get_model_builder(name)).parameters
        none = {weights: None for weights in ("weights", "weights_backbone") if weights in taken}
        return torchvision.models.get_model(name, **{**none, **options})

    return make


def _import_torchvision() -> None:
    from benchmarks.zoo.torchvision_ops import define_where_missing

    define_where_missing()


def _torchvision(name: str, size: int, options: Mapping[str, Any]) -> Exported:
    _import_torchvision()
    import torchvision

    builder = torchvision.models.get_model_builder(name)  # ValueError, if there is none
    if builder.__module__.startswith("torchvision.models.video."):
        return Exported(size or VIDEO, size or VIDEO, vision(name, **options), videos)
    size = size or PICTURE
    sized = {"image_size": size} if name.startswith("vit_") else {}
    return Exported(size, size, vision(name, **{**sized, **options}))


def _timm(name: str, size: int, options: Mapping[str, Any]) -> Exported:
    _import_torchvision()
    import timm

    usual = timm.get_pretrained_cfg(name, allow_unregistered=False)
    sized = {"img_size": size} if size and usual.fixed_input_size else {}
    image = size or usual.input_size[-1]
    return Exported(image, image, lambda: timm.create_model(name, **{"pretrained": False, **sized, **options}))


def _transformers(name: str, size: int, options: Mapping[str, Any]) -> Exported:
    _import_torchvision()
    import transformers

    config = transformers.AutoConfig.for_model(name, **options)
    model = transformers.MODEL_MAPPING[type(config)]
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        raise ValueError("it takes a text and a picture; only networks of one input are measured")
    if model.main_input_name == "pixel_values":
        size = size or _side(config)
        if hasattr(config, "image_size"):
            config.image_size = size
    example, usual = _example(model.main_input_name, config)
    size = size or usual
    # What tells packed texts apart in decoders has ops that TorchScript's exporter does not know.
    decodes = getattr(config, "is_decoder", hasattr(config, "use_cache")) and not config.is_encoder_decoder
    return Exported(size, size, partial(_hidden_state, model, config), example, traced=not decodes)


def _side(config: Any) -> int:
    found = getattr(config, "image_size", PICTURE)
    side: int = found if isinstance(found, int) else found[0]
    return side


def _example(main: str, config: Any) -> tuple[Callable[[int, int], Mapping[str, Any]], int]:
    """Return what makes the main input of a network of transformers, and its usual size."""
    import torch

    bands: int = getattr(config, "num_mel_bins", 0)

    def example(batch: int, size: int) -> Mapping[str, Any]:
        if main == "input_ids":
            return {main: torch.randint(0, config.get_text_config().vocab_size, (batch, size))}
        shapes = {
            "pixel_values": (batch, getattr(config, "num_channels", 3), size, size),
            "input_values": (batch, size, bands) if bands else (batch, size),
            "input_features": (batch, bands, size),
        }
        if main not in shapes:
            raise ValueError(f"transformers' {config.model_type} takes {main}, of which no example is known here")
        return {main: torch.randn(shapes[main])}

    if main == "input_features":
        return example, 2 * getattr(config, "max_source_positions", TOKENS)
    sound = getattr(config, "max_length", SAMPLES) if bands else SAMPLES
    return example, {"input_ids": TOKENS, "input_values": sound}.get(main, PICTURE)


def _hidden_state(model: Any, config: Any) -> Any:
    import torch

    network = model(config)
    if config.is_encoder_decoder:
        network = network.get_encoder()
    remembers = {"use_cache": False} if "use_cache" in inspect.signature(network.forward).parameters else {}

    class HiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Any) -> Any:
            return self.network(x, **remembers)[0]

    return HiddenState()
