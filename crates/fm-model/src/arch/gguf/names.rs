//! What a GGUF file calls the tensors that families ask for by their names in `config.json`'s world.
//!
//! Checked name by name against files of llama.cpp's converter.

/// Modules outside the layers.
const OUTER: &[(&str, &str)] =
    &[("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// Modules inside a layer; what follows, `.weight` or `.bias`, stays.
const INNER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.embed_q", "attn_k_b"),
    ("self_attn.unembed_out", "attn_v_b"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_qkvz", "ssm_in"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.switch_mlp.gate_proj", "ffn_gate_exps"),
    ("mlp.switch_mlp.up_proj", "ffn_up_exps"),
    ("mlp.switch_mlp.down_proj", "ffn_down_exps"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.switch_mlp.gate_proj", "ffn_gate_exps"),
    ("block_sparse_moe.switch_mlp.up_proj", "ffn_up_exps"),
    ("block_sparse_moe.switch_mlp.down_proj", "ffn_down_exps"),
];

/// Tensors whose whole name is another.
const WHOLE: &[(&str, &str)] = &[
    ("self_attn.sinks", "attn_sinks.weight"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"),
];

/// Norm before the feed-forward half, whose name depends on the architecture.
const FFN_NORM: &str = "post_attention_layernorm";

/// What the tensor `name` is called, if the format has a name for it. `ffn_norm` is what the
/// architecture calls the norm before the feed-forward half.
pub(crate) fn tensor_name(name: &str, ffn_norm: &str) -> Option<String> {
    let Some(inner) = name.strip_prefix("model.layers.") else {
        return renamed(name, OUTER);
    };
    let (layer, inner) = inner.split_once('.')?;
    let whole = WHOLE.iter().find(|(ours, _)| *ours == inner);
    let theirs = match whole {
        _ if inner.is_empty() => String::new(),
        Some((_, theirs)) => (*theirs).to_owned(),
        None => match inner.strip_prefix(FFN_NORM) {
            Some(rest) => format!("{ffn_norm}{rest}"),
            None => renamed(inner, INNER)?,
        },
    };
    Some(format!("blk.{layer}.{theirs}"))
}

/// Renames the module of a tensor: all but the last part of its name.
fn renamed(name: &str, modules: &[(&str, &str)]) -> Option<String> {
    let (module, part) = name.rsplit_once('.')?;
    let (_, theirs) = modules.iter().find(|(ours, _)| *ours == module)?;
    Some(format!("{theirs}.{part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_renamed_and_the_rest_stays() {
        let cases = [
            ("model.embed_tokens.weight", Some("token_embd.weight")),
            ("lm_head.weight", Some("output.weight")),
            ("model.layers.12.self_attn.q_proj.bias", Some("blk.12.attn_q.bias")),
            ("model.layers.0.post_attention_layernorm.weight", Some("blk.0.ffn_norm.weight")),
            ("model.layers.0.mlp.gate.weight", Some("blk.0.ffn_gate_inp.weight")),
            ("model.layers.0.mlp.gate_proj.weight", Some("blk.0.ffn_gate.weight")),
            ("model.layers.0.linear_attn.A_log", Some("blk.0.ssm_a")),
            ("model.layers.7.", Some("blk.7.")),
            ("model.layers.0.mlp.experts.3.gate_proj.weight", None),
            ("mtp.norm.weight", None),
        ];
        for (ours, theirs) in cases {
            assert_eq!(tensor_name(ours, "ffn_norm").as_deref(), theirs, "{ours}");
        }
    }
}
