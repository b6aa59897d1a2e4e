//! Nodes, replicas, their history, and findings about candidates.

use crate::view::{View, metered};
use modelless_decision::explain::Finding;
use modelless_decision::narrow::Narrowed;
use modelless_decision::query::Class;
use modelless_decision::replica::explain;
use modelless_live::{Demand, Load, Member};
use modelless_store::{Node, Transition, UnixMicros};
use modelless_types::{Micros, TaskId, VariantId, Within};
use modelless_wire::{
    EngineStatus, Gpu, Hardware, LoadTimes, NodeLoad, NodeStatus, PriceOrigin, ReplicaStatus,
};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// Every node known to the store, with what it makes known of itself where it is connected here.
pub(crate) fn nodes(view: &View, stored: &[Node], members: &[Member]) -> Vec<Value> {
    let mut shown: Vec<Value> = stored
        .iter()
        .map(|node| {
            let mut shown = json!({
                "id": node.id,
                "name": node.about.name,
                "pool": node.about.pool,
                "zone": node.about.zone,
                "state": node.state,
                "last_seen_unix_us": node.last_seen,
                "device_class": node.about.device_class,
                "connected": false,
            });
            if let Some(status) = view.node(node.id) {
                extend(&mut shown, status_of(view, status));
            } else if let Some(member) = members.iter().find(|member| member.node == Some(node.id)) {
                // It lives, but this gateway does not reach it.
                shown["announced"] = self::member(view, member);
            }
            shown
        })
        .collect();
    let unstored = view.nodes.iter().filter(|status| !stored.iter().any(|node| node.id == status.node));
    shown.extend(unstored.map(|status| status_of(view, status)));
    shown
}

/// Everybody who announces himself.
pub(crate) fn members(view: &View, members: &[Member]) -> Vec<Value> {
    members.iter().map(|known| member(view, known)).collect()
}

fn member(view: &View, member: &Member) -> Value {
    let Load { queries, waiting, busy_lanes, lanes, memory_used, memory_budget } = member.load;
    let resident = member.resident.iter().map(|replica| {
        json!({"device": replica.device, "variant": variant_name(view, replica.variant), "state": replica.state})
    });
    let corrections = member.corrections.iter().map(|seen| {
        let correction =
            json!({"ratio": seen.correction.ratio, "samples": seen.correction.samples, "provenance": "live"});
        let task = view.catalog.tasks.iter().find(|task| task.id == seen.task).map(|task| task.name.as_str());
        json!({"task": task, "variant": variant_of(view, seen.task, seen.ordinal), "slowdown": correction})
    });
    json!({
        "role": member.role,
        "name": member.name,
        "node": member.node,
        "address": member.address,
        "draining": member.draining,
        "device_class": member.device_class,
        "load": {"queries": queries, "waiting": waiting, "lanes_busy": busy_lanes, "lanes": lanes},
        "memory": {"used_bytes": memory_used.0, "budget_bytes": memory_budget.0},
        "resident": resident.collect::<Vec<_>>(),
        "corrections": corrections.collect::<Vec<_>>(),
        "left_out": member.left_out,
    })
}

/// What is asked of all gateways together since each of them started, class by class, the most asked for first.
pub(crate) fn demand(view: &View, members: &[Member]) -> Vec<Value> {
    let mut classes: BTreeMap<Class, (u64, u64, u64)> = BTreeMap::new();
    let mut bounds: BTreeMap<Class, BTreeMap<Within, u64>> = BTreeMap::new();
    let all = members.iter().flat_map(|member| member.demand.iter());
    for Demand { class, arrived, in_time, waiting, within } in all {
        let sum = classes.entry(*class).or_default();
        *sum = (sum.0 + arrived, sum.1 + in_time, sum.2 + u64::from(*waiting));
        for (within, arrived) in within {
            *bounds.entry(*class).or_default().entry(*within).or_default() += arrived;
        }
    }
    let mut classes: Vec<_> = classes.into_iter().collect();
    classes.sort_by_key(|(class, (arrived, ..))| (Reverse(*arrived), *class));
    let shown = |(class, (arrived, in_time, waiting)): (Class, (u64, u64, u64))| {
        let task =
            view.catalog.tasks.iter().find(|task| task.id == class.task).map(|task| task.name.as_str());
        let variants: Vec<_> =
            class.admits.iter().filter_map(|ordinal| variant_of(view, class.task, ordinal)).collect();
        let within = bounds.get(&class).into_iter().flatten();
        let within = within.map(
            |(within, arrived)| json!({"at_least_ms": within.tightest().as_millis_f64(), "arrived": arrived}),
        );
        json!({
            "task": task, "variants": variants, "arrived": arrived, "in_time": in_time, "waiting": waiting,
            "within": within.collect::<Vec<_>>(),
        })
    };
    classes.into_iter().map(shown).collect()
}

