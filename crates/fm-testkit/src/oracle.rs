//! The oracle: model families in plain f64, as the equations have them.
//!
//! It keeps nothing between tokens but what the mathematics demands: a prompt is computed as a
//! whole, attention looks at every earlier token again, every expert is a pair of loops. It reads
//! a checkpoint directory by itself, so that neither a layout nor an equation is taken from the
//! code it judges. It is slow, and it is meant for models of a few million weights.
//!
//! Which file holds which convention (`xtask/mutants/` plants a mistake in each), and so where to look when the engine and the oracle disagree:
//!
//! | file | conventions |
//! |---|---|
//! | `config.rs` | `rms_norm_eps`, `rope_theta`, `YaRN`, `partial_rotary_factor`, `norm_topk_prob`, layer kinds |
//! | `weights.rs` | norm weights without or with `+1`, gate/up order, experts, packed integers, mxfp4 |
//! | `attention.rs` | query/gate split per head, query to key/value head, rotation in halves, windows, sinks |
//! | `latent.rs` | `kv_b_proj` per head, what of a latent is normalised and rotated, rotation of neighbours, scale |
//! | `delta.rs` | `qkvz` and `ba` packing, taps, value head to key head, `l2_norm`, `1/√d`, `beta`, decay from `A_log`, `dt_bias`; gated norm |
//! | `ffn.rs` | router and its bias, renormalisation, activation, shared expert and its sigmoid |

mod attention;
mod config;
mod delta;
mod ffn;
mod latent;
mod maths;
mod weights;

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod sensitivity_tests;

use std::path::Path;

use self::{
    config::Config,
    maths::{add, rms_norm},
    weights::Weights,
};
pub use self::{config::Family, delta::DeltaMemory, ffn::Routes};
use crate::noise::Noise;

/// One row per token.
pub type Rows = Vec<Vec<f64>>;

/// Everything a prompt produced.
#[derive(Clone, Debug)]
pub struct OracleOutput {
    /// The embeddings, before the first layer.
    pub embed: Rows,
    /// Layer by layer.
    pub layers: Vec<LayerOutput>,
    /// After the final norm.
    pub final_norm: Rows,
    /// Row `i` scores the token after token `i`.
    pub logits: Rows,
}

/// What one layer did with the prompt.
#[derive(Clone, Debug)]
pub struct LayerOutput {
    /// What attention or the delta-net added to the residual.
    pub mixer_out: Rows,
    /// What the FFN added to the residual.
    pub ffn_out: Rows,
    /// The residual after the layer.
    pub out: Rows,
    /// Per token the chosen experts; empty in a dense layer.
    pub routes: Vec<Routes>,
    /// What the layer remembers after the prompt; `None` in a layer that attends.
    pub memory: Option<DeltaMemory>,
}

impl OracleOutput {
    /// The smallest [`Routes::gap`] of any token in any layer; infinite if nothing is routed.
    pub fn min_router_gap(&self) -> f64 {
        let routes = self.layers.iter().flat_map(|layer| &layer.routes);
        routes.map(|routes| routes.gap).fold(f64::INFINITY, f64::min)
    }

    /// The first token for which some layer's [`Routes::gap`] is below `gap`.
    fn first_unclear_token(&self, gap: f64) -> Option<usize> {
        let unclear = |layer: &LayerOutput| layer.routes.iter().position(|r| r.gap < gap);
        self.layers.iter().filter_map(unclear).min()
    }
}

/// Loads the checkpoint in `dir` and runs `tokens` through it.
pub fn run(dir: &Path, tokens: &[u32]) -> OracleOutput {
    Oracle::load(dir).run(tokens)
}

/// A checkpoint, ready to be asked more than once.
#[derive(Clone, Debug)]
pub struct Oracle {
    config: Config,
    weights: Weights,
}

impl Oracle {
    /// Reads `config.json` and every `*.safetensors` in `dir`, in HF or MLX layout.
    ///
    /// # Panics
    /// If the checkpoint is of another family or lacks something.
    pub fn load(dir: &Path) -> Self {
        let config = Config::load(dir);
        let weights = Weights::load(dir, &config);
        Self { config, weights }
    }

