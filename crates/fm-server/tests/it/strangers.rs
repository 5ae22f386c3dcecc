//! Pages of other origins, keys, and bodies that are none.

use fm_server::Door;
use serde_json::json;

use crate::{
    client::{say, send},
    harness::{start, start_with},
};

#[test]
fn a_page_elsewhere_gets_nothing_even_where_its_browser_names_no_origin() {
    let origins = vec!["https://app.example".to_owned()];
    let server = start_with(1, None, Door { loopback: true, origins, ..Door::default() });
    let ask = |path: &str, headers: &[&str]| {
        let mut asked = send(server.at, &format!("GET {path}"), headers, "");
        asked.line().split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let listed = "origin: https://app.example";
    for site in ["sec-fetch-site: cross-site", "sec-fetch-site: same-site"] {
        let (quiet, walks) = ("sec-fetch-mode: no-cors", "sec-fetch-mode: navigate");
        for path in ["/feed", "/v1/models", "/metrics", "/health", "/", "/page/main.js"] {
            assert_eq!(ask(path, &[site, quiet]), 403, "{site} {path}");
        }
        assert_eq!(ask("/feed", &[site, walks]), 403);
        assert_eq!(ask("/", &[site, walks]), 200, "a link to the page");
        assert_eq!(ask("/v1/models", &[site, "sec-fetch-mode: cors", listed]), 200);
    }
    for site in ["sec-fetch-site: same-origin", "sec-fetch-site: none"] {
        assert_eq!(ask("/feed", &[site]), 200);
    }
}

#[test]
fn whichever_key_is_right_opens_and_who_has_none_hears_how_to_send_it() {
    let door = Door { key: Some("secret".to_owned()), loopback: true, ..Door::default() };
    let server = start_with(1, None, door);
    let ask = |headers: &[&str]| send(server.at, "GET /v1/models", headers, "").response();
    let (bearer, own) = ("authorization: Bearer secret", "x-api-key: secret");
    for headers in [
        [bearer, "x-api-key: wrong"],
        ["authorization: Bearer wrong", own],
        ["authorization: Basic secret", own],
    ] {
        assert_eq!(ask(&headers).status, 200, "{headers:?}");
    }
    let refused = ask(&["authorization: Bearer wrong", "x-api-key: wrong"]);
    assert_eq!(refused.status, 401);
    assert!(refused.head.contains("\r\nwww-authenticate: bearer"), "{}", refused.head);
}

#[test]
fn a_body_comes_as_it_is_and_whole() {
    let server = start(1);
    let body = json!({"content": "hi"}).to_string();
    let zipped = |coding: &str| {
        let coding = format!("content-encoding: {coding}");
        send(server.at, "POST /tokenize", &[&coding], &body).response()
    };
    assert_eq!(zipped("gzip").status, 415);
    assert_eq!(zipped("Identity").status, 200);
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let chunked = "transfer-encoding: chunked\r\n";
    let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let status = |said: String| say(server.at, &said).response().status;
    assert_eq!(status(format!("{head}{chunked}\r\n{chunk}")), 200);
    let broken = say(server.at, &format!("{head}{chunked}\r\nxyz\r\n{{")).response();
    assert_eq!(broken.status, 400, "{}", broken.body);
}
