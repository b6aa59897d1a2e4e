//! Every "no" as HTTP says it: one table from reasons to status codes.

use crate::http::refusals::Slowly;
use crate::ids::{NUMBER, number_header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes as Buffer;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use modelless_store::Error as StoreError;
use modelless_types::{Nearest, QueryNumber, Refusal};
use modelless_wire::InputFault;
use serde::Serialize;

/// Exactly this, without a charset: some clients read the error's text only then.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What a gateway itself can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting makes no sense.
    #[error("the gateway's settings cannot be used: {0}")]
    Config(String),
    /// A port could not be opened.
    #[error("cannot listen on {addr}: {source}; give another address, or stop what uses it")]
    Bind {
        /// Where.
        addr: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The store could not be read at the start.
    #[error("the gateway cannot start: {0}")]
    Store(#[from] StoreError),
    /// The system gave no random bytes.
    #[error("the system gave no random bytes: {0}")]
    Random(getrandom::Error),
    /// gRPC ended.
    #[error("the gRPC server ended: {0}")]
    Grpc(tonic::transport::Error),
}

/// An answer that is a "no".
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) nearest: Option<Box<Nearest>>,
    pub(crate) retry_after_s: Option<u64>,
    pub(crate) allow: Option<Box<str>>,
    /// Which query was refused, as the log and traces name it.
    pub(crate) query: Option<QueryNumber>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, reason, message, nearest: None, retry_after_s: None, allow: None, query: None }
    }

    /// The request does not follow its form.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", message)
    }

    /// A goal that is none.
    pub(crate) fn bad_goal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_goal", message)
    }

    pub(crate) fn not_found(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, reason, message)
    }

    pub(crate) fn unsupported_media(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media", message)
    }

    pub(crate) fn too_large(limit: u64) -> Self {
        let message = format!("the body is larger than {limit} bytes, which is the limit here");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// Something the gateway needs does not answer.
    pub(crate) fn unavailable(reason: &'static str, message: impl Into<String>) -> Self {
        Self { retry_after_s: Some(1), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, reason, message) }
    }

    /// There is no room for it before another job ends, which takes its time.
    fn later(reason: &'static str, message: String) -> Self {
        Self { retry_after_s: Some(30), ..Self::new(StatusCode::TOO_MANY_REQUESTS, reason, message) }
    }

    pub(crate) fn input(fault: InputFault, why: String) -> Self {
        match fault {
            InputFault::Malformed => Self::malformed(why),
            InputFault::TooLarge => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", why),
            InputFault::UnsupportedMedia => Self::unsupported_media(why),
        }
    }
}

