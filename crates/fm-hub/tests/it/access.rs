//! Who is let in, and who hears the token.

use std::ops::ControlFlow;

use fm_hub::{Client, HubError, ModelName, Options, Repository};
use fm_testkit::hub::{Fault, SIGNATURE};

use crate::{WEIGHTS, World, site, with_faults};

const TOKEN: &str = "hf_abcdefghijklmnop";

#[test]
fn the_token_opens_the_hub_and_is_not_given_to_the_cdn() {
    let mut site = site();
    site.token = Some(TOKEN.to_owned());
    let world = World::of(site, Some(TOKEN));
    world.pull().unwrap();
    let requests = world.hub.take_requests();
    assert!(requests.iter().any(|request| request.cdn), "{requests:?}");
    for request in requests {
        let expected = (!request.cdn).then(|| format!("Bearer {TOKEN}"));
        assert_eq!(request.authorization, expected, "{request:?}");
    }
}

#[test]
fn who_is_not_let_in_is_told_why() {
    let cases =
        [(401, ""), (403, ""), (403, "GatedRepo"), (401, "RepoNotFound"), (404, "RepoNotFound")];
    for (status, code) in cases {
        let mut site = site();
        site.refusal = Some((status, code));
        let world = World::of(site, Some(TOKEN));
        let error = world.list().unwrap_err();
        let fits = match &error {
            HubError::Denied { status: found, token: true, .. } => {
                code.is_empty() && *found == status
            }
            HubError::Gated { page, .. } => code == "GatedRepo" && page.ends_with("/pebble/demo"),
            HubError::NotFound { .. } => code == "RepoNotFound",
            _ => false,
        };
        assert!(fits, "{status} {code}: {error}");
        assert!(!format!("{error} {error:?}").contains(TOKEN));
        assert_eq!(world.hub.take_requests().len(), 1, "nobody knocks twice");
    }
}

#[test]
fn an_error_of_the_cdn_shows_no_signature() {
    let world = World::of(with_faults(WEIGHTS, [Fault::Status(403, "")]), None);
    let error = world.pull().unwrap_err();
    assert!(matches!(error, HubError::Denied { status: 403, .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains(SIGNATURE));
}

#[test]
fn who_gives_up_while_waiting_asks_no_more() {
    let faults = [Fault::Status(503, ""), Fault::Status(503, "")];
    let mut world = World::of(with_faults(WEIGHTS, faults), None);
    let pause = Box::new(|_| ControlFlow::Break(()));
    let options = Options { endpoint: world.hub.endpoint(), token: None, pause };
    world.client = Client::new(options).unwrap();
    assert!(matches!(world.pull().unwrap_err(), HubError::Cancelled));
    assert_eq!(world.ranges_of(WEIGHTS).len(), 1);
}

#[test]
fn nobody_at_the_address_is_said_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let pause = Box::new(|_| panic!("nobody waits for a hub that never answered"));
    let client = Client::new(Options { endpoint: endpoint.clone(), token: None, pause }).unwrap();
    let name: ModelName = "a/b".parse().unwrap();
    let error = Repository::open(&client, &name.id, "main").unwrap_err();
    assert!(matches!(&error, HubError::Connect { host, .. } if *host == endpoint), "{error}");
}

#[test]
fn an_address_without_a_scheme_is_refused() {
    for endpoint in ["huggingface.co", "ftp://huggingface.co", "", "http://"] {
        let pause = Box::new(|_| ControlFlow::Continue(()));
        let options = Options { endpoint: endpoint.to_owned(), token: None, pause };
        let error = Client::new(options).unwrap_err();
        assert!(matches!(error, HubError::Endpoint { .. }), "{endpoint}: {error}");
    }
}
