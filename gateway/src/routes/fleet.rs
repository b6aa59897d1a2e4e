//! Nodes and replicas as they are, and what happened to replicas lately.

use super::{Answer, FromApp, Named, Params};
use crate::errors::{ApiError, json_response};
use crate::show;
use crate::view::View;
use axum::extract::State;
use http::{StatusCode, Uri};
use modelless_store::Replica;
use serde_json::{Value, json};

/// Transitions shown unless another number is asked for.
pub(crate) const TRANSITIONS: u32 = 100;
/// The most that can be asked for.
pub(crate) const TRANSITIONS_MAX: u32 = 1_000;

pub(super) async fn nodes(State(app): FromApp) -> Answer {
    let view = app.core.view();
    let stored = app.store.nodes().await?;
    Ok(json_response(StatusCode::OK, &json!({"nodes": show::nodes(&view, &stored, &app.core.members())})))
}

pub(super) async fn members(State(app): FromApp) -> Answer {
    let (view, members) = (app.core.view(), app.core.members());
    let body = json!({"members": show::members(&view, &members), "demand": show::demand(&view, &members)});
    Ok(json_response(StatusCode::OK, &body))
}

pub(super) async fn replicas(State(app): FromApp, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let limit = params.take_number("transitions", 0, TRANSITIONS_MAX)?.unwrap_or(TRANSITIONS);
    params.finish(&["transitions"])?;
    let view = app.core.view();
    let transitions = app.store.transitions(None, limit).await?;
    let body = json!({
        "replicas": show::replicas(&view),
        "transitions": transitions.iter().map(|transition| show::transition(&view, transition)).collect::<Vec<_>>(),
    });
    Ok(json_response(StatusCode::OK, &body))
}

/// Of one replica so many transitions are shown.
const HISTORY: u32 = 100;

/// A variant on a node: how it stands, what that rests on, and how it came to be so.
pub(super) async fn replica(State(app): FromApp, Named((node, variant)): Named<(String, String)>) -> Answer {
    let view = app.core.view();
    let stored = app.store.nodes().await?;
    let Some(id) = stored.iter().find(|known| known.about.name == node).map(|known| known.id) else {
        let near = crate::suggest::suggest(&node, stored.iter().map(|known| known.about.name.as_str()));
        let message = format!("there is no node {}{near}", crate::suggest::excerpt(&node));
        return Err(ApiError::not_found("unknown_node", message));
    };
    let named = view.catalog.variants.iter().filter(|known| known.name == variant).map(|known| known.id);
    let named: Vec<_> = named.collect();
    let replicas = app.store.replicas(Some(id)).await?;
    let mut shown = Vec::new();
    for known in replicas.iter().filter(|known| named.contains(&known.variant)) {
        let transitions = app.store.transitions(Some(known.id), HISTORY).await?;
        let transitions: Vec<Value> = transitions.iter().map(|one| show::transition(&view, one)).collect();
        let live = view.node(id).and_then(|status| {
            let here = |replica: &&modelless_wire::ReplicaStatus| {
                replica.variant == known.variant && replica.device == known.device
            };
            Some((status, status.replicas.iter().find(here)?))
        });
        let mut one = match live {
            Some((status, replica)) => show::replica(&view, status, replica),
            None => at_rest(&view, &node, &variant, known),
        };
        one["because"] =
            live.map_or_else(Vec::new, |(status, replica)| show::explained(status, replica)).into();
        one["transitions"] = transitions.into();
        shown.push(one);
    }
    if shown.is_empty() {
        let names = view.catalog.variants.iter().map(|known| known.name.as_str());
        let near = crate::suggest::suggest(&variant, names);
        let message =
            format!("{} was never in memory on node {node}{near}", crate::suggest::excerpt(&variant));
        return Err(ApiError::not_found("unknown_replica", message));
    }
    Ok(json_response(StatusCode::OK, &json!({"replicas": shown})))
}

/// One of a node that is not reached from here, as it was stored last.
fn at_rest(view: &View, node: &str, variant: &str, known: &Replica) -> Value {
    json!({
        "node": node,
        "variant": variant,
        "variant_id": known.variant,
        "task": show::task_name(view, known.variant),
        "state": known.state,
        "memory_bytes": 0,
        "slowdown": null,
        "cause": "as stored last; this gateway does not reach its node",
        "loads": {"count": 0, "cold_ms": null, "warm_ms": null},
    })
}
