//! `PUT /v1/artefacts`: bytes in, their sha256 out. Only bytes: a client never names a file of this machine.
//! `GET /v1/artefacts/{sha256}`: whether they are here already.

use super::{Answer, FromApp, Named};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use axum::body::Body;
use axum::extract::{Request, State};
use bytes::{Buf as _, Bytes as Buffer};
use http::StatusCode;
use http_body_util::BodyExt as _;
use serde_json::json;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Pieces that may wait for the disk.
const BACKLOG: usize = 16;
/// A client that sends nothing for so long has stopped.
const PIECE_WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn upload(State(app): FromApp, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    match body::media_type(&head.headers)?.as_deref() {
        None | Some("application/octet-stream") => {}
        Some(other) => {
            let other = crate::suggest::excerpt(other);
            let message = format!("an artefact is application/octet-stream; the content type is {other}");
            return Err(ApiError::unsupported_media(message));
        }
    }
    let limit = app.core.config.max_artefact_bytes;
    body::check_head(&head.headers, limit)?;
    let Some(artefacts) = app.artefacts.clone() else { return Err(kept_elsewhere()) };
    let Ok(place) = Arc::clone(&app.uploads).try_acquire_owned() else {
        return Err(ApiError::unavailable(
            "busy",
            "too many artefacts are being uploaded; try again in a moment",
        ));
    };
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
    let body = json!({"sha256": put.sha256, "bytes": put.bytes});
    Ok(json_response(StatusCode::CREATED, &body))
}

/// Whether an artefact is here, whole, so that it need not be sent. It stays at hand for a day then.
pub(super) async fn there(State(app): FromApp, Named(sha256): Named<String>) -> Answer {
    let Some(artefacts) = app.artefacts.clone() else { return Err(kept_elsewhere()) };
    let Ok(place) = Arc::clone(&app.uploads).try_acquire_owned() else {
        return Err(ApiError::unavailable(
            "busy",
            "too many artefacts are being uploaded; try again in a moment",
        ));
    };
    let wanted = sha256.clone();
    let found = tokio::task::spawn_blocking(move || {
        let _place = place; // it may be read through
        artefacts.wanted(&wanted)
    });
    let found = found.await.map_err(|error| {
        tracing::error!(%error, "reading an artefact failed; this is a bug");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the artefact could not be read")
    })?;
    let Some(bytes) = found? else {
        let message = format!("there is no artefact {sha256} at this gateway");
        return Err(ApiError::not_found("unknown_artefact", message));
    };
    Ok(json_response(StatusCode::OK, &json!({"sha256": sha256, "bytes": bytes})))
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
