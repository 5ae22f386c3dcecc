//! Models from the hub: what a repository holds, the cache that all programs of a machine share,
//! and downloads that go on where they stopped.
//!
//! Knows HTTP and directories. What a header means is [`fm_format`]'s, what a model needs is the
//! engine's; the environment is read by whoever fills [`Options`].
#![forbid(unsafe_code)]

mod at_once;
pub mod cache;
mod checksum;
mod client;
mod error;
mod name;
mod peek;
mod pull;
mod repository;
mod select;

pub use cache::{Cache, Cached};
pub use checksum::Checksum;
pub use client::{Client, Options, Token};
pub use error::{HubError, Variant};
pub use name::{ModelName, RepoId};
pub use peek::{Peeked, peek};
pub use pull::{Event, Need, Pull, Pulled, Report};
pub use repository::{RemoteFile, Repository};
pub use select::Selection;
