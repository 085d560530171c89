"""What is exported of transformers: a configuration of each architecture, small, and its example inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOKENS = 8
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = {"vocab_size": 100, "max_position_embeddings": 64}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2,
      "num_heads": 4, "decoder_start_token_id": 0}
BART = {"vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
        "decoder_start_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
PATCHES = {"image_size": 64, "patch_size": 16}
AUDIO = {**SIZES, "vocab_size": 20, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 2),
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3,
         "apply_spec_augment": False, "mask_time_prob": 0.0, "layerdrop": 0.0}
SIDES = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}


@dataclass(frozen=True)
class Architecture:
    """A model of transformers: its class, its configuration's class and values, and what it is called with."""

    model: str
    config: str
    options: dict[str, Any]
    feed: str = "text"
    fixed: dict[str, Any] = field(default_factory=dict)


def _decoder(name: str, config: str, **options: Any) -> Architecture:
    return Architecture(name, config, {**SIZES, **WORDS, **options}, "text", {"use_cache": False})


def _seq2seq(name: str, config: str, options: dict[str, Any]) -> Architecture:
    return Architecture(name, config, options, "pairs", {"use_cache": False})


GQA = {"num_key_value_heads": 2}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
          "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}
SWIN = {"model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 1, 1, 1],
        "num_heads": [1, 2, 2, 4], "window_size": 2,
        "out_features": ["stage1", "stage2", "stage3", "stage4"]}
DETR = {**SIDES, "num_queries": 10, "num_labels": 5}
RT_DETR = {"backbone_config": {**RESNET, "model_type": "rt_detr_resnet"}, "d_model": 32, "encoder_hidden_dim": 32,
           "encoder_in_channels": [16, 24, 32], "encoder_ffn_dim": 64, "encoder_layers": 1, "decoder_layers": 2,
           "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
           "decoder_in_channels": [32, 32, 32], "num_queries": 10, "num_labels": 5, "num_denoising": 0,
           "initializer_range": 0.3}

