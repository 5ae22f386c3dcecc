//! Which instruction set the kernels run on.

use std::fmt;

#[cfg(target_arch = "aarch64")]
use super::arch::neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::arch::{avx2::Avx2, avx512::Avx512};
use super::{
    arch::portable::Portable,
    lanes::{Lanes, Work},
};

/// An instruction set that this machine has: it can only be found, not made up.
#[derive(Clone, Copy, Debug)]
pub struct Level(pub(super) Found);

#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2<false>),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    Portable(Portable),
}

impl Level {
    /// What every machine has: Rust as the compiler vectorises it for the target's baseline.
    pub fn portable() -> Self {
        Self(Found::Portable(Portable))
    }

    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    pub fn avx2() -> Option<Self> {
        Avx2::detect().map(|avx2| Self(Found::Avx2(avx2)))
    }

    /// The same with products of bytes, AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    pub fn avx_vnni() -> Option<Self> {
        Avx2::detect().map(|avx2| Self(Found::AvxVnni(avx2)))
    }

    /// AVX-512 F, BW, DQ, VL, VBMI and VNNI.
    #[cfg(target_arch = "x86_64")]
    pub fn avx512() -> Option<Self> {
        Avx512::detect().map(|avx512| Self(Found::Avx512(avx512)))
    }

    /// The same with what a core of another kind would choose, to compare with.
    #[cfg(target_arch = "x86_64")]
    pub fn avx512_of_another_core() -> Option<Self> {
        Avx512::detect().map(|avx512| Self(Found::Avx512(avx512.of_another_core())))
    }

    /// AVX-512, and AMX where many rows are multiplied.
    #[cfg(target_arch = "x86_64")]
    pub fn amx() -> Option<Self> {
        Avx512::detect_with_tiles().map(|avx512| Self(Found::Avx512(avx512)))
    }

    /// NEON with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    pub fn neon() -> Option<Self> {
        Neon::detect().map(|neon| Self(Found::Neon(neon)))
    }

    /// NEON, and I8MM where many rows are multiplied.
    #[cfg(target_arch = "aarch64")]
    pub fn i8mm() -> Option<Self> {
        Neon::detect_with_tiles().map(|neon| Self(Found::Neon(neon)))
    }

    /// Everything this machine has, fastest first.
    pub fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let special = [Self::amx(), Self::avx512(), Self::avx_vnni(), Self::avx2()];
        #[cfg(target_arch = "aarch64")]
        let special = [Self::i8mm(), Self::neon()];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let special: [Option<Self>; 0] = [];
        special.into_iter().flatten().chain([Self::portable()]).collect()
    }

    /// The fastest this machine has.
    pub fn best() -> Self {
        Self::all()[0]
    }

    /// Whether it multiplies and adds with one rounding, as all do but the portable one of some targets.
    pub fn fuses(self) -> bool {
        !matches!(self.0, Found::Portable(_)) || super::arch::portable::FUSED
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Found::Avx512(avx512) if avx512.tiles().is_some() => "amx",
            #[cfg(target_arch = "x86_64")]
            Found::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Found::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Found::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Found::Neon(neon) if neon.tiles().is_some() => "i8mm",
            #[cfg(target_arch = "aarch64")]
            Found::Neon(_) => "neon",
            Found::Portable(_) => "portable",
        }
    }

    /// Runs `work` on it.
    pub(super) fn run<W: Work>(self, work: W) -> W::Out {
        on_level!(self, lanes => lanes.run(work))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `on_level!(level, lanes => expression)`: the expression, compiled for every instruction set. Where it multiplies
/// bytes, `on_level!(level, with products, lanes => expression)`: the only thing that some sets differ in.
macro_rules! on_level {
    ($level:expr, $lanes:ident => $body:expr) => {
        on_level!($level, $lanes => $body, {
            let $lanes = $crate::cpu::arch::avx2::Avx2::<false>::from($lanes);
            $body
        })
    };
    ($level:expr, with products, $lanes:ident => $body:expr) => {
        on_level!($level, $lanes => $body, $body)
    };
    ($level:expr, $lanes:ident => $body:expr, $with_vnni:expr) => {
        match $level.0 {
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::dispatch::Found::Avx512($lanes) => $body,
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::dispatch::Found::AvxVnni($lanes) => $with_vnni,
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::dispatch::Found::Avx2($lanes) => $body,
            #[cfg(target_arch = "aarch64")]
            $crate::cpu::dispatch::Found::Neon($lanes) => $body,
            $crate::cpu::dispatch::Found::Portable($lanes) => $body,
        }
    };
}
pub(super) use on_level;
