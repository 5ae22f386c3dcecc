//! `GET /openapi.json`: all paths, described for programs.
//!
//! The description is a file that people write: requests are read field by field, so there is no type that
//! it could be derived from. What keeps it true are tests: every path is in it, every example is
//! accepted, every field that it names is known, every answer is as it says.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

const TEXT: &str = include_str!("openapi.json");

/// The description.
pub(crate) async fn handle() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], TEXT).into_response()
}