/// The status code of a refusal, and after how many seconds trying again makes sense.
fn status(refusal: &Refusal) -> (StatusCode, Option<u64>) {
    match refusal {
        // Nothing that is registered can meet these goals: other goals are needed, not another try. An input that
        // the model itself cannot process is alike: well-formed, and no use trying again. Not 400, because the request
        // follows its form, and not 500, because the platform did what it should.
        Refusal::FloorUnreachable { .. }
        | Refusal::LatencyUnreachable { .. }
        | Refusal::CostUnreachable { .. }
        | Refusal::PinUnusable { .. }
        | Refusal::InputCrashed { .. }
        | Refusal::ModelError { .. } => (StatusCode::UNPROCESSABLE_ENTITY, None),
        Refusal::OverQuota => (StatusCode::TOO_MANY_REQUESTS, Some(1)),
        Refusal::Loading { ready_in, bound: _ } => {
            (StatusCode::SERVICE_UNAVAILABLE, Some(ready_in.0.div_ceil(1_000_000).max(1)))
        }
        Refusal::QueueFull { .. } | Refusal::BytesFull { .. } | Refusal::NodeLost => {
            (StatusCode::SERVICE_UNAVAILABLE, Some(1))
        }
        Refusal::NothingRunnable { .. }
        | Refusal::VariantFailed { .. }
        | Refusal::OutOfMemory { .. }
        | Refusal::Draining => (StatusCode::SERVICE_UNAVAILABLE, Some(5)),
        Refusal::TooLate { .. } => (StatusCode::GATEWAY_TIMEOUT, None),
        // Nobody reads it; it shows in logs as other servers show it.
        Refusal::Cancelled => (StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST), None),
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (status, retry_after_s) = status(&refusal);
        let nearest = refusal.nearest().map(Box::new);
        let message = refusal.to_string();
        Self { nearest, retry_after_s, ..Self::new(status, refusal.name(), message) }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::AlreadyExists { .. } => Self::new(StatusCode::CONFLICT, "already_exists", message),
            StoreError::RotatedBefore { .. } => Self::new(StatusCode::CONFLICT, "already_rotated", message),
            StoreError::KeyEnded { .. } => Self::new(StatusCode::CONFLICT, "key_ended", message),
            StoreError::NotFound { .. } => Self::not_found("not_found", message),
            StoreError::InUse { .. }
            | StoreError::TooManyVariants { .. }
            | StoreError::DefaultChanged { .. }
            | StoreError::NothingBefore { .. }
            | StoreError::NotFlagged { .. }
            | StoreError::TrialRuns { .. }
            | StoreError::MachineMoved { .. }
            | StoreError::JobNotStarted { .. }
            | StoreError::StateChanged { .. } => Self::new(StatusCode::CONFLICT, "conflict", message),
            StoreError::OverReserved { .. } => Self::new(StatusCode::CONFLICT, "over_reserved", message),
            StoreError::Full { .. } => Self::new(StatusCode::CONFLICT, "no_room", message),
            StoreError::InputDiffers { .. } => Self::new(StatusCode::CONFLICT, "input_differs", message),
            StoreError::NoSuchInput { .. } => Self::new(StatusCode::CONFLICT, "no_such_input", message),
            StoreError::InputsMissing { .. } => Self::new(StatusCode::CONFLICT, "inputs_missing", message),
            StoreError::JobNotReceiving { .. } => {
                Self::new(StatusCode::CONFLICT, "job_not_receiving", message)
            }
            StoreError::JobNotEnded { .. } => Self::new(StatusCode::CONFLICT, "job_not_ended", message),
            // By itself it is too large, whatever else ends.
            StoreError::TooManyBytes { own, limit, .. } if own > limit => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "job_too_large", message)
            }
            StoreError::TooManyBytes { .. } => Self::later("job_bytes_full", message),
            StoreError::TooManyJobs { .. } => Self::later("too_many_jobs", message),
            StoreError::Invalid { .. } => Self::malformed(message),
            StoreError::Unreachable { .. } | StoreError::Locked { .. } => {
                Self::unavailable("store_unavailable", message)
            }
            StoreError::Io { ref source, .. } if is_full(source) => {
                // Which file it was is for the log.
                tracing::error!(error = message, "the disk is full");
                let message =
                    "the server's disk is full: nothing of this was kept. Make room there and send it again";
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message)
            }
            StoreError::NewerDatabase { .. }
            | StoreError::Corrupt { .. }
            | StoreError::NotOurs { .. }
            | StoreError::Database { .. }
            | StoreError::ArtefactCorrupt { .. }
            | StoreError::Io { .. } => {
                // Such messages may name files of this machine: they are for its log, not for clients.
                tracing::error!(error = message, "the store failed");
                let message = "the store failed; the log of the server says how";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store_failed", message)
            }
        }
    }
}

/// No room left, by whatever limit.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[derive(Serialize)]
struct Body<'a> {
    error: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<NearestBody>,
}

/// The nearest goals that could be met, named and measured as goals are.
#[derive(Serialize)]
pub(crate) struct NearestBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cost: Option<f64>,
}

impl From<Nearest> for NearestBody {
    fn from(nearest: Nearest) -> Self {
        Self {
            accuracy: nearest.accuracy.map(modelless_types::Accuracy::as_f64),
            latency_ms: nearest.latency.map(modelless_types::Micros::as_millis_f64),
            max_cost: nearest.max_cost.map(modelless_types::CostPer1k::as_usd),
        }
    }
}

impl ApiError {
    /// Whether it is told slowly where there are many like it: nothing but patience or another request would mend it.
    pub(crate) fn slowly(&self) -> Option<Slowly> {
        match self.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some(Slowly::DENIED),
            StatusCode::TOO_MANY_REQUESTS if self.reason == "over_quota" => Some(Slowly::OVER_QUOTA),
            StatusCode::PAYLOAD_TOO_LARGE => Some(Slowly::TOO_LARGE),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let slowly = self.slowly();
        let nearest = self.nearest.map(|nearest| NearestBody::from(*nearest));
        let body = Body { error: &self.message, reason: self.reason, nearest };
        let mut response = json_response(self.status, &body);
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        if let Some(query) = self.query {
            headers.insert(NUMBER, number_header(query));
        }
        if let Some(slowly) = slowly {
            response.extensions_mut().insert(slowly);
        }
        response
    }
}

