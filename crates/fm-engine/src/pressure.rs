//! The knee: where a little more memory taken makes the machine page, and everything crawl.
//!
//! A plan is made from what is free when a model is opened. Other programs start later. So the
//! machine is watched while the model runs, and when it strains the expert cache gives back the
//! slots of one token's experts, and again, until it does not; after a long calm it takes them back
//! as it gave them. A smaller cache reads more, which costs less than a page that has to be swapped in.

use std::{
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use fm_store::Store;

use crate::machine::{Cgroup, ShortFile, available_of_system};

/// What the machine says about its memory. Counters only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Page faults of this process that had to wait for a disk.
    pub major_faults: u64,
    /// Microseconds in which some task of the group, or of the machine, waited for memory.
    pub stalled_us: u64,
    /// Bytes that can still be had.
    pub left: u64,
}

/// Where readings come from; a test brings its own.
pub trait Signals: Send {
    /// What is true now.
    fn read(&mut self) -> Reading;
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    Stay,
    GiveBack,
    TakeBack,
}

/// Time between two readings.
const INTERVAL: Duration = Duration::from_millis(500);

/// More major faults per second than this are no accident: a program that is all there has none.
const FAULTS_PER_S: u64 = 40;

/// Share of the time that some task may wait for memory.
const STALL_SHARE: f64 = 0.1;

/// While more than this is left, stalls are somebody else's: those of the machine count for all its
/// groups together.
const TIGHT_BYTES: u64 = 1 << 30;

/// With less than this left, something is about to be paged out or killed.
const LEFT_BYTES: u64 = 64 << 20;

/// Readings in a row that must be bad: a program that starts makes a short storm.
const STRAINED_READINGS: u32 = 2;

/// Readings in a row that must be good before slots are taken back: a minute.
const CALM_READINGS: u32 = 120;

/// Watches the memory of the machine for an expert store.
pub struct MemoryGuard {
    signals: Box<dyn Signals>,
    interval: Duration,
    due: Instant,
    last: Option<(Instant, Reading)>,
    strained: u32,
    calm: u32,
}

impl fmt::Debug for MemoryGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryGuard").field("last", &self.last).finish_non_exhaustive()
    }
}

impl MemoryGuard {
    /// Watches the machine under `root`, which is `/` outside of tests.
    pub(crate) fn of_machine(root: &Path) -> Self {
        Self::new(Box::new(Machine::open(root)), INTERVAL)
    }

    /// Watches whatever gives the signals.
    pub fn new(signals: Box<dyn Signals>, interval: Duration) -> Self {
        let due = Instant::now() + interval;
        Self { signals, interval, due, last: None, strained: 0, calm: 0 }
    }

    /// Looks if it is time to, and lets the store give back or take back what one token uses. Memory
    /// that cannot be taken back is tried again after another calm.
    pub(crate) fn tend(&mut self, store: &mut Store) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + self.interval;
        let reading = self.signals.read();
        let Some((then, before)) = self.last.replace((now, reading)) else { return };
        match self.judge(now - then, before, reading, store.working_set_bytes()) {
            Advice::Stay => {}
            Advice::GiveBack => _ = store.release(store.working_set_bytes()),
            Advice::TakeBack => _ = store.take_back(store.working_set_bytes()),
        }
    }

    fn judge(&mut self, time: Duration, before: Reading, now: Reading, set: u64) -> Advice {
        let seconds = time.as_secs_f64();
        let faults = now.major_faults.saturating_sub(before.major_faults) as f64;
        let stalled = now.stalled_us.saturating_sub(before.stalled_us) as f64 / 1e6;
        let exhausted = now.left < LEFT_BYTES;
        let stalls = now.left < TIGHT_BYTES && stalled > STALL_SHARE * seconds;
        let strained = faults > FAULTS_PER_S as f64 * seconds || stalls || exhausted;
        self.strained = if strained { self.strained + 1 } else { 0 };
        self.calm = if strained { 0 } else { self.calm + 1 };
        if exhausted || self.strained >= STRAINED_READINGS {
            self.strained = 0;
            return Advice::GiveBack;
        }
        // Room for what is taken back, and as much again.
        if self.calm >= CALM_READINGS && now.left > LEFT_BYTES + 2 * set {
            self.calm = 0;
            return Advice::TakeBack;
        }
        Advice::Stay
    }
}

/// The signals of Linux; elsewhere it is only known what is free.
struct Machine {
    faults: Option<ShortFile>,
    stalls: Option<ShortFile>,
    free: Option<ShortFile>,
    /// All of them, because whoever runs them may set a limit where none was.
    groups: Vec<Cgroup>,
}

impl Machine {
    fn open(root: &Path) -> Self {
        let groups = Cgroup::of_process(root);
        let limits = groups.iter().filter_map(|group| Some((group, group.limit()?)));
        let tightest = limits.min_by_key(|(_, limit)| limit.left());
        let stalls = match tightest {
            Some((group, _)) => group.path().join("memory.pressure"),
            None => root.join("proc/pressure/memory"),
        };
        Self {
            faults: ShortFile::open(&root.join("proc/self/stat")),
            stalls: ShortFile::open(&stalls),
            free: ShortFile::open(&root.join("proc/meminfo")),
            groups,
        }
    }

