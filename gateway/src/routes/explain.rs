//! `/v1/tasks/{task}/explain`: for any goals, every candidate and what spoke for or against it.

use super::{Answer, FromApp, Named, media};
use crate::access::Caller;
use crate::errors::{ApiError, NearestBody, json_response};
use crate::goals::Given;
use crate::http::body;
use crate::trials::Running;
use crate::view::{TaskView, View};
use axum::extract::{Request, State};
use http::StatusCode;
use modelless_decision::admission::{Admitted, with_defaults};
use modelless_decision::explain::{Candidate, Explanation, Finding, explain as decide, preference};
use modelless_decision::route::{Snapshot, Verdict};
use modelless_decision::trial::{OnTrial, admit};
use modelless_store::{Floor, Trial};
use modelless_types::{
    Accuracy, AccuracyMeasure, CostPer1k, DeclaredRule, Fallback, Goals, LiveRule, Micros, Nearest,
    PricePerHour, Profile, Provenance, QueryNumber, Refusal,
};
use serde_json::{Value, json};

pub(super) async fn explain(
    State(app): FromApp,
    caller: Caller,
    Named(name): Named<String>,
    request: Request,
) -> Answer {
    let core = &*app.core;
    // It is as much work here as a query.
    caller.asks(core.driver.clock().now())?;
    let (head, body) = request.into_parts();
    let view = core.view_of(&caller);
    let task = view.task(&name)?;
    let mut given = Given::of_request(head.uri.query(), &head.headers)?;
    let media = body::media_type(&head.headers)?;
    let (body, _held) = body::read(core, &head, body).await?;
    match media.as_deref() {
        None if body.is_empty() => {}
        None | Some("application/json") => media::goals(&body, &mut given)?,
        Some(other) => {
            let other = crate::suggest::excerpt(other);
            let message = format!("an explanation needs goals only, as application/json; this is {other}");
            return Err(ApiError::unsupported_media(message));
        }
    }
    let (goals, from) = caller.policies.apply(task, &task.resolve(&given)?)?;
    // Asked of copies: looking must not change what is looked at, and takes longer than the router should wait.
    let (mut snapshot, mut load, gathering, now) = core.driver.look(|router, now| {
        (router.snapshot().clone(), router.load().clone(), router.gathering().clone(), now)
    });
    let asked = (task.task.id, &goals);
    let explanation = decide(&gathering, (&mut snapshot, &mut load), asked, now, 0);
    let mut told = shown(&view, task, &goals, &snapshot, &explanation);
    if let Some(running) = &task.trial {
        told["trial"] = trial(running, &snapshot, &goals);
    }
    if told["goals"].is_object() {
        told["goals"]["from"] = crate::show::origins(from);
    }
    Ok(json_response(StatusCode::OK, &told))
}

/// Of a version on trial: whether a query with these goals could be drawn for it. That hangs on its number then.
fn trial(running: &Running, snapshot: &Snapshot, goals: &Goals) -> Value {
    let Trial { id, task, name, version, share, shadow, .. } = &running.trial;
    let on = OnTrial { shadow: false, ..running.on };
    let drawn = admit(snapshot, *task, goals, (&on, QueryNumber(0))).is_ok_and(|taken| taken.arm.is_some());
    json!({"id": id.to_string(), "model": name, "version": version, "share": share.as_f64(), "shadow": shadow, "may_be_drawn": drawn})
}

pub(super) fn shown(
    view: &View,
    task: &TaskView,
    goals: &Goals,
    snapshot: &Snapshot,
    explanation: &Explanation,
) -> Value {
    let candidates: Vec<Value> = explanation
        .candidates
        .iter()
        .filter(|candidate| task.variant(candidate.variant).is_some())
        .map(|candidate| shown_candidate(view, task, candidate))
        .collect();
    let (goals, decision) = match &explanation.admitted {
        Ok(admitted) => {
            let goals = &with_defaults(goals, &task.task.defaults);
            let verdict = explanation.verdict.as_ref();
            (
                admitted_goals(goals, admitted),
                verdict.map(|verdict| shown_verdict(view, task, snapshot, verdict)),
            )
        }
        Err(refusal) => (Value::Null, Some(refused(refusal))),
    };
    json!({"task": task.task.name, "goals": goals, "decision": decision, "candidates": candidates})
}

