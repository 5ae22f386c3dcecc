//! What the network is: families, layers, the state of sessions, and the runner over them.
//!
//! Owns the trait through which it gets routed experts ([`experts::RoutedExperts`]); knows neither
//! disks nor named devices.

#![deny(unsafe_code)]

pub mod arch;
pub mod decoder;
pub mod error;
pub mod experts;
mod ffi;
pub mod footprint;
mod layer;
pub mod load;
pub mod model_runner;
pub mod runner;
pub mod session_file;
pub mod spec;
pub mod state;
mod weights;

pub use error::LoadError;
pub use runner::Runner;