TRANSFORMERS: dict[str, Architecture] = {
    "bert": Architecture("BertModel", "BertConfig", {**SIZES, **WORDS}),
    "bert-masked-words": Architecture("BertForMaskedLM", "BertConfig", {**SIZES, **WORDS}),
    "distilbert": Architecture(
        "DistilBertForSequenceClassification", "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, **WORDS}),
    "roberta": Architecture("RobertaModel", "RobertaConfig", {**SIZES, **WORDS}),
    "xlm-roberta": Architecture("XLMRobertaModel", "XLMRobertaConfig", {**SIZES, **WORDS}),
    "electra": Architecture("ElectraForTokenClassification", "ElectraConfig",
                            {**SIZES, **WORDS, "embedding_size": 16}),
    "albert": Architecture("AlbertModel", "AlbertConfig", {**SIZES, **WORDS, "embedding_size": 16}),
    "deberta": Architecture("DebertaModel", "DebertaConfig", {
        **SIZES, **WORDS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}),
    "deberta-v2": Architecture("DebertaV2Model", "DebertaV2Config", {
        **SIZES, **WORDS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False}),
    "xlnet": Architecture("XLNetModel", "XLNetConfig",
                          {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
                          fixed={"use_mems": False}),
    "xlm": Architecture("XLMModel", "XLMConfig", {"vocab_size": 100, "emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "funnel": Architecture("FunnelModel", "FunnelConfig", {
        "vocab_size": 100, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}),
    "mpnet": Architecture("MPNetModel", "MPNetConfig", {**SIZES, **WORDS}),
    "mobilebert": Architecture("MobileBertModel", "MobileBertConfig", {
        **SIZES, **WORDS, "embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16}),
    "squeezebert": Architecture("SqueezeBertModel", "SqueezeBertConfig", {**SIZES, **WORDS, "embedding_size": 32}),
    "convbert": Architecture("ConvBertModel", "ConvBertConfig", {**SIZES, **WORDS, "embedding_size": 32}),
    "roformer": Architecture("RoFormerModel", "RoFormerConfig", {**SIZES, **WORDS, "embedding_size": 32}),
    "fnet": Architecture("FNetModel", "FNetConfig", {**SIZES, **WORDS, "tpu_short_seq_length": TOKENS}, "ids"),
    "nystromformer": Architecture("NystromformerModel", "NystromformerConfig", {
        **SIZES, **WORDS, "num_landmarks": 4, "segment_means_seq_len": 8}, "ids"),
    "longformer": Architecture("LongformerModel", "LongformerConfig", {
        **SIZES, **WORDS, "attention_window": [4, 4]}),
    "big-bird": Architecture("BigBirdModel", "BigBirdConfig", {**SIZES, **WORDS, "attention_type": "original_full"}),
    "modernbert": Architecture("ModernBertModel", "ModernBertConfig", {
        **SIZES, **WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2}),
    "esm": Architecture("EsmModel", "EsmConfig", {**SIZES, **WORDS, "pad_token_id": 1, "mask_token_id": 2}),
    "layoutlm": Architecture("LayoutLMModel", "LayoutLMConfig", {**SIZES, **WORDS}, "layout"),
    "canine": Architecture("CanineModel", "CanineConfig", {
        **SIZES, "max_position_embeddings": 64, "num_hash_buckets": 32, "local_transformer_stride": 8}),
    "t5-encoder": Architecture("T5EncoderModel", "T5Config", T5),
    "t5": _seq2seq("T5ForConditionalGeneration", "T5Config", T5),
    "mt5": _seq2seq("MT5ForConditionalGeneration", "MT5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
    "longt5": _seq2seq("LongT5Model", "LongT5Config", {**T5, "local_radius": 3}),
    "switch-transformers": _seq2seq("SwitchTransformersModel", "SwitchTransformersConfig", {
        **T5, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}),
    "bart": _seq2seq("BartModel", "BartConfig", BART),
    "mbart": _seq2seq("MBartModel", "MBartConfig", BART),
    "marian": _seq2seq("MarianMTModel", "MarianConfig", {**BART, "pad_token_id": 1}),
    "pegasus": _seq2seq("PegasusModel", "PegasusConfig", BART),
    "blenderbot": _seq2seq("BlenderbotModel", "BlenderbotConfig", BART),
    "m2m100": _seq2seq("M2M100Model", "M2M100Config", BART),
    "prophetnet": _seq2seq("ProphetNetModel", "ProphetNetConfig", {
        "vocab_size": 100, "hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2,
        "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64, "max_position_embeddings": 64}),
    "gpt2": Architecture("GPT2LMHeadModel", "GPT2Config",
                         {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
                         fixed={"use_cache": False}),
    "gpt2-cache": Architecture("GPT2LMHeadModel", "GPT2Config",
                               {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
                               "cache"),
    "gptj": Architecture("GPTJModel", "GPTJConfig", {
        "vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
        fixed={"use_cache": False}),
    "gpt-neo": _decoder("GPTNeoModel", "GPTNeoConfig", num_layers=2, num_heads=4,
                        attention_types=[[["global", "local"], 1]], window_size=4),
    "gpt-neox": _decoder("GPTNeoXModel", "GPTNeoXConfig"),
    "gpt-bigcode": Architecture("GPTBigCodeModel", "GPTBigCodeConfig", {
        "vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}, fixed={"use_cache": False}),
    "codegen": Architecture("CodeGenModel", "CodeGenConfig", {
        "vocab_size": 100, "n_positions": 64, "n_ctx": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
        fixed={"use_cache": False}),
    "llama": _decoder("LlamaForCausalLM", "LlamaConfig", **GQA),
    "llama-cache": Architecture("LlamaForCausalLM", "LlamaConfig", {**SIZES, **WORDS, **GQA}, "cache"),
    "mistral": _decoder("MistralModel", "MistralConfig", **GQA, sliding_window=4),
    "mixtral": _decoder("MixtralModel", "MixtralConfig", **GQA, num_local_experts=4, experts_implementation="eager"),
    "qwen2": _decoder("Qwen2Model", "Qwen2Config", **GQA),
    "qwen2-moe": _decoder("Qwen2MoeModel", "Qwen2MoeConfig", **GQA, num_experts=4, moe_intermediate_size=16,
                          shared_expert_intermediate_size=32, num_experts_per_tok=2,
                          experts_implementation="batched_mm"),
    "qwen3": _decoder("Qwen3Model", "Qwen3Config", **GQA, head_dim=8),
    "phi": _decoder("PhiModel", "PhiConfig"),
    "phi3": _decoder("Phi3Model", "Phi3Config", **GQA, pad_token_id=0),
    "phi3-long": _decoder("Phi3Model", "Phi3Config", **GQA, pad_token_id=0, original_max_position_embeddings=16,
                          rope_scaling={"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}),
    "gemma": _decoder("GemmaModel", "GemmaConfig", **GQA, head_dim=8),
    "gemma2": _decoder("Gemma2Model", "Gemma2Config", **GQA, head_dim=8, sliding_window=4),
    "gemma3": _decoder("Gemma3TextModel", "Gemma3TextConfig", **GQA, head_dim=8, sliding_window=4),
    "falcon": _decoder("FalconModel", "FalconConfig"),
    "falcon-alibi": _decoder("FalconModel", "FalconConfig", alibi=True),
    "bloom": _decoder("BloomModel", "BloomConfig", n_layer=2, n_head=4),
    "mpt": _decoder("MptModel", "MptConfig", d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "opt": _decoder("OPTModel", "OPTConfig", ffn_dim=64, word_embed_proj_dim=32),
    "olmo2": _decoder("Olmo2Model", "Olmo2Config", **GQA),
    "cohere": _decoder("CohereModel", "CohereConfig", **GQA),
    "stablelm": _decoder("StableLmModel", "StableLmConfig", **GQA),
    "starcoder2": _decoder("Starcoder2Model", "Starcoder2Config", **GQA),
    "granite": _decoder("GraniteModel", "GraniteConfig", **GQA),
    "deepseek-v3": _decoder("DeepseekV3Model", "DeepseekV3Config", num_key_value_heads=4, n_routed_experts=4,
                            n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=16, kv_lora_rank=8,
                            q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
                            first_k_dense_replace=1, experts_implementation="batched_mm"),
    "gpt-oss": _decoder("GptOssModel", "GptOssConfig", **GQA, head_dim=8, num_local_experts=4, sliding_window=4,
                        num_experts_per_tok=2, experts_implementation="batched_mm"),
    "lfm2": _decoder("Lfm2Model", "Lfm2Config", **GQA, layer_types=["conv", "full_attention"]),
    "mamba": Architecture("MambaModel", "MambaConfig", {
        "vocab_size": 100, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}, "ids", {"use_cache": False}),
    "mamba2": Architecture("Mamba2Model", "Mamba2Config", {
        "vocab_size": 100, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16,
        "n_groups": 1, "chunk_size": 4}, "ids", {"use_cache": False}),
    "rwkv": Architecture("RwkvModel", "RwkvConfig", {
        "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2}, "ids", {"use_cache": False}),
    "whisper": Architecture("WhisperModel", "WhisperConfig", {
        **SIDES, "vocab_size": 100, "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 16,
        "decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        "mel", {"use_cache": False}),
    "speech-to-text": Architecture("Speech2TextModel", "Speech2TextConfig", {
        **SIDES, "vocab_size": 100, "input_feat_per_channel": 16, "conv_channels": 32, "max_source_positions": 64,
        "max_target_positions": 16, "decoder_start_token_id": 1}, "frames", {"use_cache": False}),
    "wav2vec2": Architecture("Wav2Vec2ForCTC", "Wav2Vec2Config", AUDIO, "wave"),
    "hubert": Architecture("HubertModel", "HubertConfig", AUDIO, "wave"),
    "wavlm": Architecture("WavLMModel", "WavLMConfig", AUDIO, "wave"),
    "audio-spectrogram": Architecture("ASTModel", "ASTConfig", {
        **SIZES, "max_length": 64, "num_mel_bins": 32}, "spectrogram"),
    "encodec": Architecture("EncodecModel", "EncodecConfig", {
        "num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "upsampling_ratios": [4, 2],
        "num_lstm_layers": 1, "target_bandwidths": [24.0]}, "sound"),
    "vits": Architecture("VitsModel", "VitsConfig", {
        "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "ffn_dim": 32, "flow_size": 16,
        "spectrogram_bins": 9, "upsample_initial_channel": 16, "upsample_rates": [4, 2],
        "upsample_kernel_sizes": [8, 4], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
        "depth_separable_num_layers": 1, "prior_encoder_num_flows": 2, "prior_encoder_num_wavenet_layers": 1,
        "posterior_encoder_num_wavenet_layers": 1, "duration_predictor_num_flows": 2, "noise_scale": 0.0,
        "noise_scale_duration": 0.0}, "ids"),
    "vit": Architecture("ViTModel", "ViTConfig", {**SIZES, **PATCHES}, "image"),
    "deit": Architecture("DeiTModel", "DeiTConfig", {**SIZES, **PATCHES}, "image"),
    "beit": Architecture("BeitModel", "BeitConfig", {
        **SIZES, **PATCHES, "use_relative_position_bias": True}, "image"),
    "dinov2": Architecture("Dinov2Model", "Dinov2Config", {**SIZES, **PATCHES}, "image"),
    "dinov3": Architecture("DINOv3ViTModel", "DINOv3ViTConfig", {**SIZES, **PATCHES}, "image"),
    "vit-mae": Architecture("ViTMAEModel", "ViTMAEConfig", {**SIZES, **PATCHES, "mask_ratio": 0.0}, "noisy image"),
    "hiera": Architecture("HieraModel", "HieraConfig", {
        "image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}, "image"),
    "segformer": Architecture("SegformerForSemanticSegmentation", "SegformerConfig", {
        "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}, "image"),
    "upernet": Architecture("UperNetForSemanticSegmentation", "UperNetConfig", {
        "backbone_config": {**SWIN}, "hidden_size": 16, "use_auxiliary_head": False, "pool_scales": [1, 2]}, "image"),
    "swin": Architecture("SwinModel", "SwinConfig", SWIN, "image"),
    "swinv2": Architecture("Swinv2Model", "Swinv2Config", {
        key: value for key, value in SWIN.items() if key not in ("model_type", "out_features")}, "image"),
    "swin2sr": Architecture("Swin2SRForImageSuperResolution", "Swin2SRConfig", {
        "image_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, "small image"),
    "cvt": Architecture("CvtModel", "CvtConfig", {
        "embed_dim": [8, 16, 32], "depth": [1, 1, 1], "num_heads": [1, 2, 2], "cls_token": [False, False, True],
        "drop_path_rate": [0.0, 0.0, 0.0]}, "image"),
    "pvt": Architecture("PvtModel", "PvtConfig", {
        "image_size": 64, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4]}, "image"),
    "levit": Architecture("LevitModel", "LevitConfig", {
        "image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8]}, "image"),
    "mobilevit": Architecture("MobileViTModel", "MobileViTConfig", {"image_size": 64}, "image"),
    "mobilenet-v1": Architecture("MobileNetV1Model", "MobileNetV1Config", {"depth_multiplier": 0.25}, "image"),
    "focalnet": Architecture("FocalNetModel", "FocalNetConfig", {
        "image_size": 64, "embed_dim": 8, "depths": [1, 1, 1, 1]}, "image"),
    "poolformer": Architecture("PoolFormerModel", "PoolFormerConfig", {
        "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}, "image"),
    "bit": Architecture("BitModel", "BitConfig", {
        "hidden_sizes": [32, 64, 64, 128], "depths": [1, 1, 1, 1], "embedding_size": 32, "num_groups": 8}, "image"),
    "glpn": Architecture("GLPNForDepthEstimation", "GLPNConfig", {
        "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4], "depths": [1, 1, 1, 1],
        "decoder_hidden_size": 16}, "image"),
    "dpt": Architecture("DPTForDepthEstimation", "DPTConfig", {
        **SIZES, **PATCHES, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes":
        [8, 16, 24, 32], "fusion_hidden_size": 16, "is_hybrid": False}, "image"),
    "depth-anything": Architecture("DepthAnythingForDepthEstimation", "DepthAnythingConfig", {
        "backbone_config": {"model_type": "dinov2", **SIZES, "num_hidden_layers": 4, "image_size": 56, "patch_size": 14,
                            "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False, "apply_layernorm": True},
        "patch_size": 14, "reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 16, 24, 32],
        "fusion_hidden_size": 16, "head_hidden_size": 8}, "image 56"),
    "mask2former": Architecture("Mask2FormerForUniversalSegmentation", "Mask2FormerConfig", {
        "backbone_config": SWIN, "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32,
        "encoder_feedforward_dim": 32, "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2,
        "dim_feedforward": 32, "num_queries": 10}, "image"),
    "maskformer": Architecture("MaskFormerForInstanceSegmentation", "MaskFormerConfig", {
        "backbone_config": SWIN, "fpn_feature_size": 32, "mask_feature_size": 32,
        "decoder_config": {"model_type": "detr", **DETR}}, "image"),
    "detr": Architecture("DetrForObjectDetection", "DetrConfig", {
        **DETR, "backbone_config": RESNET, "use_timm_backbone": False, "backbone": None}, "image"),
    "conditional-detr": Architecture("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", {
        **DETR, "backbone_config": RESNET, "use_timm_backbone": False, "backbone": None}, "image"),
    "deformable-detr": Architecture("DeformableDetrForObjectDetection", "DeformableDetrConfig", {
        **DETR, "backbone_config": RESNET, "use_timm_backbone": False, "backbone": None, "num_feature_levels": 3},
        "image"),
    "table-transformer": Architecture("TableTransformerForObjectDetection", "TableTransformerConfig", {
        **DETR, "backbone_config": RESNET, "use_timm_backbone": False, "backbone": None}, "image"),
    "rt-detr": Architecture("RTDetrForObjectDetection", "RTDetrConfig", RT_DETR, "image"),
    "yolos": Architecture("YolosForObjectDetection", "YolosConfig", {
        **SIZES, "image_size": [64, 64], "patch_size": 16, "num_detection_tokens": 5}, "image"),
    "clip": Architecture("CLIPModel", "CLIPConfig", {
        "text_config": {**SIZES, **WORDS}, "vision_config": {**SIZES, **PATCHES}, "projection_dim": 16},
        "text and image"),
    "siglip": Architecture("SiglipModel", "SiglipConfig", {
        "text_config": {**SIZES, **WORDS}, "vision_config": {**SIZES, **PATCHES}}, "text and image"),
    "blip": Architecture("BlipForImageTextRetrieval", "BlipConfig", {
        "text_config": {**SIZES, **WORDS, "encoder_hidden_size": 32}, "vision_config": {**SIZES, **PATCHES},
        "image_text_hidden_size": 16}, "text and image"),
    "clipseg": Architecture("CLIPSegForImageSegmentation", "CLIPSegConfig", {
        "text_config": {**SIZES, **WORDS}, "vision_config": {**SIZES, **PATCHES, "num_hidden_layers": 3},
        "projection_dim": 16, "reduce_dim": 16, "extract_layers": [0, 1], "decoder_intermediate_size": 32},
        "text and image"),
    "owlvit": Architecture("OwlViTForObjectDetection", "OwlViTConfig", {
        "text_config": {**SIZES, **WORDS}, "vision_config": {**SIZES, **PATCHES}, "projection_dim": 16},
        "text and image"),
    "groupvit": Architecture("GroupViTModel", "GroupViTConfig", {
        "text_config": {**SIZES, **WORDS},
        "vision_config": {**SIZES, **PATCHES, "depths": [1, 1, 1], "num_output_groups": [8, 4, 0],
                          "num_group_tokens": [8, 4, 0]},
        "projection_dim": 16, "projection_intermediate_dim": 32}, "text and image"),
    "vilt": Architecture("ViltModel", "ViltConfig", {**SIZES, **WORDS, **PATCHES}, "text and image"),
    "visual-bert": Architecture("VisualBertModel", "VisualBertConfig", {**SIZES, **WORDS, "visual_embedding_dim": 16}),
    "sam": Architecture("SamModel", "SamConfig", {
        "vision_config": {**SIZES, **PATCHES, "mlp_dim": 64, "output_channels": 16, "num_pos_feats": 8,
                          "window_size": 2, "global_attn_indexes": [1]},
        "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 16, "mask_input_channels": 4,
                                  "image_embedding_size": 4},
        "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                                "iou_head_hidden_dim": 16}}, "points"),
    "videomae": Architecture("VideoMAEModel", "VideoMAEConfig", {
        **SIZES, **PATCHES, "num_frames": 4, "tubelet_size": 2}, "video"),
    "timesformer": Architecture("TimesformerModel", "TimesformerConfig", {
        **SIZES, **PATCHES, "num_frames": 4}, "video"),
    "vivit": Architecture("VivitModel", "VivitConfig", {
        **SIZES, "image_size": 64, "num_frames": 4, "tubelet_size": [2, 16, 16]}, "video"),
    "perceiver": Architecture("PerceiverForMaskedLM", "PerceiverConfig", {
        "num_latents": 8, "d_latents": 32, "d_model": 32, "num_blocks": 1, "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "vocab_size": 100,
        "max_position_embeddings": TOKENS, "qk_channels": 32, "v_channels": 32}),
    "superpoint": Architecture("SuperPointForKeypointDetection", "SuperPointConfig", {
        "encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16, "keypoint_decoder_dim": 65,
        "descriptor_decoder_dim": 16}, "image"),
    "time-series-transformer": Architecture("TimeSeriesTransformerModel", "TimeSeriesTransformerConfig", {
        **SIDES, "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2,
        "input_size": 1}, "series", {"use_cache": False}),
    "informer": Architecture("InformerModel", "InformerConfig", {
        **SIDES, "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2,
        "input_size": 1}, "series", {"use_cache": False}),
    "autoformer": Architecture("AutoformerModel", "AutoformerConfig", {
        **SIDES, "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2,
        "input_size": 1, "moving_average": 3}, "series", {"use_cache": False}),
    "patchtst": Architecture("PatchTSTModel", "PatchTSTConfig", {
        "num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32}, "past"),
    "patchtsmixer": Architecture("PatchTSMixerModel", "PatchTSMixerConfig", {
        "num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16,
        "num_layers": 2}, "past"),
    "decision-transformer": Architecture("DecisionTransformerModel", "DecisionTransformerConfig", {
        "state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 20}, "episode"),
    "trocr": Architecture("TrOCRForCausalLM", "TrOCRConfig", {
        "vocab_size": 100, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64,
        "max_position_embeddings": 64, "is_decoder": True}, "text", {"use_cache": False}),
    "rembert": Architecture("RemBertModel", "RemBertConfig", {
        **SIZES, **WORDS, "input_embedding_size": 16, "output_embedding_size": 16}),
    "ibert": Architecture("IBertModel", "IBertConfig", {**SIZES, **WORDS}),
    "yoso": Architecture("YosoModel", "YosoConfig", {**SIZES, **WORDS, "use_expectation": True}),
    "mra": Architecture("MraModel", "MraConfig", {**SIZES, **WORDS}),
    "luke": Architecture("LukeModel", "LukeConfig", {
        **SIZES, **WORDS, "entity_vocab_size": 10, "entity_emb_size": 16}),
    "tapas": Architecture("TapasModel", "TapasConfig", {**SIZES, **WORDS}),
    "lilt": Architecture("LiltModel", "LiltConfig", {**SIZES, **WORDS, "hidden_size": 48}, "layout"),
    "layoutlmv3": Architecture("LayoutLMv3Model", "LayoutLMv3Config", {
        **SIZES, **WORDS, "coordinate_size": 5, "shape_size": 6, "max_2d_position_embeddings": 64, "rel_pos_bins": 8,
        "max_rel_pos": 16, "rel_2d_pos_bins": 8, "max_rel_2d_pos": 16, "visual_embed": False}, "layout"),
    "megatron-bert": Architecture("MegatronBertModel", "MegatronBertConfig", {**SIZES, **WORDS}),
    "xmod": Architecture("XmodModel", "XmodConfig", {**SIZES, **WORDS, "default_language": "en_XX"}),
    "nomic-bert": Architecture("NomicBertModel", "NomicBertConfig", {**SIZES, **WORDS}),
    "reformer": Architecture("ReformerModel", "ReformerConfig", {
        "vocab_size": 100, "attn_layers": ["local", "lsh"], "hidden_size": 32, "attention_head_size": 8,
        "num_attention_heads": 4, "feed_forward_size": 64, "axial_pos_shape": [2, 4], "axial_pos_embds_dim": [16, 16],
        "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "max_position_embeddings": 8, "num_buckets": 2,
        "is_decoder": False, "hash_seed": 0}, "ids"),
    "led": _seq2seq("LEDModel", "LEDConfig", {
        **BART, "attention_window": [4, 4], "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": 64}),
    "umt5": _seq2seq("UMT5Model", "UMT5Config", T5),
    "fsmt": _seq2seq("FSMTModel", "FSMTConfig", {
        **BART, "src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["a", "b"]}),
    "gpt": Architecture("OpenAIGPTModel", "OpenAIGPTConfig", {
        "vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "ctrl": Architecture("CTRLModel", "CTRLConfig", {
        "vocab_size": 100, "n_positions": 64, "n_embd": 32, "dff": 64, "n_layer": 2, "n_head": 4},
        fixed={"use_cache": False}),
    "xglm": Architecture("XGLMModel", "XGLMConfig", {
        "vocab_size": 100, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64,
        "max_position_embeddings": 64}, fixed={"use_cache": False}),
    "biogpt": _decoder("BioGptModel", "BioGptConfig"),
    "olmoe": _decoder("OlmoeModel", "OlmoeConfig", **GQA, num_experts=4, num_experts_per_tok=2,
                      experts_implementation="eager"),
    "qwen3-moe": _decoder("Qwen3MoeModel", "Qwen3MoeConfig", **GQA, head_dim=8, num_experts=4, num_experts_per_tok=2,
                          moe_intermediate_size=16, experts_implementation="eager"),
    "granite-moe": _decoder("GraniteMoeModel", "GraniteMoeConfig", **GQA, num_local_experts=4, num_experts_per_tok=2),
    "llama4": _decoder("Llama4TextModel", "Llama4TextConfig", **GQA, head_dim=8, intermediate_size_mlp=64,
                       num_local_experts=2, attention_chunk_size=16),
    "smollm3": _decoder("SmolLM3Model", "SmolLM3Config", **GQA, pad_token_id=0),
    "cohere2": _decoder("Cohere2Model", "Cohere2Config", **GQA, sliding_window=4),
    "recurrent-gemma": _decoder("RecurrentGemmaModel", "RecurrentGemmaConfig", **GQA, lru_width=32,
                                attention_window_size=8),
    "qwen3-next": _decoder("Qwen3NextModel", "Qwen3NextConfig", **GQA, head_dim=8, num_experts=4,
                           num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
                           linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
                           linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"],
                           experts_implementation="batched_mm"),
    "jamba": _decoder("JambaModel", "JambaConfig", **GQA, num_experts=2, attn_layer_period=2, attn_layer_offset=1,
                      expert_layer_period=2, expert_layer_offset=1, mamba_d_state=4, use_mamba_kernels=False,
                      experts_implementation="eager"),
    "falcon-mamba": Architecture("FalconMambaModel", "FalconMambaConfig", {
        "vocab_size": 100, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}, "ids", {"use_cache": False}),
    "sew": Architecture("SEWModel", "SEWConfig", {**AUDIO, "squeeze_factor": 2}, "wave"),
    "unispeech-sat": Architecture("UniSpeechSatModel", "UniSpeechSatConfig", AUDIO, "wave"),
    "wav2vec2-conformer": Architecture("Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", AUDIO, "wave"),
    "data2vec-audio": Architecture("Data2VecAudioModel", "Data2VecAudioConfig", AUDIO, "wave"),
    "moonshine": Architecture("MoonshineModel", "MoonshineConfig", {
        "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
        "decoder_start_token_id": 1}, "long wave", {"use_cache": False}),
    "univnet": Architecture("UnivNetModel", "UnivNetConfig", {
        "model_in_channels": 8, "model_hidden_channels": 8, "num_mel_bins": 16, "resblock_kernel_sizes": [3, 3],
        "resblock_stride_sizes": [4, 2], "resblock_dilation_sizes": [[1, 3], [1, 3]], "kernel_predictor_num_blocks": 1,
        "kernel_predictor_hidden_channels": 8}, "noisy mel"),
    "hifigan": Architecture("SpeechT5HifiGan", "SpeechT5HifiGanConfig", {
        "model_in_dim": 16, "upsample_initial_channel": 16, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4],
        "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]]}, "vocoder"),
    "dac": Architecture("DacModel", "DacConfig", {
        "encoder_hidden_size": 4, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32,
        "upsampling_ratios": [4, 2], "n_codebooks": 2, "codebook_size": 16, "codebook_dim": 4}, "sound"),
    "imagegpt": Architecture("ImageGPTModel", "ImageGPTConfig", {
        "vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}, "ids", {"use_cache": False}),
    "convnextv2": Architecture("ConvNextV2ForImageClassification", "ConvNextV2Config", {
        "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}, "image"),
    "regnet": Architecture("RegNetModel", "RegNetConfig", {
        "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "groups_width": 8}, "image"),
    "efficientnet": Architecture("EfficientNetModel", "EfficientNetConfig", {
        "image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320}, "image"),
    "textnet": Architecture("TextNetModel", "TextNetConfig", {}, "image"),
    "mobilevitv2": Architecture("MobileViTV2Model", "MobileViTV2Config", {
        "image_size": 64, "width_multiplier": 0.25}, "image"),
    "vitdet": Architecture("VitDetModel", "VitDetConfig", {
        **SIZES, **PATCHES, "window_size": 2, "window_block_indices": [0], "residual_block_indices": [1],
        "use_relative_position_embeddings": True}, "image"),
    "vitpose": Architecture("VitPoseForPoseEstimation", "VitPoseConfig", {
        "backbone_config": {"model_type": "vitpose_backbone", **SIZES, "image_size": [64, 64], "patch_size": [16, 16],
                            "out_features": ["stage2"]}, "num_labels": 5}, "image"),
    "eomt": Architecture("EomtForUniversalSegmentation", "EomtConfig", {
        **SIZES, **PATCHES, "num_queries": 5, "num_blocks": 1, "num_labels": 5}, "image"),
    "mgp-str": Architecture("MgpstrForSceneTextRecognition", "MgpstrConfig", {
        "image_size": [64, 64], "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_token_length": 5, "num_character_labels": 6, "num_bpe_labels": 20, "num_wordpiece_labels": 20}, "image"),
    "d-fine": Architecture("DFineForObjectDetection", "DFineConfig", {
        "backbone_config": {"model_type": "hgnet_v2", "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 24, 32],
                            "stage_mid_channels": [8, 8, 16, 16], "stage_out_channels": [16, 24, 32, 48],
                            "stage_num_blocks": [1, 1, 1, 1], "stage_downsample": [False, True, True, True],
                            "stage_light_block": [False, False, True, True], "stage_kernel_size": [3, 3, 3, 3],
                            "stage_numb_of_layers": [2, 2, 2, 2], "embedding_size": 8, "depths": [1, 1, 1, 1],
                            "hidden_sizes": [16, 24, 32, 48], "out_features": ["stage2", "stage3", "stage4"]},
        **RT_DETR, "encoder_in_channels": [24, 32, 48]}, "image"),
    "rt-detr-v2": Architecture("RTDetrV2ForObjectDetection", "RTDetrV2Config", RT_DETR, "image"),
    "dab-detr": Architecture("DabDetrForObjectDetection", "DabDetrConfig", {
        **{key: value for key, value in DETR.items() if key != "d_model"}, "hidden_size": 32,
        "backbone_config": RESNET, "use_timm_backbone": False, "backbone": None}, "image"),
    "altclip": Architecture("AltCLIPModel", "AltCLIPConfig", {
        "text_config": {**SIZES, **WORDS, "project_dim": 16}, "vision_config": {**SIZES, **PATCHES},
        "projection_dim": 16}, "text and image"),
    "git": Architecture("GitForCausalLM", "GitConfig", {
        **SIZES, **WORDS, "vision_config": {**SIZES, **PATCHES}}, "text and image", {"use_cache": False}),
}


def _feeds() -> dict[str, Callable[[], dict[str, Any]]]:
    import torch

    def ids(count: int = TOKENS) -> Any:
        return torch.randint(3, 40, (1, count))

    def mask() -> Any:
        return torch.tensor([[1] * (TOKENS - 2) + [0] * 2])

    def image(size: int = 64) -> Any:
        return torch.randn(1, 3, size, size)

    return {
        "ids": lambda: {"input_ids": ids()},
        "text": lambda: {"input_ids": ids(), "attention_mask": mask()},
        "pairs": lambda: {"input_ids": ids(), "attention_mask": mask(), "decoder_input_ids": ids(4)},
        "layout": lambda: {"input_ids": ids(), "bbox": torch.randint(0, 50, (1, TOKENS, 4)).sort(-1).values},
        "image": lambda: {"pixel_values": image()},
        "image 56": lambda: {"pixel_values": image(56)},
        "small image": lambda: {"pixel_values": image(16)},
        "noisy image": lambda: {"pixel_values": image(), "noise": torch.rand(1, 16)},
        "text and image": lambda: {"input_ids": ids(), "pixel_values": image(), "attention_mask": mask()},
        "points": lambda: {
            "pixel_values": image(),
            "input_points": torch.rand(1, 1, 2, 2) * 64,
            "input_labels": torch.ones(1, 1, 2, dtype=torch.long),
        },
        "video": lambda: {"pixel_values": torch.randn(1, 4, 3, 64, 64)},
        "mel": lambda: {"input_features": torch.randn(1, 16, 32), "decoder_input_ids": ids(4)},
        "frames": lambda: {"input_features": torch.randn(1, 32, 16), "decoder_input_ids": ids(4)},
        "wave": lambda: {"input_values": torch.randn(1, 1000)},
        "long wave": lambda: {"input_values": torch.randn(1, 2000), "decoder_input_ids": ids(4)},
        "noisy mel": lambda: {"input_features": torch.randn(1, 16, 16), "noise_sequence": torch.randn(1, 16, 8)},
        "vocoder": lambda: {"spectrogram": torch.randn(1, 8, 16)},
        "sound": lambda: {"input_values": torch.randn(1, 1, 320)},
        "spectrogram": lambda: {"input_values": torch.randn(1, 64, 32)},
        "past": lambda: {"past_values": torch.randn(1, 16, 2)},
        "series": lambda: {
            "past_values": torch.randn(1, 10),
            "past_time_features": torch.randn(1, 10, 2),
            "past_observed_mask": torch.ones(1, 10),
            "future_values": torch.randn(1, 4),
            "future_time_features": torch.randn(1, 4, 2),
        },
        "episode": lambda: {
            "states": torch.randn(1, 4, 5), "actions": torch.randn(1, 4, 3), "rewards": torch.randn(1, 4, 1),
            "returns_to_go": torch.randn(1, 4, 1), "timesteps": torch.arange(4)[None],
            "attention_mask": torch.ones(1, 4, dtype=torch.long),
        },
        "cache": lambda: {"input_ids": ids(1)},
    }


def transformers_network(wanted: Architecture) -> tuple[Any, tuple[Any, ...]]:
    """Return a network of transformers that takes tensors and returns tensors, and example inputs."""
    import torch

    from benchmarks.zoo.torchvision_ops import define_where_missing

    define_where_missing()
    import transformers

    config = getattr(transformers, wanted.config)(**wanted.options)
    network = getattr(transformers, wanted.model)(config)
    feed = _feeds()[wanted.feed]()

    class Plain(torch.nn.Module):
        """The network with arguments by place and a flat tuple of results, which both exporters take."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *arguments: Any) -> Any:
            return tuple(_tensors(self.network(**dict(zip(feed, arguments, strict=True)), **wanted.fixed)))

    class Cached(torch.nn.Module):
        """A step of generation: one token, and the keys and values of those before as inputs and outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, token: Any, *past: Any) -> Any:
            cache = transformers.DynamicCache(ddp_cache_data=list(zip(past[::2], past[1::2], strict=True)))
            answer = self.network(input_ids=token, past_key_values=cache, use_cache=True)
            return (answer.logits, *(t for layer in answer.past_key_values.layers for t in (layer.keys, layer.values)))

    if wanted.feed == "cache":
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = config.hidden_size // config.num_attention_heads
        past = [torch.randn(1, heads, 5, width) for _ in range(2 * config.num_hidden_layers)]
        return Cached(), (*feed.values(), *past)
    return Plain(), tuple(feed.values())


def _tensors(answer: Any) -> list[Any]:
    import torch

    if isinstance(answer, torch.Tensor):
        return [answer]
    if isinstance(answer, dict):
        return [t for value in answer.values() for t in _tensors(value)]
    return [t for value in answer for t in _tensors(value)] if isinstance(answer, tuple | list) else []
