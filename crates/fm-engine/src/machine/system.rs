//! What systems say of themselves that have no `/proc`: macOS, Windows.

use std::sync::{LazyLock, Mutex, PoisonError};

use sysinfo::{MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};

/// One for all questions: each costs the system a handle.
static SYSTEM: LazyLock<Option<Mutex<System>>> =
    LazyLock::new(|| System::new().ok().map(Mutex::new));

fn ask<T>(question: impl FnOnce(&mut System) -> Option<T>) -> Option<T> {
    let system = SYSTEM.as_ref()?;
    question(&mut system.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Memory of the machine, and what of it is not used: the pages of files count as free.
pub(super) fn memory() -> Option<(u64, u64)> {
    ask(|system| {
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        // What sysinfo calls available on macOS includes all that programs hold and use now and then.
        let (total, used) = (system.total_memory(), system.used_memory());
        (total > 0).then(|| (total, total.saturating_sub(used)))
    })
}

/// Physical cores.
pub(super) fn cores() -> Option<usize> {
    System::physical_core_count().ok()
}

/// What this process holds of memory now.
pub(super) fn held() -> Option<u64> {
    let own = get_current_pid().ok()?;
    ask(|system| {
        let memory = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, memory);
        Some(system.process(own)?.memory())
    })
}

#[cfg(test)]
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
