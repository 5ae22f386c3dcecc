//! The devices this build can compute on: the only place that lists them.

pub use fm_kernels::backend::Numerics;

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
        let own = if device == Self::Reference { Numerics::Reference } else { Numerics::F32 };
        match numerics {
            Some(numerics) if numerics != own => Err(NumericsMismatch { device, numerics, own }),
            _ => Ok(device),
        }
    }
}

/// A device was asked for numerics that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device `{}` computes in numerics `{own}`, not `{numerics}`", device.name())]
pub struct NumericsMismatch {
    /// The device.
    pub device: DeviceChoice,
    /// What was wished.
    pub numerics: Numerics,
    /// What it has.
    pub own: Numerics,
}

/// The instructions that the CPU backend would use here.
pub fn cpu_features() -> &'static str {
    fm_kernels::cpu::Level::best().name()
}
