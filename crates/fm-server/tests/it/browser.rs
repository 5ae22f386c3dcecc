//! A browser without a screen, driven over `WebDriver`: JSON over HTTP, so nothing more is needed.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::client::send;

/// Where a page may wait for something that has to happen: a bound, so that a mistake is a red test.
const TRIES: usize = 700;

/// Enter, as `WebDriver` spells keys.
pub(crate) const ENTER: char = '\u{E007}';
pub(crate) const ESCAPE: char = '\u{E00C}';
pub(crate) const SHIFT: char = '\u{E008}';
pub(crate) const UP: char = '\u{E013}';

/// See the module. It ends with its test.
pub(crate) struct Browser {
    driver: Child,
    at: SocketAddr,
    session: String,
}

/// Starts of a driver: it picks a free port, which somebody else may have taken when it listens.
const STARTS: usize = 5;

/// A driver that listens, and where; nothing where none is installed, and in CI there has to be one.
fn driver() -> Option<(Child, u16)> {
    for _ in 0..STARTS {
        let spawned = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut driver) = spawned else {
            assert!(env::var_os("CI").is_none(), "CI has to install chromium and chromium-driver");
            #[allow(clippy::print_stderr)] // the only way to say that nothing was tested
            {
                eprintln!("skipped: there is no chromedriver (Debian: chromium-driver)");
            }
            return None;
        };
        let mut said = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = said.find_map(|line| {
            let line = line.unwrap();
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
        });
        if let Some(port) = port {
            // What it says later is nobody's concern, but it must be able to say it.
            thread::spawn(move || said.for_each(drop));
            return Some((driver, port));
        }
        driver.wait().unwrap();
    }
    panic!("chromedriver found no port in {STARTS} starts");
}

/// A browser, or nothing where none is installed.
pub(crate) fn browser() -> Option<Browser> {
    let (driver, port) = driver()?;
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let mut browser = Browser { driver, at, session: String::new() };
    let flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--window-size=1280,800",
    ];
    let always = json!({"goog:chromeOptions": {"args": flags}});
    let made = browser.call("POST", "/session", &json!({"capabilities": {"alwaysMatch": always}}));
    browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
    Some(browser)
}

impl Browser {
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let (line, json) = (format!("{method} {path}"), ["content-type: application/json"]);
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let response = send(self.at, &line, &json, &body).response();
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        response.json()["value"].take()
    }

    fn of_session(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    /// Opens the page of a server.
    pub(crate) fn open(&self, server: SocketAddr) {
        self.of_session("/url", &json!({"url": format!("http://{server}/")}));
    }

    /// What a script returns; one that returns a promise is waited for.
    pub(crate) fn run(&self, script: &str) -> Value {
        let answer = self.of_session("/execute/sync", &json!({"script": script, "args": []}));
        assert!(answer.get("error").is_none(), "{answer}");
        answer
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&self, expression: &str) {
        for _ in 0..TRIES {
            if self.run(&format!("return Boolean({expression})")) == true {
                return;
            }
            thread::park_timeout(Duration::from_millis(20));
        }
        let page = self.run("return document.body.innerText");
        panic!("`{expression}` did not become true; the page says {page}");
    }

    /// What is to be read in an element.
    pub(crate) fn text(&self, selector: &str) -> String {
        let text = self.run(&format!("return document.querySelector({selector:?})?.innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn click(&self, selector: &str) {
        self.run(&format!("document.querySelector({selector:?}).click()"));
    }

    /// Presses keys, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let element = self.call("GET", &format!("{}/element/active", self.session), &json!({}));
        let id = element.as_object().unwrap().values().next().unwrap().as_str().unwrap();
        self.of_session(&format!("/element/{id}/value"), &json!({"text": keys}));
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        // A window has a least width; a screen has none.
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics});
        self.of_session("/goog/cdp/execute", &command);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser is the driver's child: it goes when its session does.
        let line = format!("DELETE {}", self.session);
        if !self.session.is_empty() {
            send(self.at, &line, &[], "").response();
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Jobs that a page has asked for, and a test answers.
pub(crate) type Jobs = Arc<Mutex<Vec<fm_engine::schedule::Job>>>;
