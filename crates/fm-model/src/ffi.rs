//! What the system is told about the memory of weights. None of it changes contents.
#![allow(unsafe_code)]

use std::io;

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

/// Keeps a buffer in memory until it is freed: it is never paged out.
///
/// # Errors
/// If the system does not allow so much, or knows nothing of the kind.
#[cfg(unix)]
pub(crate) fn lock(buffer: &[u8]) -> io::Result<()> {
    if buffer.is_empty() {
        return Ok(());
    }
    // SAFETY: the range is a buffer that we hold, and locking changes no contents. The system forgets
    // the lock when the pages are unmapped; on pages that the allocator keeps it does no harm.
    unsafe { rustix::mm::mlock(buffer.as_ptr().cast_mut().cast(), buffer.len()) }?;
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn lock(_: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Bytes that this process may lock, unless it is privileged; `None` if there is no limit.
#[cfg(unix)]
pub(crate) fn lock_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(not(unix))]
pub(crate) fn lock_limit() -> Option<u64> {
    Some(0)
}
