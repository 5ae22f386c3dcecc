"""Qwen3.5-MoE: as Qwen3-Next, with flat projections, fused experts, inside a multimodal model."""
from .family import EOS_TOKEN_ID, HIDDEN_SIZE, NUM_LAYERS, QWEN_COMMON, VOCAB_SIZE, Family

_TEXT_CONFIG = QWEN_COMMON | {
    "model_type": "qwen3_5_moe_text",
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "eos_token_id": EOS_TOKEN_ID,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "router_aux_loss_coef": 0.001,
    "linear_conv_kernel_dim": 4,
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": NUM_LAYERS,
    "full_attention_interval": 4,
    "vocab_size": VOCAB_SIZE,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "layer_types": [*["linear_attention"] * (NUM_LAYERS - 1), "full_attention"],
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 0],
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
    },
}
_VISION_CONFIG = {
    "model_type": "qwen3_5_moe",
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN_SIZE,
    "num_position_embeddings": 16,
}


def _hub_name(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


QWEN3_5_MOE = Family(
    name="qwen3_5_moe",
    config={
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "image_token_id": 300,
        "video_token_id": 301,
        "vision_start_token_id": 302,
        "vision_end_token_id": 303,
        "text_config": _TEXT_CONFIG,
        "tie_word_embeddings": False,
        "vision_config": _VISION_CONFIG,
    },
    config_class="Qwen3_5MoeTextConfig",
    model_class="Qwen3_5MoeForCausalLM",
    has_zero_centred_norms=True,
    has_fused_experts=True,
    f32_suffixes=("A_log", "linear_attn.norm.weight"),
    hub_name=_hub_name,
    decoys={
        "mtp.fc.weight": (HIDDEN_SIZE, 2 * HIDDEN_SIZE),
        "mtp.norm.weight": (HIDDEN_SIZE,),
        "mtp.layers.0.input_layernorm.weight": (HIDDEN_SIZE,),
        "model.visual.patch_embed.proj.bias": (_VISION_CONFIG["hidden_size"],),
    },
)
