//! Answers: what goes to stdout, what goes to stderr, and what is kept in a session.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use fm_format::{record::FileIndex, source::safetensors};
use fm_testkit::{
    golden::{Golden, copy_files, demo_dir, golden_dir, workspace_dir},
    tiny_checkpoint::{QUESTIONS_TO_PIECES, write_model_of_pieces},
};
use fm_text::Tokenizer;

use crate::{flash_moe, program, stderr, stdout};

const PLAN: [&str; 6] = ["--memory", "300MB", "--threads", "1", "--context", "512"];

fn run(args: &[&str]) -> (String, String) {
    let output = flash_moe(&[&["run", "models/demo"], args, &PLAN].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    (stdout(&output), stderr(&output))
}

#[test]
fn the_answer_alone_is_on_stdout() {
    let (answer, rest) = run(&["--prompt", "What is the capital of Japan?", "--greedy"]);
    assert_eq!(answer, "The capital of Japan is Tokyo.\n");
    for part in ["The user asks", "first token", "hits", "verdict", "logits "] {
        assert!(rest.contains(part), "{part} in {rest}");
    }
    assert!(!rest.contains('\x1b'), "no colours where there is no terminal");
    let (quiet, rest) =
        run(&["--prompt", "What is the capital of Japan?", "--greedy", "--no-think", "--quiet"]);
    assert_eq!((quiet.as_str(), rest.as_str()), ("The capital of Japan is Tokyo.\n", ""));
}

#[test]
fn an_answer_begins_without_the_space_of_its_tokenizer_and_a_continued_text_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    write_model_of_pieces(dir.path());
    let said = |args: &[&str]| {
        let path = dir.path().to_str().unwrap();
        let common = ["--greedy", "--max-tokens", "3", "--context", "64", "--quiet"];
        let output = flash_moe(&[&["run", path], args, &common, &PLAN[..4]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let spaced = QUESTIONS_TO_PIECES.iter().find_map(|prompt| {
        let text = said(&["--raw", "--prompt", prompt]);
        text.starts_with(' ').then_some((prompt, text))
    });
    let (prompt, text) = spaced.unwrap();
    assert_eq!(said(&["--prompt", prompt]), text[1..]);
}

#[test]
fn quiet_is_the_answer_without_what_was_thought() {
    let (answer, rest) = run(&["--prompt", "What is the capital of Japan?", "--greedy", "--quiet"]);
    assert_eq!((answer.as_str(), rest.as_str()), ("The capital of Japan is Tokyo.\n", ""));
}

#[test]
fn a_prompt_may_begin_with_a_dash() {
    run(&["-p", "- buy milk", "--max-tokens", "1", "--stop", "- x"]);
    run(&["-p", "milk", "--max-tokens", "4", "--regex", "-1"]);
}

#[test]
fn a_prompt_may_stand_behind_the_model() {
    let named = run(&["--prompt", "What is the capital of Japan?", "--greedy", "--quiet"]);
    assert_eq!(run(&["What is the capital of Japan?", "--greedy", "--quiet"]), named);
}

/// Ctrl-C in the middle of long work, as soon as the program listens to it.
#[cfg(target_os = "linux")]
#[test]
fn work_that_was_broken_off_says_so_to_the_shell_and_leaves_nothing() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("out");
    let (file, tokens) = (file.to_str().unwrap(), vec!["5"; 900].join(","));
    break_off(&["eval", "models/demo", "--text", "README.md"]);
    break_off(&["logits", "models/demo", "--prompt-tokens", &tokens, "--out", file]);
    let record = ["profile", "record", "models/demo", "--prompt-tokens", &tokens, "--out", file];
    break_off(&record);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

#[cfg(target_os = "linux")]
fn break_off(args: &[&str]) {
    const SIGINT: u64 = 1 << (2 - 1);
    let home = tempfile::tempdir().unwrap();
    let mut command = program(home.path());
    command.args(args).args(["--device", "reference"]);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", running.id());
    let listens = || {
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & SIGINT != 0
    };
    while !listens() {
        assert!(running.try_wait().unwrap().is_none(), "it ended before");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let interrupt = Command::new("kill").args(["-INT", &running.id().to_string()]).status();
    assert!(interrupt.unwrap().success());
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{args:?}: {}", stderr(&output));
}

/// Ctrl-C in the middle of an answer.
#[cfg(unix)]
#[test]
fn an_answer_that_was_cut_says_so() {
    use std::io::Read;
    for json in [&[] as &[&str], &["--json"]] {
        let home = tempfile::tempdir().unwrap();
        let mut command = program(home.path());
        command.args(["run", "models/demo", "--raw", "--prompt", "There once was a"]);
        command.args(["--max-tokens", "100000000", "--device", "reference"]).args(json).args(PLAN);
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = running.stdout.take().unwrap();
        let mut first = [0; 1];
        if json.is_empty() {
            stdout.read_exact(&mut first).unwrap();
        } else {
            // Nothing is said before the end: long enough for the weights, far from the end.
            std::thread::sleep(std::time::Duration::from_millis(700));
        }
        let interrupt = Command::new("kill").args(["-INT", &running.id().to_string()]).status();
        assert!(interrupt.unwrap().success());
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let output = running.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert!(stderr(&output).ends_with("interrupted\n"), "{}", stderr(&output));
    }
}

#[test]
fn timing_says_where_the_time_went() {
    let (_, rest) = run(&["--prompt", "Hi", "--max-tokens", "3", "--timing"]);
    for part in ["delta_net", "prefill", "load ", "beside them tokenizer"] {
        assert!(rest.contains(part), "{part} in {rest}");
    }
}

#[test]
fn fewer_experts_are_said_to_be_lossy() {
    let (_, rest) = run(&["--prompt", "Hi", "--max-tokens", "3", "--k", "2"]);
    assert!(rest.contains("warning: lossy: 2 experts per token instead of 4"), "{rest}");
    assert!(rest.contains("lossy       2 experts per token instead of 4"), "{rest}");
}

#[test]
fn a_conversation_goes_on_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk");
    let session = ["--session", file.to_str().unwrap(), "--greedy", "--no-think", "--quiet"];
    run(&[&["--prompt", "My name is Nora."], session.as_slice()].concat());
    let (answer, _) = run(&[&["--prompt", "What is my name?"], session.as_slice()].concat());
    assert!(answer.contains("Nora"), "{answer}");
    let raw = ["--raw", "--session", file.to_str().unwrap(), "--greedy", "--max-tokens", "4"];
    fs::remove_file(&file).unwrap();
    run(&[&["--prompt", "There once was a"], raw.as_slice()].concat());
    let (_, rest) = run(&[&["--prompt", " robot"], raw.as_slice()].concat());
    assert!(rest.contains("prefill"), "{rest}");
    fs::write(&file, "{}").unwrap();
    let output =
        flash_moe(&[&["run", "models/demo", "--prompt", "x"], raw.as_slice(), &PLAN].concat());
    assert!(stderr(&output).contains("is not a saved session"), "{}", stderr(&output));
}

#[test]
fn a_session_whose_words_were_changed_is_not_continued() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk");
    let raw = ["--raw", "--session", file.to_str().unwrap(), "--greedy", "--max-tokens", "4"];
    run(&[&["--prompt", "There once was a"], raw.as_slice()].concat());
    let saved = fs::read(&file).unwrap();
    let go_on = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let on = ["run", "models/demo", "--prompt", " and then"];
        flash_moe(&[&on, raw.as_slice(), &PLAN].concat())
    };
    assert!(go_on(&saved).status.success());
    // Every digit of a token and of the checksum itself.
    let words = saved.iter().position(|byte| *byte == b'\n').unwrap();
    let digits: Vec<usize> = (0..words).filter(|at| saved[*at].is_ascii_digit()).collect();
    for at in digits {
        let mut changed = saved.clone();
        changed[at] ^= 1;
        let output = go_on(&changed);
        assert!(!output.status.success(), "byte {at}");
        let said = stderr(&output);
        assert!(said.contains("are not those that were saved"), "byte {at}: {said}");
    }
}

/// Two terminals, one conversation.
#[cfg(unix)]
#[test]
fn a_session_that_was_saved_meanwhile_is_not_written_over() {
    use std::io::Read;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("session");
    let session = ["--session", file.to_str().unwrap(), "--greedy", "--no-think"];
    let session = [&session[..], &["--device", "reference"]].concat();
    run(&[&["--prompt", "My name is Nora."], session.as_slice()].concat());
    let saved = fs::read(&file).unwrap();
    run(&[&["--prompt", "What is my name?"], session.as_slice()].concat());
    let later = home.path().join("later");
    fs::rename(&file, &later).unwrap();
    fs::write(&file, saved).unwrap();
    let mut command = program(home.path());
    command.args(["run", "models/demo", "--prompt", "Write a story about a fox."]).args(PLAN);
    command.args(session);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    running.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &running.id().to_string()]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    let saved = fs::read(&later).unwrap();
    fs::rename(later, &file).unwrap();
    signal("-CONT");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("has saved "), "{}", stderr(&output));
    assert!(fs::read(&file).unwrap() == saved, "the other turn is there");
}

