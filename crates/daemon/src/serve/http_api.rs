//! The routes of the HTTP server: metrics, health, the JSON API and the page.

mod collector;
mod json_api;
mod page;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

use super::ServeError;
use super::admin_api::Shared;
use super::metrics::exposition::{OPEN_METRICS, PLAIN_TEXT, open_metrics, plain_text};
use crate::admin::open_api::{self, DOCUMENT_PATH, JSON};
use crate::config::Http;
use crate::http::access::{Access, Purpose};
use crate::http::server::{Routes, Server};
use crate::http::shared_text::{SharedResponse, SharedTexts};
use crate::serve::guess_guard::GuessGuard;
use collector::{Collector, NoAnswer};
use json_api::JsonApi;

/// What the routes share.
struct Served {
    collector: Collector,
    api: JsonApi,
    texts: SharedTexts,
    open_metrics: SharedResponse<NoAnswer>,
    plain_metrics: SharedResponse<NoAnswer>,
}

/// Opens the listening socket of the server of a configuration, if it has one.
pub(super) fn listen(http: Option<&Http>) -> Result<Option<TcpListener>, ServeError> {
    let listen = |http: &Http| TcpListener::bind(http.listen).map_err(|error| cannot_listen(http, &error));
    http.map(listen).transpose()
}

/// Starts the server of a configuration on its listening socket, if it has one.
pub(super) fn start(
    http: Option<&Http>,
    listener: Option<&TcpListener>,
    shared: &Arc<Shared>,
    guesses: &Arc<GuessGuard>,
) -> Result<Option<Server>, ServeError> {
    let (Some(http), Some(listener)) = (http, listener) else { return Ok(None) };
    let listener = listener.try_clone().map_err(|error| cannot_listen(http, &error))?;
    let access = Access::new(http).sharing(Arc::clone(guesses) as Arc<_>);
    let server = Server::start(listener, access, http.tls.clone(), routes(shared)?);
    let server = server.map_err(|error| cannot_listen(http, &error))?;
    let tls = if http.tls.is_some() { "https" } else { "http" };
    crate::info!("serving the status page and metrics on {tls}://{}/", server.address());
    Ok(Some(server))
}

fn cannot_listen(http: &Http, error: &io::Error) -> ServeError {
    ServeError::Failed(format!("cannot serve HTTP on {}: {}", http.listen, crate::os_error(error)))
}

fn routes(shared: &Arc<Shared>) -> Result<Routes, ServeError> {
    let document = open_api::open_api().to_pretty_json();
    let document = document.map_err(|error| ServeError::Failed(error.to_string()))?;
    let served = Served {
        collector: Collector::new(Arc::clone(shared)),
        api: JsonApi::new(Arc::clone(shared)),
        texts: SharedTexts::default(),
        open_metrics: SharedResponse::default(),
        plain_metrics: SharedResponse::default(),
    };
    let document = axum::body::Bytes::from(document);
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route(DOCUMENT_PATH, get(async move || ([(CONTENT_TYPE, JSON)], document.clone())));
    let router = page::add_routes(json_api::add_routes(router));
    Ok(Routes { router: router.fallback(unknown).with_state(Arc::new(served)), purpose })
}

/// Returns what requests for a path do.
fn purpose(path: &str) -> Purpose {
    if json_api::is_change(path) {
        Purpose::Change
    } else if page::is_part(path) || path == DOCUMENT_PATH {
        Purpose::Public
    } else {
        Purpose::Read
    }
}

async fn unknown() -> (StatusCode, &'static str) {
    (
        StatusCode::NOT_FOUND,
        "there is /, /api/openapi.json, which describes /api/v1, /metrics, /healthz and /readyz\n",
    )
}

/// The metrics. A client that names `text/plain` and not OpenMetrics gets the older format.
async fn metrics(State(served): State<Arc<Served>>, headers: HeaderMap) -> Response {
    let is_plain = wants_plain_text(&headers);
    let (shared, media) = match is_plain {
        true => (&served.plain_metrics, PLAIN_TEXT),
        false => (&served.open_metrics, OPEN_METRICS),
    };
    let text = async {
        let snapshot = served.collector.collect().await?;
        let text = open_metrics(&snapshot).map_err(|_| NoAnswer)?;
        Ok::<_, NoAnswer>(if is_plain { plain_text(&text) } else { text }.into_bytes())
    };
    match shared.get(&served.texts, text).await {
        Ok(text) => ([(CONTENT_TYPE, media)], text.body()).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

fn wants_plain_text(headers: &HeaderMap) -> bool {
    let accepts = |media: &str| {
        let fields = headers.get_all(ACCEPT).iter().filter_map(|field| field.to_str().ok());
        fields.flat_map(|field| field.split(',')).any(|range| range.trim_start().starts_with(media))
    };
    accepts("text/plain") && !accepts("application/openmetrics-text")
}

/// Whether the process lives: every reactor answers.
async fn health(State(served): State<Arc<Served>>) -> (StatusCode, String) {
    match served.collector.collect().await {
        Ok(_) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// Whether everything that is configured is served, and what not and why.
async fn readiness(State(served): State<Arc<Served>>) -> Response {
    let (problems, warnings) = match served.collector.collect().await {
        Ok(snapshot) => (snapshot.problems(), snapshot.warnings()),
        Err(why) => (vec![why.to_string()], Vec::new()),
    };
    let ready = problems.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "ready": ready, "problems": problems, "warnings": warnings });
    (status, [(CONTENT_TYPE, JSON)], format!("{body}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_gets_the_older_format_only_if_it_names_that_and_not_open_metrics() {
        // What Prometheus 2.42 sends, a browser, curl, and somebody who asks for text.
        for (accept, plain) in [
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;\
                 version=0.0.4;q=0.5,*/*;q=0.1",
                false,
            ),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false),
            ("*/*", false),
            ("text/plain", true),
            ("text/html, text/plain;q=0.5", true),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wants_plain_text(&headers), plain, "{accept}");
        }
        assert!(!wants_plain_text(&HeaderMap::new()));
    }
}
