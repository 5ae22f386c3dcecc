//! What systems say of themselves that have no `/proc`: macOS, Windows. Linux is never asked.

#[cfg(not(target_os = "linux"))]
use sysinfo::{
    MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System, get_current_pid,
};

/// Memory of the machine, and what of it is not used: the pages of files count as free.
#[cfg(not(target_os = "linux"))]
pub(super) fn memory() -> Option<(u64, u64)> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory).ok()?;
    // What sysinfo calls available on macOS includes all that programs hold and use now and then.
    let (total, used) = (system.total_memory(), system.used_memory());
    (total > 0).then(|| (total, total.saturating_sub(used)))
}

/// Physical cores.
#[cfg(not(target_os = "linux"))]
pub(super) fn cores() -> Option<usize> {
    System::physical_core_count().ok()
}

/// What this process holds of memory now.
#[cfg(not(target_os = "linux"))]
pub(super) fn held() -> Option<u64> {
    let (own, memory) = (get_current_pid().ok()?, ProcessRefreshKind::nothing().with_memory());
    let mut system = System::new().ok()?;
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, memory);
    Some(system.process(own)?.memory())
}

#[cfg(target_os = "linux")]
pub(super) fn memory() -> Option<(u64, u64)> {
    None
}

#[cfg(target_os = "linux")]
pub(super) fn cores() -> Option<usize> {
    None
}

#[cfg(target_os = "linux")]
pub(super) fn held() -> Option<u64> {
    None
}

#[cfg(all(test, not(target_os = "linux")))]
mod tests {
    use super::*;

    #[test]
    fn a_machine_says_what_it_has() {
        let (total, available) = memory().unwrap();
        assert!(available > 0 && available < total && total < 1 << 50, "{available} of {total}");
        let held = held().unwrap();
        assert!(held > 1 << 20 && held < total, "{held}");
        assert!((1..=4096).contains(&cores().unwrap()));
    }
}