fn variant_of(view: &View, task: TaskId, ordinal: u8) -> Option<&str> {
    let of_task: Vec<_> = view.catalog.models_of(task).map(|model| model.id).collect();
    let mut variants = view.catalog.variants.iter();
    let found = variants.find(|variant| variant.ordinal == ordinal && of_task.contains(&variant.model));
    found.map(|variant| variant.name.as_str())
}

fn status_of(view: &View, status: &NodeStatus) -> Value {
    let source = match &status.price_origin {
        PriceOrigin::Listed { source } => Some(source),
        PriceOrigin::Declared | PriceOrigin::Assumed => None,
    };
    let now = UnixMicros::of(SystemTime::now()).0;
    json!({
        "id": status.node,
        "name": status.name,
        "pool": status.pool,
        "zone": status.zone,
        "zone_source": status.zone_source,
        "hardware": hardware(&status.hardware),
        "device_class": status.device_class,
        "connected": true,
        "started_unix_us": status.started_unix_us,
        "uptime_s": now.saturating_sub(status.started_unix_us) / 1_000_000,
        "load": load(&status.load),
        "way_ms": status.info.rtt.mean().as_millis_f64(),
        "draining": status.draining,
        "lanes": status.lanes,
        "narrowed": status.narrowed.as_ref().map(|few| json!({"lanes": few.lanes, "of": few.of, "cause": few.cause})),
        "caution": status.caution.unwrap_or(1.0),
        "price_usd_per_hour": status.price.as_usd(),
        "price_provenance": status.price_origin.name(),
        "price_source": source,
        "memory": {"used_bytes": status.memory_used.0, "budget_bytes": status.memory_budget.0},
        "replicas": status.replicas.len(),
        "replica_states": status.replicas.iter().map(|known| replica(view, status, known)).collect::<Vec<_>>(),
        "warnings": status.warnings,
        "engines": status.engines.iter().map(engine).collect::<Vec<_>>(),
    })
}

fn hardware(hardware: &Hardware) -> Value {
    let Hardware { cpu, arch, isa, cores, memory, gpus } = hardware;
    let gpu = |Gpu { name, memory }: &Gpu| json!({"name": name, "memory_bytes": memory.map(|bytes| bytes.0)});
    json!({
        "cpu": cpu,
        "arch": arch,
        "isa": isa,
        "cores": cores,
        "memory_bytes": memory.0,
        "gpus": gpus.iter().map(gpu).collect::<Vec<_>>(),
    })
}

fn load(load: &NodeLoad) -> Value {
    let NodeLoad {
        lanes_busy,
        queued,
        running,
        batches,
        queries,
        crashes,
        restarts,
        handed_back,
        loads,
        load_time,
        evictions,
    } = load;
    json!({
        "lanes_busy": lanes_busy,
        "queued": queued,
        "running": running,
        "batches": batches,
        "queries": queries,
        "runner_crashes": crashes,
        "replica_restarts": restarts,
        "handed_back": handed_back,
        "loads": loads,
        "load_us": load_time,
        "evictions": evictions,
    })
}

fn engine(status: &EngineStatus) -> Value {
    json!({"engine": status.engine.name(), "version": status.version, "unavailable": status.unavailable})
}

fn extend(into: &mut Value, with: Value) {
    if let (Value::Object(into), Value::Object(with)) = (into, with) {
        into.extend(with);
    }
}

/// The replicas of all connected nodes, as they are now.
pub(crate) fn replicas(view: &View) -> Vec<Value> {
    let of_node = |node: &Arc<NodeStatus>| {
        let shown = |replica: &ReplicaStatus| self::replica(view, node, replica);
        node.replicas.iter().map(shown).collect::<Vec<_>>()
    };
    view.nodes.iter().flat_map(of_node).collect()
}

pub(crate) fn replica(view: &View, node: &NodeStatus, replica: &ReplicaStatus) -> Value {
    let LoadTimes { count, cold, warm } = replica.loads;
    json!({
        "node": node.name,
        "variant": variant_name(view, replica.variant),
        "variant_id": replica.variant,
        "task": task_name(view, replica.variant),
        "state": replica.state,
        "memory_bytes": replica.memory.0,
        "slowdown": replica.slowdown.map(|ratio| json!({"ratio": ratio, "provenance": "live"})),
        "cause": replica.cause,
        "loads": {
            "count": count,
            "cold_ms": cold.map(Micros::as_millis_f64),
            "warm_ms": warm.map(Micros::as_millis_f64),
        },
    })
}

