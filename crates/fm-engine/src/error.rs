//! Why a model cannot be opened or run, with what may help.

use std::{error::Error, iter, path::PathBuf, sync::Arc};

use fm_format::{FormatError, error::MEND, source::gguf::GgufError};
use fm_kernels::DeviceError;
use fm_model::{
    LoadError,
    runner::{RunError, SpoiledReason, StepError},
};
use fm_store::{StoreError, trace::TraceError};
use fm_text::TextError;

use crate::{
    backends::NumericsMismatch, eval::EvalError, grammar::GrammarError, memory_plan::PlanError,
    sampler::NotANumber, session::ConversationError,
};

/// An error with its causes, in one line: the address of what could not be read is in the last one, and what a
/// template has against a conversation.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let mut words: Vec<String> = causes.map(ToString::to_string).collect();
    // Transparent errors say what their cause says.
    words.dedup();
    words.join(": ")
}

/// Why a model cannot be opened or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The checkpoint is not a model this build runs.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The experts cannot be served.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A trace cannot be written or read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Tokenizer or template failed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The device cannot compute as asked.
    #[error(transparent)]
    Numerics(#[from] NumericsMismatch),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A session cannot be opened, saved or restored.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A conversation cannot be saved or continued.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A step that several texts shared failed.
    #[error("the answer cannot be continued")]
    SharedStep {
        /// Why.
        source: Arc<StepError>,
    },
    /// What this session needed could not be read or kept.
    #[error("the answer cannot be continued")]
    Spoiled(#[from] SpoiledReason),
    /// The arithmetic went wrong.
    #[error(transparent)]
    NotANumber(#[from] NotANumber),
    /// A grammar is not taken, or the text under it cannot go on.
    #[error("the grammar cannot be followed")]
    Grammar(#[from] GrammarError),
    /// A text cannot be evaluated.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// `generation_config.json` does not parse.
    #[error("{} is not a generation configuration", path.display())]
    GenerationConfig {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A field of `generation_config.json` that cannot be read.
    #[error("{}: `{key}` is {found}, expected {expected}", path.display())]
    GenerationField {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A number of the model's own way of choosing words that makes no sense.
    #[error("{}: `{key}` is {found}, expected {low} to {high}", path.display())]
    Sampling {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value.
        found: f32,
        /// The lowest that it may be.
        low: f32,
        /// The highest that it may be.
        high: f32,
    },
    /// An end of text that is no token of the model.
    #[error("{}: `{key}` is {found}, which is no token of a vocabulary of {vocab}", path.display())]
    EndToken {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        found: serde_json::Value,
        /// Tokens of the model.
        vocab: usize,
    },
    /// The time of a request was over before an answer began.
    #[error("the time that this server gives a request was over before the answer began")]
    Late,
    /// There is nothing to start from.
    #[error("the prompt is empty: a model needs at least one token to start from")]
    EmptyPrompt,
    /// The prompt is longer than the context.
    #[error("the prompt has {tokens} tokens, the context holds {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: u32,
    },
    /// A token that the model has no embedding for.
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// The tokenizer knows a token that the model does not, and a text cannot go on without it.
    #[error(
        "the tokenizer spells {text:?} with token {token}, of which the model has no row: it has {vocab}"
    )]
    NoRow {
        /// What is to be written.
        text: String,
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A key of a GGUF file is of the wrong type.
    #[error("{}: the metadata does not describe a tokenizer", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        source: GgufError,
    },

    /// A key of a GGUF file about choosing words is of the wrong type.
    #[error("{}: the metadata do not say how words are chosen", path.display())]
    SamplingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        source: GgufError,
    },
    /// A key of a GGUF file that changes tokens in a way that is not done here.
    #[error("{}: `{key}` may change tokens, and nothing here knows how: ids would not be exact", path.display())]
    TokenizerKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// Work on experts, of a model that has none.
    #[error("{} has no routed experts", path.display())]
    NoExperts {
        /// The model's directory or GGUF file.
        path: PathBuf,
    },
    /// Text for a model without a tokenizer.
    #[error("{} has no tokenizer, so it takes tokens only", path.display())]
    NoTokenizer {
        /// The model's directory or GGUF file.
        path: PathBuf,
    },
    /// A conversation for a model without a chat template.
    #[error("{} has no chat template", path.display())]
    NoTemplate {
        /// The model's directory or GGUF file.
        path: PathBuf,
    },
}

impl EngineError {
    /// What the user could do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Format(error) | Self::Load(LoadError::Format(error)) => return error.hint(),
            Self::Load(LoadError::Lock { .. }) => {
                "raise the limit (`ulimit -l`, or `memlock` in limits.conf), or leave --lock-trunk off"
            }
            Self::Load(LoadError::MissingTensor { .. }) => {
                "check that every shard of the checkpoint was downloaded"
            }
            Self::Plan(PlanError::BudgetTooSmall { sessions: 2.., .. }) => {
                "give it more with --memory, or lower --sessions, --prefill-chunk and --context"
            }
            Self::Plan(PlanError::BudgetTooSmall { .. }) => {
                "give it more with --memory, or lower --prefill-chunk and --context"
            }
            Self::Plan(PlanError::Context { .. }) => {
                "lower --context, raise --memory, or keep keys and values in half the bytes with --kv f16 (lossy)"
            }
            Self::Plan(PlanError::LongerThanModel { .. }) => "lower --context",
            Self::Plan(PlanError::ChunkTooSmall { .. }) => {
                "lower --sessions, or raise --prefill-chunk and --memory"
            }
            Self::PromptTooLong { .. } => {
                "shorten the prompt, or raise --context if `flash-moe inspect` says that the model has more"
            }
            Self::EmptyPrompt => {
                "give one: `flash-moe run MODEL \"…\"`, --prompt-file or --prompt-tokens; to chat, `flash-moe serve MODEL` and its page"
            }
            Self::NoTokenizer { .. } => "`flash-moe run` takes tokens: --prompt-tokens 1,2,3",
            Self::Sampling { .. } | Self::SamplingKey { .. } => {
                "correct the file, or remove the key"
            }
            Self::TokenizerKey { .. } => {
                "take the model's safetensors, or a GGUF file by another converter"
            }
            Self::EndToken { .. } => "correct the file: an answer would never end where it says",
            Self::Text(TextError::Refused { .. }) => {
                "these are the words of the model's own template; --raw continues a prompt without it"
            }
            Self::NoTemplate { .. } => "use --raw to continue the prompt as it stands",
            Self::Spoiled(SpoiledReason::KvOverflow { .. }) => {
                "leave --kv f16 off: it cannot hold all keys and values of this text"
            }
            Self::Store(StoreError::NoScores) => "record it again with `profile record --scores`",
            Self::Store(StoreError::BudgetTooSmall { .. })
            | Self::Plan(PlanError::Store(StoreError::BudgetTooSmall { .. })) => {
                "raise --memory, or --slots: there is to be room for the experts that a token takes of a layer, in every size that experts have"
            }
            Self::Store(StoreError::Truncated { .. }) => {
                "download the file again, or convert again into the same directory"
            }
            Self::Spoiled(_) | Self::Store(_)
                if is_because(self, |cause| matches!(cause, StoreError::RingFailed { .. })) =>
            {
                "start again; `--io buffered` reads without an io_uring"
            }
            Self::Spoiled(_) | Self::Store(_)
                if is_because(self, |cause| matches!(cause, StoreError::Changed { .. })) =>
            {
                "start again, when whoever writes into the model has ended"
            }
            Self::Spoiled(_) | Self::Store(StoreError::Corrupt { .. }) => MEND,
            Self::Store(StoreError::Threads { .. }) => {
                "raise the limit on threads (`ulimit -u`, or that of the container or service)"
            }
            Self::Store(_) => "check the disk; `flash-moe verify` re-reads the whole model",
            Self::Eval(error) => return error.hint(),
            Self::Numerics(_) => "leave --device out: it follows from --numerics",
            _ => return None,
        })
    }
}

