//! From the hub to an answer, with a hub on this machine.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use fm_testkit::{
    golden::{demo_dir, golden_dir},
    hub::{COMMIT, Fault, Hub, REPO, SIGNATURE, Site},
};
use serde_json::Value;

use crate::{flash_moe, stderr, stdout};

const TOKEN: &str = "hf_abcdefghijklmnop";
const WEIGHTS: &str = "model.safetensors";

/// A user with a home, and the hub they know.
struct User {
    home: tempfile::TempDir,
    hub: Hub,
}

impl User {
    fn of(site: Site) -> Self {
        Self { home: tempfile::tempdir().unwrap(), hub: Hub::serve(site) }
    }

    fn runs_with(&self, args: &[&str], env: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_flash-moe"))
            .args(args)
            .current_dir(self.home.path())
            .env_clear()
            .env("HOME", self.home.path())
            .env("HF_ENDPOINT", self.hub.endpoint())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn runs(&self, args: &[&str]) -> Output {
        self.runs_with(args, &[])
    }

    fn succeeds(&self, args: &[&str]) -> Output {
        let output = self.runs(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        output
    }

    /// What both streams say, without what differs from run to run.
    fn says(&self, args: &[&str], output: &Output) -> String {
        let code = output.status.code().unwrap();
        let text = format!(
            "$ flash-moe {}\n{}{}[{code}]\n",
            args.join(" "),
            stdout(output),
            stderr(output)
        );
        assert!(!text.contains(TOKEN) && !text.contains(SIGNATURE), "{text}");
        text.replace(&*self.home.path().to_string_lossy(), "HOME")
            .replace(&self.hub.endpoint(), "HUB")
    }
}

fn assert_snapshot(name: &str, text: &str) {
    // Free space is this machine's; what else is counted is the model's.
    let filters = vec![
        (r"(has room for|has) [0-9.]+ [kMGT]?B( free)?", "$1 ROOM"),
        (r"has room for \d+ bytes", "has room for FREE bytes"),
        (r"Connection refused.*", "Connection refused"),
        (r"127\.0\.0\.1:\d+", "NOBODY"),
    ];
    insta::with_settings!({ filters => filters }, { insta::assert_snapshot!(name, text) });
}

fn demo() -> Site {
    Site::of_dir(&demo_dir())
}

#[test]
fn a_pulled_model_runs_by_its_name_and_leaves_when_told() {
    let user = User::of(demo());
    let mut all = String::new();
    let mut step = |args: &[&str]| all += &user.says(args, &user.succeeds(args));
    step(&["list"]);
    step(&["pull", REPO]);
    step(&["pull", REPO]);
    step(&["list"]);
    answers_alike(&user);
    step(&["rm", REPO, "--yes"]);
    step(&["list"]);
    assert_snapshot("pulled", &all);
    assert!(!user.home.path().join(".cache/huggingface/hub/models--pebble--demo").exists());
}

/// The commands that take a model take its name.
fn answers_alike(user: &User) {
    let demo = demo_dir();
    let run = |model: &str| {
        let prompt = ["--prompt", "What is 7 plus 5?", "--greedy", "--memory", "300MB", "--json"];
        let limits = ["--context", "512", "--max-tokens", "30"];
        let output = stdout(&user.succeeds(&[&["run", model], &prompt[..], &limits].concat()));
        serde_json::from_str::<Value>(&output).unwrap()["tokens"].clone()
    };
    let tokens = run(REPO);
    assert_eq!(tokens.as_array().map(Vec::len), Some(30));
    assert_eq!(tokens, run(&demo.to_string_lossy()));
    user.hub.take_requests();
    let inspected = stdout(&user.succeeds(&["inspect", REPO, "--json"]));
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(inspected["model_type"], "qwen3_5_moe");
    let planned = stdout(&user.succeeds(&["plan", REPO, "--json", "--memory", "300MB"]));
    let planned: Value = serde_json::from_str(&planned).unwrap();
    assert_eq!(planned["remote"], Value::Null);
    user.succeeds(&["convert", &format!("{REPO}@{COMMIT}"), "container"]);
    user.succeeds(&["verify", "container"]);
    let recorded = stdout(&user.succeeds(&["verify", REPO, "--record", "--json"]));
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    assert_eq!(recorded["schema"], "flash-moe.record/1");
    assert!(std::path::Path::new(recorded["checksums"].as_str().unwrap()).is_file());
    user.succeeds(&["verify", REPO]);
    assert!(user.hub.take_requests().is_empty(), "what is here needs no network");
}

#[test]
fn a_plan_needs_no_download() {
    let user = User::of(demo());
    let args = ["plan", REPO, "--memory", "300MB", "--threads", "2"];
    let output = user.succeeds(&args);
    let sent = user.hub.site().sent_bytes;
    let bytes: usize = user.hub.site().files.values().map(Vec::len).sum();
    assert!(sent < 150_000 && bytes > 6_000_000, "{sent} of {bytes}");
    let here =
        stdout(&user.succeeds(&[&["plan", &*demo_dir().to_string_lossy()], &args[2..]].concat()));
    let text = user.says(&args, &output);
    // But for where it is, the plan is that of the model itself.
    let rows = |text: &str| {
        text.lines().filter(|l| l.starts_with("  ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let planned = rows(&stdout(&output));
    assert_eq!(planned[1..], rows(&here));
    assert_snapshot("plan_of_a_remote_model", &text);

    let json = [&args[..], &["--json"]].concat();
    let json: Value = serde_json::from_str(&stdout(&user.succeeds(&json))).unwrap();
    assert_eq!(json["model"], REPO);
    assert_eq!(
        (&json["remote"]["commit"], &json["remote"]["fits_disk"]),
        (&COMMIT.into(), &true.into())
    );
    assert!(json["active_bytes_per_token"].as_u64().unwrap() > 100_000);
    assert!(!user.home.path().join(".cache/huggingface").exists(), "nothing was kept");
}

#[test]
fn a_plan_that_fits_neither_disk_nor_memory_says_both() {
    let mut site = demo();
    // More than any disk here, and less than the longest file of common file systems.
    site.claimed.insert("tokenizer.json".to_owned(), 1 << 43);
    let user = User::of(site);
    let args = ["plan", REPO, "--memory", "9MB"];
    let output = user.runs(&args);
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("disk has only "), "{text}");
    assert!(text.contains("a memory budget of 9.00 MB is too small"), "{text}");
}

#[test]
fn a_container_that_was_a_gguf_file_is_pulled_whole() {
    let dir = tempfile::tempdir().unwrap();
    let container = dir.path().join("container");
    let container = container.to_str().unwrap();
    let converted = flash_moe(&["convert", "golden/qwen3_5_moe/q8_0.gguf", container]);
    assert!(converted.status.success(), "{}", stderr(&converted));
    let mut site = Site::of_dir(container.as_ref());
    let experts = Site::of_dir(&dir.path().join("container/experts"));
    let below = experts.files.into_iter().map(|(name, bytes)| (format!("experts/{name}"), bytes));
    site.files.extend(below);
    let user = User::of(site);
    user.succeeds(&["plan", REPO, "--memory", "300MB"]);
    user.succeeds(&["pull", REPO]);
    user.succeeds(&["verify", REPO]);
    user.succeeds(&["run", REPO, "-p", "Hi", "--raw", "--max-tokens", "3", "--memory", "300MB"]);
}

#[test]
fn events_are_lines_for_programs() {
    let mut site = demo();
    let faults = [Fault::CutAfter(1_000_000), Fault::Flip(1_000_000)];
    site.faults.insert(WEIGHTS.to_owned(), faults.into());
    let user = User::of(site);
    let output =
        user.succeeds(&["pull", REPO, "--json", "--include", WEIGHTS, "--include", "config.json"]);
    let lines: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_weights = |line: &&Value| line["file"] == WEIGHTS;
    let events: Vec<&str> =
        lines.iter().filter(of_weights).map(|line| line["event"].as_str().unwrap()).collect();
    // The flipped byte is the first after the cut.
    assert_eq!(events, ["begin", "again", "corrupt", "begin", "done"]);
    assert_eq!((&lines[0]["event"], &lines[0]["files"]), (&"plan".into(), &2.into()));
    let last = lines.last().unwrap();
    assert_eq!((&last["event"], &last["fetched"]), (&"pulled".into(), &2.into()));
    assert!(last["path"].as_str().unwrap().ends_with(COMMIT));
}

#[test]
fn the_token_is_taken_from_wherever_it_is_and_said_nowhere() {
    let mut site = demo();
    site.token = Some(TOKEN.to_owned());
    let user = User::of(site);
    let args = ["plan", REPO, "--memory", "300MB"];
    let denied = user.runs(&args);
    assert_snapshot("without_a_token", &user.says(&args, &denied));
    let flag = [&args[..], &["--token", TOKEN]].concat();
    assert!(user.runs(&flag).status.success());
    assert!(user.runs_with(&args, &[("HF_TOKEN", TOKEN)]).status.success());
    let wrong = user.runs_with(&args, &[("HF_TOKEN", "hf_other")]);
    assert_snapshot("with_a_wrong_token", &user.says(&args, &wrong));
    let home = user.home.path().join("hf");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("token"), format!("{TOKEN}\n")).unwrap();
    let home = home.to_string_lossy().into_owned();
    assert!(user.runs_with(&args, &[("HF_HOME", &home)]).status.success());
    for request in user.hub.take_requests() {
        assert!(!request.cdn || request.authorization.is_none(), "{request:?}");
    }
}

#[test]
fn refusals() {
    let mut all = String::new();
    let mut fails = |site: Site, args: &[&str]| {
        let user = User::of(site);
        let output = user.runs(args);
        assert!(!output.status.success(), "{args:?}");
        all += &(user.says(args, &output) + "\n");
    };
    let refused = |status, code| Site { refusal: Some((status, code)), ..demo() };
    fails(refused(403, "GatedRepo"), &["pull", REPO]);
    fails(refused(401, "RepoNotFound"), &["pull", REPO]);
    fails(demo(), &["pull", "pebble/other"]);
    fails(demo(), &["pull", REPO, "--revision", "v9"]);
    fails(demo(), &["pull", "pebble"]);
    fails(demo(), &["pull", REPO, "--include", "*Q4*"]);
    fails(demo(), &["pull", REPO, "--endpoint", "http://127.0.0.1:1"]);
    fails(Site { claimed: [(WEIGHTS.to_owned(), 1 << 60)].into(), ..demo() }, &["pull", REPO]);
    let several =
        ["x-Q4_K_M.gguf", "Q8/x-Q8_0-00001-of-00002.gguf", "Q8/x-Q8_0-00002-of-00002.gguf"];
    let files = several.map(|name| (name.to_owned(), vec![0; 100])).into();
    let claimed = several.map(|name| (name.to_owned(), 5_000_000_000)).into();
    fails(Site { files, claimed, ..Site::default() }, &["pull", REPO]);
    fails(demo(), &["run", REPO, "--prompt", "x"]);
    fails(demo(), &["rm", REPO, "--yes"]);
    fails(demo(), &["rm", &format!("{REPO}@main")]);
    let hostile = [("../x.json".to_owned(), vec![1])].into();
    fails(Site { files: hostile, ..Site::default() }, &["pull", REPO]);
    assert_snapshot("refusals", &all);
}

#[test]
fn each_quantisation_has_a_name_that_the_commands_take() {
    let file = |name: &str| fs::read(golden_dir("qwen3_moe").join(name)).unwrap();
    let files = [("Q8/x-Q8_0.gguf", "q8_0.gguf"), ("x-BF16.gguf", "bf16.gguf")];
    let files = files.map(|(name, of)| (name.to_owned(), file(of))).into();
    let user = User::of(Site { files, ..Site::default() });
    let mut all = String::new();
    let mut step = |args: &[&str]| all += &user.says(args, &user.succeeds(args));
    let eight = format!("{REPO}/Q8/x-Q8_0.gguf");
    step(&["pull", &eight]);
    step(&["list"]);
    step(&["pull", REPO, "--include", "*BF16*"]);
    step(&["list"]);
    let model = |name: &str| user.runs(&["inspect", name, "--json"]).status.code();
    assert_eq!((model(&eight), model(REPO)), (Some(0), Some(1)));
    step(&["rm", &eight, "--yes"]);
    step(&["list"]);
    assert_eq!((model(&eight), model(REPO)), (Some(1), Some(0)));
    assert_snapshot("quantisations", &all);
}

#[test]
#[cfg(unix)]
fn a_file_name_of_another_program_does_not_reach_the_terminal() {
    let snapshot = "models--org--name/snapshots/0123";
    let user = User::of(demo());
    let hub = user.home.path().join("hub");
    fs::create_dir_all(hub.join(snapshot)).unwrap();
    for name in ["a.gguf", "b\u{1b}]0;title\u{7}.gguf"] {
        fs::write(hub.join(snapshot).join(name), "no model").unwrap();
    }
    let cache = [("HF_HUB_CACHE", hub.to_str().unwrap())];
    let listed = stdout(&user.runs_with(&["list"], &cache));
    assert!(listed.contains("b\u{fffd}]0;title\u{fffd}.gguf"), "{listed:?}");
    assert!(!listed.contains('\u{1b}'), "{listed:?}");
}

#[test]
fn nothing_is_removed_unasked() {
    let user = User::of(demo());
    user.succeeds(&["pull", REPO, "--include", "config.json"]);
    let args = ["rm", REPO];
    let output = user.runs(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("give --yes"));
    assert!(stdout(&user.succeeds(&["list"])).contains("no model"));
}

#[test]
fn a_file_that_is_missing_from_a_model_that_is_here_is_named() {
    let user = User::of(demo());
    user.succeeds(&["pull", REPO, "--include", "config.json"]);
    let file = format!("{REPO}/Q4/x.gguf");
    let said = stderr(&user.runs(&["inspect", &file]));
    assert!(said.contains(&format!("{REPO} is here without Q4/x.gguf")), "{said}");
    assert!(said.contains(&format!("hint: `flash-moe pull {file}` downloads it")), "{said}");
}

#[test]
fn whoever_reads_one_event_and_goes_has_no_model() {
    use std::io::{BufRead, BufReader};
    let user = User::of(demo());
    let mut pull = Command::new(env!("CARGO_BIN_EXE_flash-moe"));
    pull.args(["pull", REPO, "--json"]).env_clear().env("HOME", user.home.path());
    pull.env("HF_ENDPOINT", user.hub.endpoint()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut pull = pull.spawn().unwrap();
    let mut first = String::new();
    BufReader::with_capacity(1, pull.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("\"plan\""), "{first}");
    let output = pull.wait_with_output().unwrap();
    let said = "error: nobody reads what is printed any more, so the download ended; what has come is kept\n";
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), said));
}
