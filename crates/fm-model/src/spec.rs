//! A model described, before a byte of its weights is read: what every layer is, and where each of
//! its tensors lies. A family's file in `arch/` makes this from a configuration and tensor names;
//! planning, loading and inspecting start from it.

use std::{ops::Range, sync::Arc};

use fm_format::{
    quant::{FloatKind, FormatKind, float_format},
    record::{Catalog, Extent, MatrixShape, ScaleSource},
    source::Dtype,
};
use fm_kernels::backend::{Activation, AttentionShape, DeltaShape, RouterSpec};

mod mla;
mod rotary;

pub use mla::{MlaShape, MlaSpec, QueryCompression};
pub use rotary::{RopeScaling, Rotary, Yarn};

/// A weight matrix that lies in the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixRef {
    /// Module name, for messages.
    pub name: String,
    /// Shape and format once loaded.
    pub shape: MatrixShape,
    /// Where its bytes are.
    pub source: MatrixSource,
    /// Rows of the tensors on disk.
    pub source_rows: usize,
    /// Those of them that make it up, in order.
    pub rows: Vec<Range<usize>>,
    /// What happens to them on the way.
    pub transform: MatrixTransform,
}

/// What happens to a matrix when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixTransform {
    /// Nothing: its bytes are those on disk.
    Plain,
    /// Its rows are matrices of this shape, one below the other, and each is transposed. Floats
    /// keep their format, anything packed is decoded to f32: both are exact.
    TransposedParts(MatrixShape),
}

/// Where the bytes of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MatrixSource {
    /// One tensor, row-major.
    Plain(Extent),
    /// A tensor for each part, row-major.
    Planar {
        /// Packed codes.
        codes: Extent,
        /// One per group.
        scales: Extent,
        /// One per group, in affine formats.
        biases: Option<Extent>,
        /// Element type of scales and biases.
        element: ScaleSource,
    },
}

impl MatrixRef {
    /// The same module, but only the given rows of it, in the given order.
    pub fn select(&self, rows: Vec<Range<usize>>) -> Self {
        let count = rows.iter().map(ExactSizeIterator::len).sum();
        Self { shape: MatrixShape { rows: count, ..self.shape }, rows, ..self.clone() }
    }

    /// The same matrix, cut into parts of `part_rows` rows of which each is transposed.
    pub fn transpose_parts(&self, part_rows: usize) -> Self {
        let MatrixShape { rows, cols, format } = self.shape;
        let part = MatrixShape { rows: part_rows, cols, format };
        let format = match format.kind {
            FormatKind::Float(_) => format,
            _ => float_format(FloatKind::F32),
        };
        let shape = MatrixShape { rows: rows / part_rows * cols, cols: part_rows, format };
        Self { shape, transform: MatrixTransform::TransposedParts(part), ..self.clone() }
    }
}

/// A small float tensor that is kept as f32.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorRef {
    /// Tensor name.
    pub name: String,
    /// Where it is.
    pub extent: Extent,
    /// Element type.
    pub dtype: Dtype,
    /// Number of values.
    pub len: usize,
    /// What happens to it on the way.
    pub transform: VectorTransform,
    /// Values of the source that make it up, in order.
    pub rows: Vec<Range<usize>>,
}

impl VectorRef {
    /// Every second value, from the first or the second on.
    pub fn every_second(self, from: usize) -> Self {
        let len = self.len / 2;
        let rows = std::iter::once(0..len).collect();
        Self { len, rows, transform: VectorTransform::EverySecond { from }, ..self }
    }

    /// The same tensor, but only the given values of it, in the given order.
    pub fn select(&self, rows: Vec<Range<usize>>) -> Self {
        let len = rows.iter().map(ExactSizeIterator::len).sum();
        Self { len, rows, ..self.clone() }
    }
}

/// What happens to a small tensor when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorTransform {
    /// Nothing.
    Plain,
    /// `1 + w`: norms that are stored around zero.
    PlusOne,
    /// `-exp(w)`: `A_log`.
    NegExp,
    /// Every second value, from this one on: what is stored in turns with another tensor.
    EverySecond {
        /// 0 or 1.
        from: usize,
    },
    /// A matrix with this many columns, transposed: convolution taps.
    Transposed {
        /// Columns before the transposition.
        cols: usize,
    },
}

