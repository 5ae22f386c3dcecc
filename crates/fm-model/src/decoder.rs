//! The decoder: embedding, layers, final norm, head, on one device.

use fm_format::key::LayerIndex;
use fm_kernels::{
    Backend, DeviceError,
    backend::{DeviceResult, Routes, View, ViewMut},
};

use crate::{
    error::LoadError,
    experts::{ARRIVAL_ROWS_MAX, ExpertsFailed, ExpertsLost, MoeDims, MoeScratch, RoutedExperts},
    layer::{
        StepRows,
        attention::{Attention, AttentionScratch},
        delta_net::{DeltaNet, DeltaScratch},
        mla::{Mla, MlaScratch},
        mlp::Mlp,
        moe::{FfnScratch, GuessInputs, Moe},
    },
    load::{Loader, Matrix},
    spec::{FfnSpec, MixerSpec, ModelSpec},
};

/// Weights of the trunk, on a device.
#[derive(Debug)]
pub struct Decoder<B: Backend> {
    embed: Matrix<B>,
    layers: Vec<Layer<B>>,
    final_norm: B::Buf,
    head: Option<Matrix<B>>,
    norm_eps: f32,
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
}

#[derive(Debug)]
struct Layer<B: Backend> {
    mixer_norm: B::Buf,
    mixer: Mixer<B>,
    ffn_norm: B::Buf,
    ffn: Ffn<B>,
}

#[derive(Debug)]
enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Mla(Mla<B>),
    DeltaNet(DeltaNet<B>),
}

#[derive(Debug)]
enum Ffn<B: Backend> {
    Moe(Moe<B>),
    Mlp(Mlp<B>),
}

/// Everything a step writes into, allocated once for the largest batch.
#[derive(Debug)]
pub(crate) struct Workspace<B: Backend> {
    /// The residual stream, `[rows, hidden]`.
    pub(crate) hidden: B::Buf,
    /// What a mixer or feed-forward network adds to it, `[rows, hidden]`.
    branch: B::Buf,
    normed: B::Buf,
    acts: B::Acts,
    attention: AttentionScratch<B>,
    mla: MlaScratch<B>,
    delta: DeltaScratch<B>,
    ffn: FfnScratch<B>,
    logits: B::Buf,
}

/// How large a step may be, and what is overridden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderOptions {
    /// Rows of a batch.
    pub rows_max: usize,
    /// Rows of a batch whose logits are wanted.
    pub logits_rows_max: usize,
    /// Rows of a batch that overtakes another one between two layers; 0 if none shall.
    pub short_rows_max: usize,
    /// Experts per row instead of the model's own number: lossy.
    pub top_k: Option<usize>,
}

impl<B: Backend> Workspace<B> {
    /// Room for the batches that `options` allow.
    pub(crate) fn new(device: &B, spec: &ModelSpec, options: DecoderOptions) -> DeviceResult<Self> {
        let (rows, hidden) = (options.rows_max, spec.hidden);
        let dims = spec.moe_dims(options.top_k);
        let experts = spec.catalog.layers.iter().flatten().map(|layer| layer.records.len());
        let moe = MoeScratch::new(device, rows, dims)?;
        Ok(Self {
            hidden: device.alloc(rows * hidden)?,
            branch: device.alloc(rows * hidden)?,
            normed: device.alloc(rows * hidden)?,
            acts: device.acts(rows, hidden)?,
            attention: AttentionScratch::new(device, rows, &spec.attention_layers())?,
            mla: MlaScratch::new(device, rows, &spec.mla_layers())?,
            delta: DeltaScratch::new(device, rows, spec.delta_layers().map(|l| l.shape))?,
            ffn: FfnScratch::new(device, rows, (experts.max().unwrap_or(0), dims), moe)?,
            logits: device.alloc(options.logits_rows_max * spec.vocab)?,
        })
    }

    /// What the router of the latest MoE layer chose.
    pub(crate) fn routes(&self) -> &Routes<B> {
        &self.ffn.routes
    }
}

impl ModelSpec {
    /// Largest dimensions of the feed-forward networks.
    pub fn moe_dims(&self, top_k: Option<usize>) -> MoeDims {
        let mut dims = MoeDims { hidden: self.hidden, ..MoeDims::default() };
        for (layer, records) in self.layers.iter().zip(&self.catalog.layers) {
            let (ffn, chosen) = match &layer.ffn {
                FfnSpec::Mlp(mlp) => (mlp.gate.shape.rows, 0),
                FfnSpec::Moe(moe) => {
                    let shared = moe.shared.as_ref().map_or(0, |s| s.mlp.gate.shape.rows);
                    (shared, top_k.unwrap_or(moe.routing.top_k))
                }
            };
            let routed = records.as_ref().map_or(0, |records| records.layout.gate.rows);
            dims.ffn = dims.ffn.max(ffn).max(routed);
            dims.top_k = dims.top_k.max(chosen);
        }
        dims
    }
}

