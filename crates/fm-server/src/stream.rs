//! Server-sent events: an answer as it comes, in the words of an interface.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use futures_core::Stream;
use serde_json::Value;

use crate::answer::{Answer, Piece, Requested};

/// A comment is sent when nothing else has been for so long: a prompt may take minutes, and proxies
/// close what is silent.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Turns pieces into the events of an interface.
pub(crate) trait Encode: Send + Unpin + 'static {
    /// Events before the first piece.
    fn open(&mut self, out: &mut Out, requested: &Requested);

    /// Events of a piece.
    fn piece(&mut self, out: &mut Out, choice: usize, piece: Piece);

    /// Events after the last one, unless a piece was a failure.
    fn close(&mut self, out: &mut Out, requested: &Requested);
}

/// Events that are ready. Bound: those of one piece.
#[derive(Debug, Default)]
pub(crate) struct Out(VecDeque<Event>);

impl Out {
    /// An event without a name.
    pub(crate) fn data(&mut self, data: &Value) {
        self.0.push_back(Event::default().data(data.to_string()));
    }

    /// An event whose name is the `type` of its data.
    pub(crate) fn named(&mut self, data: &Value) {
        let name = data["type"].as_str().unwrap_or_default();
        self.0.push_back(Event::default().event(name).data(data.to_string()));
    }

    /// An event of fixed text.
    pub(crate) fn text(&mut self, text: &str) {
        self.0.push_back(Event::default().data(text));
    }
}

struct Events<E> {
    answer: Answer,
    encode: E,
    out: Out,
    /// Whether the last event has been made.
    ended: bool,
}

impl<E: Encode> Stream for Events<E> {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { answer, encode, out, ended } = &mut *self;
        loop {
            if let Some(event) = out.0.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if *ended {
                return Poll::Ready(None);
            }
            match answer.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some((choice, piece))) => {
                    *ended = matches!(piece, Piece::Failed(_));
                    encode.piece(out, choice, piece);
                }
                Poll::Ready(None) => {
                    *ended = true;
                    encode.close(out, &answer.tally.requested);
                }
            }
        }
    }
}

/// The response that streams an answer.
pub(crate) fn respond(answer: Answer, mut encode: impl Encode) -> Response {
    let mut out = Out::default();
    encode.open(&mut out, &answer.tally.requested);
    let events = Events { answer, encode, out, ended: false };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    Sse::new(events).keep_alive(keep_alive).into_response()
}