/// A whole model.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Family, as in `config.json`.
    pub model_type: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Longest context the model was made for.
    pub context_max: u32,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// Token embedding, `[vocab, hidden]`.
    pub embed: MatrixRef,
    /// Output head, `[vocab, hidden]`; `None` if the embedding serves.
    pub head: Option<MatrixRef>,
    /// What the files have for a head all the same: copies of the embedding, see
    /// [`check_tied_head`](crate::load::check_tied_head).
    pub tied_head: Vec<TiedTensor>,
    /// Norm before the head.
    pub final_norm: VectorRef,
    /// Decoder layers in order.
    pub layers: Vec<LayerSpec>,
    /// The routed experts' bytes.
    pub catalog: Arc<Catalog>,
    /// Whose conventions the tensors follow.
    pub publisher: Publisher,
    /// Names of all tensors that are used and are no routed expert's, ascending.
    pub trunk_tensors: Vec<String>,
    /// What the files leave open and how it was taken, in words.
    pub assumed: Vec<String>,
}

/// A tensor that has to be a copy of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiedTensor {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub head: Extent,
    /// Where the embedding's is.
    pub embed: Extent,
}

/// Who wrote the checkpoint; the same network is stored differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publisher {
    /// transformers.
    HuggingFace,
    /// mlx-lm: norms already `1 + w`, experts stacked, convolutions `[C, K, 1]`.
    Mlx,
    /// llama.cpp's converter: as mlx-lm, with other names, `A_log` already `-exp`, and in some
    /// families heads in another order.
    Gguf,
}

impl Publisher {
    const ALL: [Self; 3] = [Self::HuggingFace, Self::Mlx, Self::Gguf];

    /// What a container's manifest calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HuggingFace => "hugging_face",
            Self::Mlx => "mlx",
            Self::Gguf => "gguf",
        }
    }

    /// The publisher a manifest names.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|publisher| publisher.name() == name)
    }
}

impl ModelSpec {
    /// The attention layers with keys and values of their own, in order.
    pub fn attention_layers(&self) -> impl Iterator<Item = &AttentionSpec> + Clone {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            MixerSpec::Attention(attention) => Some(&**attention),
            MixerSpec::Mla(_) | MixerSpec::DeltaNet(_) => None,
        })
    }

    /// The latent-attention layers, in order.
    pub fn mla_layers(&self) -> impl Iterator<Item = &MlaSpec> + Clone {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            MixerSpec::Mla(mla) => Some(&**mla),
            MixerSpec::Attention(_) | MixerSpec::DeltaNet(_) => None,
        })
    }

    /// The delta-net layers, in order.
    pub fn delta_layers(&self) -> impl Iterator<Item = &DeltaNetSpec> + Clone {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            MixerSpec::DeltaNet(delta) => Some(&**delta),
            MixerSpec::Attention(_) | MixerSpec::Mla(_) => None,
        })
    }

    /// What every layer with a KV cache keeps of a token, in order.
    pub fn kv_shapes(&self) -> impl Iterator<Item = KvShape> + Clone {
        self.layers.iter().filter_map(|layer| layer.mixer.kv_shape())
    }
}

/// One decoder layer: `x += mixer(norm(x)); x += ffn(norm(x))`.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Norm before the mixer.
    pub mixer_norm: VectorRef,
    /// What mixes positions.
    pub mixer: MixerSpec,
    /// Norm before the feed-forward network.
    pub ffn_norm: VectorRef,
    /// What works on each position alone.
    pub ffn: FfnSpec,
}

/// What mixes positions.
#[derive(Clone, Debug)]
pub enum MixerSpec {
    /// Softmax attention with a KV cache.
    Attention(Box<AttentionSpec>),
    /// Softmax attention over a compressed KV cache.
    Mla(Box<MlaSpec>),
    /// Gated delta net with a recurrent memory.
    DeltaNet(Box<DeltaNetSpec>),
}