impl<B: Backend> Layer<B> {
    /// What it takes to guess what this layer will route, from the stream of the one before it.
    fn guess_inputs<'a>(
        &'a self,
        norm_eps: f32,
        hidden: View<'a, B::Buf>,
    ) -> Option<GuessInputs<'a, B>> {
        let Ffn::Moe(next) = &self.ffn else { return None };
        Some(GuessInputs { next, norm: &self.ffn_norm, norm_eps, hidden })
    }
}

/// What mixes positions in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MixerKind {
    Attention,
    DeltaNet,
}

/// What works on each position alone in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FfnKind {
    Moe,
    Mlp,
}

/// What became of a layer.
pub(crate) enum LayerResult {
    /// Every row is complete.
    Complete,
    /// Rows that chose these experts are not.
    Lost(ExpertsLost),
}

impl<B: Backend> Decoder<B> {
    /// Reads the trunk and hands it to the device.
    ///
    /// # Errors
    /// If a read fails or the device is out of memory.
    pub fn load(
        loader: &Loader<'_, B>,
        spec: &ModelSpec,
        options: DecoderOptions,
    ) -> Result<Self, LoadError> {
        loader.check_tied_head(spec)?;
        loader.stage(spec)?;
        let (mut kv_layers, mut delta_layers) = (0, 0);
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (index, layer) in spec.layers.iter().enumerate() {
            let index = LayerIndex(index as u16);
            let mixer = match &layer.mixer {
                MixerSpec::Attention(attention) => {
                    kv_layers += 1;
                    let eps = spec.norm_eps;
                    Mixer::Attention(Attention::load(loader, attention, kv_layers - 1, eps)?)
                }
                MixerSpec::Mla(mla) => {
                    kv_layers += 1;
                    Mixer::Mla(Mla::load(loader, mla, kv_layers - 1, spec.norm_eps)?)
                }
                MixerSpec::DeltaNet(delta) => {
                    delta_layers += 1;
                    let eps = spec.norm_eps;
                    Mixer::DeltaNet(DeltaNet::load(loader, delta, delta_layers - 1, eps)?)
                }
            };
            let ffn = match &layer.ffn {
                FfnSpec::Moe(moe) => Ffn::Moe(Moe::load(loader, moe, index, options.top_k)?),
                FfnSpec::Mlp(mlp) => Ffn::Mlp(Mlp::load(loader, mlp)?),
            };
            let mixer_norm = loader.vector(&layer.mixer_norm)?;
            let ffn_norm = loader.vector(&layer.ffn_norm)?;
            layers.push(Layer { mixer_norm, mixer, ffn_norm, ffn });
        }
        Ok(Self {
            embed: loader.exact(&spec.embed)?,
            layers,
            final_norm: loader.vector(&spec.final_norm)?,
            head: spec.head.as_ref().map(|head| loader.matrix(head)).transpose()?,
            norm_eps: spec.norm_eps,
            hidden: spec.hidden,
            vocab: spec.vocab,
        })
    }

    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The kinds of work of a layer's two halves.
    pub(crate) fn kinds(&self, layer: usize) -> (MixerKind, FfnKind) {
        let layer = &self.layers[layer];
        let mixer = match layer.mixer {
            Mixer::Attention(_) | Mixer::Mla(_) => MixerKind::Attention,
            Mixer::DeltaNet(_) => MixerKind::DeltaNet,
        };
        let ffn = match layer.ffn {
            Ffn::Moe(_) => FfnKind::Moe,
            Ffn::Mlp(_) => FfnKind::Mlp,
        };
        (mixer, ffn)
    }

    /// `hidden = embed(ids)`.
    pub(crate) fn embed(
        &self,
        device: &B,
        ids: &[u32],
        workspace: &mut Workspace<B>,
    ) -> DeviceResult {
        let out = ViewMut::new(&mut workspace.hidden, ids.len(), self.hidden);
        device.embed(self.embed.view(), ids, out)
    }

