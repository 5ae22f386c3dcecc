//! Named tolerances: how far two correct implementations may lie apart, and why.

use crate::backend::Numerics;

/// One dot product of noise of unit size in f32: summation order moves the last bits only.
pub const DOT_F32: f32 = 2e-5;

/// Several dependent f32 operations (an expert, an attention row), relative to the largest value.
pub const CHAINED_F32: f32 = 1e-4;

/// Nothing was computed, or only what has one right answer: copies and decoded weights.
pub const EXACT: f32 = 0.0;

/// A few f32 operations per value, an exponential or a fused multiply-add among them, relative to
/// the largest value: the two sides round some of them differently.
pub const ELEMENTWISE_F32: f32 = 2e-6;

/// Several dependent operations in the numerics in force. Where activations are quantised between
/// two of them, a last bit of the first can move one of them by a whole code: by a 127th, or a
/// 16256th, of the largest of its block.
pub fn chained(numerics: Numerics) -> f32 {
    match numerics {
        Numerics::Int8 => 1e-2,
        Numerics::Reference | Numerics::F32 | Numerics::Int15 => CHAINED_F32,
    }
}
