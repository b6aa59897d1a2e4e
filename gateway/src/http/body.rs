//! Reading bodies, bounded in size, in time, and all together in memory.

use super::encoding;
use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use axum::body::Body;
use bytes::{Bytes as Buffer, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use modelless_types::{Bytes, Micros, Refusal};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Room made at most on the word of a `Content-Length` alone.
pub(super) const FIRST_ROOM: u64 = 1 << 20;
/// A body of names and a few settings.
pub(crate) const LITTLE: u64 = 64 << 10;
/// A body that was not here after so long comes slowly.
const SLOW_AFTER: Duration = Duration::from_secs(2);

/// A body's share of the memory for bodies; given back when it goes. Where there are several tenants none gets more than half of it.
pub(crate) struct Holding<C: Deref<Target = Core>> {
    core: C,
    caller: Caller,
    bytes: u64,
}

/// The same of whoever is gone before the gateway is.
pub(crate) type Held<'a> = Holding<&'a Core>;

impl<'a> Held<'a> {
    /// For what was read already.
    pub(crate) fn of(core: &'a Core, caller: &Caller, bytes: usize) -> Result<Self, ApiError> {
        let mut held = Self::new(core, caller.clone());
        held.add(bytes)?;
        Ok(held)
    }
}

impl<C: Deref<Target = Core>> Holding<C> {
    pub(crate) fn new(core: C, caller: Caller) -> Self {
        Self { core, caller, bytes: 0 }
    }

    /// Counts also what is too much: whoever asks lets go of it.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), ApiError> {
        let bytes = bytes as u64;
        self.bytes += bytes;
        let limit = self.core.config.max_held_bytes;
        let of_tenant = if self.caller.alone { limit } else { limit / 2 };
        let all = self.core.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let own = self.caller.held().fetch_add(bytes, Ordering::Relaxed) + bytes;
        match (all > limit, own > of_tenant) {
            (true, _) => Err(Refusal::BytesFull { limit: Bytes(limit) }.into()),
            (false, true) => Err(Refusal::BytesFull { limit: Bytes(of_tenant) }.into()),
            (false, false) => Ok(()),
        }
    }

    /// Counts so many, unless it counts as many already.
    pub(crate) fn at_least(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.add(bytes.saturating_sub(usize::try_from(self.bytes).unwrap_or(usize::MAX)))
    }

    /// A turn at unpacking, when its sender has one.
    pub(super) async fn turn_to_unpack(&self) -> Option<OwnedSemaphorePermit> {
        self.caller.turn_to_unpack().await
    }

    /// Waits where large bodies of its sender are read slowly.
    pub(super) async fn pace(&self, bytes: u64) {
        let wait = self.caller.pace(self.core.driver.clock().now(), bytes);
        if wait > Micros::ZERO {
            tokio::time::sleep(Duration::from_micros(wait.0)).await;
        }
    }
}

impl<C: Deref<Target = Core>> Drop for Holding<C> {
    fn drop(&mut self) {
        self.core.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.caller.held().fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The media type without its parameters, in lower case; `None` when there is none.
pub(crate) fn media_type(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(None) };
    let text = value.to_str().map_err(|_| ApiError::unsupported_media("the content type is not readable"))?;
    let media = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    Ok((!media.is_empty()).then_some(media))
}

/// Refuses what need not be read at all: what says that it is too large, or compressed where that is not taken.
pub(crate) fn check_head(headers: &HeaderMap, limit: u64) -> Result<Option<u64>, ApiError> {
    if encoding::of_request(headers)?.is_some() {
        return Err(ApiError::unsupported_media("compressed bodies are not read here; send it as it is"));
    }
    length(headers, limit)
}

fn length(headers: &HeaderMap, limit: u64) -> Result<Option<u64>, ApiError> {
    // hyper has refused what is no number, so what cannot be read here is too long for one.
    let length = headers
        .get(CONTENT_LENGTH)
        .map(|length| length.to_str().ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX));
    match length {
        Some(length) if length > limit => Err(ApiError::too_large(limit)),
        length => Ok(length),
    }
}

/// Reads a body whole, and unpacks it if it is packed. It may have as much as its sender's quota allows.
pub(crate) async fn read<'a>(
    core: &'a Core,
    head: &Parts,
    body: Body,
) -> Result<(Buffer, Held<'a>), ApiError> {
    let caller = caller(head)?;
    read_up_to(core, (&head.headers, caller), body, caller.max_body(core.config.max_body_bytes)).await
}