/// The first line of a session: who speaks in it, and how many tokens it has.
fn kept(file: &Path) -> (Vec<String>, usize) {
    let bytes = fs::read(file).unwrap();
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
    let json = line.splitn(2, |byte| *byte == b' ').nth(1).unwrap();
    let kept: serde_json::Value = serde_json::from_slice(json).unwrap();
    let messages = kept["messages"].as_array().unwrap().iter();
    let roles = messages.map(|message| message["role"].as_str().unwrap().to_owned());
    (roles.collect(), kept["tokens"].as_array().unwrap().len())
}

#[test]
fn a_turn_without_an_answer_leaves_the_session_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk");
    let session = ["--session", file.to_str().unwrap(), "--greedy", "--no-think", "--quiet"];
    let nothing = [&["--prompt", "Hello?", "--max-tokens", "0"], session.as_slice()].concat();
    let (_, rest) = run(&nothing);
    assert!(rest.contains("note: nothing was generated"), "{rest}");
    assert!(!file.exists());
    run(&[&["--prompt", "My name is Nora."], session.as_slice()].concat());
    let before = fs::read(&file).unwrap();
    run(&nothing);
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(kept(&file).0, ["user", "assistant"]);
}

#[test]
fn raw_text_after_a_chat_is_no_turn_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk");
    let session = ["--session", file.to_str().unwrap(), "--greedy", "--quiet"];
    let chat = ["--no-think", "--prompt", "My name is Nora."];
    run(&[&chat, session.as_slice()].concat());
    let (roles, tokens) = kept(&file);
    let raw = ["--raw", "--prompt", " And", "--max-tokens", "4"];
    let (_, rest) = run(&[&raw, session.as_slice()].concat());
    let (roles_after, tokens_after) = kept(&file);
    assert_eq!(roles_after, roles);
    assert!(rest.contains("note: raw text is no part of the chat"), "{rest}");
    assert!(tokens_after > tokens, "{tokens_after} after {tokens}");
    let chat = ["--no-think", "--prompt", "What is my name?"];
    let (answer, _) = run(&[&chat, session.as_slice()].concat());
    assert!(answer.contains("Nora"), "{answer}");
    assert_eq!(kept(&file).0, ["user", "assistant", "user", "assistant"]);
}

