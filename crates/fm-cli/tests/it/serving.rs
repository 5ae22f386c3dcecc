//! A server that a test has started, and its end.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    rc::Rc,
};

use fm_testkit::golden::workspace_dir;
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_flash-moe");

/// A process that ends when its test does, however that ends.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, which says that it is ready.
pub(crate) struct Serving {
    pub(crate) child: Process,
    pub(crate) stderr: BufReader<ChildStderr>,
    pub(crate) address: String,
    /// What it said before it was ready.
    pub(crate) greeting: String,
    pub(crate) home: Rc<TempDir>,
}

impl Serving {
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_at(&Rc::new(tempfile::tempdir().unwrap()), more)
    }

    /// One that finds what another one has left.
    pub(crate) fn start_at(home: &Rc<TempDir>, more: &[&str]) -> Self {
        Self::start_in(home, None, more)
    }

    /// One of another model.
    pub(crate) fn start_with(model: &str, more: &[&str]) -> Self {
        Self::start_of(model, &Rc::new(tempfile::tempdir().unwrap()), None, more)
    }

    /// One whose user has a directory for settings that is not the usual one.
    pub(crate) fn start_in(home: &Rc<TempDir>, settings: Option<&Path>, more: &[&str]) -> Self {
        Self::start_of("models/demo", home, settings, more)
    }

    fn start_of(model: &str, home: &Rc<TempDir>, settings: Option<&Path>, more: &[&str]) -> Self {
        Self::start_by(Command::new(PROGRAM), model, home, settings, more)
    }

    /// One that a command starts which ends with the program's name.
    pub(crate) fn start_by(
        mut command: Command,
        model: &str,
        home: &Rc<TempDir>,
        settings: Option<&Path>,
        more: &[&str],
    ) -> Self {
        let mut child = command
            .args(["serve", model, "--port", "0", "--memory", "300MB", "--context", "1024"])
            .args(more)
            .current_dir(workspace_dir())
            .env_clear()
            .env("HOME", home.path())
            .envs(settings.map(|dir| ("XDG_CONFIG_HOME", dir)))
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
        Self { child: Process(child), stderr, address, greeting, home: Rc::clone(home) }
    }

    /// Kills it: it has no time for anything.
    pub(crate) fn kill(mut self) -> Rc<TempDir> {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
        self.home
    }

    /// Sends it signals, one right behind the other.
    pub(crate) fn signal(&self, names: &[&str]) {
        let id = self.child.0.id();
        let kills: Vec<String> = names.iter().map(|name| format!("kill -{name} {id}")).collect();
        let shell = Command::new("sh").args(["-c", &kills.join(" && ")]).status();
        assert!(shell.unwrap().success());
    }

    /// Asks it to end; its exit code, and what it said since the greeting.
    pub(crate) fn end(self) -> (Option<i32>, String) {
        self.signal(&["TERM"]);
        self.ended()
    }

    /// Waits for its end; the same.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let code = self.child.0.wait().unwrap().code();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (code, said)
    }
}

/// A short answer, with its head.
pub(crate) fn ask(host: &str) -> String {
    let body = r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}"#;
    send(host, "POST /v1/chat/completions", body)
}

pub(crate) fn send(host: &str, what: &str, body: &str) -> String {
    send_with(host, what, &[&format!("host: {host}")], body)
}

pub(crate) fn send_with(host: &str, what: &str, headers: &[&str], body: &str) -> String {
    let headers = headers.join("\r\n");
    let mut stream = TcpStream::connect(host).unwrap();
    let length = body.len();
    write!(
        stream,
        "{what} HTTP/1.1\r\n{headers}\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}
