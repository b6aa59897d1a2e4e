//! `GET /v1/audit`: what was asked for that changes something, newest first.

use super::{Answer, FromApp, Params};
use crate::access::Caller;
use crate::errors::json_response;
use axum::extract::State;
use http::{StatusCode, Uri};
use modelless_store::Entry;
use serde_json::{Value, json};

/// Entries that are shown unless another number is asked for.
pub(crate) const SHOWN: u32 = 100;
/// The most that one answer has.
pub(crate) const SHOWN_MAX: u32 = 1_000;

pub(super) async fn list(State(app): FromApp, caller: Caller, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let limit = params.take_number("limit", 1, SHOWN_MAX)?.unwrap_or(SHOWN);
    let before = params.take_number("before", 0, u32::MAX)?.map(u64::from);
    params.finish(&["limit", "before"])?;
    let tenant = (!caller.is_operator()).then_some(caller.tenant);
    let entries = app.store.audit().noted(tenant, before, limit).await?;
    let doors = app.store.access().doors().await?;
    let shown = |Entry { seq, deed }: Entry| {
        let tenant = doors.tenants.iter().find(|tenant| tenant.id == deed.tenant).map(|tenant| &tenant.name);
        json!({
            "seq": seq, "at_unix_us": deed.at, "tenant": tenant, "key": deed.key, "who": deed.who,
            "action": deed.action, "target": deed.target, "status": deed.status,
        })
    };
    let entries: Vec<Value> = entries.into_iter().map(shown).collect();
    Ok(json_response(StatusCode::OK, &json!({"entries": entries})))
}
