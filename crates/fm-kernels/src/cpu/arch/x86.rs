//! What AVX2 and AVX-512 share.

use std::arch::{
    asm,
    x86_64::{__cpuid, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch},
};

use crate::cpu::lanes::{ASKED_AHEAD, AskedAhead, Cache};

/// See [`crate::cpu::lanes::Lanes::ask_for`].
#[inline(always)]
pub(super) fn ask_for(at: *const u8, into: Cache) {
    match into {
        // SAFETY: a prefetch of any address is a hint and never faults.
        Cache::First => unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) },
        // SAFETY: as above.
        Cache::Second => unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) },
    }
}

/// See [`crate::cpu::lanes::Lanes::ask_for_here`].
#[inline(always)]
pub(super) fn ask_for_here(at: *const u8, into: Cache) {
    match into {
        // SAFETY: as above.
        Cache::First => unsafe {
            asm!("prefetcht0 [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
        },
        // SAFETY: as above.
        Cache::Second => unsafe {
            asm!("prefetcht1 [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
        },
    }
}

/// AMD's families of cores.
const ZEN_4: u32 = 0x19;
const ZEN_5: u32 = 0x1a;

/// Intel's models of family 6 that are called Granite Rapids.
const GRANITE_RAPIDS: [u32; 2] = [0xad, 0xae];

/// See [`crate::cpu::lanes::Lanes::asks_ahead`]. AMD's cores have places for lines on their way to the first cache from
/// Zen 5 on (`docs/experiments/0065`), the 24 of Zen 4 are too few (`0046`). Intel's were measured on an Emerald Rapids
/// (`0088`, `0092`), but for 3 KB on a Granite Rapids (`0073`): a core reads as much before memory answers.
pub(super) fn asks_ahead() -> AskedAhead {
    Core::this().asks_ahead()
}

/// See [`crate::cpu::lanes::Lanes::loads_bind`]: not where AVX-512 takes two turns of a unit of half its width.
pub(super) fn loads_bind() -> bool {
    Core::this().loads_bind()
}

/// The last letters of `AuthenticAMD` and `GenuineIntel`, as `cpuid` has them.
const AMD: u32 = u32::from_le_bytes(*b"cAMD");
const INTEL: u32 = u32::from_le_bytes(*b"ntel");

/// What a core calls itself.
#[derive(Debug, PartialEq, Eq)]
struct Core {
    maker: u32,
    family: u32,
    model: u32,
}

impl Core {
    /// The core that asks.
    fn this() -> Self {
        Self::of(__cpuid(0).ecx, __cpuid(1).eax)
    }

    /// By `ecx` of leaf 0 of `cpuid` and `eax` of leaf 1. Family and model are extended by eight and four bits.
    fn of(maker: u32, signature: u32) -> Self {
        let family = (signature >> 8 & 15) + (signature >> 20 & 255);
        let model = signature >> 4 & 15 | (signature >> 16 & 15) << 4;
        Self { maker, family, model }
    }

    /// See [`asks_ahead`].
    fn asks_ahead(&self) -> AskedAhead {
        match self {
            Self { maker: INTEL, family: 6, model } if GRANITE_RAPIDS.contains(model) => {
                AskedAhead::twice(3 << 10)
            }
            Self { maker: INTEL, .. } => AskedAhead::twice(ASKED_AHEAD),
            Self { maker: AMD, family: ZEN_5.., .. } => {
                AskedAhead { first: ASKED_AHEAD, second: ASKED_AHEAD }
            }
            _ => AskedAhead::ONCE,
        }
    }

    /// See [`loads_bind`].
    fn loads_bind(&self) -> bool {
        !matches!(self, Self { maker: AMD, family: ZEN_4, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signatures of an EPYC 9004, an EPYC 9005, a Granite Rapids and an Emerald Rapids.
    const SIGNATURES: [(u32, u32); 4] =
        [(AMD, 0x00a1_0f11), (AMD, 0x00b0_0f21), (INTEL, 0x000a_06d1), (INTEL, 0x000c_06f2)];

    #[test]
    fn cores_are_known_by_their_signatures() {
        let core = |maker, family, model| Core { maker, family, model };
        let known = [
            core(AMD, ZEN_4, 0x11),
            core(AMD, ZEN_5, 0x02),
            core(INTEL, 6, GRANITE_RAPIDS[0]),
            core(INTEL, 6, 0xcf),
        ];
        let cores = SIGNATURES.map(|(maker, signature)| Core::of(maker, signature));
        assert_eq!(cores, known);
    }

    #[test]
    fn a_core_asks_as_far_ahead_as_was_measured_on_its_kind() {
        let kilobytes = SIGNATURES.map(|(maker, signature)| {
            let AskedAhead { first, second } = Core::of(maker, signature).asks_ahead();
            (first as f32 / 1024.0, second as f32 / 1024.0)
        });
        assert_eq!(kilobytes, [(0.0, 8.0), (8.0, 8.0), (1.125, 3.0), (3.0, 8.0)]);
        let unknown = Core { maker: 0, family: 6, model: GRANITE_RAPIDS[0] };
        assert_eq!(unknown.asks_ahead().first, 0, "nothing was measured there");
    }

    #[test]
    fn loads_bind_but_where_a_unit_takes_turns() {
        let bind = SIGNATURES.map(|(maker, signature)| Core::of(maker, signature).loads_bind());
        assert_eq!(bind, [false, true, true, true]);
    }
}
