//! The true geometries: one row per published model.
//!
//! Sources. *397B, 35B, Next*: hidden, layers, heads, experts, `top_k`, ffn widths, vocabulary,
//! rope base and fraction, eps agree with THUDM/slime `scripts/models/*.sh` (which also gives the
//! linear heads of the 35B); linear heads of the 397B and the Next from flash-moe's first version,
//! the latter also from its published `config.json`. *30B*: slime `qwen3-30B-A3B.sh`, MindSpeed-RL
//! `qwen3_30b_a3b.yaml` (which gives the context). *122B*: hidden, layers, heads, experts and `top_k`
//! from Vultr's model page; its kv heads, linear value heads and ffn widths are from memory, and
//! with them the parameters add up to 122.1 · 10⁹, 9.8 · 10⁹ of them active, as its name says.
//! Contexts of the others and all token ids: model cards and ports of flash-moe, Qwen3's
//! ids from memory.

/// Which equations and which spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Attention in every layer, no shared expert.
    Qwen3Moe,
    /// Hybrid of attention and delta-net; packed `in_proj_qkvz`.
    Qwen3Next,
    /// Hybrid; flat delta-net projections, configuration nested in `text_config`.
    Qwen3_5Moe,
}

impl Family {
    /// `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen3Next => "qwen3_next",
            Self::Qwen3_5Moe => "qwen3_5_moe",
        }
    }

    /// Whether the family mixes attention with delta-nets (and has gated attention and a shared
    /// expert).
    pub fn is_hybrid(self) -> bool {
        self != Self::Qwen3Moe
    }
}

/// Shapes of the delta-net layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearShape {
    /// `linear_num_key_heads`
    pub key_heads: usize,
    /// `linear_num_value_heads`
    pub value_heads: usize,
    /// `linear_key_head_dim` and `linear_value_head_dim`
    pub head_dim: usize,
    /// `linear_conv_kernel_dim`
    pub conv: usize,
}

impl LinearShape {
    /// Width of all queries, and of all keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.head_dim
    }

    /// Width of all values, and of all output gates.
    pub fn values(&self) -> usize {
        self.value_heads * self.head_dim
    }
}

/// One published model: what `config.json` says of its shape. Fields keep its spelling where it
/// is short.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    /// The name on the command line.
    pub name: &'static str,
    /// Which equations and which spelling.
    pub family: Family,
    /// `hidden_size`
    pub hidden: usize,
    /// `vocab_size`, padding included
    pub vocab: usize,
    /// `num_hidden_layers`
    pub layers: usize,
    /// `num_attention_heads`
    pub heads: usize,
    /// `num_key_value_heads`
    pub kv_heads: usize,
    /// `head_dim`
    pub head_dim: usize,
    /// Delta-net shapes of the hybrids
    pub linear: Option<LinearShape>,
    /// Every so many layers attend
    pub full_attention_interval: usize,
    /// `num_experts`
    pub experts: usize,
    /// `num_experts_per_tok`
    pub top_k: usize,
    /// `moe_intermediate_size`
    pub moe_ffn: usize,
    /// `shared_expert_intermediate_size`; 0 if there is none
    pub shared_ffn: usize,
    /// `intermediate_size`, which no layer uses; 0 if the family has no such key
    pub dense_ffn: usize,
    /// `rope_theta`
    pub rope_theta: f64,
    /// `partial_rotary_factor`
    pub partial_rotary: f64,
    /// `rms_norm_eps`
    pub eps: f64,
    /// `max_position_embeddings`
    pub context_max: usize,
    /// `eos_token_id` of `generation_config.json`, the first also of `config.json`
    pub eos: &'static [u32],
    /// Residual dimensions reserved for the tape, a multiple of 64
    pub tape_dims: usize,
    /// Share of a token's code that it inherits from its neighbours: see [`crate::tape`]
    pub tape_alpha: f64,
}