fn admitted_goals(goals: &Goals, admitted: &Admitted) -> Value {
    json!({
        "accuracy": goals.accuracy.map(Accuracy::as_f64),
        "latency_ms": admitted.latency.as_millis_f64(),
        "max_cost": admitted.max_cost.map(CostPer1k::as_usd),
        "prefer": admitted.prefer,
        "priority": goals.priority,
        "fallback": if admitted.best_effort { Fallback::BestEffort } else { Fallback::Reject },
        "meaning": preference(admitted.prefer),
        "variants_that_may_answer": admitted.class.admits.len(),
    })
}

fn refused(refusal: &Refusal) -> Value {
    json!({
        "action": "refuse",
        "reason": refusal.name(),
        "error": refusal.to_string(),
        "nearest": refusal.nearest().map(NearestBody::from),
    })
}

fn shown_verdict(view: &View, task: &TaskView, snapshot: &Snapshot, verdict: &Verdict) -> Value {
    let by_ordinal = |ordinal: u8| {
        task.variants
            .iter()
            .find(|view| view.variant.ordinal == ordinal)
            .map(|view| view.variant.name.as_str())
    };
    let node = |ix| snapshot.node(ix).and_then(|node| view.node(node.id)).map(|node| node.name.as_str());
    match verdict {
        Verdict::Send(choice) => json!({
            "action": "send",
            "node": node(choice.node),
            "variant": by_ordinal(choice.ordinal),
            "predicted_ms": choice.completion.p99().as_millis_f64(),
            "note": "the node binds the variant when it runs the query, by its own backlog",
        }),
        Verdict::Wait { until: _ } => json!({
            "action": "wait",
            "note": "every node that could answer in time has as much as it takes; the query waits at the gateway",
        }),
        Verdict::Load { node: at, ordinal, ready_in, in_time, bound } => json!({
            "action": "load",
            "node": node(*at),
            "variant": by_ordinal(*ordinal),
            "ready_in_ms": ready_in.as_millis_f64(),
            "waits_for_it": in_time,
            "nearest": (!in_time).then(|| NearestBody::from(Nearest { latency: Some(*bound), ..Nearest::default() })),
        }),
        Verdict::Refuse(refusal) => refused(refusal),
    }
}

fn shown_candidate(view: &View, task: &TaskView, candidate: &Candidate) -> Value {
    let mut shown = json!({
        "model": task.variant(candidate.variant).map(|view| view.model.name.as_str()),
        "variant": task.variant(candidate.variant).map(|view| view.variant.name.as_str()),
        "node": candidate.node.and_then(|node| view.node(node)).map(|node| node.name.as_str()),
        "accuracy": candidate.accuracy.as_f64(),
        "accuracy_provenance": task.variant(candidate.variant).and_then(|view| view.floor).map(|floor| floor.from),
        "latency_ms": candidate.latency.map(Micros::as_millis_f64),
        "wait_ms": candidate.wait.map(Micros::as_millis_f64),
        "cost": candidate.cost.map(CostPer1k::as_usd),
        "price_usd_per_hour": candidate.price.map(PricePerHour::as_usd),
    });
    let finding = crate::show::finding(&candidate.finding);
    if let (Value::Object(shown), Value::Object(finding)) = (&mut shown, finding) {
        shown.extend(finding);
    }
    if let (Finding::NoNode, Some(variant)) = (&candidate.finding, task.variant(candidate.variant))
        && let Some(why) = crate::show::unavailable(view, variant.variant.settings.engine)
    {
        shown["because"] = json!(why);
    }
    shown["notes"] = notes(view, task, candidate).into();
    shown
}

