//! Does a wrong convention show? An oracle finds a mistake only on a model whose logits the
//! mistake moves.
//!
//! Each mistake is made by editing the loaded weights or config of the ugly models so that the
//! right equations compute the wrong thing. (Those that cannot be made so — no `l2_norm`, no
//! `1/√d`, `A_log` taken for `A` — move the logits of the goldens by 2 to 17, as the mutation
//! table of the reference shows.)

use std::mem;

use super::{
    Family, Oracle,
    config::{LatentConfig, LinearConfig, QueryKeyNorm, Scoring},
};
use crate::{
    compare::max_abs_diff_rows,
    noise::Noise,
    tiny_checkpoint::{Layout, TinyModel},
    ugly::{ugly_mlx_models, ugly_models},
};

/// A hundred times the tolerance of an f32 engine.
const NOTICEABLE: f64 = 0.1;
/// The tolerance itself.
const UNNOTICEABLE: f64 = 1e-3;

const ALL: &[Family] = &[
    Family::Mixtral,
    Family::MinimaxM2,
    Family::GptOss,
    Family::Qwen3Moe,
    Family::Qwen3Next,
    Family::Qwen3_5Moe,
];
const SUMMED: &[Family] =
    &[Family::Mixtral, Family::MinimaxM2, Family::Qwen3Moe, Family::Qwen3Next, Family::Qwen3_5Moe];
const BIASED: &[Family] =
    &[Family::GptOss, Family::Qwen3Moe, Family::Qwen3Next, Family::Qwen3_5Moe];
const WINDOWED: &[Family] = &[Family::Mixtral, Family::GptOss];
const MINIMAX: &[Family] = &[Family::MinimaxM2];
const GPT_OSS: &[Family] = &[Family::GptOss];
const LATENT: &[Family] = &[Family::DeepseekV3, Family::Glm4MoeLite];
const DEEPSEEK: &[Family] = &[Family::DeepseekV3];
const HYBRIDS: &[Family] = &[Family::Qwen3Next, Family::Qwen3_5Moe];
const NEXT: &[Family] = &[Family::Qwen3Next];
const QWEN35: &[Family] = &[Family::Qwen3_5Moe];

/// A mistake, and the families in which it can be made.
type Mistake = (&'static str, &'static [Family], fn(&mut Oracle));

