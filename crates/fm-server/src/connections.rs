//! Connections: how many there are, and how long a client may keep the server waiting.
//!
//! An answer may take as long as it takes. What is bounded is a client that says nothing, says it a
//! letter at a time, or does not read what it has asked for.
//!
//! A server that ends finishes what is being answered. Who comes meanwhile is told so, and is not waited for.

use std::{
    future::Future,
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
#[cfg(unix)]
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{self, Sleep},
};

/// Connections at once; the system lets others wait.
const CONNECTIONS_MAX: u32 = 256;

/// Files that a server has open beside its connections: many, where a model comes in many pieces.
#[cfg(unix)]
const FILES: u64 = 1 << 10;

/// Connections at once of those who come to a server that ends.
const LATE_MAX: usize = 16;

/// Bytes of the head of a request.
const HEAD_MAX: usize = 64 << 10;

/// Who sends a request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Whether it has asked for anything yet.
    pub(crate) has_asked: Arc<AtomicBool>,
    /// Places for connections.
    room: Arc<Semaphore>,
}

impl Peer {
    /// How long a body is waited for that comes now.
    pub(crate) fn patience(&self, body: Duration) -> Duration {
        within(body, self.room.available_permits())
    }
}

/// For the head of a request, and for its body, where hardly a place is free.
const HURRIED: Duration = Duration::from_secs(2);

/// Until the next attempt, where the system cannot give a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How long a client is waited for, and waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the head of a request, also on a connection that has had some; less where places are rare.
    pub head: Duration,
    /// For its body, once the head is there; less where places are rare.
    pub body: Duration,
    /// For room to write, while there is none.
    pub reader: Duration,
    /// For the next event of a stream; then it gets one that says nothing.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            body: Duration::from_mins(1),
            reader: Duration::from_mins(1),
            silence: Duration::from_secs(10),
        }
    }
}

/// Lets this process have so many files open that none of its connections waits for another's to be closed, as far as
/// the system allows it.
#[cfg(unix)]
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let enough = u64::from(CONNECTIONS_MAX) + FILES;
    let enough = limit.maximum.map_or(enough, |maximum| maximum.min(enough));
    if limit.current.is_some_and(|current| current < enough) {
        // What is refused leaves it as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(enough), ..limit });
    }
}

/// Serves those who have waited and those who come, until `stopped`; then finishes what is being answered.
pub(crate) async fn serve(
    (listener, waiting): (TcpListener, Vec<TcpStream>),
    router: Router,
    patience: Patience,
    stopped: impl Future<Output = ()>,
) {
    #[cfg(unix)]
    allow_files();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let (stop, stopping) = watch::channel(false);
    let (mut stopped, mut waiting) = (pin!(stopped), waiting.into_iter());
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            let stream = match waiting.next() {
                Some(stream) => Ok(stream),
                None => listener.accept().await.map(|(stream, _)| stream),
            };
            (stream, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = stopped.as_mut() => break,
        };
        let Ok(stream) = accepted else {
            time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let head = within(patience.head, room.available_permits());
        let patience = Patience { head, ..patience };
        let peer = stream.peer_addr().ok();
        let (room, has_asked) = (Arc::clone(&room), Arc::default());
        let peer = peer.map(|peer| Peer { address: peer.ip(), has_asked, room });
        let work = connection((stream, peer), router.clone(), patience, stopping.clone());
        tokio::spawn(async move {
            work.await;
            drop(place);
        });
    }
    stop.send_replace(true);
    tokio::select! {
        _ = room.acquire_many(CONNECTIONS_MAX) => {}
        () = late(&listener, router, patience) => {}
    }
}

/// The fewer places are free, the sooner a client has to say what it wants: who says nothing keeps others out
/// for seconds.
fn within(patience: Duration, free: usize) -> Duration {
    let half = CONNECTIONS_MAX as usize / 2;
    let share = free.min(half) as f64 / half as f64;
    patience.mul_f64(share).max(HURRIED.min(patience))
}

/// Answers those who come to a server that ends: one request each, as long as somebody else is waited for.
async fn late(listener: &TcpListener, router: Router, patience: Patience) {
    let room = Arc::new(Semaphore::new(LATE_MAX));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let (router, patience) = (router.clone(), patience);
        tokio::spawn(async move {
            let mut http = http(patience);
            http.keep_alive(false);
            let _ = http.serve_connection(io(stream, patience), service(None, router)).await;
            drop(place);
        });
    }
}

fn http(patience: Patience) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience.head).max_buf_size(HEAD_MAX);
    http
}

fn io(stream: TcpStream, patience: Patience) -> TokioIo<Impatient> {
    // Events are small, and each is waited for.
    let _ = stream.set_nodelay(true);
    TokioIo::new(Impatient { stream, max: patience.reader, until: None })
}

fn service(peer: Option<Peer>, router: Router) -> TowerToHyperService<Router> {
    TowerToHyperService::new(match peer {
        Some(peer) => router.layer(Extension(peer)),
        None => router,
    })
}

async fn connection(
    (stream, peer): (TcpStream, Option<Peer>),
    router: Router,
    patience: Patience,
    mut stopping: watch::Receiver<bool>,
) {
    let has_asked = peer.as_ref().map(|peer| Arc::clone(&peer.has_asked));
    let (http, service) = (http(patience), service(peer, router));
    let mut connection = pin!(http.serve_connection(io(stream, patience), service));
    tokio::select! {
        // A client that went, or was no client: nobody is left to be told.
        _ = connection.as_mut() => return,
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    // Half a request keeps nobody waiting: it is refused if it comes in time.
    let asked = has_asked.is_none_or(|asked| asked.load(Ordering::Relaxed));
    let patience = if asked { Duration::MAX } else { HURRIED.min(patience.head) };
    let _ = time::timeout(patience, connection).await;
}

/// A stream that fails when its reader leaves it standing for too long.
struct Impatient {
    stream: TcpStream,
    max: Duration,
    /// Since there has been no room to write.
    until: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn writing<T>(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.until = None;
            return wrote;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(time::sleep(self.max)));
        until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.writing(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.writing(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