    /// `hidden += mixer(norm(hidden))` for all rows of the step.
    pub(crate) fn mix(
        &self,
        device: &B,
        layer: usize,
        step: &mut StepRows<'_, B>,
        workspace: &mut Workspace<B>,
    ) -> DeviceResult {
        let rows = step.positions.len();
        let layer = &self.layers[layer];
        self.normalise(device, &layer.mixer_norm, rows, workspace)?;
        let Workspace { hidden, branch, acts, attention, mla, delta, .. } = workspace;
        let out = ViewMut::new(&mut *branch, rows, self.hidden);
        match &layer.mixer {
            Mixer::Attention(mixer) => mixer.forward(device, step, acts, attention, out)?,
            Mixer::Mla(mixer) => mixer.forward(device, step, acts, mla, out)?,
            Mixer::DeltaNet(mixer) => mixer.forward(device, step, acts, delta, out)?,
        }
        let branch = View::new(&*branch, rows, self.hidden);
        device.add(branch, ViewMut::new(hidden, rows, self.hidden))
    }

    /// `hidden += ffn(norm(hidden))` for the first `rows` rows.
    pub(crate) fn feed_forward<E: RoutedExperts<B>>(
        &self,
        device: &B,
        experts: &mut E,
        (layer, rows): (usize, usize),
        workspace: &mut Workspace<B>,
    ) -> Result<LayerResult, DeviceError> {
        let next = self.layers.get(layer + 1);
        let layer = &self.layers[layer];
        self.normalise(device, &layer.ffn_norm, rows, workspace)?;
        let Workspace { hidden, branch, acts, ffn, .. } = workspace;
        let stream = View::new(&*hidden, rows, self.hidden);
        let guess_inputs = next.filter(|_| rows <= ARRIVAL_ROWS_MAX && experts.wants_guess());
        let guess_inputs = guess_inputs.and_then(|next| next.guess_inputs(self.norm_eps, stream));
        let out = ViewMut::new(&mut *branch, rows, self.hidden);
        let result = match &layer.ffn {
            Ffn::Mlp(mlp) => {
                mlp.forward(device, acts, &mut ffn.moe.expert, out)?;
                LayerResult::Complete
            }
            Ffn::Moe(moe) => match moe.forward(device, experts, acts, ffn, (out, guess_inputs)) {
                Ok(()) => LayerResult::Complete,
                Err(ExpertsFailed::Lost(lost)) => LayerResult::Lost(lost),
                Err(ExpertsFailed::Device(error)) => return Err(error),
            },
        };
        let branch = View::new(&*branch, rows, self.hidden);
        device.add(branch, ViewMut::new(hidden, rows, self.hidden))?;
        Ok(result)
    }

    /// Moves the listed rows of the residual stream, ascending, to its beginning.
    pub(crate) fn keep_rows(
        &self,
        device: &B,
        rows: &[usize],
        workspace: &mut Workspace<B>,
    ) -> DeviceResult {
        let Workspace { hidden, branch, .. } = workspace;
        for (to, &from) in rows.iter().enumerate() {
            let row = View::new(&*hidden, from + 1, self.hidden).rows(from, 1);
            device.copy(row, ViewMut::new(&mut *branch, to + 1, self.hidden).rows(to, 1))?;
        }
        let kept = View::new(&*branch, rows.len(), self.hidden);
        device.copy(kept, ViewMut::new(hidden, rows.len(), self.hidden))
    }

    /// Logits of the first `rows` rows, copied to `out`, `[rows, vocab]`.
    pub(crate) fn logits(
        &self,
        device: &B,
        rows: usize,
        workspace: &mut Workspace<B>,
        out: &mut [f32],
    ) -> DeviceResult {
        self.normalise(device, &self.final_norm, rows, workspace)?;
        let head = self.head.as_ref().unwrap_or(&self.embed);
        let logits = ViewMut::new(&mut workspace.logits, rows, self.vocab);
        device.matmul(head.view(), &workspace.acts, logits)?;
        device.read(View::new(&workspace.logits, rows, self.vocab), out)
    }

    /// `acts = norm(hidden) · weight`, prepared for matrix products.
    fn normalise(
        &self,
        device: &B,
        weight: &B::Buf,
        rows: usize,
        workspace: &mut Workspace<B>,
    ) -> DeviceResult {
        let Workspace { hidden, normed, acts, .. } = workspace;
        let out = ViewMut::new(&mut *normed, rows, self.hidden);
        device.rms_norm(View::new(&*hidden, rows, self.hidden), weight, self.norm_eps, out)?;
        device.prepare(View::new(&*normed, rows, self.hidden), acts)
    }
}
