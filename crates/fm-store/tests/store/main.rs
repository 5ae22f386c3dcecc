//! The store against a model of itself, against disks that fail, and against real files.

mod failures;
mod files;
mod model;
mod sim_disk;
mod streaming;
mod world;