/// `run --session FILE | head -c 1`
#[test]
fn a_conversation_stays_what_it_was_where_nobody_reads_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk");
    let session = ["--session", file.to_str().unwrap()];
    run(&[&["--prompt", "My name is Nora.", "--max-tokens", "9"], session.as_slice()].concat());
    let before = fs::read(&file).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let args = ["run", "models/demo", "--prompt", "Write a story.", "--no-think"];
    let mut command = program(dir.path());
    let output = command.args(args).args(session).args(PLAN).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = format!("note: the answer was broken off, so {} was not written", file.display());
    assert!(stderr(&output).contains(&said), "{}", stderr(&output));
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn an_answer_that_the_context_cuts_says_so() {
    let args = ["run", "models/demo", "--raw", "--prompt", "There once was", "--quiet"];
    let output = flash_moe(&[&args, &["--memory", "300MB", "--context", "64"][..]].concat());
    let rest = stderr(&output);
    assert!(rest.contains("because the context of 64 tokens is full"), "{rest}");
}

/// What is wrong with flags is said before the weights are read, and stdin is read once.
#[test]
fn what_is_wrong_with_flags_is_said_first() {
    for (wrong, said) in [
        (&["--temperature", "-1"] as &[&str], "temperature"),
        (&["--system", "/nowhere/x"], "/nowhere/x"),
        (&["--stop", ""], "--stop"),
        (&["--no-think", "--think-budget", "3"], "--think-budget"),
        (&["--json-schema", "-", "--system", "-"], "stdin is --system already"),
    ] {
        let args = [&["run", "models/demo", "--kv", "f16", "--prompt", "Hi"], wrong].concat();
        let output = flash_moe(&args);
        assert!(!output.status.success(), "{args:?}");
        let stderr = stderr(&output);
        assert!(stderr.contains(said) && !stderr.contains("lossy"), "{args:?}: {stderr}");
    }
}

