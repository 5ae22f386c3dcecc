//! HTTP with nothing between: what is on the wire is what is compared.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// A response, whole.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The `data` of every event, in order, and its `event` name.
    pub(crate) fn events(&self) -> Vec<(Option<&str>, &str)> {
        let blocks = self.body.split("\n\n").filter(|block| !block.is_empty());
        let events = blocks.map(|block| match block.split_once('\n') {
            Some((name, data)) => (name.strip_prefix("event: "), data),
            None => (None, block),
        });
        events.map(|(name, data)| (name, data.strip_prefix("data: ").unwrap())).collect()
    }

    /// Events that are JSON.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let data = self.events().into_iter().map(|(_, data)| data).filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// A request on its way.
pub(crate) struct Pending(BufReader<TcpStream>);

/// Says this and no more.
pub(crate) fn say(to: SocketAddr, what: &str) -> Pending {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream.write_all(what.as_bytes()).unwrap();
    Pending(BufReader::new(stream))
}

/// Sends a request with the headers given, beside those that have to be.
pub(crate) fn send(to: SocketAddr, line: &str, headers: &[&str], body: &str) -> Pending {
    let host = if headers.iter().any(|header| header.starts_with("host:")) {
        String::new()
    } else {
        format!("host: {to}\r\n")
    };
    let headers = headers.iter().flat_map(|header| [*header, "\r\n"]).collect::<String>();
    let length = body.len();
    say(
        to,
        &format!(
            "{line} HTTP/1.1\r\n{host}connection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        ),
    )
}

impl Pending {
    /// Says more.
    pub(crate) fn more(&mut self, what: &str) {
        self.0.get_mut().write_all(what.as_bytes()).unwrap();
    }

    /// Reads lines until one contains `what`; then the client goes if it is dropped.
    pub(crate) fn until(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "`{what}` did not come");
        }
    }

    /// The next line.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "another line did not come");
        line
    }

    /// What comes after `what` in the next line that has it.
    pub(crate) fn line_after(&mut self, what: &str) -> String {
        loop {
            let line = self.line();
            if let Some((_, rest)) = line.split_once(what) {
                return rest.to_owned();
            }
        }
    }

    /// Everything that comes until the server closes the connection.
    pub(crate) fn rest(mut self) -> String {
        let mut all = String::new();
        self.0.read_to_string(&mut all).unwrap();
        all
    }

    pub(crate) fn response(mut self) -> Response {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "a head without an end: {head}");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.trim_end().to_ascii_lowercase();
        let mut body = String::new();
        // Not everybody closes the connection after a response whose length is known.
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.map_or(u64::MAX, |length| length.trim().parse().unwrap());
        self.0.take(length).read_to_string(&mut body).unwrap();
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(&body) } else { body };
        Response { status, head, body }
    }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    loop {
        let (length, after) = rest.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return body;
        }
        body.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
}

pub(crate) fn post(to: SocketAddr, path: &str, body: &Value) -> Response {
    send(to, &format!("POST {path}"), &[], &body.to_string()).response()
}

pub(crate) fn get(to: SocketAddr, path: &str) -> Response {
    send(to, &format!("GET {path}"), &[], "").response()
}