impl MixerSpec {
    /// What it keeps of a token, if it keeps something of every token.
    pub fn kv_shape(&self) -> Option<KvShape> {
        match self {
            Self::Attention(attention) => {
                let AttentionShape { kv_heads, k_dim, v_dim, .. } = attention.shape;
                Some(KvShape { kv_heads, k_dim, v_dim })
            }
            Self::Mla(mla) => Some(KvShape { kv_heads: 1, k_dim: mla.shape.key_dim(), v_dim: 0 }),
            Self::DeltaNet(_) => None,
        }
    }

    /// Positions whose keys a row at `position` sees, itself included.
    pub fn seen_from(&self, position: usize) -> usize {
        let first = match self {
            Self::Attention(attention) => attention.shape.first_seen(position),
            Self::Mla(_) | Self::DeltaNet(_) => 0,
        };
        position + 1 - first
    }
}

/// What a layer keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values of a key head.
    pub k_dim: usize,
    /// Values of a value head; 0 if values are a part of the keys.
    pub v_dim: usize,
}

/// Softmax attention.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// Heads and dimensions.
    pub shape: AttentionShape,
    /// Values of a head that are rotated, and the base of their frequencies.
    pub rotary: Rotary,
    /// `[heads · k_dim, hidden]`.
    pub q: Projection,
    /// `[heads · v_dim, hidden]`: its sigmoid multiplies the output, if there is one.
    pub gate: Option<Projection>,
    /// `[kv_heads · k_dim, hidden]`.
    pub k: Projection,
    /// `[kv_heads · v_dim, hidden]`.
    pub v: Projection,
    /// `[hidden, heads · v_dim]`.
    pub o: Projection,
    /// `[heads]`: one more score of every head, see [`KvView::sinks`](fm_kernels::backend::KvView).
    pub sinks: Option<VectorRef>,
    /// Norm of every query head, `[k_dim]`, or of all together, `[heads · k_dim]`.
    pub q_norm: Option<VectorRef>,
    /// Norm of every key head, or of all together.
    pub k_norm: Option<VectorRef>,
}

/// A matrix with an optional bias.
#[derive(Clone, Debug)]
pub struct Projection {
    /// The matrix.
    pub weight: MatrixRef,
    /// Added to every row of the result.
    pub bias: Option<VectorRef>,
}

impl Projection {
    /// The same projection, but only the given rows of it, in the given order.
    pub fn select(&self, rows: Vec<Range<usize>>) -> Self {
        let bias = self.bias.as_ref().map(|bias| bias.select(rows.clone()));
        Self { weight: self.weight.select(rows), bias }
    }
}

/// Gated delta net.
#[derive(Clone, Debug)]
pub struct DeltaNetSpec {
    /// Heads and dimensions.
    pub shape: DeltaShape,
    /// `[channels, hidden]`: queries, keys, values.
    pub qkv: MatrixRef,
    /// `[value_heads · v_dim, hidden]`: the output gate.
    pub z: MatrixRef,
    /// `[value_heads, hidden]`: write strength.
    pub b: MatrixRef,
    /// `[value_heads, hidden]`: decay.
    pub a: MatrixRef,
    /// `[conv_taps, channels]`.
    pub conv: VectorRef,
    /// `-exp(A_log)`, `[value_heads]`.
    pub neg_a: VectorRef,
    /// `[value_heads]`.
    pub dt_bias: VectorRef,
    /// Norm of every output head, `[v_dim]`.
    pub norm: VectorRef,
    /// `[hidden, value_heads · v_dim]`.
    pub out: MatrixRef,
}

/// What works on each position alone.
#[derive(Clone, Debug)]
pub enum FfnSpec {
    /// Routed experts, and perhaps a shared one.
    Moe(Box<MoeSpec>),
    /// One network for all.
    Mlp(Box<MlpSpec>),
}

/// Routed experts; their records are in [`ModelSpec::catalog`].
#[derive(Clone, Debug)]
pub struct MoeSpec {
    /// `[experts, hidden]`.
    pub router: Projection,
    /// `[experts]`: added to the scores for the choice, not to the weights.
    pub choice_bias: Option<VectorRef>,
    /// How experts are chosen.
    pub routing: RouterSpec,
    /// What becomes of the routed experts' gate and up projections.
    pub activation: Activation,
    /// Of the routed experts, where they have such.
    pub biases: Option<ExpertBiasesSpec>,
    /// An expert that every position uses.
    pub shared: Option<SharedSpec>,
}

