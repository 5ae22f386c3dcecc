//! Server-sent events: an answer as it comes, in the words of an interface.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_core::Stream;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Interval, interval};

use crate::{
    answer::{Answer, Piece},
    serve::App,
    tally::Requested,
};

/// nginx passes on what it has collected, unless a response says otherwise.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Turns pieces into the events of an interface.
pub(crate) trait Encode: Send + Unpin + 'static {
    /// Events before the first piece.
    fn open(&mut self, out: &mut Out, requested: &Requested);

    /// Events of a piece.
    fn piece(&mut self, out: &mut Out, choice: usize, piece: Piece);

    /// What is sent when nothing else has been for a while: a prompt may take minutes, and proxies and
    /// clients give up what is silent. Clients that count events do not count comments.
    fn keep_alive(&mut self, out: &mut Out);

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
        self.event(data["type"].as_str().unwrap_or_default(), data);
    }

    /// An event with a name.
    pub(crate) fn event(&mut self, name: &str, data: &impl Serialize) {
        let event = Event::default().event(name).json_data(data);
        self.0.push_back(event.expect("its keys are texts"));
    }

    /// A comment, which clients skip.
    pub(crate) fn comment(&mut self, text: &str) {
        self.0.push_back(Event::default().comment(text));
    }

    /// An event of fixed text.
    pub(crate) fn text(&mut self, text: &str) {
        self.0.push_back(Event::default().data(text));
    }
}

/// All of them, where nothing more comes.
impl Stream for Out {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

struct Events<E> {
    answer: Answer,
    encode: E,
    out: Out,
    /// Since the last event.
    silence: Interval,
    /// Whether the last event has been made.
    ended: bool,
}

impl<E: Encode> Stream for Events<E> {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { answer, encode, out, silence, ended } = &mut *self;
        loop {
            if let Some(event) = out.0.pop_front() {
                silence.reset();
                return Poll::Ready(Some(Ok(event)));
            }
            if *ended {
                return Poll::Ready(None);
            }
            match answer.poll(context) {
                Poll::Pending if silence.poll_tick(context).is_pending() => return Poll::Pending,
                Poll::Pending => encode.keep_alive(out),
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
pub(crate) fn respond(app: &App, answer: Answer, mut encode: impl Encode) -> Response {
    let mut out = Out::default();
    encode.open(&mut out, &answer.tally.requested);
    let mut silence = interval(app.patience.silence);
    silence.reset();
    events(Events { answer, encode, out, silence, ended: false })
}

/// The response that streams events.
pub(crate) fn events<S>(stream: S) -> Response
where
    S: Stream<Item = Result<Event, Infallible>> + Send + 'static,
{
    let mut response = Sse::new(stream).into_response();
    response.headers_mut().insert(BUFFERING, HeaderValue::from_static("no"));
    response
}
