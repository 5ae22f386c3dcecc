//! Connections: how many there are, and how long a client may keep the server waiting.
//!
//! An answer may take as long as it takes. What is bounded is a client that says nothing, says it a
//! letter at a time, or does not read what it has asked for.

use std::{
    future::Future,
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{self, Sleep},
};

/// Connections at once; the system lets others wait.
const CONNECTIONS_MAX: u32 = 256;

/// The address that a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Until the next attempt, where the system cannot give a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How long a client is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the head of a request, also on a connection that has had some.
    pub head: Duration,
    /// For its body, once the head is there.
    pub body: Duration,
    /// For room to write, while there is none.
    pub reader: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            body: Duration::from_mins(1),
            reader: Duration::from_mins(1),
        }
    }
}

/// Serves until `stopped`, then finishes what is being answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    patience: Patience,
    stopped: impl Future<Output = ()>,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let (stop, stopping) = watch::channel(false);
    let mut stopped = pin!(stopped);
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = stopped.as_mut() => break,
        };
        let Ok((stream, peer)) = accepted else {
            time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        // Events are small, and each is waited for.
        let _ = stream.set_nodelay(true);
        let router = router.clone().layer(Extension(Peer(peer.ip())));
        let work = connection(stream, router, patience, stopping.clone());
        tokio::spawn(async move {
            work.await;
            drop(place);
        });
    }
    drop(listener);
    stop.send_replace(true);
    let _ = room.acquire_many(CONNECTIONS_MAX).await;
}

async fn connection(
    stream: TcpStream,
    router: Router,
    patience: Patience,
    mut stopping: watch::Receiver<bool>,
) {
    let io = TokioIo::new(Impatient { stream, max: patience.reader, until: None });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience.head);
    let mut connection = pin!(http.serve_connection(io, TowerToHyperService::new(router)));
    tokio::select! {
        // A client that went, or was no client: nobody is left to be told.
        _ = connection.as_mut() => return,
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
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
