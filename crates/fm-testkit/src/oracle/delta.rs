//! The gated delta-net mixer, one token after another.
//!
//! Conventions held here: how `qkv`, `z`, `b`, `a` are packed; the last tap of the convolution
//! multiplies the current token; value head `i` uses key head `i / (value_heads / key_heads)`;
//! the memory forgets before it is corrected and is read after it; the norm comes before its gate.

use super::{
    config::{Config, LinearConfig},
    maths::{dot, l2_norm, rms_norm, sigmoid, silu, softplus},
    weights::Scope,
};

/// What a delta-net layer remembers after the last token.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaMemory {
    /// The last `kernel` inputs of the convolution, per channel, oldest first, zeros before the
    /// first token: `[channels][kernel]`. Channels are all queries, all keys, all values.
    pub conv: Vec<Vec<f64>>,
    /// `[value_heads][key_dim][value_dim]`.
    pub state: Vec<Vec<Vec<f64>>>,
}

/// Output for every token of `x`, and the memory after the last.
pub(super) fn delta_net(
    config: &Config,
    weights: Scope<'_>,
    x: &[Vec<f64>],
) -> (Vec<Vec<f64>>, DeltaMemory) {
    let linear = config.linear.as_ref().expect("only hybrids have delta-net layers");
    let inputs: Vec<Inputs> = x.iter().map(|x| Inputs::project(linear, weights, x)).collect();
    let mut state = vec![vec![vec![0.0; linear.value_dim]; linear.key_dim]; linear.value_heads];
    let mut out = Vec::new();
    for token in 0..x.len() {
        let mixed = convolve(linear, weights, &inputs[..=token]);
        let mut heads = Vec::new();
        for (head, state) in state.iter_mut().enumerate() {
            let step = Step::new(linear, weights, &inputs[token], &mixed, head);
            let read = step.advance(state);
            let normed = rms_norm(&read, &weights.get("norm.weight").data, config.eps);
            let z = &inputs[token].z[head * linear.value_dim..][..linear.value_dim];
            heads.extend(normed.iter().zip(z).map(|(normed, z)| normed * silu(*z)));
        }
        out.push(weights.linear("out_proj", &heads));
    }
    (out, DeltaMemory { conv: window(linear, &inputs), state })
}

/// One token's projections, flat: `qkv` is all queries, all keys, all values.
struct Inputs {
    qkv: Vec<f64>,
    z: Vec<f64>,
    b: Vec<f64>,
    a: Vec<f64>,
}

impl Inputs {
    fn project(linear: &LinearConfig, weights: Scope<'_>, x: &[f64]) -> Self {
        if weights.has("in_proj_qkvz.weight") {
            return Self::unpack(
                linear,
                &weights.linear("in_proj_qkvz", x),
                &weights.linear("in_proj_ba", x),
            );
        }
        Self {
            qkv: weights.linear("in_proj_qkv", x),
            z: weights.linear("in_proj_z", x),
            b: weights.linear("in_proj_b", x),
            a: weights.linear("in_proj_a", x),
        }
    }

    /// `qwen3_next` packs per key head: `[q | k | v of its value heads | z of them]` and
    /// `[b of its value heads | a of them]`.
    fn unpack(linear: &LinearConfig, qkvz: &[f64], ba: &[f64]) -> Self {
        let ratio = linear.value_heads / linear.key_heads;
        let (key_dim, values) = (linear.key_dim, ratio * linear.value_dim);
        let (mut q, mut k, mut v, mut z) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for head in qkvz.chunks(2 * key_dim + 2 * values) {
            q.extend(&head[..key_dim]);
            k.extend(&head[key_dim..2 * key_dim]);
            v.extend(&head[2 * key_dim..2 * key_dim + values]);
            z.extend(&head[2 * key_dim + values..]);
        }
        let (mut b, mut a) = (Vec::new(), Vec::new());
        for head in ba.chunks(2 * ratio) {
            b.extend(&head[..ratio]);
            a.extend(&head[ratio..]);
        }
        Self { qkv: [q, k, v].concat(), z, b, a }
    }
}

/// The input of channel `c`, `back` tokens ago; zero before the first.
fn past(inputs: &[Inputs], channel: usize, back: usize) -> f64 {
    if back < inputs.len() { inputs[inputs.len() - 1 - back].qkv[channel] } else { 0.0 }
}

/// `silu( Σₜ w[c, t] · input[c] (kernel − 1 − t) tokens ago )` for each channel `c`.
fn convolve(linear: &LinearConfig, weights: Scope<'_>, inputs: &[Inputs]) -> Vec<f64> {
    let taps = &weights.get("conv1d.weight").data;
    let channels = inputs[0].qkv.len();
    assert_eq!(taps.len(), channels * linear.kernel, "every channel has its taps");
    let sum = |channel: usize| {
        let terms = (0..linear.kernel).map(|tap| {
            taps[channel * linear.kernel + tap] * past(inputs, channel, linear.kernel - 1 - tap)
        });
        silu(terms.sum())
    };
    (0..channels).map(sum).collect()
}

fn window(linear: &LinearConfig, inputs: &[Inputs]) -> Vec<Vec<f64>> {
    let channels = inputs.first().map_or(0, |input| input.qkv.len());
    let row = |channel| (0..linear.kernel).rev().map(|back| past(inputs, channel, back)).collect();
    (0..channels).map(row).collect()
}

/// What one head needs for one token.
struct Step {
    query: Vec<f64>,
    key: Vec<f64>,
    value: Vec<f64>,
    decay: f64,
    beta: f64,
}

impl Step {
    fn new(
        linear: &LinearConfig,
        weights: Scope<'_>,
        input: &Inputs,
        mixed: &[f64],
        head: usize,
    ) -> Self {
        let key_head = head / (linear.value_heads / linear.key_heads);
        let (keys, dim) = (linear.key_heads * linear.key_dim, linear.key_dim);
        let query = l2_norm(&mixed[key_head * dim..][..dim]);
        let scale = 1.0 / (dim as f64).sqrt();
        let rate = weights.get("A_log").data[head].exp();
        let dt = softplus(input.a[head] + weights.get("dt_bias").data[head]);
        Self {
            query: query.iter().map(|q| q * scale).collect(),
            key: l2_norm(&mixed[keys + key_head * dim..][..dim]),
            value: mixed[2 * keys + head * linear.value_dim..][..linear.value_dim].to_vec(),
            decay: (-rate * dt).exp(),
            beta: sigmoid(input.b[head]),
        }
    }

    /// ```text
    /// S ← decay · S
    /// S ← S + key ⊗ beta · (value − Sᵀ key)
    /// out = Sᵀ query
    /// ```
    /// `state` is `[key_dim][value_dim]`.
    fn advance(&self, state: &mut [Vec<f64>]) -> Vec<f64> {
        state.iter_mut().flatten().for_each(|s| *s *= self.decay);
        let known = transposed_times(state, &self.key);
        let correction: Vec<f64> =
            self.value.iter().zip(&known).map(|(v, known)| (v - known) * self.beta).collect();
        for (row, key) in state.iter_mut().zip(&self.key) {
            row.iter_mut().zip(&correction).for_each(|(s, c)| *s += key * c);
        }
        transposed_times(state, &self.query)
    }
}

/// `Sᵀ x`
fn transposed_times(state: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    let column = |v: usize| state.iter().map(|row| row[v]).collect::<Vec<_>>();
    (0..state[0].len()).map(|v| dot(&column(v), x)).collect()
}