const MISTAKES: &[Mistake] = &[
    ("rope_theta ten times smaller", ALL, |o| o.config.rope_theta /= 10.0),
    ("rope in the wrong number of dimensions", HYBRIDS, |o| {
        o.config.rotary_dim = o.config.head_dim;
    }),
    ("norm_topk_prob flipped", SUMMED, |o| o.config.norm_topk_prob ^= true),
    ("eps ignored", &[Family::Qwen3Moe], |o| o.config.eps = 0.0),
    ("query head h uses key/value head h % kv_heads", ALL, tile_kv_heads),
    ("attention biases ignored", BIASED, |o| {
        for name in ["q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"] {
            zero(o, name);
        }
    }),
    ("gate_proj and up_proj of experts swapped", ALL, swap_gate_and_up),
    ("rope in the wrong number of dimensions", MINIMAX, |o| {
        o.config.rotary_dim = o.config.head_dim;
    }),
    ("norm of queries and keys head by head", MINIMAX, norm_head_by_head),
    ("no norm of queries and keys", MINIMAX, |o| {
        o.config.query_key_norm = QueryKeyNorm::None;
    }),
    ("no bias for the choice", MINIMAX, |o| zero(o, "e_score_correction_bias")),
    ("softmax instead of sigmoids", MINIMAX, |o| o.config.scoring = Scoring::SoftmaxOfChosen),
    ("sinks ignored", GPT_OSS, |o| shift(o, "sinks", f64::NEG_INFINITY)),
    ("no window", WINDOWED, |o| o.config.window.fill(None)),
    ("a window that does not count the token itself", WINDOWED, |o| {
        o.config.window.iter_mut().flatten().for_each(|window| *window += 1);
    }),
    ("windows in the other layers", GPT_OSS, |o| o.config.window.reverse()),
    ("no yarn", GPT_OSS, |o| o.config.yarn = None),
    ("yarn between whole dimensions", GPT_OSS, |o| {
        o.config.yarn.as_mut().expect("it has one").truncate = true;
    }),
    ("router bias ignored", GPT_OSS, |o| zero(o, "mlp.gate.bias")),
    ("biases of experts ignored", GPT_OSS, |o| {
        for expert in 0..o.config.experts {
            for name in ["gate", "up", "down"] {
                zero(o, &format!("{expert}.{name}_proj.bias"));
            }
        }
    }),
    ("softmax over all experts", GPT_OSS, |o| o.config.scoring = Scoring::Softmax),
    ("plain activation", GPT_OSS, |o| o.config.clamped = None),
    ("nothing clamped", GPT_OSS, |o| {
        o.config.clamped.as_mut().expect("it is").limit = f64::INFINITY;
    }),
    ("rope_theta ten times smaller", LATENT, |o| o.config.rope_theta /= 10.0),
    ("norm_topk_prob flipped", LATENT, |o| o.config.norm_topk_prob ^= true),
    ("eps ignored", LATENT, |o| o.config.eps = 0.0),
    ("gate_proj and up_proj of experts swapped", LATENT, swap_gate_and_up),
    ("attention biases ignored", DEEPSEEK, |o| zero(o, "_proj.bias")),
    ("halves for neighbours and the reverse", LATENT, |o| {
        latent(o).interleaved ^= true;
    }),
    ("the root counts the part without positions alone", LATENT, |o| {
        let latent = latent(o);
        latent.scale *= ((latent.nope + latent.rope) as f64 / latent.nope as f64).sqrt();
    }),
    ("kv_b_proj read as [keys | values]", LATENT, flat_kv_b),
    ("norm weights of latents ignored", LATENT, |o| {
        o.weights.ending_in("_a_layernorm.weight").for_each(|tensor| tensor.data.fill(1.0));
    }),
    ("no bias for the choice", LATENT, |o| zero(o, "e_score_correction_bias")),
    ("no factor on the weights", LATENT, |o| o.config.route_factor = 1.0),
    ("shared experts dropped", LATENT, |o| zero(o, "shared_experts.down_proj.weight")),
    ("all groups are open", DEEPSEEK, |o| o.config.groups = None),
    ("no yarn", DEEPSEEK, |o| o.config.yarn = None),
    ("yarn not between whole dimensions", DEEPSEEK, |o| {
        o.config.yarn.as_mut().expect("it has one").truncate = false;
    }),
    ("mscale ignored for sine and cosine", DEEPSEEK, |o| {
        o.config.yarn.as_mut().expect("it has one").mscales = Some((1.0, 1.0));
    }),
    ("mscale_all_dim ignored for scores", DEEPSEEK, |o| {
        let sharper = o.config.yarn.as_ref().expect("it has one").sharper();
        latent(o).scale /= sharper;
    }),
    ("norm weights without the +1", HYBRIDS, |o| {
        for norm in ["layernorm.weight", "q_norm.weight", "k_norm.weight"] {
            shift(o, norm, -1.0);
        }
    }),
    ("+1 also on the gated norm", HYBRIDS, |o| shift(o, "linear_attn.norm.weight", 1.0)),
    ("q_proj read as [queries | gates]", HYBRIDS, flat_queries_and_gates),
    ("taps of the convolution reversed", HYBRIDS, reverse_taps),
    ("no decay", HYBRIDS, |o| shift(o, "A_log", f64::NEG_INFINITY)),
    ("dt_bias ignored", HYBRIDS, |o| zero(o, "dt_bias")),
    ("beta always 1/2", QWEN35, |o| zero(o, "in_proj_b.weight")),
    ("value head i uses key head i % key_heads", QWEN35, tile_key_heads),
    ("shared expert gated by 1/2", HYBRIDS, |o| zero(o, "shared_expert_gate.weight")),
    ("shared expert dropped", HYBRIDS, |o| zero(o, "shared_expert.down_proj.weight")),
    ("qkvz read as [q | k | v | z]", NEXT, flat_qkvz),
    ("ba read as [b | a]", NEXT, flat_ba),
];