/// Whether experts are missing for such a reason.
fn is_because(error: &EngineError, is_it: fn(&StoreError) -> bool) -> bool {
    let mut causes = iter::successors(error.source(), |cause| (*cause).source());
    matches!(error, EngineError::Store(error) if is_it(error))
        || causes.any(|cause| cause.downcast_ref().is_some_and(is_it))
}

#[cfg(test)]
mod tests {
    use fm_format::key::{ExpertIndex, ExpertKey, LayerIndex};
    use fm_model::experts::{ExpertsLost, LossCause};

    use super::*;

    #[test]
    fn what_is_not_the_disks_fault_sends_nobody_to_check_the_disk() {
        let (layer, expert) = (LayerIndex(3), ExpertIndex(7));
        let key = ExpertKey { layer, expert };
        let ring = || StoreError::RingFailed {
            key,
            source: Arc::new(std::io::ErrorKind::OutOfMemory.into()),
        };
        let lost = |cause: StoreError| {
            let experts = vec![(expert, Arc::new(cause) as LossCause)];
            EngineError::from(SpoiledReason::from(ExpertsLost { layer, experts }))
        };
        for error in [ring().into(), lost(ring())] {
            assert!(error.hint().is_some_and(|hint| hint.contains("--io buffered")), "{error}");
        }
        let changed = lost(StoreError::Changed { path: "x".into() });
        assert!(changed.hint().is_some_and(|hint| hint.contains("start again, when")));
        let disk = lost(StoreError::ReaderPanicked { key });
        assert!(disk.hint().is_some_and(|hint| hint.contains("verify")));
    }
}
