//! An answer on its way: pieces from the scheduler's thread, and what they add up to.

use std::{
    collections::VecDeque,
    fmt,
    ops::ControlFlow,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use fm_engine::{
    generate::{Chosen, Event, Generated},
    schedule::{Job, Listener, Queue, Refused, Update},
};
use fm_text::{CallPart, Channel};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::{
    kept::CallIds,
    problem::Problem,
    progress::{Progress, Stored},
    serve::App,
};

/// Where requests go: the scheduler's queue, or a test's.
pub trait Submit: Send + Sync {
    /// Takes jobs that belong together, all of them or none.
    ///
    /// # Errors
    /// If they would be too many, or no more are taken.
    fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused>;

    /// Jobs that wait.
    fn waiting(&self) -> usize;

    /// Whether jobs are taken.
    fn is_open(&self) -> bool;

    /// Takes no more jobs; those that are there stay.
    fn close(&self);
}

impl Submit for Queue {
    fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        self.push(jobs)
    }

    fn waiting(&self) -> usize {
        Queue::waiting(self)
    }

    fn is_open(&self) -> bool {
        Queue::is_open(self)
    }

    fn close(&self) {
        Queue::close(self);
    }
}

/// How likely a token of the answer was.
#[derive(Clone, Debug)]
pub(crate) struct TokenOdds {
    pub(crate) token: u32,
    /// Bytes of the answer before it.
    pub(crate) at: usize,
    pub(crate) logprob: f32,
    pub(crate) likeliest: Vec<(u32, f32)>,
}

/// Tokens that may turn out to be of the answer. Bound: what a request may ask the odds of.
#[derive(Debug, Default)]
struct Unsaid {
    chosen: usize,
    odds: VecDeque<(usize, TokenOdds)>,
}

impl Unsaid {
    fn add(&mut self, chosen: Chosen<'_>) {
        // A thought never becomes the answer.
        if chosen.channel == Channel::Answer {
            let odds = TokenOdds {
                token: chosen.token,
                at: 0,
                // What was not chosen but put there is certain.
                logprob: chosen.logprob.unwrap_or(0.0),
                likeliest: chosen.likeliest.to_vec(),
            };
            self.odds.push_back((self.chosen, odds));
        }
        self.chosen += 1;
    }

    /// The token that begins there in the answer. Those before it that were not told are not of it.
    fn said(&mut self, token: usize, at: usize) -> Option<TokenOdds> {
        while self.odds.pop_front_if(|(own, _)| *own < token).is_some() {}
        let (_, odds) = self.odds.pop_front_if(|(own, _)| *own == token)?;
        Some(TokenOdds { at, ..odds })
    }
}

/// A piece of an answer.
#[derive(Debug)]
pub(crate) enum Piece {
    Text(Channel, String),
    /// Of the call in this place.
    Call(usize, CallPiece),
    /// It begins in the text of the answer that comes next.
    Token(TokenOdds),
    Done(Box<Generated>),
    Failed(Problem),
}

/// A piece of a call.
#[derive(Debug)]
pub(crate) enum CallPiece {
    /// The function.
    Begin(String),
    Arguments(String),
    /// It is complete.
    End,
    /// It was none after all: its text follows.
    Broken,
}

impl From<CallPart<'_>> for CallPiece {
    fn from(part: CallPart<'_>) -> Self {
        match part {
            CallPart::Begin(name) => Self::Begin(name.to_owned()),
            CallPart::Arguments(json) => Self::Arguments(json.to_owned()),
            CallPart::End(_) => Self::End,
            CallPart::Broken => Self::Broken,
        }
    }
}

/// What the scheduler's thread sends.
#[derive(Debug)]
pub(crate) enum Sent {
    Started,
    Piece(usize, Piece),
}

