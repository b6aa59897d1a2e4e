//! Triton's extension for shared memory over HTTP. What it means stands in [`crate::regions`].

use super::{Answer, App, FromApp, Named};
use crate::access::Caller;
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::oip::json as form;
use crate::regions::{self, Ends, Region};
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

/// Headers of those who pass on what others ask.
const PASSED_ON: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// What a path names, if anything.
#[derive(Deserialize)]
pub(super) struct At {
    #[serde(default)]
    region: Option<String>,
}

/// What is to be registered.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    key: String,
    #[serde(default)]
    offset: u64,
    byte_size: u64,
}

fn done() -> Response {
    json_response(StatusCode::OK, &json!({}))
}

pub(super) async fn status(State(app): FromApp, caller: Caller, Named(at): Named<At>) -> Answer {
    let all = if app.core.config.shared_memory {
        app.core.regions.of(&caller, at.region.as_deref())?
    } else {
        Vec::new()
    };
    let one = |region: &Region| json!({"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.bytes});
    Ok(json_response(StatusCode::OK, &all.iter().map(one).collect::<Vec<Value>>()))
}

pub(super) async fn register(
    State(app): FromApp,
    caller: Caller,
    Named(at): Named<At>,
    request: Request,
) -> Answer {
    let (head, text) = request.into_parts();
    regions::switched_on(&app.core)?;
    form::check_media(&head.headers)?;
    let (text, _held) = body::read(&app.core, &head, text).await?;
    form::check_object(&text)?;
    let Asked { key, offset, byte_size } = serde_json::from_slice(&text)
        .map_err(|error| ApiError::malformed(format!("the body does not follow the protocol: {error}")))?;
    let region = Region { name: at.region.unwrap_or_default(), key, offset, bytes: byte_size };
    add(&app, &caller, (head.extensions.get().copied(), &head.headers), region).await?;
    Ok(done())
}

/// Registers it, where its owner has not registered too many lately. It stands in the log, not in the audit log: whoever may only ask is to
/// have no room there.
pub(crate) async fn add(
    app: &App,
    caller: &Caller,
    (ends, headers): (Option<Ends>, &HeaderMap),
    region: Region,
) -> Result<(), ApiError> {
    regions::switched_on(&app.core)?;
    caller.register_region(app.core.driver.clock().now())?;
    let (tenant, who) = (caller.tenant, &caller.shown);
    let key = crate::suggest::excerpt(&region.key);
    // Who came by way of a proxy is not who opened the connection.
    let ends = ends.filter(|_| !PASSED_ON.iter().any(|name| headers.contains_key(*name)));
    let added = app.core.regions.register(caller, ends, region).await;
    let reason = added.as_ref().err().map(|error| error.reason);
    tracing::info!(%tenant, who, key, reason, "shared memory was to be registered");
    added
}

pub(super) async fn unregister(State(app): FromApp, caller: Caller, Named(at): Named<At>) -> Answer {
    app.core.regions.unregister(&caller, at.region.as_deref());
    Ok(done())
}

/// There are none of GPUs.
pub(super) async fn none() -> Response {
    json_response(StatusCode::OK, &json!([]))
}

pub(super) async fn nothing() -> Response {
    done()
}

pub(super) async fn no_gpus() -> Answer {
    Err(regions::no_gpus())
}