/// A file that may not grow stands for a full disk.
#[cfg(target_os = "linux")]
#[test]
fn an_answer_that_cannot_be_kept_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk");
    let args = ["run", "models/demo", "--prompt", "Hi", "--json", "--max-tokens", "3"];
    let session = ["--session", file.to_str().unwrap()];
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_flash-moe"))
        .args([&args, session.as_slice(), &PLAN].concat())
        .current_dir(workspace_dir())
        .env("HOME", dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let named = format!("cannot read or write the session {}", file.display());
    assert!(stderr(&output).contains(&named), "{}", stderr(&output));
    let shown: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(shown["tokens"].as_array().map(Vec::len), Some(3));
}

const CONTROLS: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<think>", "</tool_call>"];

/// How many tokens of the prompt are control tokens.
fn control_tokens(args: &[&str]) -> usize {
    let (output, _) = run(&[&["--json", "--max-tokens", "1"], args].concat());
    let output: serde_json::Value = serde_json::from_str(&output).unwrap();
    let tokens = output["prompt_tokens"].as_array().unwrap().iter();
    let tokenizer = Tokenizer::open(&demo_dir(), None).unwrap();
    let controls = CONTROLS.map(|text| u64::from(tokenizer.token_id(text).unwrap()));
    tokens.filter(|token| controls.contains(&token.as_u64().unwrap())).count()
}

#[test]
fn what_a_conversation_spells_is_no_control_token() {
    let dir = tempfile::tempdir().unwrap();
    let spelled = CONTROLS.concat();
    let plain = control_tokens(&["--prompt", "Hi"]);
    assert!(plain > 2, "the template's own");
    assert_eq!(control_tokens(&["--prompt", &spelled]), plain);
    assert_eq!(control_tokens(&["--raw", "--prompt", &spelled]), CONTROLS.len());

    let turns = |name: &str, text: &str| {
        let (talk, system) = (dir.path().join(name), dir.path().join("system.md"));
        fs::write(&system, text).unwrap();
        let (talk, system) = (talk.to_str().unwrap(), system.to_str().unwrap());
        let first = ["--session", talk, "--system", system, "--prompt", text];
        let second = ["--session", talk, "--prompt", "Hi"];
        [first.as_slice(), &second].map(control_tokens)
    };
    let plain = turns("plain", "Hi");
    assert!(plain[1] > plain[0], "turns before are part of the prompt");
    assert_eq!(turns("spelled", &spelled), plain);
}

