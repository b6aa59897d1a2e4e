//! `PUT /v1/artefacts`: bytes in, their sha256 out. Only bytes: a client never names a file of this machine.
//! `GET /v1/artefacts/{sha256}`: whether they are here already.

use super::{Answer, App, FromApp, Named};
use crate::access::{Caller, Uploading};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::service::UPLOADS;
use crate::suggest::excerpt;
use axum::body::Body;
use axum::extract::{Request, State};
use bytes::{Buf as _, Bytes as Buffer};
use http::StatusCode;
use http_body_util::BodyExt as _;
use modelless_store::{UPLOAD_KEPT, UPLOADS_MAX, UnixMicros, Upload};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Pieces that may wait for the disk.
const BACKLOG: usize = 16;
/// A client that sends nothing for so long has stopped.
const PIECE_WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn upload(State(app): FromApp, caller: Caller, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    match body::media_type(&head.headers)?.as_deref() {
        None | Some("application/octet-stream") => {}
        Some(other) => {
            let other = excerpt(other);
            let message = format!("an artefact is application/octet-stream; the content type is {other}");
            return Err(ApiError::unsupported_media(message));
        }
    }
    let Some(artefacts) = app.artefacts.clone() else { return Err(kept_elsewhere()) };
    let limit = room(&app, &caller).await?;
    body::check_head(&head.headers, limit)?;
    let place = place(&app, &caller)?;
    let (pieces, coming) = mpsc::channel(BACKLOG);
    // Hashing and the disk block. If this request goes away its pieces end with an error, and so does the blocking
    // part, which then leaves nothing behind.
    let writing = tokio::task::spawn_blocking(move || {
        let _place = place; // given back when the disk is done, not when the client goes away
        artefacts.put(Pieces { coming, rest: Buffer::new() })
    });
    let sent = send(body, pieces, limit).await;
    let put = writing.await.map_err(|error| {
        tracing::error!(%error, "writing an artefact failed; this is a bug");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the artefact could not be written")
    })?;
    sent?;
    let put = put?;
    note(&app, &caller, &put.sha256, put.bytes).await?;
    let body = json!({"sha256": put.sha256, "bytes": put.bytes});
    Ok(json_response(StatusCode::CREATED, &body))
}

/// What a tenant uploaded lately.
async fn uploaded(app: &App, caller: &Caller) -> Result<BTreeMap<String, u64>, ApiError> {
    let since = SystemTime::now().checked_sub(UPLOAD_KEPT).unwrap_or(UNIX_EPOCH);
    Ok(app.store.access().uploads(caller.tenant, UnixMicros::of(since)).await?)
}

/// What a tenant may name by its sha256, with the sizes: what its models are made of, and what it uploaded lately. That others have something
/// is neither to be found out so nor of any use. Where nobody needs a key, all of it is everybody's, and this is not asked.
async fn own(app: &App, caller: &Caller) -> Result<BTreeMap<String, u64>, ApiError> {
    Ok(with_models(app, caller, uploaded(app, caller).await?))
}

fn with_models(app: &App, caller: &Caller, mut own: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let view = app.core.view_of(caller);
    let models = view.catalog.models.iter().filter(|model| model.tenant == caller.tenant);
    let variants = models.flat_map(|model| view.catalog.variants_of(model.id));
    own.extend(variants.map(|variant| (variant.artefact.clone(), variant.artefact_bytes.0)));
    own
}

/// It may be registered from now on, by whoever brought it.
async fn note(app: &App, caller: &Caller, sha256: &str, bytes: u64) -> Result<(), ApiError> {
    if !app.core.gate.locked() {
        return Ok(());
    }
    let at = UnixMicros::of(SystemTime::now());
    let upload = Upload { tenant: caller.tenant, sha256: sha256.to_owned(), bytes, at };
    Ok(app.store.access().note_upload(upload).await?)
}

/// Whether these are all its own.
pub(super) async fn check_own<'a>(
    app: &App,
    caller: &Caller,
    named: impl IntoIterator<Item = &'a str>,
) -> Result<(), ApiError> {
    if !app.core.gate.locked() {
        return Ok(());
    }
    let own = own(app, caller).await?;
    named.into_iter().find(|sha256| !own.contains_key(*sha256)).map_or(Ok(()), |sha256| Err(unknown(sha256)))
}

