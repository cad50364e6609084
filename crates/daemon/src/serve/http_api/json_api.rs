//! The methods of the admin protocol over HTTP. They run on threads that may wait for the reactors.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::Served;
use crate::admin::api::{ErrorKind, Failure, Method, REQUEST_LEN_MAX, Request};
use crate::admin::change::{Client, Peer};
use crate::admin::open_api::{CHANGES, JSON, READS, path};
use crate::admin::server::RequestHandler as _;
use crate::http::access::Caller;
use crate::http::shared_text::SharedResponse;
use crate::serve::admin_api::Shared;
use crate::serve::changes::failure;

/// How many reads wait for the reactors at a time.
const READS_MAX: usize = READS.len();
/// How many changes are received or made at a time.
const CHANGES_MAX: usize = 2;
/// How long a body may take to arrive.
const BODY_MAX: Duration = Duration::from_secs(10);
/// The longest body in bytes, but that of `plan`, which holds a configuration file.
const BODY_LEN_MAX: usize = 64 << 10;
/// The longest wait of `drain-lun` in seconds: connections end after two minutes.
const DRAIN_WAIT_MAX_S: u32 = 60;

/// What the routes of the API share.
pub(super) struct JsonApi {
    shared: Arc<Shared>,
    reads: [SharedResponse<Failure>; READS.len()],
    readers: Arc<Semaphore>,
    changers: Arc<Semaphore>,
}

impl JsonApi {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            reads: Default::default(),
            readers: Arc::new(Semaphore::new(READS_MAX)),
            changers: Arc::new(Semaphore::new(CHANGES_MAX)),
        }
    }

    /// Makes the response to a method that reads.
    async fn read(&self, method: Method) -> Result<Vec<u8>, Failure> {
        let stopping = || failure(ErrorKind::Unavailable, "targe is stopping");
        // The permit goes to the thread, so that clients that hang up do not start more of them.
        let permit = Arc::clone(&self.readers).acquire_owned().await.map_err(|_| stopping())?;
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || {
            let read = shared.read(method);
            drop(permit);
            read
        });
        read.await.unwrap_or_else(|_| Err(stopping()))
    }

    async fn change(&self, method: Method, caller: Caller, body: Body) -> Result<Value, Failure> {
        let busy = |_| failure(ErrorKind::Busy, format!("{CHANGES_MAX} changes are being made already"));
        let permit = Arc::clone(&self.changers).try_acquire_owned().map_err(busy)?;
        let len_max = if method == Method::Plan { REQUEST_LEN_MAX } else { BODY_LEN_MAX };
        let body = tokio::time::timeout(BODY_MAX, axum::body::to_bytes(body, len_max)).await;
        let late = |_| failure(ErrorKind::Malformed, "the body of the request does not arrive");
        let long = |_| failure(ErrorKind::TooLong, format!("a body has at most {len_max} bytes here"));
        let body = body.map_err(late)?.map_err(long)?;
        let request = request(method, &body)
            .map_err(|error| failure(ErrorKind::Malformed, format!("the body of the request: {error}")))?;
        let shared = Arc::clone(&self.shared);
        let changed = tokio::task::spawn_blocking(move || {
            let name = caller.token.unwrap_or_default();
            let mut client = Client::new(Peer::Token { name, address: caller.address });
            let changed = shared.handle(request, &mut client);
            drop(permit);
            changed
        });
        changed.await.unwrap_or_else(|_| Err(failure(ErrorKind::Unavailable, "targe is stopping")))
    }
}

/// Adds the routes of the API.
pub(super) fn add_routes(mut router: Router<Arc<Served>>) -> Router<Arc<Served>> {
    for (at, method) in READS.into_iter().enumerate() {
        router = router.route(&path(method), get(async move |served| read(served, at, method).await));
    }
    for method in CHANGES {
        let route = post(async move |served, caller, body| change(served, method, caller, body).await);
        router = router.route(&path(method), route);
    }
    router
}

/// Returns whether requests for a path change something.
pub(super) fn is_change(wanted: &str) -> bool {
    CHANGES.iter().any(|method| path(*method) == wanted)
}

async fn read(State(served): State<Arc<Served>>, at: usize, method: Method) -> Response {
    let Some(shared) = served.api.reads.get(at) else { return StatusCode::NOT_FOUND.into_response() };
    match shared.get(&served.texts, served.api.read(method)).await {
        Ok(text) => ([(CONTENT_TYPE, JSON)], text.body()).into_response(),
        Err(failure) => failed(&failure),
    }
}

async fn change(
    State(served): State<Arc<Served>>,
    method: Method,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    match served.api.change(method, caller, body).await {
        Ok(result) => ([(CONTENT_TYPE, JSON)], result.to_string()).into_response(),
        Err(failure) => failed(&failure),
    }
}

/// Makes a request from the body of a change, which is the argument of the method.
fn request(method: Method, body: &[u8]) -> Result<Request, serde_json::Error> {
    let mut request = Request::new(method);
    match method {
        Method::Plan => request.change = Some(serde_json::from_slice(body)?),
        Method::DropSessions | Method::ForgetPorts => request.sessions = Some(serde_json::from_slice(body)?),
        Method::ClearReservations => request.reservations = Some(serde_json::from_slice(body)?),
        Method::DrainLun | Method::SnapshotLun | Method::AcceptLoss | Method::Reservations => {
            request.lun = Some(serde_json::from_slice(body)?);
        }
        Method::SnapshotLuns => request.luns = Some(serde_json::from_slice(body)?),
        Method::Library => request.library = Some(serde_json::from_slice(body)?),
        _ => {}
    }
    if let Some(lun) = &mut request.lun {
        lun.wait_s = lun.wait_s.map(|wait| wait.min(DRAIN_WAIT_MAX_S));
    }
    Ok(request)
}

fn failed(failure: &Failure) -> Response {
    let status = match failure.kind {
        ErrorKind::Malformed => StatusCode::BAD_REQUEST,
        ErrorKind::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Busy | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Invalid | ErrorKind::Refused => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::Conflict => StatusCode::CONFLICT,
    };
    let body = serde_json::to_string(failure).unwrap_or_default();
    (status, [(CONTENT_TYPE, JSON)], body).into_response()
}
