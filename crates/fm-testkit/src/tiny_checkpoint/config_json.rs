//! `config.json` in each family's own spelling.

use serde_json::{Map, Value, json};

use super::{Layout, TinyModel, YarnShape};
use crate::oracle::Family;

/// `config.json`; `quantization` is null for a checkpoint that is not packed, absent for HF.
pub(super) fn config(model: &TinyModel, layout: &Layout, quantization: Option<&Value>) -> Value {
    let mut config = match model.family {
        Family::Mixtral => mixtral(model),
        Family::MinimaxM2 => minimax_m2(model),
        Family::GptOss => gpt_oss(model, layout),
        Family::DeepseekV3 => deepseek_v3(model),
        Family::Glm4MoeLite => glm4_moe_lite(model),
        Family::Qwen3Moe => qwen3_moe(model),
        Family::Qwen3Next => qwen3_next(model),
        Family::Qwen3_5Moe => qwen3_5_moe(model, layout),
    };
    if let Some(quantization) = quantization.filter(|packing| !packing.is_null()) {
        config["quantization"] = quantization.clone();
        config["quantization_config"] = quantization.clone();
    }
    config
}

/// `generation_config.json`.
pub(super) fn generation_config() -> Value {
    json!({ "eos_token_id": 2, "do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20 })
}

/// Keys that all families have.
fn shared_keys(model: &TinyModel) -> Value {
    json!({
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "rms_norm_eps": model.eps,
        "tie_word_embeddings": model.tie_embeddings,
        "use_cache": true,
        "eos_token_id": 2,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "vocab_size": model.vocab,
        "head_dim": model.head_dim,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "num_experts_per_tok": model.top_k,
        "router_aux_loss_coef": 0.001,
    })
}

/// Keys of the Qwen families.
fn qwen_keys(model: &TinyModel) -> Value {
    json!({
        "attention_bias": model.attention_bias,
        "num_experts": model.experts,
        "moe_intermediate_size": model.moe_ffn,
    })
}

/// Keys of the families that call their experts local.
fn local_keys(model: &TinyModel) -> Value {
    json!({
        "intermediate_size": model.moe_ffn,
        "num_local_experts": model.experts,
        "rope_theta": model.rope_theta,
        "torch_dtype": model.dtype.torch_name(),
    })
}

fn mixtral(model: &TinyModel) -> Value {
    let own = json!({
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "bos_token_id": 1,
        "output_router_logits": false,
        "sliding_window": model.sliding_window,
    });
    merged([own, shared_keys(model), local_keys(model)])
}

fn minimax_m2(model: &TinyModel) -> Value {
    let own = json!({
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "bos_token_id": 0,
        "num_mtp_modules": 1,
        "qk_norm_type": "per_layer",
        "rotary_dim": (model.head_dim as f64 * model.partial_rotary) as usize,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_mtp": true,
        "use_qk_norm": true,
        "use_routing_bias": true,
    });
    merged([own, shared_keys(model), local_keys(model)])
}

fn gpt_oss(model: &TinyModel, layout: &Layout) -> Value {
    let kinds = (0..model.layers)
        .map(|layer| if layer % 2 == 0 { "sliding_attention" } else { "full_attention" });
    let mut own = json!({
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": true,
        "experts_per_token": model.top_k,
        "initial_context_length": model.trained_context,
        "layer_types": kinds.collect::<Vec<_>>(),
        "output_router_logits": false,
        "pad_token_id": 0,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": model.trained_context,
            "rope_type": "yarn",
            "truncate": false,
        },
        "sliding_window": model.sliding_window,
        "swiglu_limit": model.swiglu_limit,
    });
    if matches!(layout, Layout::Hf) {
        let plain = [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ];
        own["quantization_config"] =
            json!({ "modules_to_not_convert": plain, "quant_method": "mxfp4" });
    }
    merged([own, shared_keys(model), local_keys(model)])
}

/// Keys of the families with latent attention.
fn latent_keys(model: &TinyModel) -> Value {
    let yarn = |yarn: YarnShape| {
        json!({
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": yarn.factor,
            "mscale": yarn.mscale,
            "mscale_all_dim": yarn.mscale_all_dim,
            "original_max_position_embeddings": model.trained_context,
            "type": "yarn",
        })
    };
    let mut keys = json!({
        "attention_bias": model.attention_bias,
        "first_k_dense_replace": model.first_dense,
        "intermediate_size": model.dense_ffn,
        "kv_lora_rank": model.latent.rank,
        "moe_intermediate_size": model.moe_ffn,
        "n_group": model.groups.0,
        "n_routed_experts": model.experts,
        "n_shared_experts": model.shared_experts,
        "norm_topk_prob": model.norm_topk_prob,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": model.latent.q_rank,
        "qk_nope_head_dim": model.latent.nope,
        "qk_rope_head_dim": model.latent.rope,
        "rope_scaling": model.yarn.map(yarn),
        "rope_theta": model.rope_theta,
        "routed_scaling_factor": model.route_factor,
        "topk_group": model.groups.1,
        "topk_method": "noaux_tc",
        "v_head_dim": model.latent.value,
    });
    if let Some(interleave) = model.latent.rope_interleave {
        keys["rope_interleave"] = json!(interleave);
    }
    keys
}

fn deepseek_v3(model: &TinyModel) -> Value {
    let own = json!({
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "bos_token_id": 0,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "torch_dtype": model.dtype.torch_name(),
    });
    merged([own, shared_keys(model), latent_keys(model)])
}

fn glm4_moe_lite(model: &TinyModel) -> Value {
    let own = json!({
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "dtype": model.dtype.torch_name(),
        "pad_token_id": 0,
        "partial_rotary_factor": 1.0,
    });
    merged([own, shared_keys(model), latent_keys(model)])
}

/// Keys of the hybrids.
fn hybrid_keys(model: &TinyModel) -> Value {
    json!({
        "full_attention_interval": model.full_attention_interval,
        "linear_conv_kernel_dim": model.linear.conv,
        "linear_key_head_dim": model.linear.key_dim,
        "linear_value_head_dim": model.linear.value_dim,
        "linear_num_key_heads": model.linear.key_heads,
        "linear_num_value_heads": model.linear.value_heads,
        "shared_expert_intermediate_size": model.shared_ffn,
    })
}

/// Keys of the families that also know dense layers.
fn flat_keys(model: &TinyModel) -> Value {
    json!({
        "bos_token_id": 0,
        "decoder_sparse_step": model.decoder_sparse_step,
        "intermediate_size": model.dense_ffn,
        "mlp_only_layers": model.mlp_only_layers,
        "norm_topk_prob": model.norm_topk_prob,
        "output_router_logits": false,
        "rope_scaling": null,
        "rope_theta": model.rope_theta,
        "torch_dtype": model.dtype.torch_name(),
    })
}

fn qwen3_moe(model: &TinyModel) -> Value {
    let own = json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "max_window_layers": 48,
        "sliding_window": null,
        "use_sliding_window": false,
    });
    merged([own, shared_keys(model), qwen_keys(model), flat_keys(model)])
}

