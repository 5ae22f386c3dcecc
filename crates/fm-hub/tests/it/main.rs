//! The crate against a hub on this machine.
#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![cfg_attr(not(unix), allow(dead_code))] // some tests are of one system

mod access;
mod cached;
mod damage;
mod downloads;
mod headers;

use std::{
    collections::VecDeque,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use fm_hub::{Cache, Client, Event, HubError, Options, Pull, Pulled, Repository, Selection, Token};
use fm_testkit::{
    hub::{Fault, Hub, REPO, Request, Site},
    noise::Noise,
};

/// The large file of [`site`]: on the CDN.
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_BYTES: usize = 1_000_000;

/// A repository with one large and two small files, and two that nobody wants.
fn site() -> Site {
    let mut site = Site::default();
    let mut noise = Noise::new(7);
    let weights = (0..WEIGHTS_BYTES).map(|_| noise.below(256) as u8).collect();
    site.files.insert(WEIGHTS.to_owned(), weights);
    site.files.insert("config.json".to_owned(), b"{\"model_type\": \"x\"}".to_vec());
    site.files.insert("tokenizer.json".to_owned(), vec![b' '; 5000]);
    site.files.insert("pytorch_model.bin".to_owned(), vec![1; 2000]);
    site.files.insert("README.md".to_owned(), b"# x".to_vec());
    site
}

fn with_faults(file: &str, faults: impl Into<VecDeque<Fault>>) -> Site {
    let mut site = site();
    site.faults.insert(file.to_owned(), faults.into());
    site
}

/// What a test sees of a download.
struct World {
    hub: Hub,
    dir: tempfile::TempDir,
    cache: Cache,
    client: Client,
    pauses: Arc<Mutex<Vec<Duration>>>,
}

impl World {
    fn of(site: Site, token: Option<&str>) -> Self {
        let (hub, dir) = (Hub::serve(site), tempfile::tempdir().unwrap());
        let pauses = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&pauses);
        let pause = Box::new(move |time| {
            noted.lock().unwrap().push(time);
            ControlFlow::Continue(())
        });
        let options =
            Options { endpoint: hub.endpoint(), token: token.and_then(Token::new), pause };
        let (client, cache) = (Client::new(options).unwrap(), Cache::new(dir.path().join("hub")));
        Self { hub, dir, cache, client, pauses }
    }

    fn list(&self) -> Result<Repository, HubError> {
        let name: fm_hub::ModelName = REPO.parse().unwrap();
        Repository::open(&self.client, &name.id, "main")
    }

    fn pull(&self) -> Result<Pulled, HubError> {
        self.pull_telling(&|_| ControlFlow::Continue(()))
    }

    fn pull_telling(&self, report: fm_hub::Report<'_>) -> Result<Pulled, HubError> {
        let repository = self.list()?;
        let files = Selection::default().choose(&repository)?;
        let (client, cache) = (&self.client, &self.cache);
        Pull { client, cache, repository: &repository, files: &files }.run(report)
    }

    /// Requests for the bytes of a file that reached whoever has them.
    fn asked_for(&self, file: &str) -> Vec<Request> {
        let requests = self.hub.take_requests();
        let api = |request: &Request| request.cdn || request.path.starts_with("/api/resolve-cache");
        requests.into_iter().filter(|r| api(r) && r.path.ends_with(file)).collect()
    }

    fn ranges_of(&self, file: &str) -> Vec<Option<String>> {
        self.asked_for(file).into_iter().map(|request| request.range).collect()
    }

    /// The file is in the snapshot, byte for byte.
    fn check(&self, pulled: &Pulled, file: &str) {
        let expected = self.hub.site().files[file].clone();
        assert!(fs::read(pulled.path.join(file)).unwrap() == expected, "{file}");
    }

    /// Names of the blobs of which not everything came, or something wrong.
    fn leftovers(&self) -> Vec<String> {
        let blobs = fs::read_dir(self.cache.root().join("models--pebble--demo/blobs")).unwrap();
        let names = blobs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains('.')).collect()
    }

    /// The part of the weights that an interrupted download leaves. It need not be alone: files
    /// come at the same time, so a small one may have been interrupted as well.
    fn part_of_the_weights(&self) -> PathBuf {
        let digits = fm_testkit::hub::sha256_digits(&self.hub.site().files[WEIGHTS]);
        self.cache.root().join(format!("models--pebble--demo/blobs/{digits}.incomplete"))
    }
}

/// A name for each event but those that only count.
fn word(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Begin { file, here } => format!("begin {} at {here}", file.name),
        Event::Again { file, here, .. } => format!("again {} at {here}", file.name),
        Event::Corrupt { file, .. } => format!("corrupt {}", file.name),
        Event::Done { file } => format!("done {}", file.name),
        _ => return None,
    })
}

fn below(path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    names
}