#[test]
fn every_mistake_shows_in_some_ugly_model_of_its_families() {
    let models = ugly_models();
    let oracles = models.iter().map(|(_, model)| {
        let (oracle, tokens) = ready(model, &Layout::Hf);
        let right = oracle.run(&tokens).logits;
        (oracle, tokens, right)
    });
    let oracles: Vec<_> = oracles.collect();
    for &(mistake, families, make) in MISTAKES {
        for &family in families {
            let of_family = oracles.iter().filter(|(oracle, ..)| oracle.family() == family);
            let changes = of_family.map(|(oracle, tokens, right)| {
                let mut wrong = oracle.clone();
                make(&mut wrong);
                max_abs_diff_rows(right, &wrong.run(tokens).logits)
            });
            let largest = changes.fold(0.0, f64::max);
            report(&format!("{family:?}: {mistake}: {largest:.2}"));
            assert!(largest > NOTICEABLE, "{family:?}: {mistake}: only {largest}");
        }
    }
}

/// The other way round: what every engine gets wrong, rounding, must not show. An error of 1e-6
/// in the embeddings is about what f32 leaves after one layer.
#[test]
fn rounding_shows_in_no_ugly_model() {
    let hf = ugly_models().into_iter().map(|(name, model)| (name, model, Layout::Hf));
    let mlx = ugly_mlx_models().into_iter();
    let mlx = mlx.map(|(name, model, mlx)| (name, model, Layout::Mlx(mlx)));
    for (name, model, layout) in hf.chain(mlx) {
        let (oracle, tokens) = ready(&model, &layout);
        let mut rounded = oracle.clone();
        let mut noise = Noise::new(9);
        for tensor in rounded.weights.ending_in("embed_tokens.weight") {
            tensor.data.iter_mut().for_each(|x| *x *= 1.0 + 1e-6 * noise.normal());
        }
        let moved = max_abs_diff_rows(&oracle.run(&tokens).logits, &rounded.run(&tokens).logits);
        report(&format!("{name}: logits moved by {moved:.1e}"));
        assert!(moved < UNNOTICEABLE, "{name}: {moved:.1e}");
    }
}

#[allow(clippy::print_stdout)] // shown by `--no-capture`
fn report(line: &str) {
    println!("{line}");
}

fn ready(model: &TinyModel, layout: &Layout) -> (Oracle, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    model.write(dir.path(), layout, 1);
    let oracle = Oracle::load(dir.path());
    let tokens = oracle.clear_prompt(24, 0.05, 3);
    (oracle, tokens)
}

fn zero(oracle: &mut Oracle, suffix: &str) {
    oracle.weights.ending_in(suffix).for_each(|tensor| tensor.data.fill(0.0));
}

fn shift(oracle: &mut Oracle, suffix: &str, offset: f64) {
    for tensor in oracle.weights.ending_in(suffix) {
        tensor.data.iter_mut().for_each(|x| *x += offset);
    }
}

/// The weights of the first head for all heads.
fn norm_head_by_head(oracle: &mut Oracle) {
    oracle.config.query_key_norm = QueryKeyNorm::PerHead;
    let dim = oracle.config.head_dim;
    for norm in ["q_norm.weight", "k_norm.weight"] {
        oracle.weights.ending_in(norm).for_each(|tensor| tensor.data.truncate(dim));
    }
}

fn latent(oracle: &mut Oracle) -> &mut LatentConfig {
    oracle.config.latent.as_mut().expect("latent attention")
}

/// Puts the rows where a reader of `[keys of all heads | values of all heads]` would look for them.
fn flat_kv_b(oracle: &mut Oracle) {
    let (heads, LatentConfig { nope, value, .. }) = (oracle.config.heads, latent(oracle).clone());
    for tensor in oracle.weights.ending_in("kv_b_proj.weight") {
        let order = (0..heads).flat_map(|head| {
            let key = (head * nope..).take(nope);
            key.chain((heads * nope + head * value..).take(value))
        });
        *tensor = tensor.reordered(order);
    }
}

