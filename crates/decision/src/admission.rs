//! From goals to the exact set of variants that may answer, or a "no" with the nearest goals that could be met.

use crate::query::Class;
use crate::route::{Best, Snapshot, TaskInfo, VariantInfo};
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
    let best_effort = goals.fallback == Fallback::BestEffort;
    let latency = goals.latency.unwrap_or(DEFAULT_LATENCY);
    let bounds = if best_effort { Bounds::NONE } else { Bounds { latency, ceiling: goals.max_cost } };
    let admits = accurate(task, pinned, &goals);
    let reach = Reach { snapshot, task };
    if admits.is_empty() {
        return Err(Refusal::FloorUnreachable { best: reach.best_accuracy(pinned, bounds) });
    }
    if reach.runnable(admits).next().is_none() {
        let why = format!("{} variants qualify but no node can run any of them", admits.len());
        return Err(Refusal::NothingRunnable { why });
    }
    if reach.best_accuracy(admits, bounds).is_none() {
        return Err(reach.refusal(pinned, admits, bounds));
    }
    Ok(Admitted {
        class: Class { task: task.id, admits },
        latency,
        max_cost: goals.max_cost,
        prefer: goals.prefer.unwrap_or_default(),
        best_effort,
    })
}

/// Who could answer if there were a machine for it; of what is refused as no node can run it, whoever plans machines has to know.
pub fn wanted(snapshot: &Snapshot, task: TaskId, goals: &Goals) -> Option<Class> {
    let task = snapshot.task(task)?;
    let goals = with_defaults(goals, &task.defaults);
    let admits = accurate(task, pinned(task, &goals).ok()?, &goals);
    (!admits.is_empty()).then_some(Class { task: task.id, admits })
}

/// Those at or above the floor.
fn accurate(task: &TaskInfo, set: VariantSet, goals: &Goals) -> VariantSet {
    let floor = goals.accuracy.unwrap_or(Accuracy::ZERO);
    members(task, set).filter(|v| v.accuracy >= floor).map(|v| v.ordinal).collect()
}

fn members(task: &TaskInfo, set: VariantSet) -> impl Iterator<Item = &VariantInfo> {
    task.variants.iter().filter(move |v| set.contains(v.ordinal))
}

/// Everything inside one output space that the pins leave: the pinned model's or variant's space, else the default. Without
/// a pin no candidate: what is being tried answers only who asked for it by name.
fn pinned(task: &TaskInfo, goals: &Goals) -> Result<VariantSet, Refusal> {
    let unusable = |why: &str| Refusal::PinUnusable { why: why.into() };
    // What whoever asks may not use is not there for them.
    let seen = |v: &&VariantInfo| goals.among.is_none_or(|among| among.contains(v.ordinal));
    let mut space = task.default_space;
    if let Some(id) = goals.variant {
        let variant = task.variants.iter().filter(seen).find(|v| v.id == id);
        let variant = variant.ok_or_else(|| unusable("this task has no such variant"))?;
        if goals.model.is_some_and(|model| model != variant.model) {
            return Err(unusable("the pinned variant is not one of the pinned model"));
        }
        space = variant.space;
    } else if let Some(model) = goals.model {
        let variant = task.variants.iter().filter(seen).find(|v| v.model == model);
        space = variant.ok_or_else(|| unusable("this task has no such model with a variant"))?.space;
    }
    let fits = |v: &&VariantInfo| {
        let asked_for = goals.variant.is_some() || goals.model.is_some();
        seen(v)
            && v.space == space
            && (asked_for || !v.candidate)
            && goals.variant.is_none_or(|id| v.id == id)
            && goals.model.is_none_or(|model| v.model == model)
    };
    let set: VariantSet = task.variants.iter().filter(fits).map(|v| v.ordinal).collect();
    if set.is_empty() {
        let why = if task.variants.iter().filter(seen).any(|v| v.candidate) {
            "of the task's models only candidates have a known accuracy, and those answer where they are pinned; promote a \
             version that is to answer"
        } else {
            "the task has no variant with a known accuracy"
        };
        return Err(Refusal::NothingRunnable { why: why.into() });
    }
    Ok(set)
}

/// What must hold besides the floor.
#[derive(Clone, Copy)]
struct Bounds {
    latency: Micros,
    ceiling: Option<CostPer1k>,
}

impl Bounds {
    const NONE: Self = Self { latency: Micros(u64::MAX), ceiling: None };

    fn in_time(&self, best: &Best) -> bool {
        best.latency <= self.latency
    }

    fn affordable(&self, best: &Best) -> bool {
        self.ceiling.is_none_or(|ceiling| best.cost <= ceiling)
    }
}

/// What the variants of a task could do on idle machines.
struct Reach<'a> {
    snapshot: &'a Snapshot,
    task: &'a TaskInfo,
}

impl Reach<'_> {
    fn runnable(&self, set: VariantSet) -> impl Iterator<Item = (&VariantInfo, Best)> {
        members(self.task, set).filter_map(|v| Some((v, self.snapshot.best(self.task.id, v.ordinal)?)))
    }

    /// The best accuracy within the bounds.
    fn best_accuracy(&self, set: VariantSet, bounds: Bounds) -> Option<Accuracy> {
        let within = self.runnable(set).filter(|(_, best)| bounds.in_time(best) && bounds.affordable(best));
        within.map(|(v, _)| v.accuracy).max()
    }

    /// Each figure of `nearest` would do alone, so each is sought under all the other goals.
    fn refusal(&self, pinned: VariantSet, admits: VariantSet, bounds: Bounds) -> Refusal {
        let admitted = || self.runnable(admits).map(|(_, best)| best);
        let nearest = Nearest {
            accuracy: self.best_accuracy(pinned, bounds),
            latency: admitted().filter(|best| bounds.affordable(best)).map(|best| best.latency).min(),
            // What a query that finds nobody to share a batch with would cost: sure to be met.
            max_cost: admitted().filter(|best| bounds.in_time(best)).map(|best| best.cost_alone).min(),
        };
        if admitted().any(|best| bounds.in_time(&best)) {
            Refusal::CostUnreachable { nearest }
        } else {
            Refusal::LatencyUnreachable { nearest }
        }
    }
}
