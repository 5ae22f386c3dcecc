//! The devices this build can compute on: the only place that lists them.

use fm_format::{
    quant::QuantFormat,
    record::{Catalog, LayerRecords, MatrixRole},
};
pub use fm_kernels::backend::{KvFormat, Numerics};

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The fastest there is.
    #[default]
    Auto,
    /// Scalar arithmetic on one thread.
    Reference,
    /// All cores, with the widest instructions they have.
    Cpu,
}

impl DeviceChoice {
    /// Every choice, in the order of help.
    pub const ALL: &'static [Self] = &[Self::Auto, Self::Reference, Self::Cpu];

    /// The word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Reference => "reference",
            Self::Cpu => "cpu",
        }
    }

    /// Finds a choice by name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|choice| choice.name() == name)
    }

    /// The numerics of a model that does not ask for any: the fastest that keeps the bound of
    /// invariant 13. Where experts are packed in a way that the CPU arranges, those are integers of
    /// 15 bits, see `docs/experiments/0010-integer-numerics.md`.
    pub fn default_numerics(self, catalog: &Catalog) -> Numerics {
        let arranged = |layer: &LayerRecords| {
            MatrixRole::ALL.iter().any(|role| fm_kernels::cpu::arranges(layer.layout.shape(*role)))
        };
        match self {
            Self::Reference => Numerics::Reference,
            _ if catalog.layers.iter().flatten().any(arranged) => Numerics::Int15,
            _ => Numerics::F32,
        }
    }

    fn computes_in(self, numerics: Numerics) -> bool {
        (self == Self::Reference) == (numerics == Numerics::Reference)
    }

    /// The device for a choice and a wish for numerics.
    ///
    /// # Errors
    /// If the device does not compute that way.
    pub fn resolve(self, numerics: Option<Numerics>) -> Result<Self, NumericsMismatch> {
        let device = match (self, numerics) {
            (Self::Auto, Some(Numerics::Reference)) => Self::Reference,
            (Self::Auto, _) => Self::Cpu,
            (device, _) => device,
        };
        match numerics {
            Some(numerics) if !device.computes_in(numerics) => {
                Err(NumericsMismatch { device, numerics })
            }
            _ => Ok(device),
        }
    }
}

/// A device was asked for numerics that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device `{}` does not compute in numerics `{numerics}`", device.name())]
pub struct NumericsMismatch {
    /// The device.
    pub device: DeviceChoice,
    /// What was wished.
    pub numerics: Numerics,
}

/// The instructions that the CPU backend would use here.
pub fn cpu_features() -> &'static str {
    fm_kernels::cpu::Level::best().name()
}

/// Bits per weight from which on `int8` keeps the bound of named numerics, see `docs/experiments/0010`.
const INT8_BITS_MIN: f64 = 4.0;

/// Says in words that numerics do not keep their bound with these experts, where that is so.
pub(crate) fn beyond_bound(numerics: Numerics, catalog: &Catalog) -> Option<String> {
    let layouts = catalog.layers.iter().flatten().map(|layer| &layer.layout);
    beyond(numerics, layouts.flat_map(|own| [own.gate.format, own.up.format, own.down.format]))
}

fn beyond(
    numerics: Numerics,
    formats: impl Iterator<Item = &'static QuantFormat>,
) -> Option<String> {
    let least = formats.map(QuantFormat::bits_per_weight).min_by(f64::total_cmp)?;
    let beyond = numerics == Numerics::Int8 && least < INT8_BITS_MIN;
    beyond.then(|| format!("activations in int8 beside experts of {least:.1} bits per weight"))
}

#[cfg(test)]
mod tests {
    use fm_format::quant;

    use super::*;

    #[test]
    fn eight_bits_are_told_of_where_experts_have_few() {
        let said = |numerics, names: &[&str]| {
            beyond(numerics, names.iter().map(|name| quant::by_name(name).unwrap()))
        };
        let told = "activations in int8 beside experts of 2.6 bits per weight";
        assert_eq!(said(Numerics::Int8, &["q4_k", "q2_k"]).as_deref(), Some(told));
        assert_eq!(said(Numerics::Int15, &["q2_k"]), None);
        for four in ["q4_k", "q4_0", "mxfp4", "affine4_g64"] {
            assert_eq!(said(Numerics::Int8, &[four]), None, "{four}");
        }
    }
}
