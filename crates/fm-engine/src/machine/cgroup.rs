//! Groups of processes whose memory Linux limits together.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{CgroupLimit, short_file::ShortFile};

/// What the two versions of cgroups call the same.
#[derive(Debug)]
struct Names {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The page cache in `memory.stat`, and what is counted with it there but cannot be dropped.
    cached: &'static [&'static str],
    kept: &'static [&'static str],
}

const V1: Names = Names {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: &["total_inactive_file", "total_active_file"],
    kept: &[],
};

const V2: Names = Names {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    cached: &["file"],
    kept: &["shmem"],
};

/// A limit of version 1 from here on means none: the kernel rounds "unlimited" down to a page.
const UNLIMITED: u64 = 1 << 62;

/// A group that may have a limit, now or when whoever runs it sets one.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    names: &'static Names,
    limit: ShortFile,
    used: ShortFile,
    stat: Option<ShortFile>,
}

impl Cgroup {
    /// The groups on the way from this process to the root, the nearest first.
    pub(crate) fn of_process(root: &Path) -> Vec<Self> {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let hierarchies = groups.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let of_memory = || controllers.split(',').any(|controller| controller == "memory");
            let names = if controllers.is_empty() { Some(&V2) } else { of_memory().then_some(&V1) };
            Some((names?, path))
        });
        let ways = hierarchies.flat_map(|(names, path)| {
            // Inside a container the path may name directories outside of it; the mount is then the group.
            let below = Path::new(path.trim_start_matches('/')).ancestors();
            below.filter_map(|dir| Self::open(root.join(names.mount).join(dir), names))
        });
        ways.collect()
    }

    fn open(path: PathBuf, names: &'static Names) -> Option<Self> {
        let file = |name| ShortFile::open(&path.join(name));
        let (limit, used, stat) = (file(names.limit)?, file(names.used)?, file("memory.stat"));
        Some(Self { path, names, limit, used, stat })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The limit of now, if there is one.
    pub(crate) fn limit(&self) -> Option<CgroupLimit> {
        let limit = self.limit.number().filter(|limit| *limit < UNLIMITED)?; // "max" is no number
        let sum = |names: &[&str]| {
            let lines = names.iter().filter_map(|name| self.stat.as_ref()?.of_line(name));
            lines.sum::<u64>()
        };
        let cached = sum(self.names.cached).saturating_sub(sum(self.names.kept));
        Some(CgroupLimit { limit, used: self.used.number()?.saturating_sub(cached) })
    }
}
