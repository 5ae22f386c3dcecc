//! A real process, really killed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fm_testkit::{golden::golden_dir, noise::Noise};

use crate::harness::{assert_same, convert, files_in, workplace};

/// Names source and target, one per line, for [`child_converts_if_its_directory_asks_for_it`].
const JOB: &str = "fm-convert-job";
const KILLS: u32 = 200;

/// Not a test of its own: this process started once more, in a directory with a job.
#[test]
fn child_converts_if_its_directory_asks_for_it() {
    let Ok(job) = fs::read_to_string(JOB) else { return };
    let (source, out) = job.split_once('\n').unwrap();
    convert(Path::new(source), Path::new(out)).unwrap();
}

struct Child {
    dir: tempfile::TempDir,
    source: PathBuf,
}

impl Child {
    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// Runs a conversion, to its end or until it is killed after some time.
    fn run(&self, patience: Option<Duration>) {
        let started = Instant::now();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "kill::child_converts_if_its_directory_asks_for_it"])
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let Some(patience) = patience else {
            assert!(child.wait().unwrap().success());
            return;
        };
        // The moment of the kill is what is random here, so a sleep makes nothing flaky.
        std::thread::sleep(patience.saturating_sub(started.elapsed()));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
    }
}

#[test]
fn killed_at_two_hundred_random_moments() {
    let source = golden_dir("qwen3_moe").join("../../models/demo").canonicalize().unwrap();
    let child = Child { dir: workplace(), source };
    let job = format!("{}\n{}", child.source.display(), child.out().display());
    fs::write(child.dir.path().join(JOB), job).unwrap();
    let started = Instant::now();
    child.run(None);
    let whole = started.elapsed();
    let expected = files_in(&child.out());
    assert!(expected.contains_key(Path::new("manifest.json")));
    fs::remove_dir_all(child.out()).unwrap();

    let mut noise = Noise::new(7);
    let (mut killed, mut round) = (0, 0);
    while killed < KILLS {
        round += 1;
        assert!(round < 10 * KILLS, "{killed} kills in {round} rounds");
        child.run(Some(whole.mul_f64(noise.unit())));
        // Only kills between the first file and the last count.
        killed += u32::from(child.out().join("convert.journal").exists());
        // Sometimes the next one continues where this one was killed.
        if round % 3 != 0 {
            convert(&child.source, &child.out()).unwrap();
            assert_same(&child.out(), &expected, &format!("killed in round {round}"));
            fs::remove_dir_all(child.out()).unwrap();
        }
    }
}
