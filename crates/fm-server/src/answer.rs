//! An answer on its way: pieces from the scheduler's thread, and what they add up to.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    sync::Arc,
    task::{Context, Poll},
};

use fm_engine::{
    EngineError,
    generate::{Chosen, Event, FinishReason, Generated},
    schedule::{Job, Listener, Queue, Refused, Update},
};
use fm_text::{CallPart, Channel};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::{kept::CallIds, problem::Problem, progress::Progress, tally::Tally};

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
    /// Whether anything of any choice has been told.
    told: bool,
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
        Self { sent, open: choices, told: false, ids, tally }
    }

    /// The next piece and whose it is; nothing when all choices have ended, or one has failed.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Piece)>> {
        while self.open > 0 {
            match self.sent.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Sent::Started)) => self.tally.start(),
                Poll::Ready(Some(Sent::Piece(choice, piece))) => {
                    let piece = match piece {
                        // One that never had its turn, beside others that did.
                        Piece::Failed(Problem::Engine(EngineError::Late)) if self.told => {
                            Piece::Done(Box::new(Generated::nothing(FinishReason::Deadline)))
                        }
                        piece => piece,
                    };
                    self.told = true;
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
        self.tally.fail();
    }

    pub(crate) async fn next(&mut self) -> Option<(usize, Piece)> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}
