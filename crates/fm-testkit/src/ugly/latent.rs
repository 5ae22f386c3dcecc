//! Ugly shapes with latent attention: nothing in it is as long as anything else.

use super::{mlx::odd_shapes_in_groups, odd_shapes};
use crate::tiny_checkpoint::{
    Affine, Family, Float, KvB, LatentShape, MlxLayout, TinyModel, YarnShape,
};

/// Ranks that no vector of a machine divides, and keys that are longer than values.
const ODD: LatentShape = LatentShape {
    q_rank: Some(27),
    rank: 29,
    nope: 18,
    rope: 10,
    value: 22,
    rope_interleave: None,
};

/// Sine, cosine and scores are all multiplied by something.
const STRETCHED: YarnShape = YarnShape { factor: 8.0, mscale: 1.3, mscale_all_dim: 0.7 };

fn odd(family: Family) -> TinyModel {
    let yarn = (family == Family::DeepseekV3).then_some(STRETCHED);
    TinyModel { latent: ODD, yarn, rope_theta: 3e4, ..odd_shapes(family) }
}

/// Models for HF layout.
pub(super) fn latent_models() -> Vec<(&'static str, TinyModel)> {
    [deepseek_v3_models(), glm4_moe_lite_models()].concat()
}

fn deepseek_v3_models() -> Vec<(&'static str, TinyModel)> {
    let odd = odd(Family::DeepseekV3);
    vec![
        (
            "deepseek_nine_experts_in_three_groups",
            TinyModel { experts: 9, top_k: 4, groups: (3, 2), seed: 111, ..odd.clone() },
        ),
        (
            "deepseek_one_of_two_groups_two_shared",
            TinyModel {
                experts: 10,
                groups: (2, 1),
                shared_experts: 2,
                first_dense: 2,
                heads: 9,
                norm_topk_prob: false,
                route_factor: 0.7,
                seed: 112,
                ..odd.clone()
            },
        ),
        (
            "deepseek_queries_at_once_seven_experts_tied",
            TinyModel {
                latent: LatentShape { q_rank: None, value: 33, ..ODD },
                groups: (1, 1),
                tie_embeddings: true,
                dtype: Float::F16,
                seed: 113,
                ..odd.clone()
            },
        ),
        (
            "deepseek_one_layer_halves_biases",
            TinyModel {
                latent: LatentShape { rope_interleave: Some(false), rope: 14, nope: 7, ..ODD },
                layers: 1,
                first_dense: 0,
                groups: (7, 7),
                attention_bias: true,
                dtype: Float::F32,
                seed: 114,
                ..odd.clone()
            },
        ),
        (
            "deepseek_small_embeddings",
            TinyModel { embedding_size: 0.004, groups: (1, 1), seed: 115, ..odd },
        ),
    ]
}

fn glm4_moe_lite_models() -> Vec<(&'static str, TinyModel)> {
    let odd = odd(Family::Glm4MoeLite);
    vec![
        ("glm_seven_experts", TinyModel { top_k: 3, seed: 121, ..odd.clone() }),
        (
            "glm_one_layer_nine_experts_queries_at_once",
            TinyModel {
                latent: LatentShape { q_rank: None, rank: 13, ..ODD },
                layers: 1,
                first_dense: 0,
                experts: 9,
                top_k: 9,
                seed: 122,
                ..odd.clone()
            },
        ),
        (
            "glm_three_dense_layers_large_eps_f16",
            TinyModel {
                layers: 4,
                first_dense: 3,
                eps: 0.02,
                shared_experts: 3,
                dtype: Float::F16,
                seed: 123,
                ..odd.clone()
            },
        ),
        (
            "glm_no_shared_expert_long_values_small_embeddings",
            TinyModel {
                latent: LatentShape { value: 51, nope: 12, rope: 6, ..ODD },
                shared_experts: 0,
                embedding_size: 0.004,
                seed: 124,
                ..odd
            },
        ),
    ]
}

/// Models for MLX layout.
pub(super) fn latent_mlx_models() -> Vec<(&'static str, TinyModel, MlxLayout)> {
    let own = |bits, group| Some(Affine { bits, group });
    let in_groups = |family, group: usize| TinyModel {
        latent: LatentShape {
            q_rank: Some(3 * group),
            rank: 2 * group,
            nope: group,
            rope: 12,
            value: group + 32,
            rope_interleave: None,
        },
        yarn: (family == Family::DeepseekV3).then_some(STRETCHED),
        ..odd_shapes_in_groups(family, group)
    };
    let deepseek = |group| TinyModel {
        experts: 8,
        groups: (4, 3),
        top_k: 3,
        ..in_groups(Family::DeepseekV3, group)
    };
    let glm = |group| in_groups(Family::Glm4MoeLite, group);
    vec![
        ("mlx_deepseek_4_bit", TinyModel { seed: 131, ..deepseek(32) }, MlxLayout::uniform(4, 32)),
        (
            // Decoded and transposed when it is loaded.
            "mlx_deepseek_6_bit_joined",
            TinyModel { seed: 132, ..deepseek(32) },
            MlxLayout { kv_b: KvB::Joined, ..MlxLayout::uniform(6, 32) },
        ),
        (
            "mlx_deepseek_mixed",
            TinyModel { dtype: Float::F16, seed: 133, ..deepseek(64) },
            MlxLayout {
                overrides: vec![
                    ("embed_q", own(3, 64)),
                    ("layers.1.self_attn.unembed_out", None),
                    ("unembed_out", own(8, 32)),
                    ("kv_a_proj_with_mqa", own(5, 64)),
                    ("shared_experts.down_proj", None),
                    ("q_a_proj", own(2, 64)),
                ],
                ..MlxLayout::uniform(4, 64)
            },
        ),
        ("mlx_glm_plain", TinyModel { seed: 141, ..glm(32) }, MlxLayout::default()),
        (
            "mlx_glm_3_bit_queries_at_once_tied",
            TinyModel {
                latent: LatentShape { q_rank: None, ..glm(64).latent },
                tie_embeddings: true,
                seed: 142,
                ..glm(64)
            },
            MlxLayout::uniform(3, 64),
        ),
        (
            // Rows of 29 and 18 are no whole groups: both parts of every head stay plain.
            "mlx_glm_odd_ranks_f32_joined",
            TinyModel { latent: ODD, dtype: Float::F32, experts: 9, seed: 143, ..glm(32) },
            MlxLayout { kv_b: KvB::Joined, ..MlxLayout::uniform(8, 32) },
        ),
    ]
}
