//! What GGUF's keys mean in the words of `config.json`, part by part.

use serde_json::{Map, Value, json};

use super::keys::Keys;
use crate::error::LoadError;

type Config = Map<String, Value>;

/// Adds what is there: a value that is missing is null.
fn add<const N: usize>(config: &mut Config, entries: [(&str, Value); N]) {
    let present = entries.into_iter().filter(|(_, value)| !value.is_null());
    config.extend(present.map(|(key, value)| (key.to_owned(), value)));
}

/// Dimensions of the trunk.
pub(super) fn decoder(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    const EPSILON: &str = "attention.layer_norm_rms_epsilon";
    let eps = keys.float(EPSILON)?.ok_or_else(|| keys.missing(EPSILON))?;
    add(
        config,
        [
            ("hidden_size", json!(keys.required("embedding_length")?)),
            ("num_hidden_layers", json!(keys.layers()?.start)),
            ("num_attention_heads", json!(keys.required("attention.head_count")?)),
            ("rms_norm_eps", json!(eps)),
            ("max_position_embeddings", json!(keys.required("context_length")?)),
        ],
    );
    Ok(())
}

/// Base of the rotary frequencies that files leave out.
const THETA_DEFAULT: f64 = 10_000.0;

const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";
const BETA_FAST: &str = "rope.scaling.yarn_beta_fast";

/// Base and scaling of rotary positions.
pub(super) fn rope(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    // The format stores a tenth of it, in f32.
    let mscale = keys.float("rope.scaling.yarn_log_multiplier")?;
    let mscale = mscale.map(|tenth| json!(tenth as f32 / 0.1_f32));
    // Readers multiply theirs with it, which is what `attention_factor` replaces.
    if let Some(found) = keys.float(ATTENTION_FACTOR)?.filter(|factor| *factor != 1.0) {
        let expected = "expected 1: no published file has another";
        return Err(LoadError::Field { field: ATTENTION_FACTOR, found: found.into(), expected });
    }
    let kind = keys.text("rope.scaling.type")?;
    let beta_fast = keys.float(BETA_FAST)?;
    // Older converters leave out where the ramp is, and Kimi-K2's is not where the default of its architecture has it.
    if kind == Some("yarn") && beta_fast.is_none() && keys.pre_tokenizer()? == Some("kimi-k2") {
        return Err(LoadError::MissingRamp { key: keys.key(BETA_FAST) });
    }
    let scaling = json!({
        "rope_type": kind.map(|kind| if kind == "none" { "default" } else { kind }),
        "factor": keys.float("rope.scaling.factor")?,
        "original_max_position_embeddings": keys.count("rope.scaling.original_context_length")?,
        "beta_fast": beta_fast,
        "beta_slow": keys.float("rope.scaling.yarn_beta_slow")?,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    });
    let theta = keys.float("rope.freq_base")?.unwrap_or(THETA_DEFAULT);
    add(config, [("rope_theta", json!(theta)), ("rope_scaling", scaling)]);
    Ok(())
}

/// Grouped query heads, and the rotated part of each.
pub(super) fn heads(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    let heads = keys.required("attention.head_count")?;
    let plain = keys.required("embedding_length")? / heads.max(1);
    let head_dim = keys.count("attention.key_length")?.unwrap_or(plain);
    keys.expect("attention.value_length", head_dim)?;
    let rotated = keys.count("rope.dimension_count")?;
    // Only layers that do not attend have no keys.
    let kv_heads = if keys.has("ssm.inner_size") {
        keys.count("attention.head_count_kv")?
    } else {
        keys.count_everywhere("attention.head_count_kv")?
    };
    let kv_heads = kv_heads.unwrap_or(heads);
    add(
        config,
        [
            ("num_key_value_heads", json!(kv_heads)),
            ("head_dim", json!(head_dim)),
            ("partial_rotary_factor", json!(rotated.map(|dim| dim as f64 / head_dim as f64))),
        ],
    );
    Ok(())
}

/// Latent attention. The cached key is one head for all; what a query head has is told apart.
pub(super) fn latent_heads(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    let latent = keys.required("attention.kv_lora_rank")?;
    let rotated = keys.required("rope.dimension_count")?;
    keys.expect("attention.key_length", latent.saturating_add(rotated))?;
    keys.expect("attention.value_length", latent)?;
    keys.expect("attention.head_count_kv", 1)?;
    let q_dim = keys.required("attention.key_length_mla")?;
    add(
        config,
        [
            ("num_key_value_heads", json!(keys.required("attention.head_count")?)),
            ("q_lora_rank", json!(keys.count("attention.q_lora_rank")?)),
            ("kv_lora_rank", json!(latent)),
            ("qk_nope_head_dim", json!(q_dim.saturating_sub(rotated))),
            ("qk_rope_head_dim", json!(rotated)),
            ("v_head_dim", json!(keys.required("attention.value_length_mla")?)),
        ],
    );
    Ok(())
}

