//! `PUT /v1/artefacts`: bytes in, their sha256 out. Only bytes: a client never names a file of this machine.
//! `GET /v1/artefacts/{sha256}`: whether they are here already.

use super::room::Room;
use super::{Answer, App, FromApp, Named};
use crate::access::{Caller, Detail, Place};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::service::UPLOADS;
use crate::suggest::excerpt;
use axum::body::Body;
use axum::extract::{Request, State};
use bytes::{Buf as _, Bytes as Buffer};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use modelless_store::{UPLOAD_KEPT, UnixMicros, Upload};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};

/// Pieces that may wait for the disk.
const BACKLOG: usize = 16;
/// A client that sends nothing for so long has stopped.
const PIECE_WITHIN: Duration = Duration::from_secs(30);
/// Once it had so long it has to have come at this rate on the whole: the largest that there may be keeps its place for five hours at most.
const UNHURRIED: Duration = Duration::from_secs(30);
const LEAST_PER_S: u64 = 64 << 10;

pub(super) async fn upload(State(app): FromApp, caller: Caller, detail: Detail, request: Request) -> Answer {
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
    let room = Room::of(&app, &caller, &head.headers).await?;
    let place = place(&app, &caller)?;
    let (pieces, coming) = mpsc::channel(BACKLOG);
    let (noting, of, reserved) = (Arc::clone(&app), caller.clone(), room.reserved());
    let runtime = Handle::current();
    // Hashing and the disk block. If this request goes away its pieces end with an error, and so does the blocking
    // part, which then leaves nothing behind.
    let writing = tokio::task::spawn_blocking(move || {
        // Given back when the disk is done, not when the client goes away: what is there by then is noted as somebody's all the same.
        let _held = (place, reserved);
        let put = artefacts.put(Pieces { coming, rest: Buffer::new() })?;
        runtime.block_on(note(&noting, &of, &put.sha256, put.bytes))?;
        Ok::<_, ApiError>(put)
    });
    let sent = send(body, pieces, &room).await;
    let put = writing.await.map_err(|error| failed(&error))?;
    sent?;
    let put = put?;
    detail.say(format!("{}, {} bytes", put.sha256, put.bytes));
    let body = json!({"sha256": put.sha256, "bytes": put.bytes});
    Ok(json_response(StatusCode::CREATED, &body))
}

fn failed(error: &JoinError) -> ApiError {
    tracing::error!(%error, "writing an artefact failed; this is a bug");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the artefact could not be written")
}

/// What a tenant uploaded lately.
pub(super) async fn uploaded(app: &App, caller: &Caller) -> Result<BTreeMap<String, u64>, ApiError> {
    let since = SystemTime::now().checked_sub(UPLOAD_KEPT).unwrap_or(UNIX_EPOCH);
    Ok(app.store.access().uploads(caller.tenant, UnixMicros::of(since)).await?)
}

/// What a tenant may name by its sha256, with the sizes: what its models are made of, and what it uploaded lately. That others have something
/// is neither to be found out so nor of any use. Where nobody needs a key, all of it is everybody's, and this is not asked.
async fn own(app: &App, caller: &Caller) -> Result<BTreeMap<String, u64>, ApiError> {
    Ok(with_models(app, caller, uploaded(app, caller).await?))
}

pub(super) fn with_models(
    app: &App,
    caller: &Caller,
    mut own: BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
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
fn place(app: &App, caller: &Caller) -> Result<(Place, OwnedSemaphorePermit), ApiError> {
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

async fn send(mut body: Body, pieces: mpsc::Sender<Piece>, room: &Room<'_>) -> Result<(), ApiError> {
    let (mut total, mut pace) = (0, Pace::default());
    while let Some(frame) = pace.next(&mut body, total).await? {
        let Ok(piece) = frame.into_data() else { continue };
        total += piece.len() as u64;
        room.holds(total).await?;
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

/// How long has been waited for a client so far.
#[derive(Default)]
struct Pace(Duration);

impl Pace {
    /// What comes next, after so many bytes, unless it comes too slowly. What the disk takes in between is not the client's to answer for.
    async fn next(&mut self, body: &mut Body, total: u64) -> Result<Option<Frame<Buffer>>, ApiError> {
        let began = Instant::now();
        let in_all = UNHURRIED + Duration::from_micros(total.saturating_mul(1_000_000) / LEAST_PER_S);
        let left = in_all.saturating_sub(self.0);
        let Ok(frame) = timeout(left.min(PIECE_WITHIN), body.frame()).await else {
            return Err(too_slow(left < PIECE_WITHIN));
        };
        self.0 += began.elapsed();
        let ended = |error| ApiError::malformed(format!("the upload ended early: {error}"));
        frame.transpose().map_err(ended)
    }
}

fn too_slow(on_the_whole: bool) -> ApiError {
    let message = if on_the_whole {
        format!("less than {LEAST_PER_S} bytes a second came, all in all; send it faster")
    } else {
        "nothing came for 30 s".to_owned()
    };
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message)
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    /// How long a client that sends so much at a time, with such a pause before it, is waited for, and why no longer.
    async fn until_refused(piece: usize, pause: Duration) -> (Duration, ApiError) {
        let pieces = stream::unfold((), move |()| async move {
            tokio::time::sleep(pause).await;
            Some((Ok::<_, io::Error>(Buffer::from(vec![0; piece])), ()))
        });
        let (mut body, mut pace, mut total) = (Body::from_stream(pieces), Pace::default(), 0);
        let began = Instant::now();
        loop {
            match pace.next(&mut body, total).await {
                Ok(frame) => total += frame.unwrap().into_data().unwrap().len() as u64,
                Err(error) => return (began.elapsed(), error),
            }
            if total > 64 << 20 || began.elapsed() > Duration::from_hours(1) {
                return (began.elapsed(), ApiError::malformed("it was taken"));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_trickles_is_ended_and_one_that_keeps_the_rate_is_not() {
        for (piece, pause, within, reason) in [
            (1, 29, 31, "too_slow"),
            (1, 31, 31, "too_slow"),
            // Half of the least rate, which takes until the end of twice the time that it has at the beginning.
            (256 << 10, 8, 70, "too_slow"),
            (1 << 20, 10, u64::MAX, "malformed"),
        ] {
            let (took, error) = until_refused(piece, Duration::from_secs(pause)).await;
            assert_eq!(error.reason, reason, "{piece} bytes every {pause} s: {}", error.message);
            assert!(took <= Duration::from_secs(within), "{piece} bytes every {pause} s: {took:?}");
        }
    }
}
