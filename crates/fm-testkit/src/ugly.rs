//! Shapes that break wrong assumptions: nothing divides by what it usually divides by.
//!
//! Real models are all powers of two, so code that mixes up two sizes passes on them. Here every
//! two sizes that could be mixed up differ.

mod latent;
mod mlx;

pub use self::mlx::{ugly_mlx_models, ugly_packed_models};
use self::{latent::latent_models, mlx::odd_shapes_in_groups};
use crate::tiny_checkpoint::{Family, Float, GgufLayout, LinearShape, TinyModel};

/// Delta-net heads with three values per key, and five sizes of which no two are equal.
const THREE_VALUES_PER_KEY: LinearShape =
    LinearShape { key_heads: 2, value_heads: 6, key_dim: 12, value_dim: 20, conv: 3 };

/// Models for HF layout, each named after what is ugly about it.
pub fn ugly_models() -> Vec<(&'static str, TinyModel)> {
    let qwen = [qwen3_moe_models(), qwen3_next_models(), qwen3_5_moe_models()];
    let others = [mixtral_models(), minimax_m2_models(), gpt_oss_models(), latent_models()];
    [qwen.concat(), others.concat()].concat()
}

/// Three key/value heads, sizes off the powers of two.
fn odd_shapes(family: Family) -> TinyModel {
    TinyModel {
        hidden: 72,
        vocab: 301,
        layers: 3,
        heads: 6,
        kv_heads: 3,
        head_dim: 40,
        experts: 7,
        moe_ffn: 24,
        shared_ffn: 56,
        dense_ffn: 88,
        linear: THREE_VALUES_PER_KEY,
        full_attention_interval: 2,
        ..TinyModel::new(family)
    }
}

fn qwen3_moe_models() -> Vec<(&'static str, TinyModel)> {
    let odd = odd_shapes(Family::Qwen3Moe);
    vec![
        ("moe_five_experts", TinyModel { experts: 5, seed: 11, ..odd.clone() }),
        (
            "moe_nine_experts_nine_heads",
            TinyModel {
                heads: 9,
                head_dim: 48,
                experts: 9,
                top_k: 4,
                norm_topk_prob: false,
                moe_ffn: 40,
                seed: 12,
                ..odd.clone()
            },
        ),
        (
            "moe_dense_layers_by_list",
            TinyModel {
                mlp_only_layers: vec![0, 2],
                layers: 4,
                dtype: Float::F16,
                seed: 13,
                ..odd.clone()
            },
        ),
        (
            "moe_dense_layers_by_step",
            TinyModel { decoder_sparse_step: 2, layers: 4, seed: 14, ..odd.clone() },
        ),
        (
            "moe_one_of_seven_not_normalised",
            TinyModel { top_k: 1, norm_topk_prob: false, seed: 15, ..odd.clone() },
        ),
        (
            "moe_all_of_seven_tied",
            TinyModel { top_k: 7, tie_embeddings: true, seed: 16, ..odd.clone() },
        ),
        (
            "moe_one_layer_f32",
            TinyModel { layers: 1, top_k: 1, dtype: Float::F32, seed: 17, ..odd.clone() },
        ),
        (
            "moe_biases_and_large_eps",
            TinyModel {
                attention_bias: true,
                eps: 0.02,
                tie_embeddings: true,
                rope_theta: 1e4,
                seed: 18,
                ..odd.clone()
            },
        ),
        ("moe_small_embeddings", TinyModel { embedding_size: 0.004, seed: 19, ..odd }),
    ]
}

fn qwen3_next_models() -> Vec<(&'static str, TinyModel)> {
    let odd = odd_shapes(Family::Qwen3Next);
    vec![
        ("next_three_values_per_key", TinyModel { seed: 21, ..odd.clone() }),
        (
            "next_half_rotary_five_experts_biases",
            TinyModel {
                partial_rotary: 0.5,
                rope_theta: 1e5,
                full_attention_interval: 1,
                attention_bias: true,
                experts: 5,
                heads: 9,
                seed: 22,
                ..odd.clone()
            },
        ),
        (
            "next_dense_layers",
            TinyModel {
                mlp_only_layers: vec![1],
                decoder_sparse_step: 2,
                layers: 4,
                norm_topk_prob: false,
                full_attention_interval: 3,
                head_dim: 48,
                seed: 23,
                ..odd.clone()
            },
        ),
        (
            "next_one_delta_layer_all_of_five",
            TinyModel {
                layers: 1,
                experts: 5,
                top_k: 5,
                dtype: Float::F32,
                seed: 24,
                ..odd.clone()
            },
        ),
        (
            "next_long_convolution_tied",
            TinyModel {
                linear: LinearShape { key_heads: 3, value_heads: 3, conv: 5, ..odd.linear },
                top_k: 1,
                tie_embeddings: true,
                dtype: Float::F16,
                moe_ffn: 40,
                seed: 25,
                ..odd
            },
        ),
    ]
}

