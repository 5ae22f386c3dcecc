//! What is done to an expert's products while the cache of a core holds them: biases, the activation, and
//! integers of its results for the last product.

use crate::{
    backend::{Activation, ExpertWeights, View},
    reference::quantise::Block,
};

use super::{HostBuf, Kernels};

type Weights<'a> = ExpertWeights<'a, [u8], HostBuf>;

/// What the last product reads of the neurons from `first` on, a row's: `gate = activation(gate, up)`,
/// quantised.
pub(super) fn activate<const LINES: usize>(
    kernels: &impl Kernels,
    w: &Weights<'_>,
    first: usize,
    (gate, up): (&mut [f32], &mut [f32]),
    blocks: &mut [Block<LINES>],
) {
    if let Some(biases) = &w.biases {
        add_bias(biases.gate, first, gate);
        add_bias(biases.up, first, up);
    }
    match w.activation {
        Activation::Silu => kernels.silu_mul(up, gate),
        Activation::Clamped(clamp) => kernels.clamped_mul(clamp, up, gate),
    }
    kernels.quantise(gate, blocks);
}

/// What an expert says, from its value `first` on, is complete with its bias if it has one.
pub(super) fn add_down_bias(w: &Weights<'_>, first: usize, said: &mut [f32]) {
    if let Some(biases) = &w.biases {
        add_bias(biases.down, first, said);
    }
}

fn add_bias(bias: View<'_, HostBuf>, first: usize, x: &mut [f32]) {
    x.iter_mut().zip(&bias.row(0)[first..]).for_each(|(x, bias)| *x += bias);
}