/// Biases of a layer's routed experts; small, so they are always in memory.
#[derive(Clone, Debug)]
pub struct ExpertBiasesSpec {
    /// `[experts, ffn]`.
    pub gate: VectorRef,
    /// `[experts, ffn]`.
    pub up: VectorRef,
    /// `[experts, hidden]`.
    pub down: VectorRef,
}

/// The shared expert.
#[derive(Clone, Debug)]
pub struct SharedSpec {
    /// Its network.
    pub mlp: MlpSpec,
    /// `[1, hidden]`: its sigmoid multiplies the result.
    pub gate: Option<MatrixRef>,
}

/// `down(activation(gate x, up x))`.
#[derive(Clone, Debug)]
pub struct MlpSpec {
    /// `[ffn, hidden]`.
    pub gate: MatrixRef,
    /// `[ffn, hidden]`.
    pub up: MatrixRef,
    /// `[hidden, ffn]`.
    pub down: MatrixRef,
    /// What becomes of gate and up.
    pub activation: Activation,
}

/// Visits every tensor of the trunk. Descriptions are taken apart whole: what is added to one is not forgotten here,
/// where memory, identity and reading ahead learn of it.
pub fn for_each_tensor(
    spec: &ModelSpec,
    on_matrix: &mut dyn FnMut(&MatrixRef),
    on_vector: &mut dyn FnMut(&VectorRef),
) {
    on_matrix(&spec.embed);
    spec.head.iter().for_each(&mut *on_matrix);
    on_vector(&spec.final_norm);
    for LayerSpec { mixer_norm, mixer, ffn_norm, ffn } in &spec.layers {
        on_vector(mixer_norm);
        on_vector(ffn_norm);
        match mixer {
            MixerSpec::Attention(attention) => attention.for_each_tensor(on_matrix, on_vector),
            MixerSpec::Mla(mla) => mla.for_each_tensor(on_matrix, on_vector),
            MixerSpec::DeltaNet(delta) => {
                let DeltaNetSpec { shape: _, qkv, z, b, a, conv, neg_a, dt_bias, norm, out } =
                    &**delta;
                [qkv, z, b, a, out].into_iter().for_each(&mut *on_matrix);
                [conv, neg_a, dt_bias, norm].into_iter().for_each(&mut *on_vector);
            }
        }
        match ffn {
            FfnSpec::Mlp(mlp) => mlp.for_each_matrix(on_matrix),
            FfnSpec::Moe(moe) => moe.for_each_tensor(on_matrix, on_vector),
        }
    }
}

impl AttentionSpec {
    fn for_each_tensor(
        &self,
        on_matrix: &mut dyn FnMut(&MatrixRef),
        on_vector: &mut dyn FnMut(&VectorRef),
    ) {
        let Self { shape: _, rotary: _, q, gate, k, v, o, sinks, q_norm, k_norm } = self;
        for Projection { weight, bias } in [q, k, v, o].into_iter().chain(gate) {
            on_matrix(weight);
            bias.iter().for_each(&mut *on_vector);
        }
        q_norm.iter().chain(k_norm).chain(sinks).for_each(on_vector);
    }
}

impl MoeSpec {
    fn for_each_tensor(
        &self,
        on_matrix: &mut dyn FnMut(&MatrixRef),
        on_vector: &mut dyn FnMut(&VectorRef),
    ) {
        let Self { router, choice_bias, routing: _, activation: _, biases, shared } = self;
        on_matrix(&router.weight);
        router.bias.iter().chain(choice_bias).for_each(&mut *on_vector);
        if let Some(ExpertBiasesSpec { gate, up, down }) = biases {
            [gate, up, down].into_iter().for_each(on_vector);
        }
        if let Some(SharedSpec { mlp, gate }) = shared {
            gate.iter().for_each(&mut *on_matrix);
            mlp.for_each_matrix(on_matrix);
        }
    }
}

impl MlpSpec {
    fn for_each_matrix(&self, on_matrix: &mut dyn FnMut(&MatrixRef)) {
        let Self { gate, up, down, activation: _ } = self;
        [gate, up, down].into_iter().for_each(on_matrix);
    }
}