/// A JSON body with its length known, so that it leaves in one write with the head.
pub(crate) fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(text) => raw_json(status, Buffer::from(text)),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            raw_json(StatusCode::INTERNAL_SERVER_ERROR, Buffer::from_static(UNWRITABLE))
        }
    }
}

const UNWRITABLE: &[u8] = br#"{"error":"the answer could not be written as JSON","reason":"internal"}"#;

pub(crate) fn raw_json(status: StatusCode, text: Buffer) -> Response {
    let mut response = Response::new(axum::body::Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{Accuracy, Bytes, CostPer1k, Micros};

    #[test]
    fn every_refusal_has_the_status_that_was_promised() {
        let why = || "x".to_owned();
        let nearest = Nearest::default();
        for (refusal, expected) in [
            (Refusal::FloorUnreachable { best: None }, 422),
            (Refusal::LatencyUnreachable { nearest }, 422),
            (Refusal::CostUnreachable { nearest }, 422),
            (Refusal::PinUnusable { why: why() }, 422),
            (Refusal::NothingRunnable { why: why() }, 503),
            (Refusal::TooLate { waited: Micros(1) }, 504),
            (Refusal::QueueFull { limit: 1 }, 503),
            (Refusal::BytesFull { limit: Bytes(1) }, 503),
            (Refusal::OverQuota, 429),
            (Refusal::Loading { ready_in: Micros(1_500_000), bound: Micros(2_500_000) }, 503),
            (Refusal::VariantFailed { why: why() }, 503),
            (Refusal::InputCrashed { why: why() }, 422),
            (Refusal::ModelError { why: why() }, 422),
            (Refusal::OutOfMemory { needs: Bytes(2), budget: Bytes(1) }, 503),
            (Refusal::Draining, 503),
            (Refusal::NodeLost, 503),
            (Refusal::Cancelled, 499),
        ] {
            let name = refusal.name();
            let error = ApiError::from(refusal);
            assert_eq!((error.status.as_u16(), error.reason), (expected, name));
            assert!(error.status != 503 || error.retry_after_s.is_some(), "{name} says when to try again");
        }
        let loading =
            ApiError::from(Refusal::Loading { ready_in: Micros(1_500_000), bound: Micros(2_500_000) });
        assert_eq!(loading.retry_after_s, Some(2));
    }

    #[test]
    fn what_there_is_room_for_only_so_often_is_refused_by_name() {
        let full = StoreError::Full { what: "key", limit: 5_000, whose: "of this tenant" };
        let error = ApiError::from(full);
        assert_eq!((error.status.as_u16(), error.reason), (409, "no_room"));
        assert!(error.message.contains("5000 of the kind key of this tenant"), "{}", error.message);
    }

    #[test]
    fn every_refusal_of_an_offline_job_has_the_status_that_was_promised() {
        let (job, state) = (modelless_types::JobId(7), modelless_types::JobState::Running);
        for (error, status, reason) in [
            (StoreError::InputDiffers { job, at: 1 }, 409, "input_differs"),
            (StoreError::InputsMissing { job, missing: 1, inputs: 2 }, 409, "inputs_missing"),
            (StoreError::JobNotReceiving { job, state }, 409, "job_not_receiving"),
            (StoreError::JobNotEnded { job, state }, 409, "job_not_ended"),
            (StoreError::JobNotStarted { job }, 409, "conflict"),
            (StoreError::TooManyJobs { limit: 1 }, 429, "too_many_jobs"),
            (StoreError::TooManyBytes { job, own: 5, others: 6, limit: 10 }, 429, "job_bytes_full"),
            (StoreError::TooManyBytes { job, own: 11, others: 0, limit: 10 }, 413, "job_too_large"),
        ] {
            let error = ApiError::from(error);
            assert_eq!((error.status.as_u16(), error.reason), (status, reason));
            assert_eq!(error.retry_after_s.is_some(), status == 429, "{reason}");
            assert!(error.message.contains("job"), "{}", error.message);
        }
    }

    #[test]
    fn nearest_goals_are_named_and_measured_as_goals_are() {
        let nearest = Nearest {
            accuracy: Accuracy::from_ppm(935_000),
            latency: Some(Micros(2_500)),
            max_cost: Some(CostPer1k(1_500_000)),
        };
        let shown = serde_json::to_value(NearestBody::from(nearest)).unwrap();
        assert_eq!(shown, serde_json::json!({"accuracy": 0.935, "latency_ms": 2.5, "max_cost": 0.0015}));
    }

    #[test]
    fn the_content_type_is_exactly_json() {
        let response = ApiError::malformed("x").into_response();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    }
}
