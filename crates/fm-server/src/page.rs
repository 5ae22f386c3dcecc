//! The built-in page: files that are part of the program, and need nothing from anywhere else.

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderName, header},
    response::IntoResponse,
    routing::get,
};

use crate::serve::App;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Scripts and styles are the page's own files, connections go to this server only, and no text ever
/// becomes markup: a script that tried would fail.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// `(path, type, text)` of files below `/page/`.
macro_rules! files {
    ($($kind:ident $name:literal)*) => {
        &[
            ("/", HTML, include_str!("page/index.html")),
            $((concat!("/page/", $name), $kind, include_str!(concat!("page/", $name)))),*
        ]
    };
}

/// Path, type and text of every file.
const FILES: &[(&str, &str, &str)] = files! {
    CSS "base.css" CSS "chat.css" CSS "machine.css" SVG "icon.svg"
    SCRIPT "answer.js" SCRIPT "api.js" SCRIPT "calls.js" SCRIPT "chat.js"
    SCRIPT "conversations.js" SCRIPT "dom.js" SCRIPT "feed.js" SCRIPT "heatmap.js"
    SCRIPT "inline.js" SCRIPT "machine.js" SCRIPT "main.js" SCRIPT "markdown.js"
    SCRIPT "message.js" SCRIPT "settings.js" SCRIPT "sidebar.js" SCRIPT "theme.js"
    SCRIPT "tools.js"
};

/// Whether a path is the page's. Its files are no secret: they ask for the key.
pub(crate) fn has(path: &str) -> bool {
    path == "/" || path.starts_with("/page/")
}

/// The paths of all files.
pub(crate) fn routes() -> Router<Arc<App>> {
    FILES.iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(async || (headers(kind), *text).into_response()))
    })
}

fn headers(kind: &'static str) -> [(HeaderName, &'static str); 5] {
    [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the program may answer next time.
        (header::CACHE_CONTROL, "no-cache"),
    ]
}

#[cfg(test)]
mod tests {
    use super::FILES;

    /// A proxy may have put the server below a path of its own.
    #[test]
    fn nothing_of_the_page_is_looked_for_at_the_root() {
        for (name, _, text) in FILES {
            for absolute in ["\"/v1", "\"/feed", "\"/page", "=\"/", "url(/"] {
                assert!(!text.contains(absolute), "{name}: {absolute}");
            }
        }
    }
}
