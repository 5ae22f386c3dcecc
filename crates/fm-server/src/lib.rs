//! The model behind HTTP: the interfaces of OpenAI and Anthropic over one scheduler.
//!
//! ```text
//! body ─► fields ─► openai │ anthropic ─► Ask ─► Submit (the scheduler's queue)
//!                                                   │ pieces
//! response ◄─ wire shapes, streamed or whole ◄─ Answer
//! ```
//!
//! Handlers know the model by its words ([`Model`]) and the scheduler by one call ([`Submit`]); they
//! never see a session. Nothing of a request is ever opened: no path, no URL.

#![forbid(unsafe_code)]

mod answer;
mod anthropic;
mod ask;
mod bodies;
mod connections;
mod count;
mod door;
mod early;
mod feed;
mod fields;
mod kept;
mod late_system;
mod model;
mod openai;
mod openapi;
mod page;
mod places;
mod prefill;
mod problem;
mod progress;
mod reader;
mod serve;
mod stream;
mod structured;
mod surrogates;
mod tally;
mod texts;
mod tokens;
mod tools;
mod turns;
mod watch;
mod whole;
mod workers;

pub use answer::Submit;
pub use connections::Patience;
pub use door::Door;
pub use model::Model;
pub use prefill::NoRequest;
pub use reader::Reader;
pub use serve::{Bounds, ServeError, Server, Service, Stopper};
pub use tally::Requested;
pub use watch::Log;
