//! The server: its address, its paths, and how it ends.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{
        HeaderName, HeaderValue, Method, StatusCode, Version,
        header::{CONTENT_ENCODING, HOST, RETRY_AFTER},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use fm_engine::{
    gauges::Gauges,
    generate::Loops,
    schedule::{Activity, Refused},
};
use serde_json::json;
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::{
    answer::Submit,
    anthropic,
    ask::{SESSION_FIELD, SESSION_HEADER},
    bodies::Bodies,
    connections,
    connections::{Patience, Peer},
    door::{self, Door},
    early::Early,
    feed,
    fields::{Fields, Origin},
    kept::Kept,
    model::Model,
    openai, openapi, page,
    places::{Places, Work},
    problem::Problem,
    texts::Texts,
    tokens,
    watch::{Log, Watch},
    workers::Workers,
};

/// Where a supervisor asks whether the server is well.
const HEALTH: &str = "/health";

/// Letters of a path in the log.
const PATH_SHOWN: usize = 80;

/// When a client that was refused may come again.
pub(crate) const RETRY_AFTER_SECONDS: u32 = 5;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is taken, or none of this machine's.
    #[error("cannot listen on {host}:{port}")]
    Bind {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The network failed.
    #[error("the server ended")]
    Io(#[from] io::Error),
}

/// Everything handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) model: Model,
    pub(crate) submit: Arc<dyn Submit>,
    pub(crate) watch: Watch,
    pub(crate) texts: Arc<Texts>,
    pub(crate) watchers: Arc<Semaphore>,
    pub(crate) kept: Kept,
    pub(crate) started_unix: u64,
    pub(crate) bounds: Bounds,
    places: Places,
    workers: Workers,
    bodies: Bodies,
    door: Door,
    pub(crate) patience: Patience,
}

impl std::fmt::Debug for dyn Submit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submit").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// A name that nobody can guess.
pub(crate) fn new_id(prefix: &str) -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

/// Seconds since 1970.
pub(crate) fn now_unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// An address that is ours, before there is a model: whoever comes early waits.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    early: Early,
    stop: Arc<Notify>,
}

/// Ends a server from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Notify>);

impl Stopper {
    /// No more connections are taken; what is being answered is finished.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

/// What a server serves.
pub struct Service {
    /// The model's words.
    pub model: Model,
    /// Where requests go.
    pub submit: Arc<dyn Submit>,
    /// What the scheduler has done.
    pub activity: Arc<Activity>,
    /// What the engine shows.
    pub gauges: Gauges,
    /// Who may come in.
    pub door: Door,
    /// How long clients are waited for.
    pub patience: Patience,
    /// What ends an answer before the model does.
    pub bounds: Bounds,
    /// Hears of every request that has ended, in a line each.
    pub log: Log,
}

/// What ends an answer before the model does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Time that a request has, from its body to its last token.
    pub time: Option<Duration>,
    /// What becomes of a text that goes round in a circle, or is noise.
    pub loops: Loops,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("model", &self.model.name).finish_non_exhaustive()
    }
}

impl Server {
    /// Takes an address.
    ///
    /// # Errors
    /// If it is taken, or none of this machine's.
    pub fn bind(host: &str, port: u16) -> Result<Self, ServeError> {
        let refused = |source| ServeError::Bind { host: host.to_owned(), port, source };
        let listen = || {
            // As it stands in addresses of pages: `[::1]`.
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let addresses = (bare.unwrap_or(host), port).to_socket_addrs()?;
            let addresses: Vec<SocketAddr> = addresses.collect();
            let listener = TcpListener::bind(addresses.as_slice())?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(refused)?;
        let early = Early::start(&listener)?;
        Ok(Self { listener, early, stop: Arc::default() })
    }

    /// The address it has.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        Ok(self.listener.local_addr()?)
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Serves until it is stopped, then finishes what is being answered.
    ///
    /// # Errors
    /// If the network fails.
    pub fn run(self, service: Service) -> Result<(), ServeError> {
        let app = app(service, Workers::start(Places::ALL)?);
        let patience = app.patience;
        // One thread for the network: the cores belong to the model.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let waiting = self.early.end().into_iter().map(tokio::net::TcpStream::from_std);
            let waiting = waiting.collect::<Result<_, _>>()?;
            let (stop, ending) = (self.stop, Arc::clone(&app));
            let stopped = async move {
                stop.notified().await;
                ending.submit.close();
                ending.bodies.end();
            };
            connections::serve((listener, waiting), router(app), patience, stopped).await;
            Ok(())
        })
    }
}

