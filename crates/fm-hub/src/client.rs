//! Requests to a hub: redirects, retries, and where the token may go.

use std::{
    fmt,
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::{
    Agent, Body,
    http::{Response, Uri, header},
};

use crate::{error::HubError, name::RepoId};

/// How often something is asked for that fails for a reason that may pass.
pub(crate) const ATTEMPTS: u32 = 5;
/// Most addresses one answer may lead through.
const REDIRECTS_MAX: usize = 8;
/// Longest wait that a server can ask for.
const PAUSE_MAX: Duration = Duration::from_mins(5);
/// A connection that is silent for longer is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest list of files, or other JSON, that is read.
const JSON_BYTES_MAX: u64 = 64 << 20;

/// What stays as it is in a part of an address.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A secret: it shows itself nowhere.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The token in a text, if there is one; space around it is not part of it.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        // What cannot stand in a header is no token.
        let sendable = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        sendable.then(|| Self(text.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How a hub is reached.
pub struct Options {
    /// Its address: `https://huggingface.co` or that of a mirror.
    pub endpoint: String,
    /// Who asks.
    pub token: Option<Token>,
    /// Waits before something is tried again. Ends early if the user gives up.
    pub pause: Box<dyn Fn(Duration) -> ControlFlow<()> + Send + Sync>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// A connection to a hub. Threads share it.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    options: Options,
    origin: Origin,
    /// Whether it has ever answered: somebody who never has is not waited for.
    reached: AtomicBool,
}

impl Client {
    /// Prepares requests; nothing is sent yet.
    ///
    /// # Errors
    /// If the endpoint is no address.
    pub fn new(mut options: Options) -> Result<Self, HubError> {
        options.endpoint.truncate(options.endpoint.trim_end_matches('/').len());
        let endpoint = &options.endpoint;
        let origin = Origin::of(endpoint)
            .ok_or_else(|| HubError::Endpoint { endpoint: endpoint.clone() })?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, where it is known who may see the token.
            .max_redirects(0)
            .user_agent(concat!("flash-moe/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(SILENCE_MAX))
            .timeout_recv_response(Some(SILENCE_MAX))
            .timeout_per_read(Some(SILENCE_MAX));
        if origin.is_loopback() {
            // No proxy knows this machine's own addresses.
            config = config.proxy(None);
        }
        let agent = Agent::new_with_config(config.build());
        Ok(Self { agent, options, origin, reached: AtomicBool::new(false) })
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        &self.options.endpoint
    }

    /// The address of what the hub says of a repository.
    pub(crate) fn listing_url(&self, id: &RepoId, revision: &str) -> String {
        let revision = utf8_percent_encode(revision, PLAIN);
        format!("{}/api/models/{id}/revision/{revision}?blobs=true", self.endpoint())
    }

    /// The address of a file.
    pub(crate) fn file_url(&self, id: &RepoId, commit: &str, file: &str) -> String {
        let parts: Vec<String> =
            file.split('/').map(|part| utf8_percent_encode(part, PLAIN).to_string()).collect();
        format!("{}/{id}/resolve/{commit}/{}", self.endpoint(), parts.join("/"))
    }

    /// Asks for JSON of the hub.
    pub(crate) fn json(&self, id: &RepoId, url: &str) -> Result<serde_json::Value, HubError> {
        let body = self.get(id, url, None)?.into_body();
        let read = body.into_with_config().limit(JSON_BYTES_MAX).read_to_vec();
        let text = read.map_err(|source| connect(url, source))?;
        serde_json::from_slice(&text)
            .map_err(|source| HubError::Listing { url: without_query(url), source })
    }

    /// Asks for a file, or its bytes in a range. The answer is 200, 206 or 416.
    pub(crate) fn get(
        &self,
        id: &RepoId,
        url: &str,
        range: Option<Range>,
    ) -> Result<Response<Body>, HubError> {
        let mut attempt = 1;
        loop {
            let (error, pause) = match self.follow(url, range) {
                Ok(answer) => match refusal(id, url, &answer, self) {
                    None => return Ok(answer),
                    Some(error) if is_passing(answer.status().as_u16()) => {
                        (error, asked_pause(&answer).unwrap_or_else(|| backoff(attempt)))
                    }
                    Some(error) => return Err(error),
                },
                Err(error @ HubError::Connect { .. }) if self.reached.load(Ordering::Relaxed) => {
                    (error, backoff(attempt))
                }
                Err(error) => return Err(error),
            };
            if attempt == ATTEMPTS {
                return Err(error);
            }
            self.pause(pause)?;
            attempt += 1;
        }
    }

    /// Waits before another attempt, unless there is to be none.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), HubError> {
        match (self.options.pause)(time.min(PAUSE_MAX)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(HubError::Cancelled),
        }
    }

    fn follow(&self, url: &str, range: Option<Range>) -> Result<Response<Body>, HubError> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS_MAX {
            let answer = self.send(&url, range)?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let location = answer.headers().get(header::LOCATION).and_then(|l| l.to_str().ok());
            let next = location.and_then(|location| absolute(&url, location));
            let Some(next) = next else {
                return Err(HubError::Redirect { url: without_query(&url) });
            };
            url = next;
        }
        Err(HubError::Redirect { url: without_query(&url) })
    }

    /// One request. The token goes to the hub's own scheme, host and port and nowhere else.
    fn send(&self, url: &str, range: Option<Range>) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(url);
        if let Some(Token(token)) = &self.options.token
            && Origin::of(url).as_ref() == Some(&self.origin)
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(range) = range {
            request = request.header(header::RANGE, range.header());
        }
        let answer = request.call().map_err(|source| connect(url, source))?;
        self.reached.store(true, Ordering::Relaxed);
        Ok(answer)
    }
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    /// How many; all that follow if `None`.
    pub(crate) bytes: Option<u64>,
}

impl Range {
    fn header(self) -> String {
        match self.bytes {
            Some(bytes) => format!("bytes={}-{}", self.offset, self.offset + bytes - 1),
            None => format!("bytes={}-", self.offset),
        }
    }

    /// Whether an answer begins where this range does: 206 with the offset, or all from 0 on.
    pub(crate) fn is_answered_by(self, answer: &Response<Body>) -> bool {
        if answer.status() != 206 {
            return answer.status() == 200 && self.offset == 0;
        }
        let text =
            answer.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let begin = text.and_then(|text| text.strip_prefix("bytes ")?.split('-').next());
        begin.and_then(|begin| begin.parse().ok()) == Some(self.offset)
    }
}

/// What is wrong with an answer, if anything is.
fn refusal(id: &RepoId, url: &str, answer: &Response<Body>, client: &Client) -> Option<HubError> {
    let url = without_query(url);
    let token = client.options.token.is_some();
    let code = answer.headers().get("x-error-code").and_then(|code| code.to_str().ok());
    Some(match (answer.status().as_u16(), code.unwrap_or_default()) {
        (200 | 206 | 416, _) => return None,
        (401 | 403, "GatedRepo") => {
            HubError::Gated { id: id.clone(), token, page: format!("{}/{id}", client.endpoint()) }
        }
        (404, "RevisionNotFound") => HubError::Revision { url },
        // To strangers the hub does not say whether a repository exists.
        (404, _) | (401, "RepoNotFound") => HubError::NotFound { url },
        (status @ (401 | 403), _) => HubError::Denied { url, status, token },
        (status, _) => HubError::Status { url, status },
    })
}

/// Whether the same request may succeed later.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

fn asked_pause(answer: &Response<Body>) -> Option<Duration> {
    let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// 1, 2, 4, 8 seconds.
pub(crate) fn backoff(attempt: u32) -> Duration {
    Duration::from_secs(1 << (attempt - 1).min(6))
}

fn connect(url: &str, source: ureq::Error) -> HubError {
    let host = Origin::of(url).map_or_else(|| without_query(url), |origin| origin.to_string());
    HubError::Connect { host, source: Box::new(source) }
}

/// An address as it may be shown: queries of redirects are signatures.
fn without_query(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// Where a redirect leads to. Never from https to http.
fn absolute(from: &str, location: &str) -> Option<String> {
    let origin = Origin::of(from)?;
    let to = if location.starts_with("//") {
        format!("{}:{location}", origin.scheme)
    } else if location.starts_with('/') {
        format!("{origin}{location}")
    } else {
        location.to_owned()
    };
    let downgrade = origin.scheme == "https" && Origin::of(&to)?.scheme != "https";
    (!downgrade).then_some(to)
}

/// Whom an address belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let (host, port) = (uri.host()?.to_ascii_lowercase(), uri.port_u16().unwrap_or(port));
        Some(Self { scheme, host, port })
    }

    fn is_loopback(&self) -> bool {
        let address = self.host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = matches!((self.scheme.as_str(), self.port), ("https", 443) | ("http", 80));
        write!(f, "{}://{}", self.scheme, self.host)?;
        if usual { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_browsers_go_but_never_out_of_https() {
        let from = "https://hub.example/a/b?c";
        let to = |location| absolute(from, location);
        assert_eq!(to("/d?e").as_deref(), Some("https://hub.example/d?e"));
        assert_eq!(to("//cdn.example/d").as_deref(), Some("https://cdn.example/d"));
        assert_eq!(to("https://x:8443/d").as_deref(), Some("https://x:8443/d"));
        for wrong in ["http://hub.example/a", "ftp://hub.example/a", "d", "file:///etc/passwd"] {
            assert_eq!(to(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn secrets_show_themselves_nowhere() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(format!("{token:?}"), "Token(…)");
        let pause = Box::new(|_| ControlFlow::Continue(()));
        let options = Options { endpoint: "https://x".to_owned(), token: Some(token), pause };
        let client = Client::new(options).unwrap();
        assert!(!format!("{client:?}").contains("secret"));
        assert_eq!(without_query("https://cdn/x?Signature=1#2"), "https://cdn/x");
        assert!(Token::new(" \n").is_none() && Token::new("a\r\nb: c").is_none());
    }

    #[test]
    fn another_port_or_scheme_is_another_origin() {
        let origin = |url| Origin::of(url).unwrap();
        assert_eq!(origin("https://HUB.example/a"), origin("https://hub.example:443/b"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("https://hub.example"), origin("https://hub.example:444"));
        assert_ne!(origin("https://hub.example"), origin("https://cdn.hub.example"));
        assert!(
            origin("http://[::1]:80/x").is_loopback() && origin("http://127.0.0.1").is_loopback()
        );
    }
}