fn qwen3_next(model: &TinyModel) -> Value {
    let own = json!({
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "partial_rotary_factor": model.partial_rotary,
    });
    merged([own, shared_keys(model), qwen_keys(model), hybrid_keys(model), flat_keys(model)])
}

fn qwen3_5_moe(model: &TinyModel, layout: &Layout) -> Value {
    let kinds = (0..model.layers)
        .map(|layer| if model.attends(layer) { "full_attention" } else { "linear_attention" });
    let mlx = matches!(layout, Layout::Mlx(_));
    let rotary_pairs = (model.head_dim as f64 * model.partial_rotary) as usize / 2;
    let rope = json!({
        "mrope_interleaved": true,
        "mrope_section": [rotary_pairs - 2 * (rotary_pairs / 3), rotary_pairs / 3, rotary_pairs / 3],
        // mlx_lm.convert rewrites the key.
        (if mlx { "type" } else { "rope_type" }): "default",
        "rope_theta": model.rope_theta,
        "partial_rotary_factor": model.partial_rotary,
    });
    let own = json!({
        "model_type": "qwen3_5_moe_text",
        "attn_output_gate": true,
        "dtype": model.dtype.torch_name(),
        "layer_types": kinds.collect::<Vec<_>>(),
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false,
        "rope_parameters": rope,
    });
    let mut config = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "image_token_id": model.vocab - 4,
        "video_token_id": model.vocab - 3,
        "vision_start_token_id": model.vocab - 2,
        "vision_end_token_id": model.vocab - 1,
        "tie_word_embeddings": model.tie_embeddings,
        "text_config": merged([own, shared_keys(model), qwen_keys(model), hybrid_keys(model)]),
    });
    if mlx {
        // mlx_lm.convert drops the vision tower and copies the key from generation_config.json.
        config["eos_token_id"] = json!(2);
    } else {
        config["vision_config"] =
            json!({ "model_type": "qwen3_5_moe", "depth": 1, "hidden_size": 32, "num_heads": 2 });
    }
    config
}

fn merged<const N: usize>(objects: [Value; N]) -> Value {
    let maps = objects.into_iter().map(|object| match object {
        Value::Object(map) => map,
        other => panic!("{other} is not an object"),
    });
    Value::Object(maps.flatten().collect::<Map<_, _>>())
}