/// How far its figures are to be trusted, and where live traffic says something else than what was measured.
fn notes(view: &View, task: &TaskView, candidate: &Candidate) -> Vec<String> {
    let class = candidate.node.and_then(|node| view.node(node)).map(|node| node.device_class.as_str());
    let profile = class.and_then(|class| task.variant(candidate.variant)?.variant.profile_on(class));
    let known = profile.into_iter().flat_map(known);
    let stale = class.and_then(|class| view.catalog.stale(candidate.variant, class)).map(|stale| {
        let times = Micros(stale.ratio_ppm / 1_000).as_millis_f64();
        format!("its profile is off ({times:.2} times) and is measured again when a node has nothing to do")
    });
    let flagged = view.catalog.live_accuracy(candidate.variant).and_then(|live| live.flagged);
    let worse = flagged.map(|flagged| match task.task.live_accuracy {
        LiveRule::Shown => format!("feedback says that it is less accurate than measured ({flagged})"),
        LiveRule::Floors => {
            format!("feedback says that it is less accurate than measured, and floors count that ({flagged})")
        }
    });
    let floor = profile.map(|profile| view.catalog.floor(&task.task, candidate.variant, profile));
    let floor = floor.or_else(|| task.variant(candidate.variant)?.floor);
    let declared = floor.filter(|floor| floor.from == Provenance::Declared);
    let declared = declared.map(|floor| declared_only(floor, task.task.declared_accuracy));
    let node = candidate.node.and_then(|node| view.node(node));
    let few = node.and_then(|node| node.narrowed.as_ref()).map(crate::show::narrowed);
    let cautious = node.and_then(|node| node.caution).map(crate::show::cautious);
    let of_node = few.into_iter().chain(cautious).map(|told| format!("on its node {told}"));
    declared.into_iter().chain(known).chain(stale).chain(worse).chain(of_node).collect()
}

/// Nobody measured its accuracy.
fn declared_only(floor: Floor, rule: DeclaredRule) -> String {
    let why = match (floor.counts, rule) {
        (false, _) => "so it counts for no floor beside those that were measured",
        (true, DeclaredRule::Floors) => "and the task has floors count that",
        (true, DeclaredRule::UnlessMeasured) => "and floors count that as nothing in the task was measured",
    };
    format!("its accuracy was declared and never measured, {why}")
}

/// Where a profile was not measured as well as it could be.
fn known(profile: &Profile) -> impl Iterator<Item = String> {
    let AccuracyMeasure { value, low, samples, .. } = &profile.accuracy;
    let estimated = profile
        .is_estimated()
        .then(|| "its times are estimated from another device class until it is measured here".to_owned());
    let coarse = profile.is_coarse().then(|| {
        "its profile is coarse, as the time for measuring was short; it is measured again when a node has nothing to do"
            .to_owned()
    });
    let part = profile.detail.part_of_set.then(|| {
        format!(
            "{samples} items, a part of its labelled set, show an accuracy of {value}; floors are compared with the lower end, \
             {low}, until all of it is compared"
        )
    });
    let unsteady = profile.detail.unsteady.is_some().then(|| {
        "its times were measured in an unsteady minute; `modelless variant show` tells what was the matter"
            .to_owned()
    });
    [estimated, coarse, part, unsteady].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::world::profile;
    use modelless_types::{Provenance, Unsteady};

    #[test]
    fn what_is_estimated_coarse_or_shown_by_a_part_of_the_set_is_said_and_nothing_of_what_is_known_well() {
        let mut profile = profile(1_000.0, 9, 10);
        assert_eq!(known(&profile).count(), 0);
        profile.accuracy.low = Accuracy::from_ppm(596_000).unwrap();
        (profile.detail.coarse, profile.detail.part_of_set) = (true, true);
        let notes: Vec<String> = known(&profile).collect();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("coarse") && notes[1].contains("10 items") && notes[1].contains("0.596"));
        profile.detail.unsteady = Some(Unsteady { stolen: 0.3, tries: 1, left: 3, ..Unsteady::default() });
        let note = known(&profile).last().unwrap();
        assert!(note.contains("unsteady minute"), "{note}");
        profile.detail.unsteady = None;
        profile.latency_provenance = Provenance::Estimated;
        profile.detail.part_of_set = false;
        let notes: Vec<String> = known(&profile).collect();
        assert!(
            notes.len() == 1 && notes[0].contains("estimated"),
            "an estimate is coarse by itself: {notes:?}"
        );
    }
}
