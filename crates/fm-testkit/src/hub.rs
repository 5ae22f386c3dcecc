//! A hub and its CDN on two ports of this machine: what the real ones answer, and what they answer
//! when something is wrong.
//!
//! ```text
//! GET /api/models/ORG/NAME/revision/R?blobs=true    the list of files
//! GET /ORG/NAME/resolve/COMMIT/FILE                 large: 302 to the CDN, signed; small: 307
//! GET /api/resolve-cache/models/ORG/NAME/COMMIT/FILE   where the 307 leads
//! ```
//!
//! Source: answers of huggingface.co in 2025, with the headers that clients look at.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};

/// The only repository there is.
pub const REPO: &str = "pebble/demo";
/// Its only commit.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Files from here on lie on the CDN.
const LARGE_BYTES: usize = 100_000;
/// What signs an address of the CDN.
pub const SIGNATURE: &str = "Signature=sesame";
/// How long requests wait for each other before the test has failed.
const MEETING: Duration = Duration::from_secs(20);

/// Something that goes wrong with the bytes of a file, once.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The connection ends after so many bytes.
    CutAfter(usize),
    /// This byte is another one.
    Flip(usize),
    /// This status, this header, and no bytes.
    Status(u16, &'static str),
    /// The whole file, whatever was asked for.
    IgnoreRange,
    /// Nothing is sent before so many requests wait like this one.
    Meet(usize),
}

/// A request that came, in the order of arrival.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whether the CDN was asked.
    pub cdn: bool,
    /// What for, without the query.
    pub path: String,
    /// Header `Range`.
    pub range: Option<String>,
    /// Header `Authorization`.
    pub authorization: Option<String>,
}

/// What the hub holds and how it behaves.
#[derive(Debug, Default)]
pub struct Site {
    /// Contents of the repository.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Lengths that the list gives instead of the true ones.
    pub claimed: BTreeMap<String, u64>,
    /// The only token that is let in; everybody is if `None`.
    pub token: Option<String>,
    /// Status and `x-error-code` of every answer about the repository.
    pub refusal: Option<(u16, &'static str)>,
    /// Faults to come, by file, one per request for its bytes.
    pub faults: BTreeMap<String, VecDeque<Fault>>,
    /// Every request so far.
    pub requests: Vec<Request>,
    /// Bytes of bodies that were sent.
    pub sent_bytes: u64,
    /// Requests that wait for others, or did.
    pub waiting: usize,
}

impl Site {
    /// A repository with the files of a directory.
    pub fn of_dir(dir: &Path) -> Self {
        let mut site = Self::default();
        let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
        for entry in entries.filter(|entry| entry.path().is_file()) {
            let name = entry.file_name().into_string().unwrap();
            site.files.insert(name, fs::read(entry.path()).unwrap());
        }
        site
    }

    fn listing(&self) -> Value {
        let siblings: Vec<Value> =
            self.files.iter().map(|(name, bytes)| self.sibling(name, bytes)).collect();
        json!({ "id": REPO, "sha": COMMIT, "private": false, "siblings": siblings })
    }

    fn sibling(&self, name: &str, bytes: &[u8]) -> Value {
        let length = self.claimed.get(name).copied().unwrap_or(bytes.len() as u64);
        let mut sibling = json!({ "rfilename": name, "size": length, "blobId": git_digits(bytes) });
        if bytes.len() >= LARGE_BYTES {
            let sha256 = sha256_digits(bytes);
            sibling["lfs"] = json!({ "sha256": sha256, "size": length, "pointerSize": 134 });
        }
        sibling
    }
}

/// SHA-256 as the hub writes it.
pub fn sha256_digits(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Git's name of a blob.
pub fn git_digits(bytes: &[u8]) -> String {
    let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The servers; they end with it.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hub: String,
    cdn: String,
    site: Mutex<Site>,
    met: Condvar,
    over: AtomicBool,
}

impl Hub {
    /// Serves a site.
    pub fn serve(site: Site) -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [hub, cdn] = listeners.each_ref().map(|l| l.local_addr().unwrap().to_string());
        let (site, met, over) = (Mutex::new(site), Condvar::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { hub, cdn, site, met, over });
        for (cdn, listener) in [false, true].into_iter().zip(listeners) {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if shared.over.load(Ordering::Relaxed) {
                        return;
                    }
                    let shared = Arc::clone(&shared);
                    // Clients may hang up at any time.
                    thread::spawn(move || drop(shared.answer(&stream, cdn)));
                }
            });
        }
        Self { shared }
    }

    /// What to give as endpoint.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.hub)
    }

    /// The site, to look at and to change.
    pub fn site(&self) -> MutexGuard<'_, Site> {
        self.shared.site.lock().unwrap()
    }

    /// Forgets the requests so far and returns them.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.site().requests)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wakes the threads that wait for connections.
        for address in [&self.shared.hub, &self.shared.cdn] {
            drop(TcpStream::connect(address));
        }
    }
}

impl Shared {
    fn answer(&self, stream: &TcpStream, cdn: bool) -> io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let url = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = BTreeMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let (path, query) = url.split_once('?').unwrap_or((&url, ""));
        let request = Request {
            cdn,
            path: path.to_owned(),
            range: headers.remove("range"),
            authorization: headers.remove("authorization"),
        };
        self.site.lock().unwrap().requests.push(request.clone());
        let reply = Reply { shared: self, stream };
        if cdn { reply.cdn(&request, query) } else { reply.hub(&request, query) }
    }
}

