//! Mixture of experts: a router, routed experts from the store, perhaps a shared expert.

use fm_format::key::LayerIndex;
use fm_kernels::{
    Backend, DeviceError,
    backend::{DeviceResult, RouterLogits, RouterSpec, Routes, View, ViewMut},
};

use crate::{
    error::LoadError,
    experts::{
        ARRIVAL_ROWS_MAX, ExpertBatch, ExpertForm, ExpertsFailed, LayerBiases, MoeDims, MoeScratch,
        RoutedExperts,
    },
    load::{Linear, Loader, Matrix},
    spec::MoeSpec,
};

use super::mlp::Mlp;

/// See the module.
#[derive(Debug)]
pub(crate) struct Moe<B: Backend> {
    layer: LayerIndex,
    router: Linear<B>,
    choice_bias: Option<B::Buf>,
    routing: RouterSpec,
    form: ExpertForm<B>,
    shared: Option<Shared<B>>,
}

#[derive(Debug)]
struct Shared<B: Backend> {
    mlp: Mlp<B>,
    gate: Option<Matrix<B>>,
}

/// Work space of the router and the experts.
#[derive(Debug)]
pub(crate) struct FfnScratch<B: Backend> {
    logits: B::Buf,
    shared_gate: B::Buf,
    pub(crate) routes: Routes<B>,
    pub(crate) moe: MoeScratch<B>,
    guess: GuessScratch<B>,
}

/// Work space of a guess at the next layer's routes, for [`ARRIVAL_ROWS_MAX`] rows.
#[derive(Debug)]
struct GuessScratch<B: Backend> {
    normed: B::Buf,
    acts: B::Acts,
    logits: B::Buf,
    routes: Routes<B>,
}

/// What it takes to guess the routes of the next layer: its router and norm, and the residual stream
/// as it is now. What this layer's feed-forward network and the next one's mixer will add is missing.
pub(crate) struct GuessInputs<'a, B: Backend> {
    pub(crate) next: &'a Moe<B>,
    pub(crate) norm: &'a B::Buf,
    pub(crate) norm_eps: f32,
    /// `[rows, hidden]`.
    pub(crate) hidden: View<'a, B::Buf>,
}

impl<B: Backend> FfnScratch<B> {
    /// Room for `rows` rows of layers with up to `experts` experts.
    pub(crate) fn new(
        device: &B,
        rows: usize,
        (experts, dims): (usize, MoeDims),
        moe: MoeScratch<B>,
    ) -> DeviceResult<Self> {
        let MoeDims { hidden, top_k, .. } = dims;
        let routes = |rows: usize| {
            Ok::<_, DeviceError>(Routes {
                scores: device.alloc(rows * experts)?,
                ids: Vec::with_capacity(rows * top_k),
                weights: Vec::with_capacity(rows * top_k),
                top_k,
            })
        };
        let few = rows.min(ARRIVAL_ROWS_MAX);
        let guess = GuessScratch {
            normed: device.alloc(few * hidden)?,
            acts: device.float_acts(few, hidden)?,
            logits: device.alloc(few * experts)?,
            routes: routes(few)?,
        };
        let logits = device.alloc(rows * experts)?;
        let shared_gate = device.alloc(rows)?;
        Ok(Self { logits, shared_gate, routes: routes(rows)?, moe, guess })
    }
}

impl<B: Backend> Moe<B> {
    pub(crate) fn load(
        loader: &Loader<'_, B>,
        spec: &MoeSpec,
        layer: LayerIndex,
        top_k: Option<usize>,
    ) -> Result<Self, LoadError> {
        let shared = spec.shared.as_ref().map(|shared| {
            let gate = shared.gate.as_ref().map(|gate| loader.exact(gate)).transpose()?;
            Ok::<_, LoadError>(Shared { mlp: Mlp::load(loader, &shared.mlp)?, gate })
        });
        let biases = spec.biases.as_ref().map(|biases| {
            Ok::<_, LoadError>(LayerBiases {
                gate: loader.vector(&biases.gate)?,
                up: loader.vector(&biases.up)?,
                down: loader.vector(&biases.down)?,
            })
        });
        let top_k = top_k.unwrap_or(spec.routing.top_k);
        Ok(Self {
            layer,
            router: loader.exact_linear(&spec.router)?,
            choice_bias: spec.choice_bias.as_ref().map(|bias| loader.vector(bias)).transpose()?,
            routing: RouterSpec { top_k, ..spec.routing },
            form: ExpertForm { activation: spec.activation, biases: biases.transpose()? },
            shared: shared.transpose()?,
        })
    }