/// Sends what a job hears, with the odds of its tokens if they are wanted; breaks off as soon as the receiver is gone.
pub(crate) fn listener(
    choice: usize,
    (to, progress): (UnboundedSender<Sent>, Arc<Progress>),
    odds: bool,
) -> Listener {
    let mut unsaid = odds.then(Unsaid::default);
    Box::new(move |update| {
        let piece = match update {
            Update::Started => {
                return if to.send(Sent::Started).is_ok() {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                };
            }
            Update::Event(Event::Text(channel, text)) => {
                Some(Piece::Text(channel, text.to_owned()))
            }
            Update::Event(Event::Call(call, part)) => Some(Piece::Call(call, part.into())),
            Update::Event(Event::Token(chosen)) => {
                progress.token(choice, chosen.channel);
                unsaid.iter_mut().for_each(|unsaid| unsaid.add(chosen));
                None
            }
            Update::Event(Event::Said { token, at }) => {
                unsaid.as_mut().and_then(|unsaid| unsaid.said(token, at)).map(Piece::Token)
            }
            Update::Waiting | Update::Event(Event::Prefill { .. }) => None,
            Update::Done(generated) => Some(Piece::Done(generated)),
            Update::Failed(error) => Some(Piece::Failed(error.into())),
        };
        let gone = match piece {
            Some(piece) => to.send(Sent::Piece(choice, piece)).is_err(),
            None => to.is_closed(),
        };
        if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// See the module. Whoever drops it cancels what is still being written.
#[derive(Debug)]
pub(crate) struct Answer {
    sent: UnboundedReceiver<Sent>,
    /// Choices that have not ended.
    open: usize,
    ids: CallIds,
    pub(crate) tally: Tally,
}

impl Answer {
    pub(crate) fn new(
        sent: UnboundedReceiver<Sent>,
        choices: usize,
        tally: Tally,
        ids: CallIds,
    ) -> Self {
        Self { sent, open: choices, ids, tally }
    }

    /// The next piece and whose it is; nothing when all choices have ended, or one has failed.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Piece)>> {
        while self.open > 0 {
            match self.sent.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Sent::Started)) => self.tally.start(),
                Poll::Ready(Some(Sent::Piece(choice, piece))) => {
                    match &piece {
                        Piece::Done(generated) => {
                            self.open -= 1;
                            self.tally.done(choice, generated);
                            for call in &generated.calls {
                                let id = self.ids.id(choice, call.index);
                                self.tally.app.kept.put(&id, call);
                            }
                        }
                        Piece::Failed(_) => self.fail(),
                        _ => {}
                    }
                    return Poll::Ready(Some((choice, piece)));
                }
                Poll::Ready(None) => {
                    self.fail();
                    return Poll::Ready(Some((0, Piece::Failed(Problem::Gone))));
                }
            }
        }
        Poll::Ready(None)
    }

    fn fail(&mut self) {
        self.open = 0;
        self.tally.requested.finish = FAILED;
    }

    pub(crate) async fn next(&mut self) -> Option<(usize, Piece)> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

/// Why a request ended whose client went first, and one that has failed.
const GONE: &str = "gone";
const FAILED: &str = "error";

/// What became of a request: for the log, never with any of its text.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    /// The path.
    pub path: &'static str,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of it that were there already.
    pub cached_tokens: usize,
    /// Of these, tokens that were read from disk.
    pub restored_tokens: usize,
    /// Tokens written, in all choices.
    pub written_tokens: usize,
    /// Of these, tokens that are no part of the answer.
    pub thinking_tokens: usize,
    /// Tokens of the first choice, which the times are of.
    pub first_tokens: usize,
    /// Until it had a session.
    pub queue: Duration,
    /// From then on until the first token.
    pub prefill: Duration,
    /// After it.
    pub decode: Duration,
    /// The longest time between two tokens.
    pub longest_wait: Duration,
    /// Share of requested experts that needed no read while it ran.
    pub hit_rate: f64,
    /// Bytes read while it ran.
    pub read_bytes: u64,
    /// Types of tools that the model was not told of.
    pub left_out: Vec<&'static str>,
    /// Why it ended; `gone` if its client went first.
    pub finish: &'static str,
    /// The hash of its logits.
    pub logits_hash: u128,
}

impl Requested {
    /// Tokens per second, the first one not counted.
    pub fn decode_tok_s(&self) -> f64 {
        let seconds = self.decode.as_secs_f64();
        if seconds > 0.0 { self.first_tokens.saturating_sub(1) as f64 / seconds } else { 0.0 }
    }

    /// The `timings` object of responses.
    pub(crate) fn timings(&self) -> Value {
        let ms = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        json!({
            "queue_ms": ms(self.queue),
            "prefill_ms": ms(self.prefill),
            "ttft_ms": ms(self.queue + self.prefill),
            "decode_ms": ms(self.decode),
            "decode_tok_s": self.decode_tok_s(),
            "longest_wait_ms": ms(self.longest_wait),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "restored_tokens": self.restored_tokens,
            "written_tokens": self.written_tokens,
            "hit_rate": self.hit_rate,
            "read_bytes": self.read_bytes,
            "finish": self.finish,
            "logits_hash": format!("{:032x}", self.logits_hash),
        })
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} prompt={} cached={} restored={} written={} queue={:.3}s prefill={:.3}s ttft={:.3}s decode={:.3}s {:.1} tok/s \
             hits={:.1}% read={}",
            self.path,
            self.prompt_tokens,
            self.cached_tokens,
            self.restored_tokens,
            self.written_tokens,
            self.queue.as_secs_f64(),
            self.prefill.as_secs_f64(),
            (self.queue + self.prefill).as_secs_f64(),
            self.decode.as_secs_f64(),
            self.decode_tok_s(),
            100.0 * self.hit_rate,
            self.read_bytes
        )?;
        if !self.left_out.is_empty() {
            write!(f, " left_out={}", self.left_out.join(","))?;
        }
        write!(f, " finish={}", self.finish)
    }
}