    /// What this process may still take: see [`MemoryLimits::allowed`](crate::machine::MemoryLimits::allowed).
    fn left(&self) -> u64 {
        let free = self.free.as_ref().and_then(|file| file.of_line("MemAvailable:"));
        let free = free.map(|kib| 1024 * kib).or_else(available_of_system);
        let limits = self.groups.iter().filter_map(Cgroup::limit);
        limits.map(|limit| limit.left()).chain(free).min().unwrap_or(u64::MAX)
    }
}

impl Signals for Machine {
    fn read(&mut self) -> Reading {
        // Fields of `stat` are counted behind the name of the program, which may contain anything.
        let faults = || self.faults.as_ref()?.field(") ", 9);
        // Lines begin with `some` and `full`; the first total is that of `some`.
        let stalls = || self.stalls.as_ref()?.behind("total=");
        Reading {
            major_faults: faults().unwrap_or(0),
            stalled_us: stalls().unwrap_or(0),
            left: self.left(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MemoryLimits;

    const SET: u64 = 500 << 20;

    /// Advice after each of these readings, half a second apart.
    fn advice(readings: impl IntoIterator<Item = Reading>) -> Vec<Advice> {
        struct Nothing;
        impl Signals for Nothing {
            fn read(&mut self) -> Reading {
                Reading::default()
            }
        }
        let mut guard = MemoryGuard::new(Box::new(Nothing), INTERVAL);
        let mut before = Reading { left: u64::MAX, ..Reading::default() };
        let judge = |now| {
            let advice = guard.judge(INTERVAL, before, now, SET);
            before = now;
            advice
        };
        readings.into_iter().map(judge).collect()
    }

    fn plenty(major_faults: u64, stalled_us: u64) -> Reading {
        Reading { major_faults, stalled_us, left: 4 << 30 }
    }

    #[test]
    fn faults_and_stalls_that_last_shrink_the_cache_and_accidents_do_not() {
        use Advice::{GiveBack, Stay};
        let faults = [plenty(30, 0), plenty(60, 0), plenty(90, 0), plenty(90, 0)];
        assert_eq!(advice(faults), [Stay, GiveBack, Stay, Stay]);
        let tight = |stalled_us| Reading { left: TIGHT_BYTES - 1, ..plenty(0, stalled_us) };
        assert_eq!(advice([tight(60_000), tight(120_000)]), [Stay, GiveBack]);
        assert_eq!(advice([plenty(0, 60_000), plenty(0, 120_000)]), [Stay, Stay], "not ours");
        let storm = [plenty(900, 0), plenty(900, 0), plenty(915, 40_000), plenty(930, 80_000)];
        assert_eq!(advice(storm), [Stay; 4]);
        let empty = Reading { left: LEFT_BYTES - 1, ..Reading::default() };
        assert_eq!(advice([empty, empty]), [GiveBack; 2], "no time to lose");
    }

    #[test]
    fn slots_come_back_after_a_long_calm_if_there_is_room() {
        let calm = |left| (0..=CALM_READINGS).map(move |_| Reading { left, ..plenty(0, 0) });
        let back = |left| advice(calm(left)).iter().filter(|a| **a == Advice::TakeBack).count();
        assert_eq!(back(LEFT_BYTES + 2 * SET + 1), 1);
        assert_eq!(back(LEFT_BYTES + 2 * SET), 0);
        let mut broken: Vec<_> = calm(u64::MAX).collect();
        broken[50].major_faults = 1000;
        assert!(!advice(broken).contains(&Advice::TakeBack));
    }

    #[cfg(unix)]
    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/stat", "42 (a ) program) R 1 2 3 4 5 6 70 8 1234 10 11\n");
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=777\n\
            full avg10=0.00 avg60=0.00 avg300=0.00 total=55\n";
        write("proc/pressure/memory", pressure);
        write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    5000 kB\n");
        let read = || Machine::open(root.path()).read();
        let mut want = Reading { major_faults: 1234, stalled_us: 777, left: 5000 * 1024 };
        assert_eq!(read(), want);
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/memory.max", "2000000\n");
        write("sys/fs/cgroup/a/memory.current", "1500000\n");
        write("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 700000\nshmem 100000\n");
        write("sys/fs/cgroup/a/memory.pressure", "some avg10=0.00 total=8\nfull total=1\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/memory.current", "700000\n");
        (want.left, want.stalled_us) = (2_000_000 - 900_000, 8);
        assert_eq!(read(), want);
        assert_eq!(MemoryLimits::read(root.path()).allowed(), want.left, "as the plan counts");
        let mut machine = Machine::open(root.path());
        write("sys/fs/cgroup/a/memory.max", "1200000\n");
        assert_eq!(machine.read().left, 300_000, "the limit is that of now");
        write("sys/fs/cgroup/a/b/memory.max", "900000\n");
        assert_eq!(machine.read().left, 200_000, "that of another group, set later");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/memory.max", "max\n");
        assert_eq!(machine.read().left, 5000 * 1024, "nothing but the machine");
    }
}
