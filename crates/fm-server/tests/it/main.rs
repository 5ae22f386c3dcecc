//! A server in this process, asked over a socket as clients ask.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod agents;
mod bounds;
mod browser;
mod carried;
mod chat;
mod client;
mod corpus;
mod counts;
mod dialects;
mod endings;
mod first_space;
mod gone;
mod harness;
mod lost;
mod messages;
mod nothing;
mod odds;
mod openapi;
mod padded;
mod page;
mod page_in_browser;
mod page_kept;
mod page_tools;
mod page_turns;
mod patience;
mod pieces;
mod refusals;
mod responses;
mod restarts;
mod results;
mod sharing;
mod strangers;
mod structured;
mod tools;
mod words;
