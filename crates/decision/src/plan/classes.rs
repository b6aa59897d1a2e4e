//! What is asked, class by class, as a plan weighs it.

use super::{Expected, Foreseen, Input, Plan};
use crate::demand::{Lately, level_of, per_s_at_most, per_s_in};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use modelless_types::{Micros, TaskId, VariantId, Within};
use serde::{Deserialize, Serialize};

/// Those who ask a task, may be answered by the same variants and want to be within about the same time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanClass {
    /// The task.
    pub task: TaskId,
    /// Who may answer, by rising number.
    pub admits: Vec<VariantId>,
    /// Within what they ask. Inputs from before it was told do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Within>,
    /// How much they ask lately, in steps of [`crate::demand::STEPS`] to a doubling: fine enough to weigh plans by, and coarse enough to mostly rest
    /// while demand only wavers.
    pub steps: u16,
}

impl PlanClass {
    /// All that is asked lately, where variants are known by their tasks' ordinals.
    pub fn of(lately: &Lately, variant: impl Fn(TaskId, u8) -> Option<VariantId>) -> Vec<Self> {
        let class = |((class, within), steps): (crate::demand::Asked, u16)| {
            let mut admits: Vec<_> =
                class.admits.iter().filter_map(|ordinal| variant(class.task, ordinal)).collect();
            admits.sort_unstable();
            Self { task: class.task, admits, within, steps }
        };
        lately.asked().map(class).filter(|class| !class.admits.is_empty()).collect()
    }
}

/// Who asks for what, by number of the variants that may answer, and how much, in queries a second.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Asked {
    pub(super) task: TaskId,
    pub(super) admits: BTreeSet<VariantId>,
    pub(super) within: Option<Micros>,
    pub(super) per_s: f64,
}

/// More than anything could be asked: an input that was written by hand may say what it likes.
const MOST_STEPS: u16 = 1_024;
/// A task that nobody asks is taken to be asked so much: nothing beside the others, and something where nobody else wants its room.
const HARDLY: f64 = 1e-3;

/// Who may answer, and within what.
type Who<'a> = (&'a [VariantId], Option<Within>);

/// What is asked of tasks that do not sleep, raised to what earlier days tell of them. Nothing while nothing is known of any.
pub(super) fn asked(input: &Input, expected: &Foreseen, plan: &Plan) -> Vec<Asked> {
    let mut of_task: BTreeMap<TaskId, BTreeMap<Who<'_>, f64>> = BTreeMap::new();
    let told = |class: &&PlanClass| class.steps > 0 && !plan.sleeps(class.task);
    for class in input.classes.iter().filter(told) {
        let per_s = per_s_in(class.steps.min(MOST_STEPS));
        *of_task
            .entry(class.task)
            .or_default()
            .entry((class.admits.as_slice(), class.within))
            .or_default() += per_s;
    }
    if of_task.is_empty() {
        return Vec::new();
    }
    let mut asked = unasked(input, expected, plan, &of_task.keys().copied().collect());
    for (task, classes) in of_task {
        let now: f64 = classes.values().sum();
        let soon = expected.get(&task).map_or(0, |Expected { soon, .. }| *soon);
        let more = if soon > level_of(now) { per_s_at_most(soon) / now } else { 1.0 };
        asked.extend(classes.into_iter().map(|((admits, within), per_s)| Asked {
            task,
            admits: admits.iter().copied().collect(),
            within: within.map(Within::tightest),
            per_s: per_s * more,
        }));
    }
    asked
}

/// Those of other tasks: what is foretold of them, or hardly anything.
fn unasked(input: &Input, expected: &Foreseen, plan: &Plan, asked: &BTreeSet<TaskId>) -> Vec<Asked> {
    let mut tasks: BTreeMap<TaskId, BTreeSet<VariantId>> = BTreeMap::new();
    let variants = input.devices.iter().flat_map(|device| &device.variants);
    for variant in variants.filter(|v| !v.candidate && !asked.contains(&v.task) && !plan.sleeps(v.task)) {
        tasks.entry(variant.task).or_default().insert(variant.id);
    }
    let of_task = |(task, admits): (TaskId, BTreeSet<VariantId>)| {
        let per_s = expected.get(&task).map_or(0.0, |Expected { soon, .. }| per_s_at_most(*soon));
        Asked { task, admits, within: None, per_s: per_s.max(HARDLY) }
    };
    tasks.into_iter().map(of_task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Class;
    use alloc::vec;

    #[test]
    fn what_is_asked_is_told_to_about_a_tenth_and_only_of_variants_that_are_known() {
        let mut lately = Lately::default();
        let class =
            |admits: &[u8]| (Class { task: TaskId(1), admits: admits.iter().copied().collect() }, None);
        lately.suppose(TaskId(1), &[(class(&[0, 1]), 100.0), (class(&[1]), 7.0), (class(&[9]), 5.0)]);
        let known = |_, ordinal| (ordinal < 9).then_some(VariantId(10 + u32::from(ordinal)));
        let told = PlanClass::of(&lately, known);
        let mut seen: Vec<(Vec<u32>, f64)> = told
            .iter()
            .map(|class| (class.admits.iter().map(|id| id.0).collect(), per_s_in(class.steps)))
            .collect();
        seen.sort_by(|a, b| b.1.total_cmp(&a.1));
        assert_eq!(
            seen.iter().map(|(admits, _)| admits.clone()).collect::<Vec<_>>(),
            [vec![10, 11], vec![11]]
        );
        for ((_, seen), asked) in seen.iter().zip([100.0, 7.0]) {
            assert!((seen / asked - 1.0_f64).abs() < 0.1, "{seen} for {asked}");
        }
    }
}
