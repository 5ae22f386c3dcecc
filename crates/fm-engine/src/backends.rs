//! The devices this build can compute on: the only place that lists them.

use std::path::Path;

use fm_format::{
    quant::QuantFormat,
    record::{Catalog, LayerRecords, MatrixRole},
};
pub use fm_kernels::backend::{KvFormat, Numerics};

use crate::machine::physical_cores;

/// A device, as users ask for one.
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

    /// The device for a choice and a wish for numerics.
    ///
    /// # Errors
    /// If the device does not compute that way.
    pub fn resolve(self, numerics: Option<Numerics>) -> Result<Device, NumericsMismatch> {
        let device = match (self, numerics) {
            (Self::Reference, _) | (Self::Auto, Some(Numerics::Reference)) => Device::Reference,
            (Self::Auto | Self::Cpu, _) => Device::Cpu,
        };
        match numerics {
            Some(numerics) if !device.computes_in(numerics) => {
                Err(NumericsMismatch { device, numerics })
            }
            _ => Ok(device),
        }
    }
}

/// A device that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// See [`DeviceChoice::Reference`].
    Reference,
    /// See [`DeviceChoice::Cpu`].
    Cpu,
}

/// Opens the device of a [`Planned`](crate::engine::Planned) model, under a name for the expression that computes
/// on it. The expression is compiled for every device.
macro_rules! on_device {
    ($planned:expr, $device:ident => $computed:expr) => {
        match $planned.device {
            $crate::backends::Device::Reference => {
                let $device = fm_kernels::reference::Reference::open();
                $computed
            }
            $crate::backends::Device::Cpu => {
                let $device = fm_kernels::cpu::Cpu::open($planned.threads);
                let $device = $device.in_numerics($planned.numerics);
                $computed
            }
        }
    };
}

pub(crate) use on_device;

impl Device {
    /// The word of the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => DeviceChoice::Reference.name(),
            Self::Cpu => DeviceChoice::Cpu.name(),
        }
    }

    /// Threads that compute, of those that are wanted.
    pub(crate) fn threads(self, wanted: Option<usize>, root: &Path) -> usize {
        match self {
            Self::Reference => 1,
            Self::Cpu => wanted.unwrap_or_else(|| physical_cores(root)),
        }
    }

    /// The numerics of a model that does not ask for any: the fastest that keeps the bound of
    /// invariant 13. Where experts are packed in a way that the CPU arranges, those are integers of
    /// 15 bits, see `docs/experiments/0010-integer-numerics.md`.
    pub(crate) fn default_numerics(self, catalog: &Catalog) -> Numerics {
        let arranged = |layer: &LayerRecords| {
            MatrixRole::ALL.iter().any(|role| fm_kernels::cpu::arranges(layer.layout.shape(*role)))
        };
        match self {
            Self::Reference => Numerics::Reference,
            Self::Cpu if catalog.layers.iter().flatten().any(arranged) => Numerics::Int15,
            Self::Cpu => Numerics::F32,
        }
    }

    fn computes_in(self, numerics: Numerics) -> bool {
        (self == Self::Reference) == (numerics == Numerics::Reference)
    }
}

/// A device was asked for numerics that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device `{}` does not compute in numerics `{numerics}`", device.name())]
pub struct NumericsMismatch {
    /// The device.
    pub device: Device,
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
