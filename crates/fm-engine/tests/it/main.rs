//! Whole models through the engine: the same bits under every circumstance, and faults that spoil
//! nothing but what they touch.

mod faults;
mod generation;
mod harness;
mod options_document;
mod sameness;
