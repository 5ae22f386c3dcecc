//! `config.json` and `generation_config.json`, as the publisher of the layout writes them.

use serde_json::{Map, Value, json};

use crate::{Synth, affine::GROUP, geometry::Family};

/// `config.json`; `routers` are the modules packed otherwise than the rest.
pub(crate) fn config(synth: &Synth<'_>, routers: &[String]) -> Value {
    let mut config = match synth.geometry.family {
        Family::Qwen3Moe => qwen3_moe(synth),
        Family::Qwen3Next => qwen3_next(synth),
        Family::Qwen3_5Moe => qwen3_5_moe(synth),
    };
    if !synth.bits.is_plain() {
        let mut quantization = Map::new();
        quantization.insert("group_size".to_owned(), json!(GROUP));
        quantization.insert("bits".to_owned(), json!(synth.bits.get()));
        quantization.insert("mode".to_owned(), json!("affine"));
        let rule = json!({ "group_size": GROUP, "bits": 8 });
        quantization.extend(routers.iter().map(|module| (module.clone(), rule.clone())));
        config["quantization"] = Value::Object(quantization);
        config["quantization_config"] = config["quantization"].clone();
    }
    config
}

/// `generation_config.json`, with the sampling that Qwen recommends for thinking models.
pub(crate) fn generation_config(synth: &Synth<'_>) -> Value {
    json!({
        "eos_token_id": synth.geometry.eos,
        "do_sample": true,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    })
}

/// Keys that all families have.
fn shared_keys(synth: &Synth<'_>) -> Value {
    let geometry = synth.geometry;
    json!({
        "attention_bias": false,
        "attention_dropout": 0.0,
        "eos_token_id": geometry.eos.first(),
        "head_dim": geometry.head_dim,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "initializer_range": 0.02,
        "max_position_embeddings": geometry.context_max,
        "moe_intermediate_size": geometry.moe_ffn,
        "num_attention_heads": geometry.heads,
        "num_experts": geometry.experts,
        "num_experts_per_tok": geometry.top_k,
        "num_hidden_layers": synth.layers,
        "num_key_value_heads": geometry.kv_heads,
        "rms_norm_eps": geometry.eps,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": false,
        "use_cache": true,
        "vocab_size": geometry.vocab,
    })
}

/// Keys of the hybrids.
fn hybrid_keys(synth: &Synth<'_>) -> Value {
    let geometry = synth.geometry;
    let linear = geometry.linear.expect("hybrids have delta-net layers");
    json!({
        "full_attention_interval": geometry.full_attention_interval,
        "linear_conv_kernel_dim": linear.conv,
        "linear_key_head_dim": linear.head_dim,
        "linear_num_key_heads": linear.key_heads,
        "linear_num_value_heads": linear.value_heads,
        "linear_value_head_dim": linear.head_dim,
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": geometry.shared_ffn,
    })
}

/// Keys of the families that also know dense layers.
fn flat_keys(synth: &Synth<'_>) -> Value {
    json!({
        "decoder_sparse_step": 1,
        "intermediate_size": synth.geometry.dense_ffn,
        "mlp_only_layers": [],
        "norm_topk_prob": true,
        "output_router_logits": false,
        "rope_scaling": null,
        "rope_theta": synth.geometry.rope_theta,
        "torch_dtype": "bfloat16",
    })
}

fn qwen3_moe(synth: &Synth<'_>) -> Value {
    let own = json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": synth.geometry.family.model_type(),
        "max_window_layers": synth.geometry.layers,
        "sliding_window": null,
        "use_sliding_window": false,
    });
    merged([own, shared_keys(synth), flat_keys(synth)])
}

fn qwen3_next(synth: &Synth<'_>) -> Value {
    let own = json!({
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": synth.geometry.family.model_type(),
        "partial_rotary_factor": synth.geometry.partial_rotary,
    });
    merged([own, shared_keys(synth), hybrid_keys(synth), flat_keys(synth)])
}

fn qwen3_5_moe(synth: &Synth<'_>) -> Value {
    let geometry = synth.geometry;
    let model_type = geometry.family.model_type();
    let kind = |layer| {
        if geometry.attends(layer) { "full_attention" } else { "linear_attention" }
    };
    let kinds: Vec<&str> = (0..synth.layers).map(kind).collect();
    let pairs = (geometry.head_dim as f64 * geometry.partial_rotary) as usize / 2;
    let section = pairs.div_ceil(3);
    let rope = json!({
        "mrope_interleaved": true,
        "mrope_section": [section, section, pairs - 2 * section],
        // mlx_lm.convert renames the key.
        (if synth.bits.is_plain() { "rope_type" } else { "type" }): "default",
        "rope_theta": geometry.rope_theta,
        "partial_rotary_factor": geometry.partial_rotary,
    });
    let own = json!({
        "model_type": format!("{model_type}_text"),
        "attn_output_gate": true,
        "dtype": "bfloat16",
        "layer_types": kinds,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": rope,
    });
    json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "eos_token_id": geometry.eos,
        "model_type": model_type,
        "text_config": merged([own, shared_keys(synth), hybrid_keys(synth)]),
        "tie_word_embeddings": false,
    })
}

fn merged<const N: usize>(objects: [Value; N]) -> Value {
    let maps = objects.into_iter().filter_map(|object| match object {
        Value::Object(map) => Some(map),
        _ => None,
    });
    Value::Object(maps.flatten().collect())
}
