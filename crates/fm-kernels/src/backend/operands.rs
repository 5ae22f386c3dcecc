//! What operations take: matrices, shapes, routes and the places where state lives.

use std::fmt;

use fm_format::{key::ExpertIndex, record::MatrixShape};

use super::{Backend, View, ViewMut};

/// A weight matrix as it lies in device memory: `[rows, cols]`, rows made of whole blocks.
#[derive(Debug)]
pub struct QMatrix<'a, Bytes: ?Sized> {
    /// `shape.bytes()` bytes.
    pub bytes: &'a Bytes,
    /// Rows, columns and format.
    pub shape: MatrixShape,
    /// Whether [`Backend::arrange`] has brought the bytes into the device's own order. Such weights
    /// are multiplied in the numerics in force, others in f32.
    pub arranged: bool,
}

// By hand: `derive` would ask for `Bytes: Copy`, and only the borrow is copied.
impl<Bytes: ?Sized> Clone for QMatrix<'_, Bytes> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<Bytes: ?Sized> Copy for QMatrix<'_, Bytes> {}

/// A matrix, and where its product with activations goes: `[rows, w.rows]`.
#[derive(Debug)]
pub struct Product<'a, Bytes: ?Sized, Buf> {
    /// The matrix.
    pub w: QMatrix<'a, Bytes>,
    /// The result.
    pub y: ViewMut<'a, Buf>,
}

/// Weights of one expert: gate and up are `[ffn, hidden]`, down is `[hidden, ffn]`.
#[derive(Debug)]
pub struct ExpertWeights<'a, Bytes: ?Sized, Buf> {
    /// `gate_proj`.
    pub gate: QMatrix<'a, Bytes>,
    /// `up_proj`.
    pub up: QMatrix<'a, Bytes>,
    /// `down_proj`.
    pub down: QMatrix<'a, Bytes>,
    /// What becomes of gate and up.
    pub activation: Activation,
    /// Added to the products, if the expert has such.
    pub biases: Option<ExpertBiases<'a, Buf>>,
}

/// An expert and the rows that chose it.
#[derive(Debug)]
pub struct ExpertCall<'a, Bytes: ?Sized, Buf> {
    /// The expert.
    pub weights: ExpertWeights<'a, Bytes, Buf>,
    /// The rows.
    pub rows: &'a [ExpertRow],
}

/// Biases of one expert, one row each.
#[derive(Debug)]
pub struct ExpertBiases<'a, Buf> {
    /// `[1, ffn]`.
    pub gate: View<'a, Buf>,
    /// `[1, ffn]`.
    pub up: View<'a, Buf>,
    /// `[1, hidden]`.
    pub down: View<'a, Buf>,
}

/// How a gated network combines its two projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`.
    Silu,
    /// See [`Clamp`].
    Clamped(Clamp),
}

/// `(up + 1) · gate · sigmoid(alpha · gate)` with `gate` at most `limit` and `up` within
/// `±limit`. Source: OpenAI, *gpt-oss-120b & gpt-oss-20b Model Card*, 2025, arXiv:2508.10925.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// `swiglu_limit`.
    pub limit: f32,
    /// Steepness of the sigmoid.
    pub alpha: f32,
}

/// One row that chose an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertRow {
    /// Row of the activations.
    pub row: u32,
    /// Row of the output.
    pub target: u32,
    /// Router weight.
    pub weight: f32,
}

/// What becomes of an expert's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// `out[target] = y`, to be combined in ascending expert order afterwards.
    Store,
    /// `out[target] += weight · y`, for experts that come in ascending order.
    Accumulate,
}

/// Work space of [`Backend::expert_rows`].
#[derive(Debug)]
pub struct ExpertScratch<B: Backend> {
    /// `[rows, ffn]`.
    pub gate: B::Buf,
    /// `[rows, ffn]`.
    pub up: B::Buf,
    /// Holds `[rows, ffn]`.
    pub acts: B::Acts,
    /// `[rows, hidden]`.
    pub y: B::Buf,
}

/// How a router chooses.
///
/// ```text
/// score ← scoring(logits)              key ← score + bias
/// chosen ← the top_k largest keys, of the experts in the chosen groups where there are groups
/// weight ← factor · scale(score of the chosen)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterSpec {
    /// Experts per row that are used.
    pub top_k: usize,
    /// From logits to scores.
    pub scoring: RouterScoring,
    /// What the chosen scores are divided by.
    pub scale: RouterScale,
    /// Groups of experts of which only the best are looked at.
    pub groups: Option<RouterGroups>,
    /// Multiplies every weight (`routed_scaling_factor`).
    pub factor: f32,
}

impl RouterSpec {
    /// The most of `experts` experts that a row can have.
    pub fn reachable(&self, experts: usize) -> usize {
        self.groups.map_or(experts, |groups| groups.chosen * (experts / groups.count))
    }
}

/// From a router's logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScoring {
    /// Softmax over all experts.
    Softmax,
    /// `1 / (1 + e^-logit)`, each expert by itself.
    Sigmoid,
    /// The logits themselves; the softmax is taken over the chosen ones, as their weights.
    SoftmaxOfChosen,
}

/// What becomes of the chosen scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScale {
    /// They stay as they are.
    Plain,
    /// They are divided by their sum (`norm_topk_prob`).
    Renormalised,
}

/// Most groups a router may have.
pub const ROUTER_GROUPS_MAX: usize = 64;