/// What its state rests on, in words, by the calls that decide it.
pub(crate) fn explained(node: &NodeStatus, replica: &ReplicaStatus) -> Vec<String> {
    let signs = replica.signs.as_ref();
    let mut lines = signs.map_or_else(Vec::new, |signs| explain(replica.state, signs));
    if signs.is_some() {
        lines.extend(node.narrowed.as_ref().map(narrowed));
        lines.extend(node.caution.map(cautious));
    }
    lines
}

/// That fewer batches run side by side on a node than could, and why.
pub(crate) fn narrowed(few: &Narrowed) -> String {
    format!("{} of {} lanes run side by side for now: {}", few.lanes, few.of, few.cause)
}

/// That a node reckons with more than is foreseen, and why.
pub(crate) fn cautious(caution: f64) -> String {
    format!(
        "batches are taken to last {caution:.1} times as long where variants are compared, as queries were late there lately: \
         cheaper variants are chosen until fewer are"
    )
}

/// What happened to a replica: who, when, why.
pub(crate) fn transition(view: &View, transition: &Transition) -> Value {
    let change = &transition.change;
    json!({
        "seq": transition.seq,
        "replica": change.replica,
        "variant": variant_name(view, transition.variant),
        "task": task_name(view, transition.variant),
        "node": view.node(transition.node).map(|node| node.name.as_str()),
        "from": change.from,
        "to": change.to,
        "cause": change.cause,
        "who": change.who,
        "at_unix_us": change.at,
    })
}

/// `None` for one that was removed.
pub(super) fn variant_name(view: &View, id: VariantId) -> Option<&str> {
    view.catalog.variants.iter().find(|variant| variant.id == id).map(|variant| variant.name.as_str())
}

/// Of which task it is: names of variants are unique in a task only. `None` for one that was removed.
pub(crate) fn task_name(view: &View, id: VariantId) -> Option<String> {
    let catalog = &view.catalog;
    let variant = catalog.variants.iter().find(|variant| variant.id == id)?;
    let model = catalog.models.iter().find(|model| model.id == variant.model)?;
    catalog.tasks.iter().find(|task| task.id == model.task).map(|task| metered(catalog, task))
}

/// What spoke for or against a candidate, by name and in words.
pub(crate) fn finding(finding: &Finding) -> Value {
    let (name, why) = match finding {
        Finding::Chosen => ("chosen", "it would be taken"),
        Finding::LessPreferred => {
            ("less_preferred", "it meets the goals; another is better by what is preferred")
        }
        Finding::OtherSpace => ("other_space", "it answers in another output space"),
        Finding::Candidate => {
            ("candidate", "it is of a version that is not the default, and the query does not pin it")
        }
        Finding::NotPinned => ("not_pinned", "the query pins something else"),
        Finding::BelowFloor => ("below_floor", "it is measured below the accuracy asked for"),
        Finding::TooSlow => ("too_slow", "it takes longer than asked, even on an idle node"),
        Finding::QueueTooLong => ("queue_too_long", "it would be fast enough were there no queue"),
        Finding::TooDear => ("too_dear", "it costs more than asked, at any batch size"),
        Finding::NotLoaded { .. } => {
            ("not_loaded", "it is not in memory, and loading takes longer than asked")
        }
        Finding::WouldLoad { .. } => ("would_load", "it meets the goals but would have to be loaded first"),
        Finding::NoCredit => ("no_credit", "its node has as much as it takes"),
        Finding::Announced => {
            ("announced", "its node hears of the query, and whichever is first to claim it has it")
        }
        Finding::GaveBack => ("gave_back", "its node has given the query back, so it goes elsewhere"),
        Finding::NoNode => ("no_node", "no node can run it"),
    };
    let ready_in = match finding {
        Finding::NotLoaded { ready_in } | Finding::WouldLoad { ready_in } => Some(ready_in),
        Finding::Chosen
        | Finding::LessPreferred
        | Finding::OtherSpace
        | Finding::Candidate
        | Finding::NotPinned
        | Finding::BelowFloor
        | Finding::TooSlow
        | Finding::QueueTooLong
        | Finding::TooDear
        | Finding::NoCredit
        | Finding::GaveBack
        | Finding::Announced
        | Finding::NoNode => None,
    };
    json!({
        "finding": name,
        "because": why,
        "ready_in_ms": ready_in.map(|time: &Micros| time.as_millis_f64()),
    })
}
