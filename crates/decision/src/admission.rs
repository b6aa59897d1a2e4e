//! From goals to the exact set of variants that may answer, or a "no" with the nearest goals that could be met.

use crate::query::Class;
use crate::route::{Snapshot, TaskInfo, VariantInfo};
use alloc::format;
use modelless_types::{
    Accuracy, CostPer1k, Fallback, Goals, Micros, Nearest, Prefer, Refusal, TaskId, VariantSet,
};

/// Goals with the task's defaults filled in, and who may answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// Who may answer.
    pub class: Class,
    /// The latency bound that holds.
    pub latency: Micros,
    /// The price ceiling that holds.
    pub max_cost: Option<CostPer1k>,
    /// What idle capacity is spent on.
    pub prefer: Prefer,
    /// Whether latency and cost may be missed.
    pub best_effort: bool,
}

/// The bound where neither the query nor its task gives one.
pub const DEFAULT_LATENCY: Micros = Micros::from_secs(10);

/// Goals with those of the task where the query gives none.
pub fn with_defaults(goals: &Goals, task: &Goals) -> Goals {
    Goals {
        accuracy: goals.accuracy.or(task.accuracy),
        latency: goals.latency.or(task.latency),
        max_cost: goals.max_cost.or(task.max_cost),
        prefer: goals.prefer.or(task.prefer),
        ..*goals
    }
}

/// Which variants may answer. Refuses what nothing registered could meet even on an idle machine.
pub fn admit(snapshot: &Snapshot, task: TaskId, goals: &Goals) -> Result<Admitted, Refusal> {
    let Some(task) = snapshot.task(task) else {
        return Err(Refusal::NothingRunnable { why: "the task is not known here yet".into() });
    };
    let goals = with_defaults(goals, &task.defaults);
    let pinned = pinned(task, &goals)?;
    let floor = goals.accuracy.unwrap_or(Accuracy::ZERO);
    let admits: VariantSet =
        members(task, pinned).filter(|v| v.accuracy >= floor).map(|v| v.ordinal).collect();
    if admits.is_empty() {
        return Err(Refusal::FloorUnreachable { best: members(task, pinned).map(|v| v.accuracy).max() });
    }
    let runnable = |v: &&VariantInfo| snapshot.best(task.id, v.ordinal).is_some();
    if !members(task, admits).any(|v| runnable(&v)) {
        let why = format!("{} variants qualify but no node can run any of them", admits.len());
        return Err(Refusal::NothingRunnable { why });
    }
    let best_effort = goals.fallback == Fallback::BestEffort;
    let latency = goals.latency.unwrap_or(DEFAULT_LATENCY);
    if !best_effort {
        check_latency(snapshot, task, pinned, admits, latency)?;
        check_cost(snapshot, task, pinned, admits, latency, goals.max_cost)?;
    }
    Ok(Admitted {
        class: Class { task: task.id, admits },
        latency,
        max_cost: goals.max_cost,
        prefer: goals.prefer.unwrap_or_default(),
        best_effort,
    })
}

fn members(task: &TaskInfo, set: VariantSet) -> impl Iterator<Item = &VariantInfo> {
    task.variants.iter().filter(move |v| set.contains(v.ordinal))
}

/// Everything inside one output space that the pins leave: the pinned model's or variant's space, else the default.
fn pinned(task: &TaskInfo, goals: &Goals) -> Result<VariantSet, Refusal> {
    let unusable = |why: &str| Refusal::PinUnusable { why: why.into() };
    let mut space = task.default_space;
    if let Some(id) = goals.variant {
        let variant = task.variants.iter().find(|v| v.id == id);
        let variant = variant.ok_or_else(|| unusable("this task has no such variant"))?;
        if goals.model.is_some_and(|model| model != variant.model) {
            return Err(unusable("the pinned variant is not one of the pinned model"));
        }
        space = variant.space;
    } else if let Some(model) = goals.model {
        let variant = task.variants.iter().find(|v| v.model == model);
        space = variant.ok_or_else(|| unusable("this task has no such model with a variant"))?.space;
    }
    let fits = |v: &&VariantInfo| {
        v.space == space
            && goals.variant.is_none_or(|id| v.id == id)
            && goals.model.is_none_or(|model| v.model == model)
    };
    let set: VariantSet = task.variants.iter().filter(fits).map(|v| v.ordinal).collect();
    if set.is_empty() {
        return Err(Refusal::NothingRunnable { why: "the task has no variant with a known accuracy".into() });
    }
    Ok(set)
}

fn check_latency(
    snapshot: &Snapshot,
    task: &TaskInfo,
    pinned: VariantSet,
    admits: VariantSet,
    bound: Micros,
) -> Result<(), Refusal> {
    let latency = |v: &VariantInfo| snapshot.best(task.id, v.ordinal).map(|best| best.latency);
    let shortest = members(task, admits).filter_map(latency).min();
    if shortest.is_some_and(|shortest| shortest <= bound) {
        return Ok(());
    }
    let reachable = members(task, pinned).filter(|v| latency(v).is_some_and(|l| l <= bound));
    let accuracy = reachable.map(|v| v.accuracy).max();
    Err(Refusal::LatencyUnreachable { nearest: Nearest { accuracy, latency: shortest, max_cost: None } })
}

fn check_cost(
    snapshot: &Snapshot,
    task: &TaskInfo,
    pinned: VariantSet,
    admits: VariantSet,
    bound: Micros,
    ceiling: Option<CostPer1k>,
) -> Result<(), Refusal> {
    let Some(ceiling) = ceiling else { return Ok(()) };
    // Only what is fast enough counts: a cheap variant that is too slow does not make the goals feasible.
    let fast = |v: &VariantInfo| snapshot.best(task.id, v.ordinal).filter(|best| best.latency <= bound);
    let cost = |v: &VariantInfo| fast(v).map(|best| best.cost);
    let lowest = members(task, admits).filter_map(cost).min();
    if lowest.is_some_and(|lowest| lowest <= ceiling) {
        return Ok(());
    }
    let reachable = members(task, pinned).filter(|v| cost(v).is_some_and(|c| c <= ceiling));
    let accuracy = reachable.map(|v| v.accuracy).max();
    Err(Refusal::CostUnreachable { nearest: Nearest { accuracy, latency: None, max_cost: lowest } })
}
