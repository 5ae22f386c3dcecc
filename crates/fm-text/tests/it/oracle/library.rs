//! What the library `tokenizers` says, recorded: hashes of its answers to the questions of these tests.
//!
//! Building it took the tests longer than asking it. With `FLASH_MOE_TOKENIZERS` set to a Python that has it
//! (`tools/golden/requirements.txt`), they do ask it, show where ours differs, and record what it says.

use std::{
    collections::BTreeMap,
    env, fs,
    fs::File,
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

/// How a text becomes ids.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// Control tokens are found in it.
    Parse,
    /// They are text.
    AsText,
    /// With what stands around a text.
    Framed,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Parse => "parse",
            Way::AsText => "as_text",
            Way::Framed => "framed",
        }
    }
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/oracle").join(name)
}

/// The library's answer, if there is one to ask.
fn ask(question: &Value) -> Option<Value> {
    let python = env::var_os("FLASH_MOE_TOKENIZERS")?;
    let script = here("../../../../tools/golden/library_ids.py");
    let mut asked = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    asked.stdin.take().unwrap().write_all(question.to_string().as_bytes()).unwrap();
    let answer = asked.wait_with_output().unwrap();
    assert!(answer.status.success(), "the library has no answer");
    Some(serde_json::from_slice(&answer.stdout).unwrap())
}

/// Asserts that `ours` are the ids that the library makes of `texts`, by `tokenizer.json`.
pub(crate) fn check(json: &Value, way: Way, texts: &[String], ours: &[Vec<u32>]) {
    let question = json!({"tokenizer": json, "way": way.name(), "texts": texts});
    if let Some(theirs) = ask(&question) {
        let theirs: Vec<Vec<u32>> = serde_json::from_value(theirs).unwrap();
        report(json, way, texts, ours, &theirs);
    }
    let hash = |value: &Value| format!("{:032x}", xxh3_128(value.to_string().as_bytes()));
    let (question, answer) = (hash(&question), hash(&json!(ours)));
    match recorded(&question, &answer) {
        Some(theirs) => assert_eq!(
            answer, theirs,
            "ids, {way:?}, are not the library's; FLASH_MOE_TOKENIZERS shows where"
        ),
        None => panic!("{question}, {way:?}, is not recorded; FLASH_MOE_TOKENIZERS records it"),
    }
}

/// Shows where the ids of both differ, and fails if they do.
fn report(json: &Value, way: Way, texts: &[String], ours: &[Vec<u32>], theirs: &[Vec<u32>]) {
    assert_eq!(ours.len(), theirs.len());
    let mut names: BTreeMap<u64, &str> = BTreeMap::new();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    names.extend(vocab.iter().map(|(text, id)| (id.as_u64().unwrap(), text.as_str())));
    let added = json["added_tokens"].as_array().unwrap();
    names.extend(
        added
            .iter()
            .map(|token| (token["id"].as_u64().unwrap(), token["content"].as_str().unwrap())),
    );
    let differ =
        texts.iter().zip(ours.iter().zip(theirs)).filter(|(_, (ours, theirs))| ours != theirs);
    let differ: Vec<_> = differ.collect();
    let lines: Vec<String> = differ
        .iter()
        .take(3)
        .map(|(text, (ours, theirs))| {
            let at = ours.iter().zip(*theirs).take_while(|(a, b)| a == b).count();
            let tokens = |ids: &[u32]| {
                let ids = ids.iter().skip(at.saturating_sub(2)).take(6);
                ids.map(|&id| names.get(&id.into()).copied()).collect::<Vec<_>>()
            };
            format!("{text:?}\n  ours   {:?}\n  theirs {:?}\n", tokens(ours), tokens(theirs))
        })
        .collect();
    assert!(
        differ.is_empty(),
        "{} of {} texts differ, {way:?}\n{}",
        differ.len(),
        texts.len(),
        lines.concat()
    );
}

/// What is recorded of a question. Where the library was asked, `answer` is its own, and is recorded first.
fn recorded(question: &str, answer: &str) -> Option<String> {
    let records = env::var_os("FLASH_MOE_TOKENIZERS").is_some();
    let mut file = File::options().read(true).write(records).open(here("ids.txt")).unwrap();
    if records {
        // Tests are processes of their own, side by side.
        file.lock().unwrap();
    }
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let mut answers: BTreeMap<&str, &str> =
        text.lines().map(|line| line.rsplit_once(' ').unwrap()).collect();
    if records {
        answers.insert(question, answer);
        file.rewind().unwrap();
        file.set_len(0).unwrap();
        for (question, answer) in &answers {
            writeln!(file, "{question} {answer}").unwrap();
        }
    }
    answers.get(question).map(|&answer| answer.to_owned())
}

/// A byte-level tokenizer of 2000 tokens that the library learned from `texts`.
pub(crate) fn learned(texts: &[String]) -> Value {
    let question = json!({"learn": texts, "words": 2000, "letters_max": 24});
    let path = here("learned.json");
    let Some(answer) = ask(&question) else {
        return serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    };
    fs::write(path, answer.to_string()).unwrap();
    answer
}