/// Every geometry that can be written.
pub static GEOMETRIES: [Geometry; 5] = [
    Geometry {
        name: "qwen3.5-397b",
        hidden: 4096,
        layers: 60,
        heads: 32,
        linear: Some(LinearShape { value_heads: 64, ..LINEAR }),
        experts: 512,
        top_k: 10,
        moe_ffn: 1024,
        shared_ffn: 1024,
        tape_alpha: ALPHA_512_10,
        ..QWEN3_5
    },
    Geometry {
        name: "qwen3.5-122b",
        hidden: 3072,
        layers: 48,
        heads: 32,
        linear: Some(LinearShape { value_heads: 64, ..LINEAR }),
        moe_ffn: 1024,
        shared_ffn: 1024,
        ..QWEN3_5
    },
    QWEN3_5,
    Geometry {
        name: "qwen3-next-80b",
        family: Family::Qwen3Next,
        vocab: 151_936,
        layers: 48,
        experts: 512,
        top_k: 10,
        dense_ffn: 5120,
        eos: &[151_645, 151_643],
        tape_alpha: ALPHA_512_10,
        ..QWEN3_5
    },
    Geometry {
        name: "qwen3-30b",
        family: Family::Qwen3Moe,
        vocab: 151_936,
        layers: 48,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        linear: None,
        full_attention_interval: 1,
        experts: 128,
        moe_ffn: 768,
        shared_ffn: 0,
        dense_ffn: 6144,
        rope_theta: 1e6,
        partial_rotary: 1.0,
        context_max: 40_960,
        eos: &[151_645, 151_643],
        tape_alpha: ALPHA_128_8,
        ..QWEN3_5
    },
];

const LINEAR: LinearShape = LinearShape { key_heads: 16, value_heads: 32, head_dim: 128, conv: 4 };

/// Calibrated to a lag-1 repeat of 26 %, by experts and `top_k`: see [`crate::tape`].
const ALPHA_512_10: f64 = 0.77;
const ALPHA_256_8: f64 = 0.708;
const ALPHA_128_8: f64 = 0.573;

/// `qwen3.5-35b`, from which the other rows differ.
const QWEN3_5: Geometry = Geometry {
    name: "qwen3.5-35b",
    family: Family::Qwen3_5Moe,
    hidden: 2048,
    vocab: 248_320,
    layers: 40,
    heads: 16,
    kv_heads: 2,
    head_dim: 256,
    linear: Some(LINEAR),
    full_attention_interval: 4,
    experts: 256,
    top_k: 8,
    moe_ffn: 512,
    shared_ffn: 512,
    dense_ffn: 0,
    rope_theta: 1e7,
    partial_rotary: 0.25,
    eps: 1e-6,
    context_max: 262_144,
    eos: &[248_046, 248_044],
    tape_dims: 128,
    tape_alpha: ALPHA_256_8,
};

impl Geometry {
    /// Finds a geometry by its name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        GEOMETRIES.iter().find(|geometry| geometry.name == name)
    }

    /// Whether `layer` attends (or is a delta-net).
    pub fn attends(&self, layer: usize) -> bool {
        self.linear.is_none() || (layer + 1).is_multiple_of(self.full_attention_interval)
    }

    /// How many token ids are steps of the tape.
    pub fn tape_tokens(&self) -> usize {
        self.vocab.min(TAPE_TOKENS_MAX)
    }
}

/// Longest tape: 4096 steps are 16 times what a benchmark decodes, and two megabytes of codes.
const TAPE_TOKENS_MAX: usize = 4096;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Parameters of all weight matrices, and of those that one token reads.
    fn parameters(geometry: &Geometry) -> (f64, f64) {
        let Geometry { hidden, layers, heads, kv_heads, head_dim, .. } = *geometry;
        let gate = if geometry.family.is_hybrid() { 2 } else { 1 };
        let attention = hidden * head_dim * (heads * (gate + 1) + 2 * kv_heads);
        let delta = geometry.linear.map_or(0, |l| hidden * (2 * l.keys() + 3 * l.values()));
        let mixers = (0..layers).map(|at| if geometry.attends(at) { attention } else { delta });
        let trunk = mixers.sum::<usize>() + 2 * geometry.vocab * hidden;
        let expert = |ffn: usize| 3 * hidden * ffn;
        let ffn = |experts: usize| {
            layers * (experts * expert(geometry.moe_ffn) + expert(geometry.shared_ffn))
        };
        let [total, active] = [geometry.experts, geometry.top_k].map(|e| (trunk + ffn(e)) as f64);
        (total / 1e9, active / 1e9)
    }

    #[test]
    fn parameters_add_up_to_the_name() {
        // Billions in the name, and active ones where the full name tells them (A17B, …).
        let named = [
            ("397b", 397.0, 17.0),
            ("122b", 122.0, 10.0),
            ("35b", 35.0, 3.0),
            ("next-80b", 80.0, 3.0),
            ("3-30b", 30.5, 3.3),
        ];
        for (suffix, total, active) in named {
            let geometry = GEOMETRIES.iter().find(|g| g.name.ends_with(suffix)).unwrap();
            let found = parameters(geometry);
            assert!((found.0 - total).abs() < 0.012 * total, "{suffix}: {found:?}");
            // Names round the active ones, and leave out embeddings or not.
            assert!((found.1 - active).abs() < 0.32 * active, "{suffix}: {found:?}");
        }
    }
}