/// What one more artefact may have: as much as any, and no more than the tenant's quota leaves beside what is its own already.
async fn room(app: &App, caller: &Caller) -> Result<u64, ApiError> {
    let usual = app.core.config.max_artefact_bytes;
    if !app.core.gate.locked() {
        return Ok(usual);
    }
    let uploaded = uploaded(app, caller).await?;
    if uploaded.len() >= UPLOADS_MAX {
        // Before it is written: what nobody is noted for would count for nobody.
        let message = format!(
            "{UPLOADS_MAX} artefacts were uploaded within a day, which is the limit; try again later"
        );
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message));
    }
    let Some(quota) = caller.max_artefacts() else { return Ok(usual) };
    match quota.saturating_sub(with_models(app, caller, uploaded).values().sum()) {
        0 => {
            let message = format!(
                "your quota of {quota} bytes of artefacts is used up; remove models that are not needed"
            );
            Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message))
        }
        left => Ok(left.min(usual)),
    }
}

/// Whether an artefact is here, whole, so that it need not be sent. It stays at hand for a day then.
pub(super) async fn there(State(app): FromApp, caller: Caller, Named(sha256): Named<String>) -> Answer {
    let Some(artefacts) = app.artefacts.clone() else { return Err(kept_elsewhere()) };
    check_own(&app, &caller, [sha256.as_str()]).await?;
    let place = place(&app, &caller)?;
    let wanted = sha256.clone();
    let found = tokio::task::spawn_blocking(move || {
        let _place = place; // it may be read through
        artefacts.wanted(&wanted)
    });
    let found = found.await.map_err(|error| {
        tracing::error!(%error, "reading an artefact failed; this is a bug");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the artefact could not be read")
    })?;
    let Some(bytes) = found? else { return Err(unknown(&sha256)) };
    note(&app, &caller, &sha256, bytes).await?;
    Ok(json_response(StatusCode::OK, &json!({"sha256": sha256, "bytes": bytes})))
}

/// A place at the disk. Where there are several tenants none gets more than half of them.
fn place(app: &App, caller: &Caller) -> Result<(Uploading, OwnedSemaphorePermit), ApiError> {
    let places = (caller.upload(UPLOADS), Arc::clone(&app.uploads).try_acquire_owned());
    let (Some(own), Ok(place)) = places else {
        let message = "too many artefacts are being uploaded; try again in a moment";
        return Err(ApiError::unavailable("busy", message));
    };
    Ok((own, place))
}

fn unknown(sha256: &str) -> ApiError {
    let message =
        format!("there is no artefact {} of yours at this gateway; upload it first", excerpt(sha256));
    ApiError::not_found("unknown_artefact", message)
}

fn kept_elsewhere() -> ApiError {
    let message = "this gateway keeps no artefacts; ask one that runs beside an executor";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_served_here", message)
}

/// A piece, or `None` when all of them have come.
type Piece = Option<Buffer>;

async fn send(mut body: Body, pieces: mpsc::Sender<Piece>, limit: u64) -> Result<(), ApiError> {
    let mut total = 0;
    loop {
        let Ok(frame) = tokio::time::timeout(PIECE_WITHIN, body.frame()).await else {
            let message = "nothing came for 30 s";
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message));
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| ApiError::malformed(format!("the upload ended early: {error}")))?;
        let Ok(piece) = frame.into_data() else { continue };
        total += piece.len() as u64;
        if total > limit {
            return Err(ApiError::too_large(limit));
        }
        if pieces.send(Some(piece)).await.is_err() {
            return Ok(()); // the disk said no, and says why by itself
        }
    }
    if total == 0 {
        return Err(ApiError::malformed("the artefact is empty"));
    }
    // Only now is it whole.
    let _ = pieces.send(None).await;
    Ok(())
}

/// The pieces as one stream. One that ends without its end having been said is an error, so that no half of
/// an artefact is ever kept.
struct Pieces {
    coming: mpsc::Receiver<Piece>,
    rest: Buffer,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.coming.blocking_recv() {
                Some(Some(piece)) => self.rest = piece,
                Some(None) => return Ok(0),
                None => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the upload ended early"));
                }
            }
        }
        let taken = self.rest.len().min(into.len());
        into[..taken].copy_from_slice(&self.rest[..taken]);
        self.rest.advance(taken);
        Ok(taken)
    }
}