    /// `out = shared(x) + Σ weight · expert(x)` for prepared rows `x`. Reads overlap the guess at the
    /// next layer's routes and the shared expert.
    pub(crate) fn forward<E: RoutedExperts<B>>(
        &self,
        device: &B,
        experts: &mut E,
        x: &B::Acts,
        scratch: &mut FfnScratch<B>,
        (out, guess_inputs): (ViewMut<'_, B::Buf>, Option<GuessInputs<'_, B>>),
    ) -> Result<(), ExpertsFailed> {
        let ViewMut { buf, offset, rows, cols, stride } = out;
        self.route(device, (x, rows), &mut scratch.logits, &mut scratch.routes)?;
        let ticket = experts.begin(self.layer, &scratch.routes)?;
        if let Some(guess_inputs) = guess_inputs {
            guess_inputs.guess(device, &mut scratch.guess)?;
            experts.foresee(guess_inputs.next.layer, &scratch.guess.routes);
        }
        self.shared(device, x, scratch, ViewMut { buf: &mut *buf, offset, rows, cols, stride })?;
        let out = ViewMut { buf, offset, rows, cols, stride };
        let (layer, routes) = (self.layer, &scratch.routes);
        let (form, scratch) = (&self.form, &mut scratch.moe);
        let batch = ExpertBatch { layer, form, routes, x, out, scratch };
        experts.finish(device, ticket, batch)
    }

    /// The experts of prepared rows.
    fn route(
        &self,
        device: &B,
        (x, rows): (&B::Acts, usize),
        logits: &mut B::Buf,
        routes: &mut Routes<B>,
    ) -> DeviceResult {
        let count = self.router.weight.shape.rows;
        self.router.forward(device, x, ViewMut::new(&mut *logits, rows, count))?;
        let logits = View::new(&*logits, rows, count);
        let router = RouterLogits { logits, bias: self.choice_bias.as_ref() };
        device.route(self.routing, router, routes)
    }

    /// `out = sigmoid(gate x) · mlp(x)`, or zero where there is no shared expert.
    fn shared(
        &self,
        device: &B,
        x: &B::Acts,
        scratch: &mut FfnScratch<B>,
        out: ViewMut<'_, B::Buf>,
    ) -> DeviceResult {
        let Some(shared) = &self.shared else { return device.zero(out) };
        let ViewMut { buf, offset, rows, cols, stride } = out;
        let view = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
        shared.mlp.forward(device, x, &mut scratch.moe.expert, view)?;
        let Some(gate) = &shared.gate else { return Ok(()) };
        device.matmul(gate.view(), x, ViewMut::new(&mut scratch.shared_gate, rows, 1))?;
        let gate = View::new(&scratch.shared_gate, rows, 1);
        device.sigmoid_mul(gate, ViewMut { buf, offset, rows, cols, stride })
    }
}

impl<B: Backend> GuessInputs<'_, B> {
    /// The next layer's routes, if nothing came between.
    fn guess(&self, device: &B, scratch: &mut GuessScratch<B>) -> DeviceResult {
        let View { rows, cols, .. } = self.hidden;
        let GuessScratch { normed, acts, logits, routes } = scratch;
        let out = ViewMut::new(&mut *normed, rows, cols);
        device.rms_norm(self.hidden, self.norm, self.norm_eps, out)?;
        device.prepare(View::new(&*normed, rows, cols), acts)?;
        self.next.route(device, (acts, rows), logits, routes)
    }
}