/// Adds up a request and tells the log when it is dropped. With several choices, times and hash are
/// those of the first.
#[derive(Debug)]
pub(crate) struct Tally {
    app: Arc<App>,
    /// When the request was there.
    arrived: Instant,
    /// Choices of each prompt.
    choices: usize,
    /// Choices that have not ended.
    open: usize,
    progress: Arc<Progress>,
    /// When it had a session, and what the store had done by then.
    started: Option<(Instant, Stored)>,
    pub(crate) requested: Requested,
}

impl Tally {
    /// Of a request with so many tokens in its prompts, so many choices for each, and so many in all.
    pub(crate) fn new(
        (app, progress): (Arc<App>, Arc<Progress>),
        path: &'static str,
        (prompt_tokens, choices, open): (usize, usize, usize),
        arrived: Instant,
    ) -> Self {
        let requested = Requested { path, prompt_tokens, finish: GONE, ..Requested::default() };
        Self { app, arrived, choices, open, progress, started: None, requested }
    }

    fn start(&mut self) {
        if self.started.is_none() {
            self.requested.queue = self.arrived.elapsed();
            self.started = Some((Instant::now(), Stored::now(&self.app.watch.gauges)));
        }
    }

    fn done(&mut self, choice: usize, generated: &Generated) {
        self.open -= 1;
        let requested = &mut self.requested;
        requested.written_tokens += generated.tokens.len();
        requested.thinking_tokens += generated.thinking_tokens;
        requested.finish = generated.finish.name();
        if choice.is_multiple_of(self.choices) {
            // The first of its prompt, which the others share.
            requested.cached_tokens += generated.reused;
            requested.restored_tokens += generated.restored;
        }
        if choice > 0 {
            return;
        }
        let (prefill, decode) = (&generated.prefill, &generated.decode);
        requested.first_tokens = generated.tokens.len();
        requested.prefill = prefill.elapsed;
        requested.decode = decode.elapsed;
        requested.longest_wait = generated.longest_wait;
        let stored = Stored {
            hits: prefill.store.hits + decode.store.hits,
            misses: prefill.store.misses() + decode.store.misses(),
            read_bytes: prefill.store.read_bytes + decode.store.read_bytes,
        };
        requested.read_bytes = stored.read_bytes;
        requested.hit_rate = stored.hit_rate();
        requested.logits_hash = generated.logits_hash;
    }

    /// Tells of an answer that was given up, or has failed, what had come of it.
    fn give_up(&mut self) {
        let Some((started, before)) = self.started else {
            self.requested.queue = self.arrived.elapsed();
            return;
        };
        let (written, stored) = (self.progress.written(), Stored::now(&self.app.watch.gauges));
        let requested = &mut self.requested;
        requested.written_tokens = written.tokens;
        requested.thinking_tokens = written.thinking_tokens;
        if requested.finish != FAILED {
            requested.finish = GONE;
        }
        if requested.first_tokens > 0 {
            // The first choice has ended, and has said what it took.
            return;
        }
        requested.first_tokens = written.first_tokens;
        requested.longest_wait = written.longest_wait;
        let (first, latest) = written.between.unwrap_or_else(|| (Instant::now(), Instant::now()));
        requested.prefill = first.saturating_duration_since(started);
        requested.decode = latest.saturating_duration_since(first);
        let stored = stored.since(before);
        requested.read_bytes = stored.read_bytes;
        requested.hit_rate = stored.hit_rate();
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if self.open > 0 {
            self.give_up();
        }
        self.app.watch.requested(&self.requested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_choice_whose_time_it_is() {
        let requested = Requested {
            written_tokens: 30,
            first_tokens: 11,
            decode: Duration::from_secs(2),
            ..Requested::default()
        };
        assert_eq!(requested.decode_tok_s(), 5.0);
    }
}
