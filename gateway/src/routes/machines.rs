//! Machines that are rented, how their pools stand, and what became of them.

use super::{Answer, FromApp, Params};
use crate::errors::json_response;
use axum::extract::State;
use http::{StatusCode, Uri};
use modelless_store::{Machine, MachineChange, PoolStands, UnixMicros};
use serde_json::{Value, json};

/// Machines that ended, and changes, that are shown unless another number is asked for.
pub(crate) const SHOWN: u32 = 50;
/// The most that can be asked for.
pub(crate) const SHOWN_MAX: u32 = 1_000;

fn pool(stands: &PoolStands) -> Value {
    let mut shown: Value = serde_json::from_str(&stands.json).unwrap_or_default();
    if !shown.is_object() {
        shown = json!({}); // of another version
    }
    // What gateways decide from again, and nobody reads.
    if let Some(shown) = shown.as_object_mut() {
        shown.remove("setting");
        shown.remove("listed");
    }
    shown["name"] = json!(stands.name);
    shown["at_unix_us"] = json!(stands.at);
    shown
}

fn machine(of: &Machine) -> Value {
    let took = |joined: UnixMicros| Value::from(joined.0.saturating_sub(of.asked.0) / 1_000);
    json!({
        "id": of.id,
        "pool": of.pool,
        "name": of.name,
        "instance": of.instance,
        "state": of.state.name(),
        "price_usd_per_hour": of.price.as_usd(),
        "asked_unix_us": of.asked,
        "since_unix_us": of.since,
        "joined_unix_us": of.joined,
        "start_up_ms": of.joined.map(took),
    })
}

fn change(of: &MachineChange) -> Value {
    json!({
        "seq": of.seq,
        "machine": of.name,
        "pool": of.pool,
        "from": of.from.map(modelless_types::MachineState::name),
        "to": of.to.name(),
        "why": of.why,
        "who": of.who,
        "at_unix_us": of.at,
    })
}

pub(super) async fn pools(State(app): FromApp) -> Answer {
    let stand = app.store.rented().pools().await?;
    Ok(json_response(StatusCode::OK, &json!({"pools": stand.iter().map(pool).collect::<Vec<_>>()})))
}

pub(super) async fn machines(State(app): FromApp, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let ended = params.take_number("ended", 0, SHOWN_MAX)?.unwrap_or(SHOWN);
    let changes = params.take_number("changes", 0, SHOWN_MAX)?.unwrap_or(SHOWN);
    let name = params.take("name");
    params.finish(&["ended", "changes", "name"])?;
    let rented = app.store.rented();
    let (machines, changes) = if let Some(name) = name {
        let known = rented.machine_named(&name).await?;
        let Some(known) = known else {
            let name = crate::suggest::excerpt(&name);
            let why = format!("there is no machine {name}, and it is not among those that ended lately");
            return Err(crate::errors::ApiError::not_found("unknown_machine", why));
        };
        let changes = rented.machine_changes(Some(known.id), changes).await?;
        (vec![known], changes)
    } else {
        let mut all = rented.machines().await?;
        all.extend(rented.ended_machines(ended).await?);
        (all, rented.machine_changes(None, changes).await?)
    };
    let body = json!({
        "machines": machines.iter().map(machine).collect::<Vec<_>>(),
        "changes": changes.iter().map(change).collect::<Vec<_>>(),
    });
    Ok(json_response(StatusCode::OK, &body))
}