/// What handlers share, at the start.
pub(crate) fn app(service: Service, workers: Workers) -> Arc<App> {
    let Service { model, submit, activity, gauges, door, patience, bounds, log } = service;
    let watch = Watch::new(log, activity, gauges);
    let (started_unix, texts, watchers) = (now_unix(), Arc::default(), feed::watchers());
    let kept = Kept::default();
    Arc::new(App {
        model,
        submit,
        watch,
        texts,
        watchers,
        kept,
        started_unix,
        bounds,
        places: Places::default(),
        workers,
        bodies: Bodies::default(),
        door,
        patience,
    })
}

/// Names paths, and who answers there.
macro_rules! paths {
    ($($path:expr => $answer:expr;)+) => {
        /// Every path but those of the page.
        const PATHS: &[&str] = &[$($path),+];

        fn routes() -> Router<Arc<App>> {
            Router::new()$(.route($path, $answer))+
        }
    };
}

paths! {
    "/v1/chat/completions" => post(openai::chat::handle);
    "/v1/completions" => post(openai::completions::handle);
    "/v1/responses" => post(openai::responses::handle);
    "/v1/models" => get(openai::models);
    "/v1/models/{*name}" => get(openai::one_model);
    "/v1/messages" => post(anthropic::messages::handle);
    "/v1/messages/count_tokens" => post(anthropic::messages::count);
    "/tokenize" => post(tokens::tokenize);
    "/detokenize" => post(tokens::detokenize);
    "/metrics" => get(metrics);
    HEALTH => get(health);
    "/feed" => get(feed::handle);
    "/openapi.json" => get(openapi::handle);
}

fn router(app: Arc<App>) -> Router {
    routes()
        .merge(page::routes())
        .fallback(|request: Request| async move { refuse(&request, &not_found(&request)) })
        .method_not_allowed_fallback(|request: Request| async move {
            refuse(&request, &Problem::Method)
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&app), enter))
        .layer(cross_origin(&app.door))
        .with_state(app)
}

/// Clients put `/v1` before their paths, or leave that to whoever gives them an address.
fn not_found(request: &Request) -> Problem {
    let path = request.uri().path();
    let named = |known: &&str| path.ends_with(known.strip_prefix("/v1").unwrap_or(known));
    let meant = PATHS.iter().copied().filter(named).max_by_key(|known| known.len());
    Problem::NotFound { path: shown(path), meant }
}

/// An error in the shape of the interface that the path belongs to.
fn refuse(request: &Request, problem: &Problem) -> Response {
    let anthropic = request.uri().path().starts_with("/v1/messages")
        || request.headers().contains_key("anthropic-version");
    if anthropic { anthropic::refuse(problem) } else { openai::refuse(problem) }
}

/// What browsers may tell pages of origins that were listed.
fn cross_origin(door: &Door) -> CorsLayer {
    let listed = door.clone();
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, _| {
            origin.to_str().is_ok_and(|origin| listed.admits(origin))
        }))
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_IDS[0].clone(), REQUEST_IDS[1].clone(), RETRY_AFTER])
        .max_age(Duration::from_mins(10))
}

/// What a request is called, where clients of either interface look for it.
pub(crate) const REQUEST_IDS: [HeaderName; 2] =
    [HeaderName::from_static("request-id"), HeaderName::from_static("x-request-id")];

/// What a request is called, from the moment it is there.
#[derive(Clone, Debug)]
struct RequestId(Arc<str>);

