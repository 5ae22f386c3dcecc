//! Who may come in: a key, the names this server goes by, and pages of its own origin only.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;

use crate::{page, problem::Problem};

/// Letters of a name in what is said of it.
const NAME_SHOWN: usize = 80;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Door {
    /// The key, if one is required.
    pub key: Option<String>,
    /// Whether only this machine can reach the server.
    pub loopback: bool,
    /// Names that the server goes by beside those of this machine.
    pub hosts: Vec<String>,
    /// Origins whose pages may come in, beside its own: `https://name:port`.
    pub origins: Vec<String>,
}

impl Door {
    /// Lets a request for this path in or says why not.
    pub(crate) fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let host = text(headers, header::HOST.as_str());
        // A page somewhere may give its own name this machine's address: the name tells.
        let ours = host.is_none_or(|host| {
            let name = name_of(host);
            is_local(name) || self.hosts.iter().any(|own| is_named(own, name))
        });
        let shown =
            |name: Option<&str>| name.unwrap_or_default().chars().take(NAME_SHOWN).collect();
        if self.loopback && !ours {
            return Err(Problem::ForeignHost { host: shown(host) });
        }
        if let Some(origin) = text(headers, header::ORIGIN.as_str()) {
            let own = origin.split_once("://").map(|(_, rest)| rest);
            if (own.is_none() || own != host) && !self.admits(origin) {
                let origin = shown(Some(origin));
                return Err(Problem::ForeignOrigin { origin, host: shown(host) });
            }
        } else if is_fetched_elsewhere(headers) && !(page::has(path) && is_walk(headers)) {
            return Err(Problem::Foreign);
        }
        let Some(key) = &self.key else { return Ok(()) };
        let bearer = text(headers, header::AUTHORIZATION.as_str());
        let bearer = bearer.and_then(|value| value.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let bearer = bearer.map(|(_, key)| key.trim());
        // Clients send either, and some send both: one of them has to be right, and which one takes no time.
        let given = [bearer, text(headers, "x-api-key")].map(Option::unwrap_or_default);
        let [bearer, own] = given.map(|given| given.as_bytes().ct_eq(key.as_bytes()));
        // An empty key is nobody's.
        if bool::from(bearer | own) && !key.is_empty() { Ok(()) } else { Err(Problem::Key) }
    }
}

impl Door {
    /// Whether pages of this origin were listed.
    pub(crate) fn admits(&self, origin: &str) -> bool {
        self.origins.iter().any(|own| own.eq_ignore_ascii_case(origin))
    }
}

/// Whose request it is: who is connected, or, if that is a proxy on this machine, whom it names last. What a client
/// writes itself stands before that.
pub(crate) fn client(peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let named = headers.get_all("x-forwarded-for").iter().next_back();
    let named =
        named.and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok());
    named.filter(|_| peer.to_canonical().is_loopback()).unwrap_or(peer)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // What is no text is no name and no key.
    headers.get(name).map(|value| value.to_str().unwrap_or("\u{FFFD}"))
}

/// Whether a browser says that a page of another origin wants it: what is fetched without being read, as an image
/// or a script is, names no origin.
fn is_fetched_elsewhere(headers: &HeaderMap) -> bool {
    matches!(text(headers, "sec-fetch-site"), Some("cross-site" | "same-site"))
}

/// Whether somebody follows a link.
fn is_walk(headers: &HeaderMap) -> bool {
    text(headers, "sec-fetch-mode") == Some("navigate")
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Whether a name of the list, with a port or without, is this one.
fn is_named(own: &str, name: &str) -> bool {
    own.eq_ignore_ascii_case(name) || name_of(own).eq_ignore_ascii_case(name)
}

fn is_local(name: &str) -> bool {
    let address: Option<IpAddr> = name.parse().ok();
    name.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_name_of_this_machine_and_a_page_of_its_own() {
        let door = Door { loopback: true, ..Door::default() };
        let may = |list: &[(&'static str, &str)]| door.check("/v1/models", &headers(list)).is_ok();
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "127.0.0.2"] {
            assert!(may(&[("host", host)]), "{host}");
        }
        for host in ["evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1:8080", ""] {
            assert!(!may(&[("host", host)]), "{host}");
        }
        assert!(may(&[("host", "localhost:8080"), ("origin", "http://localhost:8080")]));
        for origin in ["http://evil.example", "null", "http://localhost:9"] {
            assert!(!may(&[("host", "localhost:8080"), ("origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn a_proxy_of_this_machine_says_whose_a_request_is() {
        let whose = |peer: &str, list: &[(&'static str, &str)]| {
            client(peer.parse().unwrap(), &headers(list)).to_string()
        };
        let own = [("x-forwarded-for", "9.9.9.9, 10.0.0.7")];
        assert_eq!(
            whose("127.0.0.1", &own),
            "10.0.0.7",
            "what came before the proxy is anybody's word"
        );
        assert_eq!(whose("::ffff:127.0.0.1", &own), "10.0.0.7");
        assert_eq!(whose("10.0.0.9", &own), "10.0.0.9", "who is no proxy");
        assert_eq!(whose("127.0.0.1", &[("x-forwarded-for", "unknown")]), "127.0.0.1");
        assert_eq!(whose("127.0.0.1", &[]), "127.0.0.1");
    }

    #[test]
    fn who_is_turned_away_is_told_which_flag_would_let_him_in() {
        let door = Door { loopback: true, ..Door::default() };
        let why = |list: &[(&'static str, &str)]| {
            door.check("/", &headers(list)).unwrap_err().to_string()
        };
        assert!(why(&[("host", "up")]).contains("--allow-host up"));
        let page = why(&[("host", "localhost:80"), ("origin", "https://chat.example")]);
        assert!(
            page.contains("`localhost:80`") && page.contains("--allow-origin https://chat.example")
        );
    }

    #[test]
    fn a_name_that_is_listed_counts_without_its_port() {
        let hosts = ["box:80", "fe80::1", "[fd00::1]:80"].map(str::to_owned).to_vec();
        let door = Door { loopback: true, hosts, ..Door::default() };
        for host in ["box", "BOX:8080", "[fe80::1]:80", "[fd00::1]"] {
            assert!(door.check("/v1/models", &headers(&[("host", host)])).is_ok(), "{host}");
        }
        assert!(door.check("/v1/models", &headers(&[("host", "box2:80")])).is_err());
    }

    #[test]
    fn the_key_of_either_interface() {
        let door = Door { key: Some("secret".to_owned()), ..Door::default() };
        let may = |list: &[(&'static str, &str)]| door.check("/v1/models", &headers(list)).is_ok();
        assert!(may(&[("host", "box:80"), ("authorization", "Bearer secret")]));
        assert!(may(&[("x-api-key", "secret")]));
        for key in ["secre", "secret2", "Secret", ""] {
            assert!(!may(&[("x-api-key", key)]), "{key}");
        }
        assert!(!may(&[]));
        assert!(!may(&[("authorization", "secret")]));
        let nobody = Door { key: Some(String::new()), ..Door::default() };
        assert!(nobody.check("/v1/models", &headers(&[])).is_err(), "an empty key opens nothing");
    }
}
