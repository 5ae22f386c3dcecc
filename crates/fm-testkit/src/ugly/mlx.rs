//! Ugly shapes in MLX layout, with every width of integers and module by module.

use super::{latent::latent_mlx_models, odd_shapes};
use crate::tiny_checkpoint::{Affine, Family, Float, LinearShape, MlxLayout, TinyModel};

/// Models for MLX layout, with how they are packed. Modules whose rows do not consist of whole
/// groups stay plain, as `mlx_lm` leaves them.
pub fn ugly_mlx_models() -> Vec<(&'static str, TinyModel, MlxLayout)> {
    [uniform_mlx_models(), mixed_mlx_models(), other_mlx_models(), latent_mlx_models()].concat()
}

/// Ugly, but in multiples of `group` where a matrix reads its input.
pub(super) fn odd_shapes_in_groups(family: Family, group: usize) -> TinyModel {
    TinyModel {
        hidden: if group == 128 { 128 } else { 192 },
        heads: 9,
        head_dim: if group == 128 { 128 } else { 64 },
        partial_rotary: 0.25,
        moe_ffn: group,
        shared_ffn: 2 * group,
        dense_ffn: 3 * group,
        linear: LinearShape {
            key_heads: 2,
            value_heads: 6,
            key_dim: 24,
            value_dim: if group == 32 { 16 } else { 64 },
            conv: 4,
        },
        ..odd_shapes(family)
    }
}

/// Models as packed files, with the layout of the checkpoint they were made of and the directory of
/// their experts.
pub fn ugly_packed_models() -> Vec<(&'static str, TinyModel, MlxLayout, &'static str)> {
    let (next, qwen35) = (Family::Qwen3Next, Family::Qwen3_5Moe);
    let small = odd_shapes_in_groups;
    let two_bits = Some(Affine { bits: 2, group: 64 });
    vec![
        (
            "packed_qwen35",
            TinyModel { experts: 5, seed: 111, ..small(qwen35, 64) },
            MlxLayout::uniform(4, 64),
            "packed_experts",
        ),
        (
            "packed_qwen35_2_bit_experts",
            TinyModel { tie_embeddings: true, seed: 112, ..small(qwen35, 64) },
            MlxLayout {
                overrides: ["gate_proj", "up_proj", "down_proj"]
                    .map(|matrix| (matrix, two_bits))
                    .to_vec(),
                ..MlxLayout::uniform(4, 64)
            },
            "packed_experts_2bit",
        ),
        (
            "packed_next_dense_layer",
            TinyModel { mlp_only_layers: vec![1], experts: 9, seed: 113, ..small(next, 64) },
            MlxLayout::uniform(4, 64),
            "packed_experts",
        ),
        (
            "packed_next_6_bit",
            TinyModel { experts: 5, seed: 114, ..small(next, 32) },
            MlxLayout::uniform(6, 32),
            "packed_experts",
        ),
    ]
}

fn uniform_mlx_models() -> Vec<(&'static str, TinyModel, MlxLayout)> {
    let (moe, next, qwen35) = (Family::Qwen3Moe, Family::Qwen3Next, Family::Qwen3_5Moe);
    let small = odd_shapes_in_groups;
    vec![
        ("mlx_moe_plain", small(moe, 32), MlxLayout::default()),
        (
            "mlx_moe_3_bit_dense_layers",
            TinyModel { mlp_only_layers: vec![1], seed: 42, ..small(moe, 64) },
            MlxLayout::uniform(3, 64),
        ),
        (
            "mlx_moe_8_bit_f32_tied",
            TinyModel { dtype: Float::F32, tie_embeddings: true, seed: 43, ..small(moe, 32) },
            MlxLayout::uniform(8, 32),
        ),
        (
            // Rows of 40 are no whole groups: down_proj of every expert stays plain.
            "mlx_moe_plain_down_proj",
            TinyModel { moe_ffn: 40, experts: 5, seed: 44, ..small(moe, 64) },
            MlxLayout::uniform(4, 64),
        ),
        ("mlx_next_2_bit", TinyModel { seed: 51, ..small(next, 32) }, MlxLayout::uniform(2, 32)),
        (
            "mlx_next_6_bit_f16",
            TinyModel { dtype: Float::F16, experts: 9, seed: 52, ..small(next, 64) },
            MlxLayout::uniform(6, 64),
        ),
        ("mlx_qwen35_plain", TinyModel { seed: 61, ..small(qwen35, 32) }, MlxLayout::default()),
        (
            "mlx_qwen35_4_bit_group_128",
            TinyModel { experts: 5, seed: 62, ..small(qwen35, 128) },
            MlxLayout::uniform(4, 128),
        ),
        (
            "mlx_qwen35_5_bit_tied",
            TinyModel { tie_embeddings: true, seed: 63, ..small(qwen35, 32) },
            MlxLayout::uniform(5, 32),
        ),
    ]
}