async fn enter(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    // Whether the server is well is no secret, a supervisor has no key; and the page asks for one.
    let path = request.uri().path().to_owned();
    let open = path == HEALTH || page::has(&path);
    let ends = request.method() == Method::POST && !app.submit.is_open();
    let hosts = request.headers().get_all(HOST).iter().count();
    let named =
        request.version() != Version::HTTP_11 || hosts > 0 || request.uri().host().is_some();
    let id: Arc<str> = new_id("req_").into();
    request.extensions_mut().insert(RequestId(Arc::clone(&id)));
    if let Some(peer) = request.extensions().get::<Peer>() {
        peer.has_asked.store(true, Ordering::Relaxed);
    }
    let mut why = None;
    let mut response = match app.door.check(&path, request.headers()) {
        _ if !named || hosts > 1 => refuse(&request, &Problem::NoHost),
        Err(Problem::Key) if open => next.run(request).await,
        Err(problem) => {
            let response = refuse(&request, &problem);
            // It is about this server and how it is reached, and holds nothing of a text.
            why = Some(problem);
            response
        }
        // What has come of it is not waited for.
        Ok(()) if ends => refuse(&request, &Refused::Closed.into()),
        Ok(()) => next.run(request).await,
    };
    let [first, second] = REQUEST_IDS;
    let id = response.headers().get(&first).cloned().or_else(|| id.parse().ok());
    if let Some(id) = id.clone() {
        response.headers_mut().insert(first, id.clone());
        response.headers_mut().insert(second, id);
    }
    let inside = response.extensions().get::<openai::RefusedInside>();
    let status = inside.map_or(response.status(), |inside| inside.0);
    // Who asks a server that ends whether it is well is told, and that is all.
    let drains = path == HEALTH && status == StatusCode::SERVICE_UNAVAILABLE;
    if (status.is_client_error() || status.is_server_error()) && !drains {
        let id = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
        let path = shown(&path);
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let line = format_args!("{path} refused={} id={id}{why}", status.as_u16());
        let told = response.extensions().get::<openai::Told>().is_some();
        app.watch.refused(status.as_u16(), (!told).then_some(&line));
    }
    response
}

/// A path as it stands in the log, where nothing that a client sends may move a cursor or turn a line round.
fn shown(path: &str) -> String {
    let letters = path.chars().take(PATH_SHOWN).map(|letter| match letter {
        letter if letter.is_ascii_graphic() => letter.to_string(),
        letter => letter.escape_unicode().to_string(),
    });
    letters.collect()
}

async fn metrics(State(app): State<Arc<App>>) -> String {
    app.watch.metrics(app.submit.as_ref(), app.kept.bytes())
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let told = |word| Json(json!({"status": word, "model": app.model.name}));
    if app.submit.is_open() {
        return told("ready").into_response();
    }
    let again = [(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS))];
    (StatusCode::SERVICE_UNAVAILABLE, again, told("draining")).into_response()
}

/// Reads a body and what it asks for, beside the thread of the network, in one of the places for that: who waits for
/// one and leaves is forgotten.
pub(crate) async fn prepare<T: Send + 'static>(
    (app, work): (&Arc<App>, Work),
    request: Request,
    read: impl FnOnce(&Arc<App>, Fields) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let coding = request.headers().get(CONTENT_ENCODING);
    if coding.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Problem::Coding);
    }
    let own = request.uri().path().starts_with("/v1/");
    let session = request.headers().get(SESSION_HEADER).filter(|_| own);
    let session = session.and_then(|name| name.to_str().ok()).map(str::to_owned);
    let peer = request.extensions().get::<Peer>().cloned();
    let id = request.extensions().get::<RequestId>().map(|id| Arc::clone(&id.0));
    let address = peer.as_ref().map(|peer| door::client(peer.address, request.headers()));
    let patience = peer.as_ref().map_or(app.patience.body, |peer| peer.patience(app.patience.body));
    let body = timeout(patience, app.bodies.take(request.into_body()))
        .await
        .map_err(|_| Problem::BodyTooSlow)??;
    let arrived = Instant::now();
    let place = Arc::clone(app.places.of(work, body.len()))
        .acquire_owned()
        .await
        .map_err(|_| Problem::Gone)?;
    let (shared, id) = (Arc::clone(app), id.unwrap_or_default());
    let origin = Origin { address, arrived, id };
    let read = move |body: &[u8]| {
        let mut fields = Fields::parse(body)?.from(origin);
        if let Some(session) = session {
            fields.add(SESSION_FIELD, &session);
        }
        read(&shared, fields)
    };
    body.read((&app.workers, place), read).await
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn nothing_but_graphic_letters_of_a_path_reaches_the_log() {
        assert_eq!(shown("/v1/a?b=%20\"'"), "/v1/a?b=%20\"'");
        let control = "/\u{9b}2J\u{85}\u{202e}é\u{1b} ";
        assert_eq!(shown(control), "/\\u{9b}2J\\u{85}\\u{202e}\\u{e9}\\u{1b}\\u{20}");
    }

    #[test]
    fn every_path_is_described_and_no_other() {
        let described: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let described = described["paths"].as_object().unwrap().keys().cloned();
        let mut described: Vec<String> = described.collect();
        let own = PATHS.iter().map(|path| path.replace("{*", "{"));
        let page = ["/", "/page/{file}"].map(str::to_owned);
        let mut own: Vec<String> = own.into_iter().chain(page).collect();
        own.sort_unstable();
        described.sort_unstable();
        assert_eq!(described, own);
    }
}