    /// The family of the checkpoint.
    pub fn family(&self) -> Family {
        self.config.family
    }

    /// How many tokens there are.
    pub fn vocab(&self) -> usize {
        self.weights.get("embed_tokens.weight").shape[0]
    }

    /// A random prompt for which every layer's choice of experts is clear by at least `gap`
    /// (see [`Routes::gap`]), so that rounding in the code under test cannot flip one.
    ///
    /// Tokens at which a choice is too close are drawn again, first to last: what follows a token
    /// does not change what it chose.
    ///
    /// # Panics
    /// If no such prompt turns up; the gap is too large for the model.
    pub fn clear_prompt(&self, count: usize, gap: f64, seed: u64) -> Vec<u32> {
        let mut noise = Noise::new(seed);
        let mut tokens = noise.tokens(count, self.vocab());
        for _ in 0..40 * count {
            let output = self.run(&tokens);
            let Some(unclear) = output.first_unclear_token(gap) else { return tokens };
            tokens[unclear] = noise.below(self.vocab()) as u32;
        }
        panic!("no prompt of {count} tokens keeps the experts {gap} apart");
    }

    /// Runs a whole prompt.
    ///
    /// # Panics
    /// If a token is not in the vocabulary, or a shape in the checkpoint contradicts its config.
    pub fn run(&self, tokens: &[u32]) -> OracleOutput {
        let table = self.weights.get("embed_tokens.weight");
        let embed: Rows = tokens.iter().map(|&token| table.row(token as usize).to_vec()).collect();
        let mut layers: Vec<LayerOutput> = Vec::new();
        for layer in 0..self.config.layers {
            let x = layers.last().map_or(&embed, |previous| &previous.out);
            let out = self.layer(layer, x);
            layers.push(out);
        }
        let x = layers.last().map_or(&embed, |last| &last.out);
        let final_norm = self.normed("norm.weight", x);
        let head = if self.config.tied { table } else { self.weights.get("lm_head.weight") };
        let logits = final_norm.iter().map(|x| head.times(x)).collect();
        OracleOutput { embed, layers, final_norm, logits }
    }

    /// ```text
    /// h   = x + mixer(norm(x))
    /// out = h + ffn(norm(h))
    /// ```
    fn layer(&self, layer: usize, x: &Rows) -> LayerOutput {
        let name = format!("layers.{layer}");
        let (attention, linear, mlp) =
            (format!("{name}.self_attn"), format!("{name}.linear_attn"), format!("{name}.mlp"));

        let normed = self.normed(&format!("{name}.input_layernorm.weight"), x);
        let (mixer_out, memory) = if let Some(latent) = &self.config.latent {
            let weights = self.weights.scope(&attention);
            (latent::latent_attention(&self.config, latent, weights, &normed), None)
        } else if self.config.attends[layer] {
            (
                attention::attention(&self.config, layer, self.weights.scope(&attention), &normed),
                None,
            )
        } else {
            let weights = self.weights.scope(&linear);
            let (out, memory) = delta::delta_net(&self.config, weights, &normed);
            (out, Some(memory))
        };
        let h: Rows = x.iter().zip(&mixer_out).map(|(x, mixed)| add(x, mixed)).collect();

        let normed = self.normed(&format!("{name}.post_attention_layernorm.weight"), &h);
        let (ffn_out, routes): (Rows, Vec<_>) = normed
            .iter()
            .map(|x| ffn::ffn(&self.config, layer, self.weights.scope(&mlp), x))
            .unzip();
        let out = h.iter().zip(&ffn_out).map(|(h, ffn)| add(h, ffn)).collect();
        LayerOutput {
            mixer_out,
            ffn_out,
            out,
            routes: routes.into_iter().flatten().collect(),
            memory,
        }
    }

    fn normed(&self, weight: &str, x: &Rows) -> Rows {
        let weight = &self.weights.get(weight).data;
        x.iter().map(|x| rms_norm(x, weight, self.config.eps)).collect()
    }
}
