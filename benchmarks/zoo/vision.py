"""What is exported of torchvision and timm: the name of a model, how it is made, and the shape of its picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Picture:
    """A network of a registry of models, and the shape of its input; `detects` networks take a list of pictures."""

    model: str
    shape: tuple[int, ...] = (1, 3, 64, 64)
    options: dict[str, Any] = field(default_factory=dict)
    detects: bool = False


LARGE = ("beit_base_patch16_224", "vit_base_patch16_siglip_224", "deit3_small_patch16_224", "flexivit_small")
"""Of these, which take their depth as an option, two blocks are enough."""


def _small(options: dict[str, Any]) -> dict[str, Any]:
    return {"num_classes": 10, **options}


def _torchvision() -> dict[str, Picture]:
    table = {
        name: Picture(name, options=_small({}))
        for name in """resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 mobilenet_v2 mobilenet_v3_small
        mobilenet_v3_large efficientnet_b0 efficientnet_v2_s regnet_y_400mf regnet_x_400mf convnext_tiny swin_t
        swin_v2_t shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1 mnasnet1_0 vgg11_bn""".split()
    }
    table["alexnet"] = Picture("alexnet", (1, 3, 224, 224), _small({}))
    table["vit_b_16"] = Picture("vit_b_16", options=_small({"image_size": 64}))
    table["maxvit_t"] = Picture("maxvit_t", (1, 3, 224, 224), _small({}))
    table["inception_v3"] = Picture("inception_v3", (1, 3, 96, 96), _small({"init_weights": False}))
    table["googlenet"] = Picture("googlenet", options=_small({"init_weights": False}))
    for name in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50", "deeplabv3_resnet50"):
        table[name] = Picture(name, options=_small({"weights_backbone": None}))
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        table[name] = Picture(name, (1, 3, 4, 32, 32), _small({}))
    table["s3d"] = Picture("s3d", (1, 3, 16, 224, 224), _small({}))
    table["swin3d_t"] = Picture("swin3d_t", (1, 3, 4, 64, 64), _small({}))
    table["mvit_v1_b"] = Picture("mvit_v1_b", (1, 3, 16, 224, 224), _small({}))
    table["raft_small"] = Picture("raft_small", (1, 3, 128, 128))
    narrow = {"weights_backbone": None, "num_classes": 5}
    sized: dict[str, Any] = {"min_size": 64, "max_size": 64}
    # Random weights give scores of about 0.01, and an answer without a box would say nothing.
    scored: dict[str, Any] = {**sized, "score_thresh": 0.0}
    for name, options in {
        "ssdlite320_mobilenet_v3_large": {}, "ssd300_vgg16": {}, "retinanet_resnet50_fpn": scored,
        "fcos_resnet50_fpn": scored, "fasterrcnn_mobilenet_v3_large_320_fpn": sized,
        "fasterrcnn_resnet50_fpn": sized, "fasterrcnn_resnet50_fpn_v2": sized, "maskrcnn_resnet50_fpn": sized,
        "keypointrcnn_resnet50_fpn": {**sized, "num_classes": 2},
    }.items():
        # Of hundreds of boxes some have scores so close that rounding decides on their order.
        of_regions = {"box_detections_per_img": 10, "rpn_post_nms_top_n_test": 50}
        few = of_regions if "rcnn" in name else {"detections_per_img": 10}
        table[name] = Picture(name, (3, 64, 64), {**narrow, **options, **few}, detects=True)
    return table


def _timm() -> dict[str, Picture]:
    sized = """beit_base_patch16_224 deit_tiny_patch16_224 cait_xxs24_224 convit_tiny crossvit_tiny_240 coat_tiny
    eva02_tiny_patch14_224 gcvit_xxtiny levit_128s mixer_s32_224 resmlp_12_224 gmlp_ti16_224 nest_tiny pit_ti_224
    swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_patch16_224
    twins_svt_small visformer_tiny vit_tiny_patch16_224 vit_relpos_small_patch16_224 vit_base_patch16_siglip_224
    volo_d1_224 xcit_nano_12_p16_224 efficientformer_l1 efficientformerv2_s0 maxvit_rmlp_pico_rw_256
    coatnet_pico_rw_224 hiera_tiny_224 vit_small_patch14_reg4_dinov2 mvitv2_tiny sequencer2d_s
    deit3_small_patch16_224 flexivit_small vitamin_small_224 vit_tiny_r_s16_p8_224 vit_pwee_patch16_reg1_gap_256
    crossvit_9_240 sebotnet33ts_256""".split()
    free = """convmixer_768_32 convnext_atto convnextv2_atto cspresnet50 davit_tiny densenet121 dla34 dpn68
    edgenext_xx_small efficientnet_b0 efficientvit_b0 efficientvit_m0 fastvit_t8 focalnet_tiny_srf ghostnet_100
    ghostnetv2_100 hardcorenas_a hgnetv2_b0 hrnet_w18_small inception_next_atto lcnet_050 lambda_resnet26t
    bat_resnext26ts eca_botnext26ts_256 halonet26t gcresnet33ts legacy_seresnext26_32x4d mambaout_femto
    mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mobilevitv2_050 nasnetalarge nf_regnet_b0
    eca_nfnet_l0 nextvit_small poolformer_s12 caformer_s18 pvt_v2_b0 regnetz_040 repghostnet_050 repvgg_a0 repvit_m1
    res2net50_26w_4s resnest14d resnetv2_50 rexnet_100 rdnet_tiny selecsls42b seresnet50 shvit_s1
    skresnet18 starnet_s1 swiftformer_xs
    tf_efficientnet_lite0 tinynet_e tresnet_m ese_vovnet19b_dw xception41 fasternet_t0 fbnetc_100 mixnet_s
    spnasnet_100 semnasnet_075 csatv2 efficientvim_m1 hieradet_small iformer_t lowformer_b0 cs3darknet_s gernet_s
    tf_mixnet_s ghostnetv3_100 fastvit_mci0 mobilenet_edgetpu_v2_xs hgnet_tiny resnetaa50""".split()
    table = {name: Picture(name, options=_small({})) for name in free}
    for name in sized:
        options = {"depth": 2} if name in LARGE else {}
        table[name] = Picture(name, (1, 3, 0, 0), _small(options))
    return table


TORCHVISION = _torchvision()
TIMM = _timm()


def torchvision_network(picture: Picture) -> tuple[Any, tuple[Any, ...]]:
    """Return a network of torchvision and example inputs."""
    import torch

    from benchmarks.zoo.torchvision_ops import define_where_missing

    define_where_missing()
    import torchvision

    if picture.model.startswith("raft"):
        network = torchvision.models.get_model(picture.model, weights=None)
        return network, (torch.rand(picture.shape) * 2 - 1, torch.rand(picture.shape) * 2 - 1)
    network = torchvision.models.get_model(picture.model, weights=None, **picture.options)
    if picture.detects:
        return network, ([torch.rand(picture.shape)],)
    return network, (torch.randn(picture.shape),)


def timm_network(picture: Picture) -> tuple[Any, tuple[Any, ...]]:
    """Return a network of timm and an example picture, of the size that the network was made for if it is fixed."""
    import torch

    from benchmarks.zoo.torchvision_ops import define_where_missing

    define_where_missing()
    import timm

    network = timm.create_model(picture.model, pretrained=False, **picture.options)
    shape = picture.shape if all(picture.shape) else (1, *network.default_cfg["input_size"])
    return network, (torch.randn(shape),)