fn qwen3_5_moe_models() -> Vec<(&'static str, TinyModel)> {
    let odd = odd_shapes(Family::Qwen3_5Moe);
    vec![
        ("qwen35_three_values_per_key", TinyModel { seed: 31, ..odd.clone() }),
        (
            "qwen35_wide_rotary_nine_heads",
            TinyModel {
                heads: 9,
                head_dim: 48,
                partial_rotary: 0.75,
                rope_theta: 1e4,
                experts: 9,
                top_k: 3,
                moe_ffn: 40,
                seed: 32,
                ..odd.clone()
            },
        ),
        (
            "qwen35_interval_three_tied",
            TinyModel {
                full_attention_interval: 3,
                layers: 4,
                tie_embeddings: true,
                experts: 5,
                dtype: Float::F16,
                seed: 33,
                ..odd.clone()
            },
        ),
        (
            "qwen35_one_attention_layer",
            TinyModel {
                layers: 1,
                full_attention_interval: 1,
                attention_bias: true,
                top_k: 7,
                dtype: Float::F32,
                seed: 34,
                ..odd.clone()
            },
        ),
        (
            "qwen35_keys_longer_than_values",
            TinyModel {
                linear: LinearShape {
                    key_heads: 1,
                    value_heads: 3,
                    key_dim: 28,
                    value_dim: 8,
                    conv: 2,
                },
                top_k: 1,
                kv_heads: 1,
                heads: 3,
                seed: 35,
                ..odd
            },
        ),
    ]
}

fn mixtral_models() -> Vec<(&'static str, TinyModel)> {
    let odd = odd_shapes(Family::Mixtral);
    vec![
        ("mixtral_five_experts", TinyModel { experts: 5, seed: 81, ..odd.clone() }),
        (
            "mixtral_window_shorter_than_a_prompt",
            TinyModel { sliding_window: Some(5), heads: 9, head_dim: 48, seed: 82, ..odd.clone() },
        ),
        (
            "mixtral_one_layer_one_of_seven_tied",
            TinyModel {
                layers: 1,
                top_k: 1,
                tie_embeddings: true,
                dtype: Float::F16,
                seed: 83,
                ..odd.clone()
            },
        ),
        (
            "mixtral_all_of_seven_f32",
            TinyModel { top_k: 7, dtype: Float::F32, rope_theta: 1e4, seed: 84, ..odd },
        ),
    ]
}

fn minimax_m2_models() -> Vec<(&'static str, TinyModel)> {
    let odd = odd_shapes(Family::MinimaxM2);
    vec![
        (
            "minimax_five_experts_negative_scores",
            TinyModel { experts: 5, partial_rotary: 0.25, seed: 91, ..odd.clone() },
        ),
        (
            "minimax_nine_heads_one_layer",
            TinyModel { heads: 9, layers: 1, experts: 9, top_k: 4, seed: 92, ..odd.clone() },
        ),
        (
            "minimax_one_of_seven_tied_f16",
            TinyModel {
                top_k: 1,
                head_dim: 48,
                partial_rotary: 0.75,
                tie_embeddings: true,
                dtype: Float::F16,
                seed: 93,
                ..odd.clone()
            },
        ),
        (
            "minimax_all_of_seven_large_eps",
            TinyModel { top_k: 7, eps: 0.02, dtype: Float::F32, seed: 94, ..odd },
        ),
    ]
}

/// Rows of experts are whole groups of 32.
fn gpt_oss_models() -> Vec<(&'static str, TinyModel)> {
    let odd = TinyModel {
        hidden: 96,
        moe_ffn: 32,
        rope_theta: 15e4,
        sliding_window: Some(5),
        trained_context: 40,
        swiglu_limit: 1.5,
        ..odd_shapes(Family::GptOss)
    };
    vec![
        ("gpt_oss_five_experts", TinyModel { experts: 5, seed: 101, ..odd.clone() }),
        (
            "gpt_oss_nine_heads_window_of_one",
            TinyModel {
                heads: 9,
                head_dim: 48,
                sliding_window: Some(1),
                layers: 4,
                experts: 9,
                top_k: 4,
                moe_ffn: 64,
                seed: 102,
                ..odd.clone()
            },
        ),
        (
            "gpt_oss_one_layer_one_of_seven_tied",
            TinyModel {
                layers: 1,
                top_k: 1,
                tie_embeddings: true,
                dtype: Float::F16,
                seed: 103,
                ..odd.clone()
            },
        ),
        (
            "gpt_oss_all_of_seven_f32",
            TinyModel { top_k: 7, dtype: Float::F32, hidden: 160, seed: 104, ..odd },
        ),
    ]
}

