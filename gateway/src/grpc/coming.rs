//! A call's messages while they come: counted as they do, bounded, in time, and unpacked a piece at a time.
//!
//! `tonic` would gather a message whole, and unpack it in one go, before anybody sees it, and would keep that memory for as long as a stream lasts.
//! Here what has come of a message counts as held memory like any body that HTTP brings, what it becomes unpacked too, until whoever has it
//! is done with it: calls together never hold more than bodies may, and none of them waits for ever. What cannot be read is refused by name.

use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use crate::http::body::Holding;
use crate::http::encoding::{self, Encoding};
use bytes::{Buf as _, Bytes as Buffer, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;
use tonic::body::Body;

/// Before each message: whether it is packed, and how long it is.
const HEAD: usize = 5;
/// Room made at most on the word of that alone.
const FIRST_ROOM: usize = 1 << 20;
/// How messages are packed, if they are.
const ENCODING: &str = "grpc-encoding";

/// A message's share of the memory for bodies.
pub(super) type Held = Holding<Arc<Core>>;

/// What a call brings.
pub(super) struct Coming {
    body: Body,
    core: Arc<Core>,
    caller: Caller,
    packed: Option<Encoding>,
    /// How large a message may be, unpacked too.
    limit: u64,
    /// What has come and is of no message yet.
    rest: Buffer,
}

impl Coming {
    /// Of a call with these headers. One that packs its messages in a way that is not known here is refused.
    pub(super) fn of(
        headers: &HeaderMap,
        body: Body,
        (core, caller): (&Arc<Core>, &Caller),
        limit: u64,
    ) -> Result<Self, ApiError> {
        let packed = packed(headers).map_err(|error| {
            let error = caller.unread(core.driver.clock().now(), error);
            let unknown = error.status == StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let status = if unknown { StatusCode::NOT_IMPLEMENTED } else { error.status }; // gRPC's word for it
            ApiError { status, ..error }
        })?;
        let (core, caller) = (Arc::clone(core), caller.clone());
        Ok(Self { body, core, caller, packed, limit, rest: Buffer::new() })
    }

    /// The next message; `None` when there are no more. Nothing can be read after what could not.
    pub(super) async fn next<Q: Message + Default>(&mut self) -> Result<Option<(Q, Held)>, ApiError> {
        let read = self.message().await.and_then(|message| message.map(decoded).transpose());
        read.map_err(|error| self.unread(error))
    }

    /// The message of a call that has one.
    pub(super) async fn only<Q: Message + Default>(&mut self) -> Result<(Q, Held), ApiError> {
        let one = self.one().await.and_then(decoded);
        one.map_err(|error| self.unread(error))
    }

    /// Whoever sends what cannot be read has it counted as a query.
    fn unread(&self, error: ApiError) -> ApiError {
        let now = self.core.driver.clock().now();
        if error.status == StatusCode::PAYLOAD_TOO_LARGE {
            self.caller.oversized(now);
        }
        self.caller.unread(now, error)
    }

    async fn one(&mut self) -> Result<(Buffer, Held), ApiError> {
        let missing = || ApiError::malformed("the call ended without a message; it takes one");
        let message = self.message().await?.ok_or_else(missing)?;
        let within = self.core.config.body_timeout();
        if in_time(within, self.begun()).await? {
            return Err(ApiError::malformed("the call brought more than one message; it takes one"));
        }
        Ok(message)
    }

    async fn message(&mut self) -> Result<Option<(Buffer, Held)>, ApiError> {
        // Between two messages of a stream nothing is due.
        if !self.begun().await? {
            return Ok(None);
        }
        let within = self.core.config.body_timeout();
        in_time(within, self.gathered()).await.map(Some)
    }

    async fn gathered(&mut self) -> Result<(Buffer, Held), ApiError> {
        let mut held = Held::new(Arc::clone(&self.core), self.caller.clone());
        let mut head = self.take(HEAD, &mut held).await?;
        let (packed, length) = (head.get_u8(), head.get_u32());
        let packed = match (packed, self.packed) {
            (0, _) => None,
            (1, Some(packed)) => Some(packed),
            (1, None) => {
                let message = format!("a message says that it is packed; `{ENCODING}` has to say how");
                return Err(ApiError::malformed(message));
            }
            (other, _) => {
                let message = format!("a message begins with {other}; it must be 0, or 1 where it is packed");
                return Err(ApiError::malformed(message));
            }
        };
        let too_large = || ApiError::too_large(self.limit);
        let length = usize::try_from(length).ok().filter(|length| *length as u64 <= self.limit);
        let message = self.take(length.ok_or_else(too_large)?, &mut held).await?;
        let Some(packed) = packed else { return Ok((message, held)) };
        let message = encoding::unpack(packed, &message, self.limit, &mut held).await?;
        Ok((message, held))
    }

    /// So many bytes more of a message.
    async fn take(&mut self, bytes: usize, held: &mut Held) -> Result<Buffer, ApiError> {
        let mut taken = BytesMut::new();
        loop {
            let piece = self.rest.split_to(self.rest.len().min(bytes - taken.len()));
            held.add(piece.len())?;
            if piece.len() == bytes {
                return Ok(piece); // most come in one piece, which need not be copied
            }
            if taken.is_empty() {
                taken.reserve(bytes.min(FIRST_ROOM));
            }
            taken.extend_from_slice(&piece);
            if taken.len() == bytes {
                return Ok(taken.freeze());
            }
            if !self.begun().await? {
                return Err(ApiError::malformed("the call ended within a message"));
            }
        }
    }

    /// Whether there is more, once that is known.
    async fn begun(&mut self) -> Result<bool, ApiError> {
        while self.rest.is_empty() {
            match self.body.frame().await {
                None => return Ok(false),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(), // trailers
                // Who has gone away says nothing any more.
                Some(Err(said)) if said.code() == Code::Cancelled => return Ok(false),
                Some(Err(said)) => {
                    let message = format!("the call ended early or is not well formed: {}", said.message());
                    return Err(ApiError::malformed(message));
                }
            }
        }
        Ok(true)
    }
}

fn packed(headers: &HeaderMap) -> Result<Option<Encoding>, ApiError> {
    let Some(value) = headers.get(ENCODING) else { return Ok(None) };
    match value.to_str().unwrap_or_default() {
        "identity" => Ok(None),
        name => Encoding::parse(name).map(Some).ok_or_else(|| {
            ApiError::unsupported_media("messages are taken as they are, or packed by gzip or by deflate")
        }),
    }
}

fn decoded<Q: Message + Default>((message, held): (Buffer, Held)) -> Result<(Q, Held), ApiError> {
    let message = Q::decode(message)
        .map_err(|error| ApiError::malformed(format!("the message does not follow its form: {error}")))?;
    Ok((message, held))
}

async fn in_time<T>(
    within: Duration,
    reading: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    tokio::time::timeout(within, reading).await.unwrap_or_else(|_| {
        let message = format!("the message was not here within {} s", within.as_secs_f64());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
    })
}
