//! How bytes arrive: a cache of expert records with a hard budget, in front of a reader.
//!
//! ```text
//! request ──► pin hits, start misses ──► reader ──► slots ──► next ──► Lease ──► drop
//! ```
//!
//! A layer asks for the experts its router chose ([`Store::request`]), computes with whatever is
//! there, and takes the rest one by one as it arrives ([`Store::next`]). What it gets is a
//! [`Lease`]: as long as it lives, its slot is neither evicted nor written. The store knows keys
//! and bytes, never tensors; a union of experts larger than all slots streams through.

mod class;
mod entries;
mod error;
pub mod heat;
mod map;
mod plan;
pub mod policy;
pub mod reader;
pub mod replay;
mod slots;
mod stats;
mod store;
mod ticket;
pub mod trace;

pub use error::{RecordPart, StoreError};
pub use map::{ExpertMap, Glance};
pub use plan::{CHUNK_BYTES, ClassPlan, Plan, StoreOptions};
pub use policy::PolicyKind;
pub use slots::{Buffer, Lease};
pub use stats::Stats;
pub use store::{FETCHES_MAX, Store};
pub use ticket::{Arrived, Order, Ticket};
