//! The status page: files that are part of the program, and that load nothing from elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

use super::Served;

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// The parts of the page: path, media type and content.
const PARTS: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/page/style.css", STYLE, include_str!("page/style.css")),
    ("/page/icon.svg", IMAGE, include_str!("page/icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("page/main.js")),
    ("/page/api.js", SCRIPT, include_str!("page/api.js")),
    ("/page/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/page/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/page/format.js", SCRIPT, include_str!("page/format.js")),
    ("/page/rates.js", SCRIPT, include_str!("page/rates.js")),
    ("/page/tables.js", SCRIPT, include_str!("page/tables.js")),
];

/// Adds the routes of the page.
pub(super) fn add_routes(mut router: Router<Arc<Served>>) -> Router<Arc<Served>> {
    for (path, media, content) in PARTS {
        router = router.route(path, get(async || ([(CONTENT_TYPE, *media)], *content)));
    }
    router
}

/// Returns whether a path is that of a part of the page.
pub(super) fn is_part(wanted: &str) -> bool {
    PARTS.iter().any(|(path, ..)| *path == wanted)
}
