//! How `serve` ends, and how not.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::Command,
    rc::Rc,
};

use crate::serving::{PROGRAM, Serving, ask};

/// A terminal and a supervisor tell of one Ctrl-C each.
#[test]
fn two_signals_at_once_are_one_wish() {
    let serving = Serving::start(&[]);
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let body =
        r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, "stream": true}"#;
    let (host, length) = (&serving.address, body.len());
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
        content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let (mut stream, mut response) = (BufReader::new(stream), String::new());
    while !response.contains("data:") {
        assert!(stream.read_line(&mut response).unwrap() > 0, "{response}");
    }
    serving.signal(&["INT", "TERM", "HUP"]);
    stream.read_to_string(&mut response).unwrap();
    assert!(response.contains("data: [DONE]"), "{response}");
    let (code, said) = serving.ended();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn signals_that_are_ignored_where_it_starts_stay_ignored() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP INT; exec \"$0\" \"$@\"", PROGRAM]);
    let home = Rc::new(tempfile::tempdir().unwrap());
    let serving = Serving::start_by(shell, "models/demo", &home, None, &[]);
    serving.signal(&["HUP", "INT"]);
    assert!(ask(&serving.address).starts_with("HTTP/1.1 200"));
    let (code, said) = serving.end();
    assert_eq!(code, Some(0), "{said}");
}
