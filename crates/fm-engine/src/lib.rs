//! One running model: plan, load, sessions, generation, report. The narrow boundary below the
//! command line and the server.

#![forbid(unsafe_code)]

pub mod backends;
pub mod bytes;
pub mod engine;
pub mod error;
pub mod eval;
pub mod gauges;
pub mod generate;
pub mod generation_config;
pub mod grammar;
pub mod limits;
pub mod local;
mod logits_hash;
mod logprobs;
pub mod look_ahead;
pub mod machine;
pub mod measure;
pub mod memory_plan;
mod metadata_keys;
pub mod options;
mod prefix;
pub mod pressure;
pub mod report;
pub mod sampler;
pub mod schedule;
pub mod session;
mod text_parts;
mod text_stream;
pub mod warm_start;
mod writing;

pub use engine::{Engine, Load, Places};
pub use error::EngineError;
pub use fm_store::{ExpertMap, Glance, PolicyKind, Stats, replay, trace};

/// Tokens of a block of keys and values.
pub const KV_BLOCK_TOKENS: u64 = fm_kernels::backend::KV_BLOCK_TOKENS as u64;
