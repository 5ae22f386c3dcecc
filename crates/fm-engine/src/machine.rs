//! How much memory this process may use: free memory, and the cgroups that hold it.
//!
//! Everything is read under a root directory, so that tests bring their own `/proc` and `/sys`; where
//! there are none, the system itself is asked.

mod cgroup;
mod short_file;
#[cfg(not(target_os = "linux"))]
mod system;

use std::{fs, path::Path};

pub(crate) use self::{cgroup::Cgroup, short_file::ShortFile};

/// Linux says all of it in files, but in a container or a service that sees none but those of its processes.
#[cfg(target_os = "linux")]
mod system {
    /// The page cache counts as used here: what programs have left may be more.
    #[expect(clippy::unnecessary_wraps, reason = "other systems may not tell")]
    pub(super) fn memory() -> Option<(u64, u64)> {
        let system = rustix::system::sysinfo();
        let bytes = |units| units * u64::from(system.mem_unit);
        Some((bytes(system.totalram), bytes(system.freeram + system.bufferram)))
    }

    pub(super) fn cores() -> Option<usize> {
        None
    }

    pub(super) fn held() -> Option<u64> {
        None
    }
}

/// What limits the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Memory of the machine.
    pub total: u64,
    /// Memory that can be had without swapping.
    pub available: u64,
    /// The tightest cgroup, if any sets a limit.
    pub cgroup: Option<CgroupLimit>,
}

/// The limit of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// What its processes may use together.
    pub limit: u64,
    /// What is used of it and cannot be reclaimed: everything but page cache.
    pub used: u64,
}

impl CgroupLimit {
    /// What is left.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl MemoryLimits {
    /// Reads the limits of this process; `root` is `/` outside of tests. Whatever cannot be read sets
    /// no limit.
    pub fn read(root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
            Some(kib * 1024)
        };
        let (total, available) = match field("MemTotal") {
            Some(total) => (total, field("MemAvailable").unwrap_or(total)),
            None => system::memory().unwrap_or((u64::MAX, u64::MAX)),
        };
        let limits = Cgroup::of_process(root).into_iter().filter_map(|group| group.limit());
        Self { total, available, cgroup: limits.min_by_key(CgroupLimit::left) }
    }

    /// What this process may use: the less of free memory and what its cgroups leave.
    pub fn allowed(&self) -> u64 {
        let left = self.cgroup.as_ref().map_or(u64::MAX, CgroupLimit::left);
        self.available.min(left)
    }
}

/// Cores that this process may compute on: physical ones, because two threads of one core share its
/// arithmetic. At least 1.
pub(crate) fn physical_cores(root: &Path) -> usize {
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let mut cores = std::collections::BTreeSet::new();
    for processor in cpuinfo.split("\n\n") {
        let field = |name: &str| {
            let line = processor.lines().find(|line| line.starts_with(name))?;
            line.split(':').nth(1).map(str::trim)
        };
        if let (Some(package), Some(core)) = (field("physical id"), field("core id")) {
            cores.insert((package.to_owned(), core.to_owned()));
        }
    }
    let cores = if cores.is_empty() { system::cores() } else { Some(cores.len()) };
    cores.map_or(usable, |cores| usable.min(cores.max(1)))
}

/// Memory that can be had without swapping, where the system says so itself and not in `/proc`.
pub(crate) fn available_of_system() -> Option<u64> {
    system::memory().map(|(_, available)| available)
}

/// The most memory that this process has held at once and that cannot be dropped: its peak less
/// the pages of files, which here are the program's own. `None` where the system does not tell.
pub fn peak_held_bytes(root: &Path) -> Option<u64> {
    status_less_files(root, "VmHWM:")
}

/// As [`peak_held_bytes`], now.
pub fn held_bytes(root: &Path) -> Option<u64> {
    status_less_files(root, "VmRSS:").or_else(system::held)
}

fn status_less_files(root: &Path, name: &str) -> Option<u64> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    };
    Some(field(name)?.saturating_sub(field("RssFile:")?))
}

/// Processes that ran or wanted to, on average over the last minute. `None` where the system does
/// not tell.
pub(crate) fn load_average(root: &Path) -> Option<f64> {
    fs::read_to_string(root.join("proc/loadavg")).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a pretended machine.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, MemoryLimits) {
        let root = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";
        for (path, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let limits = MemoryLimits::read(root.path());
        (root, limits)
    }

    const FREE: u64 = 20_000_000 * 1024;

    #[test]
    fn without_cgroups_free_memory_is_the_limit() {
        let (_root, limits) = machine(&[]);
        assert_eq!((limits.total, limits.allowed()), (24_000_000 * 1024, FREE));
    }

    #[test]
    fn v2_counts_what_is_used_but_not_page_cache() {
        let (_root, limits) = machine(&[
            ("proc/self/cgroup", "0::/user/app\n"),
            ("sys/fs/cgroup/user/app/memory.max", "8000000000\n"),
            ("sys/fs/cgroup/user/app/memory.current", "5000000000\n"),
            ("sys/fs/cgroup/user/app/memory.stat", "anon 1\nfile 4000000000\nshmem 500000000\n"),
        ]);
        assert_eq!(limits.allowed(), 8_000_000_000 - 1_500_000_000);
    }

    #[test]
    fn the_tightest_of_nested_groups_counts() {
        let (_root, limits) = machine(&[
            ("proc/self/cgroup", "0::/a/b/c\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/c/memory.current", "1\n"),
            ("sys/fs/cgroup/a/b/memory.max", "3000000000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "0\n"),
            ("sys/fs/cgroup/a/memory.max", "9000000000\n"),
            ("sys/fs/cgroup/a/memory.current", "7000000000\n"),
        ]);
        assert_eq!(limits.allowed(), 2_000_000_000);
        assert_eq!(limits.cgroup.unwrap().limit, 9_000_000_000);
    }

    #[test]
    fn v1_is_understood_and_its_unlimited_is_none() {
        let group = ("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/job\n");
        let (_root, limits) = machine(&[
            group,
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "6000000000\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2500000000\n"),
            (
                "sys/fs/cgroup/memory/job/memory.stat",
                "total_inactive_file 1000000000\ntotal_active_file 500000000\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "7000000000\n"),
        ]);
        assert_eq!(limits.allowed(), 5_000_000_000);
        let (_root, limits) = machine(&[
            group,
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "7000000000\n"),
        ]);
        assert_eq!(limits.cgroup, None);
    }

    #[test]
    fn the_peak_is_what_cannot_be_dropped() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let status = "Name:\tx\nVmHWM:\t   90000 kB\nVmRSS:\t 60000 kB\nRssFile:\t   8000 kB\n";
        fs::write(root.path().join("proc/self/status"), status).unwrap();
        fs::write(root.path().join("proc/loadavg"), "1.25 0.71 0.69 2/213 4711\n").unwrap();
        assert_eq!(peak_held_bytes(root.path()), Some(82_000 * 1024));
        assert_eq!(held_bytes(root.path()), Some(52_000 * 1024));
        assert_eq!(load_average(root.path()), Some(1.25));
        assert_eq!(peak_held_bytes(Path::new("/nowhere")), None);
        assert_eq!(load_average(Path::new("/nowhere")), None);
    }

    #[test]
    fn in_a_container_the_mount_is_the_group() {
        let (_root, limits) = machine(&[
            ("proc/self/cgroup", "0::/docker/0123abc\n"),
            ("sys/fs/cgroup/memory.max", "4000000000\n"),
            ("sys/fs/cgroup/memory.current", "1000000000\n"),
        ]);
        assert_eq!(limits.allowed(), 3_000_000_000);
    }
}
