"""What is exported of diffusers: the networks that denoise, and those that encode and decode pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Denoiser:
    """A model of diffusers: its class, its options, and the shapes of its inputs; () is a step's number."""

    model: str
    options: dict[str, Any]
    inputs: dict[str, tuple[int, ...]]


TWO = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
CROSS = {**TWO, "in_channels": 4, "cross_attention_dim": 32, "attention_head_dim": 2,
         "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")}
CODEC = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
         "latent_channels": 4, **TWO}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2, "sample_size": 16,
         "patch_size": 2}
STEP: dict[str, tuple[int, ...]] = {"sample": (1, 4, 16, 16), "timestep": ()}
WORDS = (1, 8, 32)

DIFFUSERS: dict[str, Denoiser] = {
    "unet": Denoiser("UNet2DModel", {
        **TWO, "sample_size": 16, "attention_head_dim": 8, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}, {**STEP, "sample": (1, 3, 16, 16)}),
    "unet-of-words": Denoiser("UNet2DConditionModel", {
        **CROSS, "sample_size": 16, "out_channels": 4, "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")},
        {**STEP, "encoder_hidden_states": WORDS}),
    "controlnet": Denoiser("ControlNetModel", {**CROSS, "conditioning_embedding_out_channels": (4, 8)}, {
        **STEP, "encoder_hidden_states": WORDS, "controlnet_cond": (1, 3, 32, 32)}),
    "dit": Denoiser("DiTTransformer2DModel", {**HEADS, "num_embeds_ada_norm": 10, "norm_num_groups": 4}, {
        "hidden_states": (1, 4, 16, 16), "timestep": (), "class_labels": ()}),
    "sd3": Denoiser("SD3Transformer2DModel", {
        **HEADS, "joint_attention_dim": 32, "caption_projection_dim": 16, "pooled_projection_dim": 16,
        "out_channels": 4, "pos_embed_max_size": 16}, {
        "hidden_states": (1, 4, 16, 16), "encoder_hidden_states": WORDS, "pooled_projections": (1, 16),
        "timestep": ()}),
    "flux": Denoiser("FluxTransformer2DModel", {
        "patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 16, "axes_dims_rope": (4, 4, 8)},
        {"hidden_states": (1, 16, 4), "encoder_hidden_states": WORDS, "pooled_projections": (1, 16), "timestep": (),
         "img_ids": (16, 3), "txt_ids": (8, 3)}),
    "vae": Denoiser("AutoencoderKL", CODEC, {"sample": (1, 3, 32, 32)}),
    "vq": Denoiser("VQModel", {**CODEC, "num_vq_embeddings": 16}, {"sample": (1, 3, 16, 16)}),
    "tiny-vae": Denoiser("AutoencoderTiny", {
        "encoder_block_out_channels": (8,) * 4, "decoder_block_out_channels": (8,) * 4}, {"sample": (1, 3, 32, 32)}),
}


def diffusers_network(wanted: Denoiser) -> tuple[Any, tuple[Any, ...]]:
    """Return a network of diffusers that returns a flat tuple of tensors, and example inputs."""
    import torch

    from benchmarks.zoo.torchvision_ops import define_where_missing

    define_where_missing()
    import diffusers

    network = getattr(diffusers, wanted.model)(**wanted.options)

    class Plain(torch.nn.Module):
        """The network with arguments by place, which both exporters take."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *arguments: Any) -> Any:
            return self.network(**dict(zip(wanted.inputs, arguments, strict=True)), return_dict=False)

    return Plain(), tuple(torch.randn(shape) if shape else torch.tensor([5]) for shape in wanted.inputs.values())
