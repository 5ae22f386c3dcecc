//! `serve` from its greeting to its end, and the official clients against it.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
};

use fm_testkit::golden::workspace_dir;

use crate::{flash_moe, stderr};

/// A server that is told to end when its test does.
struct Serving {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Serving {
    fn start(more: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_flash-moe"))
            .args(["serve", "models/demo", "--port", "0", "--memory", "300MB", "--context", "1024"])
            .args(more)
            .current_dir(workspace_dir())
            .env_clear()
            .env("HOME", home.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("ANTHROPIC_BASE_URL") {
            assert!(stderr.read_line(&mut greeting).unwrap() > 0, "{greeting}");
        }
        let (_, rest) = greeting.split_once("http://").unwrap();
        let address = rest.split_whitespace().next().unwrap().to_owned();
        Self { child, stderr, address }
    }

    /// Asks it to end; its exit code, and what it said since the greeting.
    fn end(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let code = self.child.wait().unwrap().code();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (code, said)
    }
}

/// A short answer, with its head.
fn ask(host: &str) -> String {
    let mut stream = TcpStream::connect(host).unwrap();
    let body = r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}"#;
    let length = body.len();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn it_greets_answers_and_ends_on_sigterm() {
    let serving = Serving::start(&["--served-name", "pebble"]);
    let response = ask(&serving.address);
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\"model\":\"pebble\""), "{response}");
    let (code, said) = serving.end();
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let [request, end] = lines.as_slice() else { panic!("{said}") };
    assert!(request.starts_with("/v1/chat/completions prompt="), "{request}");
    assert!(end.starts_with("finishing what is being answered"), "{end}");
}

#[test]
fn a_log_that_nobody_can_hear_stops_nothing() {
    let Serving { mut child, stderr, address } = Serving::start(&[]);
    drop(stderr);
    for _ in 0..2 {
        assert!(ask(&address).starts_with("HTTP/1.1 200"));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_taken_port_and_an_open_door_are_refused_before_the_model_is_read() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = flash_moe(&["serve", "models/nothing", "--port", &port]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.starts_with(&format!("error: cannot listen on 127.0.0.1:{port}: ")), "{said}");
    assert!(said.contains("\nhint: choose another address"), "{said}");

    let open = flash_moe(&["serve", "models/nothing", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(open.status.code(), Some(2));
    insta::assert_snapshot!("open_door", stderr(&open));
    let empty = ["serve", "models/nothing", "--host", "0.0.0.0", "--port", "0", "--api-key", ""];
    assert_eq!(flash_moe(&empty).status.code(), Some(2), "an empty key is none");
}

/// `FLASH_MOE_CLIENTS` is a Python with `tools/clients/requirements.txt`; CI makes one.
#[test]
fn the_official_clients_are_content() {
    let Some(python) = env::var_os("FLASH_MOE_CLIENTS").map(PathBuf::from) else {
        assert!(env::var_os("CI").is_none(), "CI has to set FLASH_MOE_CLIENTS");
        #[allow(clippy::print_stderr)] // the only way to say that nothing was tested
        {
            eprintln!("skipped: FLASH_MOE_CLIENTS is not set");
        }
        return;
    };
    let serving = Serving::start(&["--quiet"]);
    let checked = Command::new(python)
        .arg(workspace_dir().join("tools/clients/check.py"))
        .arg(format!("http://{}", serving.address))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    let (code, _) = serving.end();
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
    assert!(
        said.lines().count() > 20 && said.lines().all(|line| line.starts_with("ok ")),
        "{said}"
    );
    assert_eq!(code, Some(0));
}