/// Models for GGUF. The format knows no dense layers and no unscaled routes in these families.
pub fn ugly_gguf_models() -> Vec<(&'static str, TinyModel, GgufLayout)> {
    let (moe, next, qwen35) = (Family::Qwen3Moe, Family::Qwen3Next, Family::Qwen3_5Moe);
    let small = odd_shapes_in_groups;
    let mixed = |format, overrides: &[(&'static str, &'static str)]| GgufLayout {
        overrides: overrides.to_vec(),
        ..GgufLayout::uniform(format)
    };
    vec![
        (
            // Rows of 72 and 24 are no whole blocks: everything becomes f16.
            "gguf_moe_five_experts_biases",
            TinyModel { experts: 5, attention_bias: true, seed: 81, ..odd_shapes(moe) },
            GgufLayout { alignment: 8, ..GgufLayout::uniform("q8_0") },
        ),
        (
            "gguf_moe_formats_per_tensor_and_layer",
            TinyModel { tie_embeddings: true, seed: 82, ..small(moe, 64) },
            GgufLayout {
                parts: 3,
                ..mixed(
                    "q4_0",
                    &[
                        ("blk.0.ffn_down_exps", "q5_1"),
                        ("ffn_gate_exps", "q5_0"),
                        ("attn_v", "q8_0"),
                        ("token_embd", "bf16"),
                    ],
                )
            },
        ),
        (
            "gguf_moe_k_quants",
            TinyModel { hidden: 256, moe_ffn: 256, experts: 5, seed: 83, ..odd_shapes(moe) },
            mixed("q4_k", &[("down_exps", "q6_k"), ("attn_v", "q5_k"), ("output", "q6_k")]),
        ),
        (
            "gguf_next_three_values_per_key",
            TinyModel { seed: 84, ..odd_shapes(next) },
            GgufLayout::uniform("f32"),
        ),
        (
            "gguf_next_packed",
            TinyModel { experts: 9, seed: 85, ..small(next, 32) },
            GgufLayout { alignment: 64, parts: 2, ..mixed("q8_0", &[("exps", "q4_1")]) },
        ),
        (
            "gguf_next_fused_inputs",
            TinyModel { layers: 2, experts: 5, seed: 88, ..odd_shapes(next) },
            GgufLayout { fused_inputs: true, ..GgufLayout::uniform("f32") },
        ),
        (
            "gguf_qwen35_three_values_per_key",
            TinyModel { partial_rotary: 0.5, seed: 86, ..odd_shapes(qwen35) },
            GgufLayout::uniform("bf16"),
        ),
        (
            "gguf_qwen35_one_layer_packed",
            TinyModel { layers: 1, experts: 5, seed: 87, ..small(qwen35, 32) },
            mixed("q8_0", &[("ssm_out", "q5_0"), ("ffn_up_exps", "q4_0")]),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{compare::std_dev, oracle::Oracle, tiny_checkpoint::Layout};

    fn assert_sane(name: &str, dir: &Path) {
        let oracle = Oracle::load(dir);
        // Gaps of this size outlive the rounding of an f32 engine by far.
        let tokens = oracle.clear_prompt(16, 0.05, 1);
        let output = oracle.run(&tokens);
        assert!(output.logits.iter().flatten().all(|x| x.is_finite()), "{name}: finite logits");
        let size = std_dev(&output.logits);
        assert!((1.0..4.0).contains(&size), "{name}: logits of size {size}");
        assert!(output.min_router_gap() >= 0.05, "{name}: clear routes");
        assert_no_layer_dominates(name, &output);
    }

    /// Every mixer and FFN adds something of the size of what is there: none could be dropped
    /// without a trace, none hides the others.
    fn assert_no_layer_dominates(name: &str, output: &crate::oracle::OracleOutput) {
        for (index, layer) in output.layers.iter().enumerate() {
            for (what, added) in [("mixer", &layer.mixer_out), ("ffn", &layer.ffn_out)] {
                let share = std_dev(added) / std_dev(&layer.out);
                assert!((0.1..1.2).contains(&share), "{name} layer {index} {what}: {share}");
            }
        }
    }

    #[test]
    fn every_ugly_model_is_a_sane_model() {
        for (name, model) in ugly_models() {
            let dir = tempfile::tempdir().unwrap();
            model.write(dir.path(), &Layout::Hf, 1);
            assert_sane(name, dir.path());
        }
    }

    #[test]
    fn every_ugly_mlx_model_is_a_sane_model() {
        for (name, model, mlx) in ugly_mlx_models() {
            let dir = tempfile::tempdir().unwrap();
            model.write(dir.path(), &Layout::Mlx(mlx), 2);
            assert_sane(name, dir.path());
        }
    }

    #[test]
    fn every_ugly_gguf_model_is_a_sane_model() {
        for (name, model, gguf) in ugly_gguf_models() {
            let dir = tempfile::tempdir().unwrap();
            model.write_gguf(dir.path(), &gguf);
            assert_sane(name, &dir.path().join("hf"));
        }
    }

    #[test]
    fn names_are_unique() {
        let names = ugly_models().into_iter().map(|(name, _)| name);
        let mlx_names = ugly_mlx_models().into_iter().map(|(name, ..)| name);
        let gguf_names = ugly_gguf_models().into_iter().map(|(name, ..)| name);
        let mut all: Vec<&str> = names.chain(mlx_names).chain(gguf_names).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
