//! `/v1/queries/{query}/explain`: what became of a query that has ended, and why: every decision on it, made again by the calls that made
//! it from what was seen then.

use super::explain::shown as explained;
use super::{Answer, FromApp, Named};
use crate::access::Caller;
use crate::core::Core;
use crate::decisions::{Came, Decision};
use crate::errors::{ApiError, json_response};
use crate::ids::BadQueryId;
use crate::past::KEPT;
use crate::show;
use crate::suggest::excerpt;
use crate::view::View;
use axum::extract::State;
use http::StatusCode;
use modelless_decision::explain::recall;
use modelless_decision::route::{Did, Seen, Standing};
use modelless_live::Role;
use modelless_store::UnixMicros;
use modelless_types::{Goals, Micros, QueryNumber, Share};
use serde_json::{Value, json};
use std::time::SystemTime;

/// A process gives out no more numbers than this, so one that lies further behind where it counts from is another's.
const NUMBERS: u64 = 1 << 48;

pub(super) async fn explain(State(app): FromApp, caller: Caller, Named(query): Named<String>) -> Answer {
    let core = &*app.core;
    // It is as much work here as a query.
    caller.asks(core.driver.clock().now())?;
    let number = number(core, &query)?;
    let own = |kept: &Decision| caller.is_operator() || kept.caller.tenant == caller.tenant;
    let kept = core.decisions.past.find(number).filter(own);
    let kept = kept.ok_or_else(|| not_here(core, &caller, number))?;
    Ok(json_response(StatusCode::OK, &told(core, &caller, &kept)))
}

/// As `modelless-query` tells it, or in the signed name.
fn number(core: &Core, text: &str) -> Result<QueryNumber, ApiError> {
    if text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(QueryNumber(u64::from_str_radix(text, 16).unwrap_or_default()));
    }
    core.ids.verify(text).map(|id| QueryNumber(id.number)).map_err(|bad| match bad {
        BadQueryId::Malformed => ApiError::malformed(format!(
            "{} names no query; expected its number, 16 hexadecimal digits as in `modelless-query`, or its `modelless-query-id`",
            excerpt(text)
        )),
        BadQueryId::Forged => ApiError::not_found("unknown_query", bad.to_string()),
    })
}

/// Why a query is not found here: who has it, or that it is kept no longer. Another tenant's looks like one that is forgotten.
fn not_here(core: &Core, caller: &Caller, number: QueryNumber) -> ApiError {
    let key = core.key_of(number);
    let open = key.and_then(|key| core.pending.tenant_of(key));
    if open.is_some_and(|tenant| caller.is_operator() || caller.tenant == tenant) {
        return ApiError::not_found(
            "not_ended",
            "this query has not ended yet; ask again when it is answered",
        );
    }
    if key.is_some() {
        let since = core.decisions.past.since().filter(|_| caller.is_operator());
        let since = since.map(|since| {
            let ago = Micros(UnixMicros::of(SystemTime::now()).0.saturating_sub(since.0));
            format!(", at the moment those of the last {:.0} s", ago.as_millis_f64() / 1e3)
        });
        let message = format!(
            "this query is not kept here any more: a gateway keeps the last {KEPT} that ended{}",
            since.unwrap_or_default()
        );
        return ApiError::not_found("not_kept", message);
    }
    let members = core.members();
    let from = |instance: u64| number.0.wrapping_sub(instance);
    let gateways = members.iter().filter(|member| member.role == Role::Gateway);
    let other = gateways.min_by_key(|member| from(member.instance));
    match other.filter(|member| (1..NUMBERS).contains(&from(member.instance))) {
        Some(other) => {
            let at = other.address.as_ref().filter(|_| caller.is_operator());
            let at = at.map(|address| format!(" at {address}")).unwrap_or_default();
            let message = format!("the gateway {:?}{at} was asked this query; ask that one", other.name);
            ApiError::not_found("kept_elsewhere", message)
        }
        None => ApiError::not_found(
            "unknown_query",
            "no gateway that is here now has given out this number; what one kept is gone once it ends",
        ),
    }
}

