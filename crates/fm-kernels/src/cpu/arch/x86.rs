//! What AVX2 and AVX-512 share.

use std::arch::{
    asm,
    x86_64::{__cpuid, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch},
};

use crate::cpu::lanes::{ASKED_AHEAD, Cache};

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

/// See [`crate::cpu::lanes::Lanes::asks_first`]: AMD's cores from Zen 5 on. The 24 places of Zen 4 are too few, and on
/// Intel either cache was as good (`docs/experiments/0046`).
pub(super) fn asks_first() -> bool {
    amd_family().is_some_and(|family| family >= ZEN_5)
}

/// See [`crate::cpu::lanes::Lanes::asks_ahead`]: of makers other than AMD, a Granite Rapids was measured.
pub(super) fn asks_ahead() -> usize {
    if amd_family().is_some() { ASKED_AHEAD } else { 3 << 10 }
}

/// See [`crate::cpu::lanes::Lanes::loads_bind`]: not where AVX-512 takes two turns of a unit of half its width.
pub(super) fn loads_bind() -> bool {
    amd_family() != Some(ZEN_4)
}

/// Which family of AMD's cores this is, `None` of other makers.
fn amd_family() -> Option<u32> {
    const AMD: u32 = u32::from_le_bytes(*b"cAMD"); // the last letters of "AuthenticAMD"
    let family = __cpuid(1).eax;
    (__cpuid(0).ecx == AMD).then_some((family >> 8 & 15) + (family >> 20 & 255))
}
