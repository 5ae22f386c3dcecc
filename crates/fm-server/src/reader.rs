//! Reads the bodies of requests and answers none: for whoever makes up bodies.

use std::sync::Arc;

use crate::{
    Service,
    anthropic::messages,
    fields::Fields,
    openai,
    problem::Problem,
    serve::{self, App},
    tokens,
    workers::Workers,
};

/// See the module.
#[derive(Debug)]
pub struct Reader(Arc<App>);

/// What reads a body.
type Read = fn(&Arc<App>, Fields) -> Result<(), Problem>;

const PATHS: &[(&str, Read)] = &[
    ("/v1/chat/completions", openai::chat::check),
    ("/v1/completions", openai::completions::check),
    ("/v1/responses", openai::responses::check),
    ("/v1/messages", messages::check),
    ("/v1/messages/count_tokens", counted),
    ("/tokenize", |app, fields| tokens::tokens_of(app, fields).map(drop)),
    ("/detokenize", |app, fields| tokens::text_of(app, fields).map(drop)),
];

fn counted(app: &Arc<App>, fields: Fields) -> Result<(), Problem> {
    let asks = Arc::new(());
    messages::tokens_of(app, fields, &Arc::downgrade(&asks)).map(drop)
}

impl Reader {
    /// Reads as the service would.
    pub fn new(service: Service) -> Self {
        Self(serve::app(service, Workers::none()))
    }

    /// The paths whose bodies are read.
    pub fn paths() -> impl Iterator<Item = &'static str> {
        PATHS.iter().map(|(path, _)| *path)
    }

    /// Whether the body would be answered; nothing if there is no such path.
    pub fn takes(&self, path: &str, body: &[u8]) -> Option<bool> {
        let (_, read) = PATHS.iter().find(|(own, _)| *own == path)?;
        Some(Fields::parse(body).and_then(|fields| read(&self.0, fields)).is_ok())
    }
}
