//! The page and its feed, as bytes.

use fm_server::Door;
use serde_json::{Value, json};

use crate::{
    client::{get, post, send},
    harness::{Running, start, start_with},
};

/// Events of the feed until `enough`, without their names.
fn watch(server: &Running, headers: &[&str], enough: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut feed = send(server.at, "GET /feed", headers, "");
    let mut events = Vec::new();
    loop {
        let event: Value = serde_json::from_str(&feed.line_after("data: ")).unwrap();
        let done = enough(&event);
        events.push(event);
        if done {
            return events;
        }
    }
}

fn ask(server: &Running, max_tokens: usize) {
    let story = json!({
        "messages": [{"role": "user", "content": "Write a story about a robot who loves music."}],
        "enable_thinking": false, "temperature": 0, "max_tokens": max_tokens,
    });
    assert_eq!(post(server.at, "/v1/chat/completions", &story).status, 200);
}

/// What a map says, a letter for each expert.
fn letters(map: &str, experts: usize) -> Vec<char> {
    let (mut letters, mut count) = (Vec::new(), String::new());
    for letter in map.chars() {
        if letter.is_ascii_digit() {
            count.push(letter);
            continue;
        }
        letters.extend((0..count.parse().unwrap_or(1)).map(|_| letter));
        count.clear();
    }
    letters.resize(experts, '.');
    letters
}

#[test]
fn the_feed_tells_of_the_machine_and_of_what_it_did() {
    let server = start(1);
    let quiet = watch(&server, &[], |event| event.get("ms").is_some());
    let [machine, before] = quiet.as_slice() else { panic!("{quiet:?}") };
    assert_eq!(machine["model"], "demo");
    assert_eq!(machine["budget_bytes"], 300_000_000);
    assert_eq!(machine["limits"]["memory_bytes_per_s"], 2.5e10);
    assert_eq!(machine["holds_everything"], true);
    let metrics = get(server.at, "/metrics").body;
    assert!(metrics.contains("\nflash_moe_memory_limit_bytes_per_second 25000000000\n"));
    assert!(!metrics.contains("disk_limit"), "nobody knows it");
    let experts: u64 =
        machine["experts"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
    let letter_of = |event: &Value| letters(event["map"].as_str().unwrap(), experts as usize);
    assert!(experts > 100 && letter_of(before).iter().all(|letter| *letter == 'a'), "{before}");
    assert!(before["held_bytes"].as_u64().unwrap() > 1_000_000);
    assert_eq!(
        [&before["written"], &before["hits"], &before["texts"]],
        [&json!(0), &json!(0), &json!([])]
    );

    let mut feed = send(server.at, "GET /feed", &[], "");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push_str(&feed.line());
    }
    assert!(head.contains("x-accel-buffering: no\r\n"), "{head}");
    feed.line_after("\"ms\":");
    ask(&server, 12);
    // What was used is told, once.
    let mut used = vec![0; experts as usize];
    loop {
        let event: Value = serde_json::from_str(&feed.line_after("data: ")).unwrap();
        let letters = letter_of(&event);
        for (used, letter) in used.iter_mut().zip(&letters) {
            *used += usize::from("defgh".contains(*letter));
        }
        if event["written"] == 12 && letters.iter().all(|letter| *letter == '.') {
            assert_eq!(event["texts"], json!([]), "nobody is written any more");
            assert!(event["prompt_layers"].as_u64().unwrap() > 10);
            let asked = event["hits"].as_u64().unwrap() + event["misses"].as_u64().unwrap();
            let told: usize = used.iter().sum();
            assert!(told > 20 && told as u64 <= asked, "{told} of {asked}");
            break;
        }
    }
    drop(feed);
    let after = watch(&server, &[], |event| event.get("ms").is_some());
    let resident = letter_of(&after[1]).iter().filter(|letter| **letter == 'b').count();
    let read = used.iter().filter(|used| **used > 0).count();
    assert!(resident >= read && resident > 0, "{resident} resident, {read} read");
}

#[test]
fn who_watches_does_not_keep_the_server_from_ending() {
    let mut server = start(1);
    let mut feed = send(server.at, "GET /feed", &[], "");
    feed.line_after("\"ms\":");
    server.end();
    feed.rest();
}

#[test]
fn only_so_many_watch_and_who_goes_makes_room() {
    let server = start(1);
    let mut feeds: Vec<_> = (0..16).map(|_| send(server.at, "GET /feed", &[], "")).collect();
    feeds.iter_mut().for_each(|feed| drop(feed.line_after("\"ms\":")));
    let refused = get(server.at, "/feed");
    assert_eq!(refused.status, 429);
    assert!(refused.body.contains("16 pages watch this machine already"), "{}", refused.body);
    feeds.clear();
    crate::harness::until(|| {
        let mut feed = send(server.at, "GET /feed", &[], "");
        feed.line().contains("200")
    });
}

#[test]
fn the_page_comes_in_without_a_key_and_its_feed_does_not() {
    let door = Door { key: Some("secret".to_owned()), loopback: true, ..Door::default() };
    let server = start_with(1, None, door);
    let page = get(server.at, "/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html; charset=utf-8"), "{}", page.head);
    let policy =
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';";
    assert!(page.head.contains(policy), "{}", page.head);
    assert_eq!(send(server.at, "GET /", &["host: evil.example"], "").response().status, 403);
    assert_eq!(get(server.at, "/page/nothing").status, 404);
    assert_eq!(get(server.at, "/feed").status, 401);
    let machine = watch(&server, &["authorization: Bearer secret"], |_| true);
    assert_eq!(machine[0]["model"], "demo");
}