/// The linear-attention layers of the Qwen hybrids.
pub(super) fn delta_net(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    let value_heads = keys.required("ssm.time_step_rank")?;
    let values = keys.required("ssm.inner_size")?;
    // Layers behind the decoder are in the list, too.
    let layers = keys.layers()?.start as usize;
    let recurrent = keys.bools("attention.recurrent_layers")?.map(|recurrent| {
        let kind = |recurrent| if recurrent { "linear_attention" } else { "full_attention" };
        json!(recurrent.into_iter().take(layers).map(kind).collect::<Vec<_>>())
    });
    let interval = keys.count("full_attention_interval")?;
    add(
        config,
        [
            ("linear_num_key_heads", json!(keys.required("ssm.group_count")?)),
            ("linear_num_value_heads", json!(value_heads)),
            ("linear_key_head_dim", json!(keys.required("ssm.state_size")?)),
            ("linear_value_head_dim", json!(values / value_heads.max(1))),
            ("linear_conv_kernel_dim", json!(keys.required("ssm.conv_kernel")?)),
            ("full_attention_interval", json!(interval)),
            ("layer_types", json!(recurrent)),
        ],
    );
    Ok(())
}

/// Experts of the Qwen families. The format has no key for whether the chosen weights are divided
/// by their sum: those of every published model are.
pub(super) fn normalised_experts(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    let shared = keys.count("expert_shared_feed_forward_length")?;
    let normalised = keys.bool("expert_weights_norm")?.unwrap_or(true);
    add(
        config,
        [
            ("num_experts", json!(keys.experts()?)),
            ("num_experts_per_tok", json!(keys.required("expert_used_count")?)),
            ("intermediate_size", json!(keys.count("feed_forward_length")?)),
            ("moe_intermediate_size", json!(keys.required("expert_feed_forward_length")?)),
            ("shared_expert_intermediate_size", json!(shared)),
            ("norm_topk_prob", json!(normalised)),
        ],
    );
    Ok(())
}

/// Experts of the families that have no other feed-forward network.
pub(super) fn local_experts(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    let common = keys.required("feed_forward_length")?;
    let ffn = keys.count("expert_feed_forward_length")?.unwrap_or(common);
    add(
        config,
        [
            ("num_local_experts", json!(keys.experts()?)),
            ("num_experts_per_tok", json!(keys.required("expert_used_count")?)),
            ("intermediate_size", json!(ffn)),
        ],
    );
    Ok(())
}

/// Experts in groups behind some dense layers.
pub(super) fn grouped_experts(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    // Files without it are of models whose configuration had none, and those score by sigmoid.
    sigmoid_router(keys, config)?;
    let scale = keys.float("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
    let normalised = keys.bool("expert_weights_norm")?.unwrap_or(false);
    add(
        config,
        [
            ("n_routed_experts", json!(keys.experts()?)),
            ("num_experts_per_tok", json!(keys.required("expert_used_count")?)),
            ("n_shared_experts", json!(keys.count("expert_shared_count")?)),
            ("intermediate_size", json!(keys.required("feed_forward_length")?)),
            ("moe_intermediate_size", json!(keys.required("expert_feed_forward_length")?)),
            ("first_k_dense_replace", json!(keys.count("leading_dense_block_count")?.unwrap_or(0))),
            ("n_group", json!(keys.count("expert_group_count")?)),
            ("topk_group", json!(keys.count("expert_group_used_count")?)),
            ("routed_scaling_factor", json!(scale)),
            ("norm_topk_prob", json!(normalised)),
        ],
    );
    Ok(())
}

/// Every second layer has a window. The format has no key for where the ramp of `YaRN` begins and
/// ends, and the only family that has windows by turns has it between whole dimensions.
pub(super) fn windows_by_turns(keys: &Keys<'_>, config: &mut Config) -> Result<(), LoadError> {
    // The softmax of the chosen: what the format has 3 for.
    keys.expect("expert_gating_func", 3)?;
    if let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("truncate".to_owned(), json!(false));
    }
    add(config, [("sliding_window", json!(keys.required("attention.sliding_window")?))]);
    Ok(())
}

/// The router takes the softmax over all experts: what the format has 1 for.
pub(super) fn softmax_router(keys: &Keys<'_>, _: &mut Config) -> Result<(), LoadError> {
    keys.expect("expert_gating_func", 1)
}

/// The router scores by sigmoid: what the format has 2 for.
pub(super) fn sigmoid_router(keys: &Keys<'_>, _: &mut Config) -> Result<(), LoadError> {
    keys.expect("expert_gating_func", 2)
}
