//! Advice to the system about the memory of weights. Advice changes no contents, and where the
//! system does not know it, nothing happens.
#![allow(unsafe_code)]

/// Buffers shorter than this gain nothing: a huge page has 2 MiB.
#[cfg(target_os = "linux")]
const HUGE_BYTES_MIN: usize = 4 << 20;

/// Asks for huge pages before a buffer is first written: a page fault for 2 MiB instead of 512, and
/// fewer TLB misses when kernels stream it.
#[cfg(target_os = "linux")]
pub(crate) fn advise_huge(buffer: &mut [u8]) {
    use rustix::mm::{Advice, madvise};
    if buffer.len() < HUGE_BYTES_MIN {
        return;
    }
    let page = rustix::param::page_size();
    let ahead = buffer.as_ptr().align_offset(page);
    let whole = buffer.len().saturating_sub(ahead) / page * page;
    let inner = &mut buffer[ahead..ahead + whole];
    // SAFETY: the range is whole pages inside a buffer that we hold exclusively, and this advice
    // changes no contents.
    let _ = unsafe { madvise(inner.as_mut_ptr().cast(), inner.len(), Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge(_: &mut [u8]) {}