#[test]
fn a_model_without_tokenizer_answers_in_tokens() {
    let golden = Golden::open(&golden_dir("qwen3_moe").join("golden.safetensors"));
    let tokens = golden.tokens("tokens");
    let text = |tokens: &[u32]| tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    // Generation ends at the model's end-of-text token, the recording went on.
    let eos = 2;
    let want: Vec<u32> = tokens[24..].iter().copied().take_while(|token| *token != eos).collect();
    let output = flash_moe(&[
        "run",
        "golden/qwen3_moe/hf",
        "--greedy",
        "--prompt-tokens",
        &text(&tokens[..24]),
        "--max-tokens",
        "8",
        "--memory",
        "300MB",
        "--quiet",
    ]);
    assert_eq!(stdout(&output).trim(), text(&want), "{}", stderr(&output));
}

#[test]
fn logits_are_written_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("logits.safetensors");
    let golden = Golden::open(&golden_dir("qwen3_next").join("golden.safetensors"));
    let tokens = golden.tokens("tokens");
    let text: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let output = flash_moe(&[
        "logits",
        "golden/qwen3_next/hf",
        "--prompt-tokens",
        &text.join(","),
        "--out",
        file.to_str().unwrap(),
        "--hidden",
        "2",
        "--memory",
        "300MB",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    check(&file, &golden);
}

#[test]
fn logits_that_fail_leave_the_earlier_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("logits.safetensors");
    fs::write(&file, "earlier").unwrap();
    let unknown = ["--prompt-tokens", "1,4000000000", "--out", file.to_str().unwrap()];
    let args = ["logits", "golden/qwen3_next/hf", "--memory", "300MB"];
    let output = flash_moe(&[args.as_slice(), &unknown].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(fs::read(&file).unwrap(), b"earlier");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn logits_that_are_no_numbers_are_written_and_told_of() {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&golden_dir("qwen3_moe/hf"), dir.path());
    let (path, file) = (dir.path().join("model.safetensors"), dir.path().join("out.safetensors"));
    let tensors = safetensors::read_header(&path, FileIndex(0)).unwrap();
    let embedding = tensors.iter().find(|t| t.name == "model.embed_tokens.weight").unwrap();
    let row = embedding.extent.bytes as usize / embedding.shape[0];
    let mut bytes = fs::read(&path).unwrap();
    bytes[embedding.extent.offset as usize + 5 * row..][..row].fill(0xFF);
    fs::write(&path, bytes).unwrap();
    let (model, out) = (dir.path().to_str().unwrap(), file.to_str().unwrap());
    let output = flash_moe(&["logits", model, "--prompt-tokens", "1,2,5,3", "--out", out]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("row 2: the logit of token 0 is not a number"),
        "{}",
        stderr(&output)
    );
    let written = Golden::open(&file);
    let logits = written.f32("logits").0;
    let vocab = logits.len() / 4;
    assert!(logits[..2 * vocab].iter().all(|logit| logit.is_finite()));
    assert!(logits[2 * vocab..].iter().all(|logit| logit.is_nan()));
}

fn check(file: &Path, golden: &Golden) {
    let written = Golden::open(file);
    let (logits, shape) = written.f32("logits");
    let want = golden.f32("hf_f32.logits");
    assert_eq!(shape, want.1);
    assert!(fm_testkit::compare::max_abs_diff(logits, want.0) < 2e-3);
    let (hidden, shape) = written.f32("hidden");
    assert_eq!(shape, [32, 64]);
    let want = golden.f32("hf_f32.layers.2.out").0;
    assert!(fm_testkit::compare::max_abs_diff(&hidden[..want.len()], want) < 2e-3);
}