/// Equal groups of neighbouring experts. A group is as good as the sum of its two best keys.
/// Source: DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, arXiv:2412.19437.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterGroups {
    /// Groups, at most [`ROUTER_GROUPS_MAX`]; divides the experts, of which each has two at least.
    pub count: usize,
    /// Groups that a row may choose from.
    pub chosen: usize,
}

/// What a router says of some rows.
#[derive(Debug)]
pub struct RouterLogits<'a, Buf> {
    /// `[rows, experts]`.
    pub logits: View<'a, Buf>,
    /// Added to the scores before the choice, `[experts]`; weights do not have it.
    pub bias: Option<&'a Buf>,
}

/// Experts of every row, ascending within a row.
#[derive(Debug)]
pub struct Routes<B: Backend> {
    /// Scores of all experts, `[rows, experts]`, for policies and look-ahead.
    pub scores: B::Buf,
    /// `top_k` experts per row, ascending.
    pub ids: Vec<ExpertIndex>,
    /// Their weights, in the order of `ids`.
    pub weights: Vec<f32>,
    /// Experts per row.
    pub top_k: usize,
}

/// Rotary position embedding of one layer kind.
#[derive(Debug)]
pub struct Rope<'a, Buf> {
    /// Values of a head.
    pub head_dim: usize,
    /// Of these, the first that is rotated.
    pub start: usize,
    /// Pairs per head that are rotated.
    pub pairs: usize,
    /// Which values make a pair.
    pub layout: RopeLayout,
    /// Angle of each pair at position 1, `[pairs]`.
    pub inv_freq: &'a Buf,
    /// Factor on what was rotated: 1, but for scaled embeddings.
    pub amplitude: f32,
    /// Position of every row.
    pub positions: &'a [u32],
}

/// Which of the `2 · pairs` rotated values of a head are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Value `i` with value `i + pairs`, as in GPT-NeoX.
    HalfSplit,
    /// Value `2i` with value `2i + 1`, as in the paper.
    Interleaved,
}

/// Dimensions of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; query head `h` reads `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Values of a query or key head.
    pub k_dim: usize,
    /// Values of a value head.
    pub v_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// The latest positions that a row sees, itself included; `None` if it sees all.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// The first position that a row at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// What keys and values are rounded to where they are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// Not at all.
    #[default]
    F32,
    /// Half precision, IEEE 754 binary16, ties to even: half the bytes, 11 significant bits.
    F16,
}

impl KvFormat {
    /// Every format, in the order of the option's help.
    pub const ALL: &'static [Self] = &[Self::F32, Self::F16];

    /// The word of the command line and the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of a value.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A key or a value is beyond what its format holds: cut off there, it would be another text's.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a key or value of {value:e} is beyond {format}; keep them in f32")]
pub struct KvOverflow {
    /// What should have been kept.
    pub value: f32,
    /// Where.
    pub format: KvFormat,
}

/// The keys and values of one layer that one session may see.
///
/// `keys` is `[blocks, kv_heads, KV_BLOCK_TOKENS, k_dim]`, `values` likewise with `v_dim` if there
/// are any, in the same format; both hold the blocks of all sessions, and `table[position / KV_BLOCK_TOKENS]` is the
/// block of a position.
#[derive(Debug)]
pub struct KvView<'a, Kv, Buf> {
    /// Keys of the layer's pool.
    pub keys: &'a Kv,
    /// Values of the layer's pool; `None` if they are the first `v_dim` of every key.
    pub values: Option<&'a Kv>,
    /// Blocks of this session, by position.
    pub table: &'a [u32],
    /// `[heads]`: one more score of every head, with its share of the softmax and no value.
    pub sinks: Option<&'a Buf>,
}

/// Dimensions of a gated delta-net layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Which key head each of them reads.
    pub head_order: HeadOrder,
    /// Values of a key head.
    pub k_dim: usize,
    /// Values of a value head.
    pub v_dim: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
}

/// Which key head a value head reads, where there are several value heads per key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value heads of one key head stand together: `h / (value_heads / key_heads)`.
    Grouped,
    /// Value heads go round all key heads: `h % key_heads`.
    Tiled,
}

impl DeltaShape {
    /// The key head that a value head reads.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.head_order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }

    /// Channels of the convolution: queries, keys and values side by side.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.k_dim + self.value_heads * self.v_dim
    }

    /// Values of the recurrent memory, `[value_heads, v_dim, k_dim]`.
    pub fn memory_len(&self) -> usize {
        self.value_heads * self.v_dim * self.k_dim
    }

    /// Values of the convolution's history, `[conv_taps - 1, channels]`, oldest first.
    pub fn history_len(&self) -> usize {
        (self.conv_taps - 1) * self.channels()
    }
}

/// Inputs of [`Backend::delta_net`] for the rows of one session.
#[derive(Debug)]
pub struct DeltaInputs<'a, Buf> {
    /// `[rows, channels]`: queries, keys and values after the convolution; queries and keys are
    /// normalised in place.
    pub qkv: ViewMut<'a, Buf>,
    /// `[rows, value_heads]`: decay projection.
    pub a: View<'a, Buf>,
    /// `[rows, value_heads]`: write-strength projection.
    pub b: View<'a, Buf>,
    /// `-exp(A_log)`, `[value_heads]`.
    pub neg_a: &'a Buf,
    /// `[value_heads]`.
    pub dt_bias: &'a Buf,
}