/// The same of a body that has no reason to be large: names, and a few settings. What cannot be read counts as a query does.
pub(crate) async fn read_little<'a>(
    core: &'a Core,
    head: &Parts,
    body: Body,
) -> Result<(Buffer, Held<'a>), ApiError> {
    let caller = caller(head)?;
    let read = read_up_to(core, (&head.headers, caller), body, LITTLE).await;
    read.map_err(|error| caller.unread(core.driver.clock().now(), error))
}

/// Every route has a guard before it, which says who it is.
fn caller(head: &Parts) -> Result<&Caller, ApiError> {
    head.extensions.get().ok_or_else(Caller::unchecked)
}

async fn read_up_to<'a>(
    core: &'a Core,
    (headers, caller): (&HeaderMap, &Caller),
    body: Body,
    limit: u64,
) -> Result<(Buffer, Held<'a>), ApiError> {
    let packed = encoding::of_request(headers)?;
    let length = length(headers, limit)?;
    let held = Held::of(core, caller, 0)?;
    let read = async {
        let (body, mut held) = collect(body, length, limit, held).await?;
        let Some(packed) = packed else { return Ok((body, held)) };
        let body = encoding::unpack(packed, &body, limit, &mut held).await?;
        Ok((body, held))
    };
    let read = in_time(core, caller, read).await;
    if read.as_ref().is_err_and(|error: &ApiError| error.status == StatusCode::PAYLOAD_TOO_LARGE) {
        caller.oversized(core.driver.clock().now());
    }
    read
}

/// A body within the time that there is for one; of those that need much of it a tenant has only some at once.
async fn in_time<T>(
    core: &Core,
    caller: &Caller,
    reading: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let within = core.config.body_timeout();
    let too_slow = |message: String| ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message);
    let mut reading = pin!(reading);
    let soon = within.min(SLOW_AFTER);
    if let Ok(read) = tokio::time::timeout(soon, &mut reading).await {
        return read;
    }
    let Ok(_slow) = caller.slow_body() else {
        let message = format!(
            "the body was not here within {} s, and too many others come as slowly",
            soon.as_secs_f64()
        );
        return Err(too_slow(message));
    };
    tokio::time::timeout(within.saturating_sub(soon), reading)
        .await
        .unwrap_or_else(|_| Err(too_slow(format!("the body was not here within {} s", within.as_secs_f64()))))
}

async fn collect(
    mut body: Body,
    length: Option<u64>,
    limit: u64,
    mut held: Held<'_>,
) -> Result<(Buffer, Held<'_>), ApiError> {
    let mut first = Buffer::new();
    let mut more = BytesMut::new();
    let mut total = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else { continue }; // trailers
        total += data.len() as u64;
        if total > limit {
            return Err(ApiError::too_large(limit));
        }
        held.add(data.len())?;
        if total > FIRST_ROOM {
            held.pace(data.len() as u64).await;
        }
        if first.is_empty() && more.is_empty() {
            first = data; // most bodies come in one piece, which need not be copied
            continue;
        }
        if more.is_empty() {
            let room = length.unwrap_or(0).clamp(first.len() as u64, FIRST_ROOM.max(first.len() as u64));
            more.reserve(usize::try_from(room).unwrap_or(0));
            more.extend_from_slice(&first);
        }
        more.extend_from_slice(&data);
    }
    Ok((if more.is_empty() { first } else { more.freeze() }, held))
}

fn broken(error: &axum::Error) -> ApiError {
    ApiError::malformed(format!("the body ended early or is not well formed: {error}"))
}

/// Reads what must be an object: a structure would be read from a list as well, its fields in order.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    struct Only<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Only<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }
    from.deserialize_map(Only(PhantomData))
}

/// A body that is a JSON object of ours. Quotas are for what is asked: nobody bounds themselves out of changing their bounds.
pub(crate) async fn read_json<T: DeserializeOwned>(
    core: &Core,
    head: &Parts,
    body: Body,
) -> Result<T, ApiError> {
    match media_type(&head.headers)?.as_deref() {
        Some("application/json") => {}
        other => {
            let other = other.map_or_else(|| "none".to_owned(), crate::suggest::excerpt);
            let message = format!("this takes application/json; the content type is {other}");
            return Err(ApiError::unsupported_media(message));
        }
    }
    let from = (&head.headers, caller(head)?);
    let (text, _held) = read_up_to(core, from, body, core.config.max_body_bytes).await?;
    crate::oip::json::check_object(&text)?;
    serde_json::from_slice(&text)
        .map_err(|error| ApiError::malformed(format!("the body does not follow its form: {error}")))
}