fn mixed_mlx_models() -> Vec<(&'static str, TinyModel, MlxLayout)> {
    let small = odd_shapes_in_groups;
    let own = |bits, group| Some(Affine { bits, group });
    vec![
        (
            "mlx_moe_mixed",
            TinyModel { layers: 4, seed: 71, ..small(Family::Qwen3Moe, 64) },
            MlxLayout {
                overrides: vec![
                    ("embed_tokens", None),
                    ("layers.1.mlp.switch_mlp.down_proj", own(6, 32)),
                    ("switch_mlp.down_proj", own(3, 64)),
                    ("mlp.gate", None),
                    ("v_proj", own(8, 64)),
                ],
                ..MlxLayout::uniform(4, 64)
            },
        ),
        (
            "mlx_next_mixed",
            TinyModel { layers: 4, seed: 72, ..small(Family::Qwen3Next, 32) },
            MlxLayout {
                overrides: vec![
                    ("in_proj_ba", None),
                    ("in_proj_qkvz", own(8, 32)),
                    ("switch_mlp.up_proj", own(2, 32)),
                    ("layers.3.mlp.switch_mlp.gate_proj", own(5, 64)),
                    ("lm_head", own(6, 64)),
                ],
                ..MlxLayout::uniform(3, 32)
            },
        ),
        (
            "mlx_qwen35_mixed",
            TinyModel { layers: 4, dtype: Float::F16, seed: 73, ..small(Family::Qwen3_5Moe, 64) },
            MlxLayout {
                overrides: vec![
                    ("in_proj_a", own(8, 64)),
                    ("in_proj_b", None),
                    ("out_proj", own(5, 64)),
                    ("shared_expert.down_proj", own(2, 128)),
                    ("layers.2.mlp.switch_mlp.gate_proj", own(4, 32)),
                    ("embed_tokens", own(8, 32)),
                    ("lm_head", None),
                ],
                ..MlxLayout::uniform(3, 64)
            },
        ),
    ]
}

fn other_mlx_models() -> Vec<(&'static str, TinyModel, MlxLayout)> {
    let small = odd_shapes_in_groups;
    let own = |bits, group| Some(Affine { bits, group });
    let gpt_oss = TinyModel {
        sliding_window: Some(7),
        trained_context: 40,
        swiglu_limit: 1.5,
        rope_theta: 15e4,
        ..small(Family::GptOss, 32)
    };
    vec![
        (
            "mlx_mixtral_4_bit_window",
            TinyModel { sliding_window: Some(6), seed: 85, ..small(Family::Mixtral, 64) },
            MlxLayout::uniform(4, 64),
        ),
        (
            "mlx_mixtral_mixed_plain_router",
            TinyModel { experts: 5, seed: 86, ..small(Family::Mixtral, 32) },
            MlxLayout {
                overrides: vec![
                    ("block_sparse_moe.gate", None),
                    ("layers.1.block_sparse_moe.switch_mlp.up_proj", own(3, 64)),
                    ("switch_mlp.down_proj", own(6, 32)),
                ],
                ..MlxLayout::uniform(5, 32)
            },
        ),
        (
            "mlx_minimax_6_bit_tied",
            TinyModel { tie_embeddings: true, seed: 95, ..small(Family::MinimaxM2, 32) },
            MlxLayout::uniform(6, 32),
        ),
        (
            "mlx_minimax_mixed",
            TinyModel { experts: 5, dtype: Float::F16, seed: 96, ..small(Family::MinimaxM2, 64) },
            MlxLayout {
                overrides: vec![("gate", own(6, 64)), ("q_proj", None), ("up_proj", own(8, 64))],
                ..MlxLayout::uniform(3, 64)
            },
        ),
        (
            "mlx_gpt_oss_4_bit",
            TinyModel { experts: 5, seed: 105, ..gpt_oss.clone() },
            MlxLayout::uniform(4, 32),
        ),
        (
            "mlx_gpt_oss_mixed_experts",
            TinyModel { dtype: Float::F16, seed: 106, ..gpt_oss },
            MlxLayout {
                overrides: vec![
                    ("mlp.experts.down_proj", own(5, 32)),
                    ("layers.1.mlp.experts.gate_proj", None),
                    ("router", None),
                ],
                ..MlxLayout::uniform(6, 64)
            },
        ),
    ]
}