/// Gives every query head its own key/value head: a copy of the wrong one.
fn tile_kv_heads(oracle: &mut Oracle) {
    let (heads, kv_heads) = (oracle.config.heads, mem::replace(&mut oracle.config.kv_heads, 0));
    oracle.config.kv_heads = heads;
    let dim = oracle.config.head_dim;
    let order = || (0..heads).flat_map(|head| (head % kv_heads * dim..).take(dim));
    for name in ["k_proj", "v_proj"] {
        for tensor in oracle.weights.ending_in(&format!("{name}.weight")) {
            *tensor = tensor.reordered(order());
        }
        for tensor in oracle.weights.ending_in(&format!("{name}.bias")) {
            tensor.data = order().map(|row| tensor.data[row]).collect();
        }
    }
    if oracle.config.query_key_norm == QueryKeyNorm::WholeRow {
        for tensor in oracle.weights.ending_in("k_norm.weight") {
            tensor.data = order().map(|row| tensor.data[row]).collect();
        }
    }
}

/// Gives every value head its own key head: a copy of the wrong one.
fn tile_key_heads(oracle: &mut Oracle) {
    let linear = oracle.config.linear.as_mut().expect("a hybrid");
    let LinearConfig { key_heads, value_heads, key_dim, value_dim, kernel } = linear.clone();
    linear.key_heads = value_heads;
    let keys = move |from: usize| {
        (0..value_heads).flat_map(move |v| (from + v % key_heads * key_dim..).take(key_dim))
    };
    let width = key_heads * key_dim;
    let order = || keys(0).chain(keys(width)).chain((2 * width..).take(value_heads * value_dim));
    for tensor in oracle.weights.ending_in("in_proj_qkv.weight") {
        *tensor = tensor.reordered(order());
    }
    for tensor in oracle.weights.ending_in("conv1d.weight") {
        tensor.shape = vec![tensor.shape[0], kernel];
        *tensor = tensor.reordered(order());
    }
}

fn swap_gate_and_up(oracle: &mut Oracle) {
    for layer in 0..oracle.config.layers {
        for expert in 0..oracle.config.experts {
            let name = |matrix| format!("layers.{layer}.mlp.experts.{expert}.{matrix}.weight");
            if oracle.weights.find(&name("gate_proj")).is_none() {
                continue;
            }
            let up = oracle.weights.get(&name("up_proj")).clone();
            let gate = oracle.weights.ending_in(&name("gate_proj")).next().expect("found above");
            let gate = mem::replace(gate, up);
            *oracle.weights.ending_in(&name("up_proj")).next().expect("gate comes with up") = gate;
        }
    }
}

fn reverse_taps(oracle: &mut Oracle) {
    let kernel = oracle.config.linear.as_ref().expect("a hybrid").kernel;
    for tensor in oracle.weights.ending_in("conv1d.weight") {
        tensor.data.chunks_mut(kernel).for_each(<[f64]>::reverse);
    }
}

fn flat_queries_and_gates(oracle: &mut Oracle) {
    let (heads, dim) = (oracle.config.heads, oracle.config.head_dim);
    for tensor in oracle.weights.ending_in("q_proj.weight") {
        let order = (0..heads).flat_map(|head| {
            let query = (head * dim..).take(dim);
            query.chain((heads * dim + head * dim..).take(dim))
        });
        *tensor = tensor.reordered(order);
    }
}

/// Puts the rows where a reader of `[q | k | v | z]` would look for them.
fn flat_qkvz(oracle: &mut Oracle) {
    let linear = oracle.config.linear.clone().expect("a hybrid");
    let LinearConfig { key_heads, value_heads, key_dim, value_dim, .. } = linear;
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let per_head = [(0, key_dim), (keys, key_dim), (2 * keys, values / key_heads)];
    let z = (2 * keys + values, values / key_heads);
    for tensor in oracle.weights.ending_in("in_proj_qkvz.weight") {
        let order = (0..key_heads).flat_map(|head| {
            let parts = per_head.into_iter().chain([z]);
            parts.flat_map(move |(from, size)| (from + head * size..).take(size))
        });
        *tensor = tensor.reordered(order);
    }
}

fn flat_ba(oracle: &mut Oracle) {
    let linear = oracle.config.linear.as_ref().expect("a hybrid");
    let (key_heads, ratio) = (linear.key_heads, linear.value_heads / linear.key_heads);
    for tensor in oracle.weights.ending_in("in_proj_ba.weight") {
        let order = (0..key_heads).flat_map(|head| {
            let b = (head * ratio..).take(ratio);
            b.chain((key_heads * ratio + head * ratio..).take(ratio))
        });
        *tensor = tensor.reordered(order);
    }
}
