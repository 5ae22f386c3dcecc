//! What AVX2 and AVX-512 share.

use std::arch::{
    asm,
    x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch},
};

use crate::cpu::lanes::Cache;

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
pub(super) fn ask_for_here(at: *const u8) {
    // SAFETY: as above.
    unsafe {
        asm!("prefetcht1 [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