impl Shared {
    /// Waits until so many requests wait. Whether they came.
    fn meet(&self, count: usize) -> bool {
        let mut site = self.site.lock().unwrap();
        site.waiting += 1;
        self.met.notify_all();
        let wait = self.met.wait_timeout_while(site, MEETING, |site| site.waiting < count);
        !wait.unwrap().1.timed_out()
    }
}

struct Reply<'a> {
    shared: &'a Shared,
    stream: &'a TcpStream,
}

impl Reply<'_> {
    fn hub(&self, request: &Request, query: &str) -> io::Result<()> {
        let site = self.shared.site.lock().unwrap();
        let known = site.token.as_ref().is_none_or(|token| {
            request.authorization.as_deref() == Some(&format!("Bearer {token}"))
        });
        let refusal = site.refusal.or((!known).then_some((401, "")));
        drop(site);
        if let Some((status, code)) = refusal {
            return self.head(status, &format!("X-Error-Code: {code}\r\n"), b"{}");
        }
        let api = format!("/api/models/{REPO}/revision/");
        let (resolve, small) = (
            format!("/{REPO}/resolve/{COMMIT}/"),
            format!("/api/resolve-cache/models/{REPO}/{COMMIT}/"),
        );
        if let Some(revision) = request.path.strip_prefix(&api) {
            if !["main", COMMIT].contains(&revision) {
                return self.head(404, "X-Error-Code: RevisionNotFound\r\n", b"{}");
            }
            assert_eq!(query, "blobs=true", "lengths are listed for those who ask");
            let listing = self.shared.site.lock().unwrap().listing();
            self.head(200, &format!("X-Repo-Commit: {COMMIT}\r\n"), listing.to_string().as_bytes())
        } else if let Some(file) = request.path.strip_prefix(&resolve) {
            self.resolve(file)
        } else if let Some(file) = request.path.strip_prefix(&small) {
            self.file(file, request)
        } else {
            self.head(404, "X-Error-Code: RepoNotFound\r\n", b"{}")
        }
    }

    fn resolve(&self, file: &str) -> io::Result<()> {
        let bytes = self.shared.site.lock().unwrap().files.get(file).cloned();
        let Some(bytes) = bytes else {
            return self.head(404, "X-Error-Code: EntryNotFound\r\n", b"Entry not found");
        };
        let linked = |etag: &str| {
            let length = bytes.len();
            format!(
                "X-Repo-Commit: {COMMIT}\r\nX-Linked-Size: {length}\r\nX-Linked-Etag: \"{etag}\"\r\n"
            )
        };
        if bytes.len() >= LARGE_BYTES {
            let (cdn, etag) = (&self.shared.cdn, linked(&sha256_digits(&bytes)));
            let location = format!("Location: http://{cdn}/{file}?{SIGNATURE}\r\n");
            return self.head(302, &format!("{etag}{location}"), b"Found");
        }
        let location = format!("Location: /api/resolve-cache/models/{REPO}/{COMMIT}/{file}\r\n");
        self.head(307, &format!("{}{location}", linked(&git_digits(&bytes))), b"Redirecting")
    }

    fn cdn(&self, request: &Request, query: &str) -> io::Result<()> {
        if query != SIGNATURE {
            return self.head(403, "", b"not signed");
        }
        self.file(request.path.trim_start_matches('/'), request)
    }

    /// The bytes of a file, with the fault that is due.
    fn file(&self, file: &str, request: &Request) -> io::Result<()> {
        let mut site = self.shared.site.lock().unwrap();
        let fault = site.faults.get_mut(file).and_then(VecDeque::pop_front);
        let bytes = site.files.get(file).cloned();
        drop(site);
        let Some(mut bytes) = bytes else { return self.head(404, "", b"") };
        let mut range = request.range.as_deref();
        let mut cut = usize::MAX;
        match fault {
            Some(Fault::CutAfter(bytes)) => cut = bytes,
            Some(Fault::Flip(at)) => bytes[at] ^= 1,
            Some(Fault::IgnoreRange) => range = None,
            Some(Fault::Status(status, header)) => {
                return self.head(status, &format!("{header}\r\n"), b"");
            }
            Some(Fault::Meet(count)) if !self.shared.meet(count) => {
                return self.head(400, "", b"nobody came");
            }
            Some(Fault::Meet(_)) | None => {}
        }
        let Some(range) = range else { return self.body(200, "", &bytes, cut) };
        let (begin, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let begin: usize = begin.parse().unwrap();
        let end = end.parse().map_or(bytes.len(), |last: usize| bytes.len().min(last + 1));
        if begin >= end {
            return self.head(416, &format!("Content-Range: bytes */{}\r\n", bytes.len()), b"");
        }
        let header = format!("Content-Range: bytes {begin}-{}/{}\r\n", end - 1, bytes.len());
        self.body(206, &header, &bytes[begin..end], cut)
    }

    fn head(&self, status: u16, headers: &str, body: &[u8]) -> io::Result<()> {
        self.body(status, headers, body, usize::MAX)
    }

    fn body(&self, status: u16, headers: &str, body: &[u8], cut: usize) -> io::Result<()> {
        let sent = &body[..cut.min(body.len())];
        self.shared.site.lock().unwrap().sent_bytes += sent.len() as u64;
        let mut stream = self.stream;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} -\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(sent)?;
        stream.shutdown(Shutdown::Write)?;
        // Closing with unread bytes would take back what was sent.
        io::copy(&mut stream.take(1 << 16), &mut io::sink()).map(drop)
    }
}