fn told(core: &Core, caller: &Caller, kept: &Decision) -> Value {
    let view = core.view_of(&kept.caller);
    let mut told = show::decision(&view, kept);
    told["stages"] = stages(kept);
    // It may see less than whoever asked the query; an operator sees everything.
    let seen = if caller.is_operator() { view } else { core.view_of(caller) };
    let task = seen.tasks.values().find(|task| task.task.id == kept.asked.task);
    // What was drawn for a trial was given to the version on trial alone, as if it had been pinned.
    let candidate = kept.trial.map(|trial| trial.candidate);
    let asked = Goals { model: candidate.or(kept.asked.goals.model), ..kept.asked.goals };
    // With the task's defaults as they were then.
    let goals = Goals { accuracy: kept.asked.accuracy, ..asked };
    let (decisions, _) = core.driver.look(|router, _| router.seen(kept.key));
    let decisions = decisions.iter().map(|decision| {
        let mut shown = task.map_or_else(
            || json!({"task": told["task"], "candidates": []}), // it was removed since
            |task| {
                let (snapshot, explanation) = recall(decision, kept.asked.task, &asked);
                explained(&seen, task, &goals, &snapshot, &explanation)
            },
        );
        for candidate in shown["candidates"].as_array_mut().into_iter().flatten() {
            if candidate["finding"] == "chosen" {
                candidate["because"] = json!("it was taken");
            }
        }
        shown["after_ms"] = json!((decision.at - kept.arrived).as_millis_f64());
        shown["did"] = did(&seen, decision);
        shown["nodes_left_out"] = json!(decision.left_out);
        if let Some(standing) = &decision.standing {
            shown["share"] = share(standing);
        }
        shown
    });
    told["decisions"] = decisions.collect();
    told
}

/// What was expected of each stage, where anything was, and what it took.
fn stages(kept: &Decision) -> Value {
    let Came::Answered {
        predicted,
        queued,
        queued_at_node,
        decode,
        prepare,
        predicted_run,
        run,
        at_node,
        total,
        again: false,
        ..
    } = &kept.came
    else {
        return json!([]);
    };
    let inside = *queued_at_node + *decode + *prepare + *run;
    let at_gateway = Micros(queued.0.saturating_sub(queued_at_node.0));
    let rest = Micros(total.0.saturating_sub((at_gateway + *at_node).0));
    let stage = |stage: &str, expected: Option<Micros>, took: Micros| json!({"stage": stage, "expected_ms": expected.map(Micros::as_millis_f64), "took_ms": took.as_millis_f64()});
    json!([
        stage("waiting at the gateway", None, at_gateway),
        stage("waiting at the node", None, *queued_at_node),
        stage("decoding", None, *decode),
        stage("writing the batch", None, *prepare),
        stage("running the batch", Some(*predicted_run), *run),
        stage("the rest at the node", None, Micros(at_node.0.saturating_sub(inside.0))),
        stage("reading, and the way", None, rest),
        stage("all of it", Some(*predicted), *total),
    ])
}

/// What its application used of what the task got of devices, where not all could be answered in time.
fn share(standing: &Standing) -> Value {
    let Standing { used_ppm, share_ppm, weight, reserve, within } = standing;
    let part = |ppm: u32| f64::from(ppm) / 1e6;
    let percent = |ppm: u32| format!("{:.0} %", f64::from(ppm) / 1e4);
    let because = format!(
        "its application used {} of the device time, its share is {}{}",
        percent(*used_ppm),
        percent(*share_ppm),
        if *within { ": it goes before those who are beyond theirs" } else { "" }
    );
    json!({
        "used": part(*used_ppm), "share": part(*share_ppm), "weight": weight,
        "reserve": reserve.map(Share::as_f64), "within_reserve": within, "because": because,
    })
}

fn did(view: &View, seen: &Seen) -> Value {
    match seen.did {
        Did::Sent { node, expected, joined } => json!({
            "action": "sent",
            "node": view.node(node).map(|node| node.name.as_str()),
            "predicted_ms": expected.as_millis_f64(),
            "joined": joined.is_some(),
        }),
        Did::Announced { nodes, until } => json!({
            "action": "announced",
            "nodes": nodes,
            "at_most_ms": (until - seen.at).as_millis_f64(),
        }),
        Did::Claimed { node, expected } => json!({
            "action": "claimed",
            "node": view.node(node).map(|node| node.name.as_str()),
            "predicted_ms": expected.as_millis_f64(),
        }),
        Did::Waits { until } => {
            json!({"action": "waits", "at_most_ms": (until - seen.at).as_millis_f64()})
        }
        Did::Refused(reason) => json!({"action": "refused", "reason": reason}),
    }
}
