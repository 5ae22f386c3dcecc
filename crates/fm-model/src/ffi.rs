//! What the system is told about the memory of weights. None of it changes contents.
#![allow(unsafe_code)]

use std::io;

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
