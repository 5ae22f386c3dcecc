//! Why a request is not answered, before an interface gives it its own shape.

use axum::http::StatusCode;
use fm_engine::{EngineError, error::chain, grammar::GrammarError, schedule::Refused};
use fm_text::{TextError, tools::Unkept};

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Problem {
    /// The body is no JSON object.
    #[error("the body is not a JSON object{}", reason(.source.as_ref()))]
    Body {
        /// Where and why.
        source: Option<serde_json::Error>,
    },
    /// The body has more lists and objects in each other than are read.
    #[error("the body has more than 127 lists and objects in each other")]
    BodyTooDeep,
    /// The body is compressed.
    #[error("bodies are taken as they are: without a content-encoding")]
    Coding,
    /// The body breaks off, or comes in chunks that are none.
    #[error("the body breaks off, or its chunks are malformed")]
    BodyBroken,
    /// The body is longer than is taken.
    #[error("the body is longer than {max} bytes")]
    BodyTooLong {
        /// Bytes that are taken.
        max: usize,
    },
    /// Other bodies fill the room for all of them.
    #[error(
        "the bodies of other requests fill the {} MiB that there are for all; try again in a moment",
        max >> 20
    )]
    BodiesTooMany {
        /// Bytes for all of them.
        max: usize,
    },
    /// The body did not come.
    #[error("the rest of the body did not come")]
    BodyTooSlow,
    /// The body would be much larger in memory than it is.
    #[error("the body has more than {values} values, or more than {nests} lists and objects")]
    BodyTooMany {
        /// Values that are taken.
        values: usize,
        /// Lists and objects that are taken.
        nests: usize,
    },
    /// A field is not what it should be.
    #[error("{field}: {wrong}")]
    Field {
        /// The field, with dots and indices.
        field: String,
        /// What is wrong with it.
        wrong: Wrong,
    },
    /// An item is named that is not here; in the words of the original.
    #[error(
        "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again \
         with `store` set to true, or remove this item from your input."
    )]
    NoItem {
        /// What the client calls it.
        id: String,
    },
    /// The grammar of a field is not taken.
    #[error("{field}: {source}")]
    Grammar {
        /// The field, with dots.
        field: String,
        /// Why.
        source: GrammarError,
    },
    /// Calls of a strict tool cannot be held to its schema.
    #[error("tools: the parameters of {name}: {source}")]
    Unmade {
        /// The tool.
        name: String,
        /// Why.
        source: GrammarError,
    },
    /// The tags of this model's calls cannot be held to it.
    #[error("tools: the parameters of {name}: {source}")]
    Unkept {
        /// The tool.
        name: String,
        /// Why.
        source: Unkept,
    },
    /// Tokenizer or template refuse the text.
    #[error("{}", chain(.0))]
    Text(#[from] TextError),
    /// The prompt leaves no room for an answer.
    // The first words are those that agents know it by, and shorten their conversation.
    #[error(
        "prompt is too long: {tokens} tokens > {context} maximum; send less, or start the server \
         with a larger --context"
    )]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of a session.
        context: u32,
        /// The field that it came in.
        field: String,
    },
    /// There would be no room for the log-probabilities of so long an answer.
    #[error(
        "log-probabilities are told of at most {max} candidates, so each answer to this request may have up to \
         {tokens} tokens: ask for fewer tokens, candidates or answers"
    )]
    OddsTooMany {
        /// Candidates, of all tokens and answers.
        max: usize,
        /// Tokens that each answer may have.
        tokens: usize,
    },
    /// The model has no chat template.
    #[error("this model has no chat template; use /v1/completions")]
    NoTemplate,
    /// The chat template does not mention tools.
    #[error("this model was not made for tools: its chat template has no place for them")]
    NoTools,
    /// The model has its own way of writing calls.
    #[error("this server cannot read the calls of this model; with tool_choice none it answers")]
    NoDialect,
    /// No key, or another one.
    #[error("the API key is missing or wrong")]
    Key,
    /// A name that this server does not go by.
    #[error("this server does not go by the name `{host}`; --allow-host {host} adds it")]
    ForeignHost {
        /// As it was sent.
        host: String,
    },
    /// A page of another origin.
    #[error(
        "pages of `{origin}` are not served as `{host}`: a proxy has to hand the Host on as it came, or \
         --allow-origin {origin} adds them"
    )]
    ForeignOrigin {
        /// Of the page.
        origin: String,
        /// Of the request.
        host: String,
    },
    /// A page of another origin, which does not say which.
    #[error("pages of other origins are not served")]
    Foreign,
    /// RFC 9112, section 3.2.
    #[error("a request of HTTP/1.1 has to name its host, once")]
    NoHost,
    /// There is no such place.
    #[error("there is nothing at {path}{}", .meant.map_or_else(String::new, |meant| format!("; {meant} may be meant")))]
    NotFound {
        /// As it was asked for.
        path: String,
        /// One that ends alike.
        meant: Option<&'static str>,
    },
    /// There is, but not for this method.
    #[error("this path does not take this method")]
    Method,
    /// As many watch as may watch.
    #[error("{max} pages watch this machine already; close one")]
    Watched {
        /// Who may watch at once.
        max: usize,
    },
    /// The queue is full, or the server ends.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The engine failed.
    #[error("{}", chain(.0))]
    Engine(EngineError),
    /// The engine has ended without a word.
    #[error("the engine ended before the answer was complete")]
    Gone,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Wrong {
    #[error("it is required")]
    Missing,
    #[error("it must be {0}")]
    Kind(&'static str),
    #[error("it must be between {0} and {1}")]
    Range(f64, f64),
    #[error("it may have at most {0} entries")]
    Many(usize),
    #[error("a text of it may have at most {0} bytes")]
    Long(usize),
    #[error("it may have at most {0} bytes")]
    Large(usize),
    #[error("it must not be empty")]
    Empty,
    #[error("this server does not know this field")]
    Unknown,
    #[error("this server does not do {0}")]
    Unsupported(&'static str),
    #[error("{0}")]
    Rule(&'static str),
}

/// Letters of a field's name that are told.
const FIELD_LETTERS_MAX: usize = 200;

impl Wrong {
    /// Says where. A name that a client has made up may be as long as its body, and is not told whole.
    pub(crate) fn at(self, field: impl Into<String>) -> Problem {
        let mut field = field.into();
        if let Some((end, _)) = field.char_indices().nth(FIELD_LETTERS_MAX) {
            field.truncate(end);
            field.push('…');
            field.shrink_to_fit();
        }
        Problem::Field { field, wrong: self }
    }
}

/// Where it ceases to be one, and why.
fn reason(error: Option<&serde_json::Error>) -> String {
    error.map_or_else(String::new, |error| format!(": {error}"))
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::PromptTooLong { tokens, context } => Self::too_long(tokens, context),
            EngineError::Text(error) => Self::Text(error),
            error => Self::Engine(error),
        }
    }
}

impl Problem {
    /// What most prompts are is a list of messages.
    pub(crate) fn too_long(tokens: usize, context: u32) -> Self {
        Self::TooLong { tokens, context, field: "messages".to_owned() }
    }

    /// Says of a prompt that is too long which other field it came in.
    pub(crate) fn of_field(mut self, own: &str) -> Self {
        if let Self::TooLong { field, .. } = &mut self {
            own.clone_into(field);
        }
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Body { .. }
            | Self::BodyTooDeep
            | Self::BodyBroken
            | Self::BodyTooMany { .. }
            | Self::Field { .. }
            | Self::Unkept { .. }
            | Self::Unmade { .. }
            | Self::Text(_)
            | Self::TooLong { .. }
            | Self::OddsTooMany { .. }
            | Self::NoTemplate
            | Self::NoTools
            | Self::NoDialect
            | Self::NoHost
            | Self::Refused(Refused::TooMany { .. })
            | Self::Engine(
                EngineError::EmptyPrompt
                | EngineError::UnknownToken { .. }
                | EngineError::Grammar(GrammarError::Stuck { .. } | GrammarError::Exhausted),
            ) => StatusCode::BAD_REQUEST,
            Self::BodyTooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Coding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Key => StatusCode::UNAUTHORIZED,
            Self::Foreign | Self::ForeignHost { .. } | Self::ForeignOrigin { .. } => {
                StatusCode::FORBIDDEN
            }
            Self::NotFound { .. } | Self::NoItem { .. } => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Refused(Refused::Full { .. }) | Self::Watched { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Grammar { source, .. } => match source {
                GrammarError::Busy | GrammarError::Full => StatusCode::TOO_MANY_REQUESTS,
                GrammarError::TooSlow => StatusCode::SERVICE_UNAVAILABLE,
                GrammarError::Gone | GrammarError::Vocabulary { .. } => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
                _ => StatusCode::BAD_REQUEST,
            },
            Self::Refused(_) | Self::BodiesTooMany { .. } | Self::Engine(EngineError::Late) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Engine(_) | Self::Gone => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The field that is to blame.
    pub(crate) fn field(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. }
            | Self::Grammar { field, .. }
            | Self::TooLong { field, .. } => Some(field),
            Self::NoItem { .. } => Some("input"),
            Self::NoTools | Self::NoDialect | Self::Unkept { .. } | Self::Unmade { .. } => {
                Some("tools")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{anthropic, openai};

    #[test]
    fn grammars_that_there_is_no_room_for_are_asked_for_again_if_there_may_be() {
        let of = |source| Problem::Grammar { field: "tools".to_owned(), source };
        for (source, status) in [
            (GrammarError::Full, StatusCode::TOO_MANY_REQUESTS),
            (GrammarError::Busy, StatusCode::TOO_MANY_REQUESTS),
            (GrammarError::TooLarge { needs: 2, room: 1 }, StatusCode::BAD_REQUEST),
        ] {
            let refused = openai::refuse(&of(source.clone()));
            assert_eq!(refused.status(), status, "{source}");
            let again = status == StatusCode::TOO_MANY_REQUESTS;
            assert_eq!(refused.headers().contains_key("retry-after"), again, "{source}");
        }
    }

    #[test]
    fn a_grammar_that_takes_long_is_asked_for_again() {
        let slow = Problem::Grammar { field: "tools".to_owned(), source: GrammarError::TooSlow };
        for (refused, kind) in [
            (openai::refuse(&slow), openai::error(&slow)["error"]["type"] == "server_error"),
            (
                anthropic::refuse(&slow),
                anthropic::error(&slow)["error"]["type"] == "overloaded_error",
            ),
        ] {
            assert!(kind);
            assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(refused.headers()["retry-after"], "5");
        }
    }
}
