//! Which replicas should exist where. A pure function of its input and the plan before it; planning twice from the
//! same input changes nothing.
//!
//! First form: it pins what is worth having. Variants that another equals or beats on every axis are left out; per task a *parachute* (the
//! fastest variant of the frontier) comes first, then the most accurate, then the *widest* (the one that can do most, in
//! batches of the size that pays: alone it may look worse than others on every axis), then what lies between, task after task in
//! turn, while the device has room beside its discretionary share; of each of these what is asked for most comes first. What is pinned
//! already stays unless four times as much is asked for something else, so that a plan does not move things without need.
//! Candidates (versions that are not the default) come after all of these, so that promoting one finds it in memory where
//! there is room. Of tasks that sleep (`sleep`) nothing is pinned. What earlier days tell of a task ([`crate::forecast`]) counts as
//! asked where it is more than that.

mod changes;
mod check;
mod sleep;

pub use changes::{Change, changes};
pub use check::{Broken, check};
pub use sleep::{PlanTask, Rest, TaskStep, Turned, turns};

use crate::demand::level_of;
use crate::forecast::Peak;
use crate::frontier::{Point, dominated, nanos};
use crate::words::{asked, time};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Accuracy, Bytes, CostPer1k, DeviceIx, Micros, NodeId, TaskId, VariantId};
use serde::{Deserialize, Serialize};

/// A variant as the plan sees it on one device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanVariant {
    /// Number in the store.
    pub id: VariantId,
    /// Its task.
    pub task: TaskId,
    /// What floors are compared with.
    pub accuracy: Accuracy,
    /// 99th percentile at batch 1.
    pub latency: Micros,
    /// Price at batch 1.
    pub cost: CostPer1k,
    /// Device time per query in its best batch, in nanoseconds: what tells how much it can do. Inputs from before it was
    /// told have 0.
    #[serde(default)]
    pub work: u64,
    /// Memory of a replica.
    pub memory: Bytes,
    /// How much is asked lately of those classes that it may answer, in doublings: 0 is nothing, 1 one query, 4 eight.
    /// Coarse, so that a plan rests while demand only wavers.
    #[serde(default)]
    pub demand: u8,
    /// Of a version that answers only where it is pinned.
    #[serde(default)]
    pub candidate: bool,
}

/// A device as the plan sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanDevice {
    /// The node.
    pub node: NodeId,
    /// Which of its devices.
    pub device: DeviceIx,
    /// Memory for replicas.
    pub memory: Bytes,
    /// The part of it left to the worker for loads on demand, in thousandths.
    pub discretionary_permille: u16,
    /// What it could run.
    pub variants: Vec<PlanVariant>,
}

impl PlanDevice {
    /// What there is for pins.
    pub fn room(&self) -> Bytes {
        let share = u64::from(1_000_u16.saturating_sub(self.discretionary_permille));
        Bytes(u64::try_from(u128::from(self.memory.0) * u128::from(share) / 1_000).unwrap_or(u64::MAX))
    }
}

/// Everything a plan is made from. Can be saved, mailed and planned again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Input {
    /// The devices.
    pub devices: Vec<PlanDevice>,
    /// The tasks. Inputs from before they were told have none, and all of theirs are kept.
    #[serde(default)]
    pub tasks: Vec<PlanTask>,
}

/// A replica that should exist.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Pin {
    /// The node.
    pub node: NodeId,
    /// Which of its devices.
    pub device: DeviceIx,
    /// The variant.
    pub variant: VariantId,
}

/// Why something is or is not pinned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Where.
    pub node: NodeId,
    /// What.
    pub variant: VariantId,
    /// Why, with the figures that decided.
    pub why: String,
    /// What is better on every axis, where that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beaten_by: Option<VariantId>,
}

/// The decision.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// What should exist, in order.
    pub pins: Vec<Pin>,
    /// A line for each variant on each device.
    pub report: Vec<Step>,
    /// The part of each device's memory that was left to its worker, in thousandths. Older plans do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discretionary_permille: Option<u16>,
    /// The tasks that sleep, and those that did before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rest: BTreeMap<TaskId, Rest>,
    /// A line for each task that is not kept always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskStep>,
}

impl Plan {
    /// Whether it asks for the same as another, whatever it says about it.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.pins == other.pins && self.rest == other.rest
    }

    /// Whether nothing of a task is to be in memory.
    pub fn sleeps(&self, task: TaskId) -> bool {
        self.rest.get(&task).is_some_and(|rest| rest.asleep)
    }
}

/// Makes the plan that follows `before`.
pub fn plan(input: &Input, before: &Plan) -> Plan {
    let (rest, tasks) = sleep::rests(&input.tasks, before);
    let mut plan = Plan { rest, tasks, ..Plan::default() };
    let before: BTreeSet<Pin> = before.pins.iter().copied().collect();
    let expected: Foreseen =
        input.tasks.iter().filter_map(|task| Some((task.id, Expected::of(task)?))).collect();
    for device in &input.devices {
        pin_device(device, (&before, &expected), &mut plan);
    }
    plan.pins.sort_unstable();
    plan
}

/// What earlier days tell of a task, as levels of demand: for what is to be pinned by then, and for what is pinned and may be needed still.
/// The second never is less, so that two schedulers do not take turns ([`crate::forecast::Ahead`]).
#[derive(Clone, Copy)]
struct Expected {
    soon: u8,
    held: u8,
    peak: Peak,
}

type Foreseen = BTreeMap<TaskId, Expected>;

impl Expected {
    fn of(task: &PlanTask) -> Option<Self> {
        let ahead = task.ahead?;
        // As what is asked lately is counted: over time, and not at its height.
        let level = |peak: Option<Peak>| peak.map_or(0, |peak| level_of(peak.mean_per_s()));
        let (soon, held) = (level(ahead.soon), level(ahead.held));
        Some(Self { soon, held: held.max(soon), peak: ahead.soon.or(ahead.held)? })
    }

    /// How much counts as asked of a variant. Candidates answer only who pins them, of whom nothing is foretold.
    fn level(expected: &Foreseen, variant: &PlanVariant, pinned: bool) -> u8 {
        let of_task = expected.get(&variant.task).filter(|_| !variant.candidate);
        of_task.map_or(0, |expected| if pinned { expected.held } else { expected.soon })
    }
}

fn pin_device(device: &PlanDevice, (before, expected): (&BTreeSet<Pin>, &Foreseen), plan: &mut Plan) {
    let mut free = device.room().0;
    let mut report = Vec::new();
    let pinned_before =
        |id: VariantId| before.contains(&Pin { node: device.node, device: device.device, variant: id });
    let mut say = |variant: &PlanVariant, why: &str, beaten_by| {
        let more = Expected::level(expected, variant, pinned_before(variant.id)) > variant.demand;
        let foretold = expected.get(&variant.task).filter(|_| more);
        let foretold = foretold.map(|expected| format!(", and its task was {}", expected.peak.words()));
        let why = format!("{why}: {}{}", figures(variant), foretold.unwrap_or_default());
        report.push(Step { node: device.node, variant: variant.id, why, beaten_by });
    };
    let mut chosen = BTreeSet::new();
    for (rank, variant, beaten_by) in in_turn(device, expected, &pinned_before) {
        if plan.sleeps(variant.task) {
            let step = plan.tasks.iter().find(|step| step.task == variant.task);
            let why = step.map_or("its task sleeps", |step| step.why.as_str());
            say(variant, &format!("not pinned, as {why}"), None);
        } else if rank == Rank::Beaten {
            say(variant, "not pinned, as another variant is as good on every axis", beaten_by);
        } else if variant.memory.0 > free {
            let left = Bytes(free);
            say(variant, &format!("not pinned, as {left} is left beside the discretionary share"), None);
        } else {
            free -= variant.memory.0;
            chosen.insert(variant.id);
            say(variant, rank.why(), None);
        }
    }
    plan.report.extend(report);
    plan.pins.extend(chosen.into_iter().map(|variant| Pin {
        node: device.node,
        device: device.device,
        variant,
    }));
}

/// What a variant is judged by.
fn figures(variant: &PlanVariant) -> String {
    let PlanVariant { latency, accuracy, memory, demand, work, .. } = variant;
    let (alone, each) = (time(*latency), time(Micros(work / 1_000)));
    format!("{alone} alone and {each} each in batches, accuracy {accuracy}, {memory}, {}", asked(*demand))
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Parachute,
    Best,
    Widest,
    Between,
    Candidate,
    Beaten,
}

impl Rank {
    fn why(self) -> &'static str {
        match self {
            Self::Parachute => "pinned as the fastest of its task",
            Self::Best => "pinned as the most accurate of its task",
            Self::Widest => "pinned as that of its task which can do most",
            Self::Between | Self::Beaten => "pinned as it is on the frontier of its task",
            Self::Candidate => "pinned as a candidate, so that it is there when it is tried or promoted",
        }
    }
}

/// What comes first: rank, then demand, then what is pinned already, then latency.
type Turn = (Rank, core::cmp::Reverse<u8>, bool, usize);

/// By so many doublings more must be asked for what is to take the place of what is pinned. A count that hovers around a power
/// of two, and two schedulers that count from different moments, are one apart and move nothing.
const AHEAD: u8 = 2;

/// What a variant is to its task, and by which it is beaten, if it is.
type InTurn<'a> = (Rank, &'a PlanVariant, Option<VariantId>);

/// The order in which room is given out: every task's parachute, every task's best, then the rest by turns.
fn in_turn<'a>(
    device: &'a PlanDevice,
    expected: &Foreseen,
    before: &dyn Fn(VariantId) -> bool,
) -> Vec<InTurn<'a>> {
    let tasks: BTreeSet<TaskId> = device.variants.iter().map(|v| v.task).collect();
    let mut order: Vec<(Turn, TaskId, &PlanVariant, Option<VariantId>)> = Vec::new();
    // Candidates are weighed among themselves: they must not take the place of what answers.
    for (task, candidate) in tasks.into_iter().flat_map(|task| [(task, false), (task, true)]) {
        let of_kind = |v: &&PlanVariant| v.task == task && v.candidate == candidate;
        let mut of_task: Vec<&PlanVariant> = device.variants.iter().filter(of_kind).collect();
        of_task.sort_by_key(|v| (v.latency, core::cmp::Reverse(v.accuracy), v.id));
        let point = |v: &&PlanVariant| Point {
            accuracy: v.accuracy,
            latency: nanos(v.latency),
            cost: v.cost,
            work: v.work,
            memory: v.memory,
        };
        let points: Vec<Point> = of_task.iter().map(point).collect();
        let ids: Vec<VariantId> = of_task.iter().map(|v| v.id).collect();
        let beaten_by = dominated(&points);
        let most = of_task.iter().map(|v| v.accuracy).max();
        let least = of_task.iter().map(|v| v.work).min();
        let mut parachute = true;
        for (turn, (variant, beaten)) in of_task.into_iter().zip(beaten_by).enumerate() {
            let rank = if beaten.is_some() {
                Rank::Beaten
            } else if candidate {
                Rank::Candidate
            } else if core::mem::take(&mut parachute) {
                Rank::Parachute
            } else if Some(variant.accuracy) == most {
                Rank::Best
            } else if Some(variant.work) == least {
                Rank::Widest
            } else {
                Rank::Between
            };
            let pinned = before(variant.id);
            let held = if pinned { AHEAD - 1 } else { 0 }; // with so much less it is still even, and even it stays
            let asked = variant.demand.max(Expected::level(expected, variant, pinned));
            let demand = core::cmp::Reverse(asked.saturating_add(held));
            order.push(((rank, demand, !pinned, turn), task, variant, beaten.map(|at| ids[at])));
        }
    }
    order.sort_by_key(|(key, task, variant, _)| (*key, *task, variant.id));
    order.into_iter().map(|((rank, ..), _, variant, beaten_by)| (rank, variant, beaten_by)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(id: u32, task: u32, ppm: u32, us: u64, mib: u64) -> PlanVariant {
        PlanVariant {
            id: VariantId(id),
            task: TaskId(task),
            accuracy: Accuracy::from_ppm(ppm).expect("accuracy"),
            latency: Micros(us),
            cost: CostPer1k(us),
            work: us * 1_000,
            memory: Bytes::from_mib(mib),
            demand: 0,
            candidate: false,
        }
    }

    fn device(mib: u64, variants: Vec<PlanVariant>) -> Input {
        let memory = Bytes::from_mib(mib);
        let (node, device) = (NodeId(1), DeviceIx(0));
        Input {
            devices: alloc::vec![PlanDevice { node, device, memory, discretionary_permille: 0, variants }],
            ..Input::default()
        }
    }

    fn pinned(plan: &Plan) -> Vec<u32> {
        plan.pins.iter().map(|pin| pin.variant.0).collect()
    }

    #[test]
    fn the_fastest_and_the_most_accurate_of_every_task_come_first() {
        let ladder = |task, id| {
            [
                variant(id, task, 800_000, 10, 10),
                variant(id + 1, task, 900_000, 20, 10),
                variant(id + 2, task, 950_000, 30, 10),
            ]
        };
        let variants: Vec<_> = ladder(1, 1).into_iter().chain(ladder(2, 11)).collect();
        assert_eq!(pinned(&plan(&device(20, variants.clone()), &Plan::default())), [1, 11]);
        assert_eq!(pinned(&plan(&device(40, variants.clone()), &Plan::default())), [1, 3, 11, 13]);
        assert_eq!(pinned(&plan(&device(60, variants), &Plan::default())), [1, 2, 3, 11, 12, 13]);
    }

    #[test]
    fn where_room_is_short_what_is_asked_for_comes_first_and_stays_while_demand_wavers() {
        let asked = |demand| PlanVariant { demand, ..variant(11, 2, 800_000, 10, 10) };
        let input = |demand| device(10, alloc::vec![variant(1, 1, 800_000, 10, 10), asked(demand)]);
        let idle = plan(&input(0), &Plan::default());
        assert_eq!(pinned(&idle), [1]);
        let busy = plan(&input(3), &idle);
        assert_eq!(pinned(&busy), [11]);
        assert_eq!(pinned(&plan(&input(0), &busy)), [11], "nobody asks for the other either");
    }

    #[test]
    fn what_is_pinned_gives_way_only_to_what_is_asked_for_two_doublings_more() {
        let asked = |id, task, demand| PlanVariant { demand, ..variant(id, task, 800_000, 10, 10) };
        let input = |one, other| device(10, alloc::vec![asked(1, 1, one), asked(11, 2, other)]);
        for first in [1, 11] {
            let node = (NodeId(1), DeviceIx(0));
            let pin = Pin { node: node.0, device: node.1, variant: VariantId(first) };
            let before = Plan { pins: alloc::vec![pin], ..Plan::default() };
            for (one, other) in [(0, 0), (0, 1), (1, 0), (5, 5), (5, 6), (6, 5)] {
                assert_eq!(pinned(&plan(&input(one, other), &before)), [first], "{one} {other}");
            }
            assert_eq!(pinned(&plan(&input(5, 7), &before)), [11]);
            assert_eq!(pinned(&plan(&input(7, 5), &before)), [1]);
        }
    }

    #[test]
    fn candidates_come_last_take_nobodys_place_and_are_there_when_there_is_room() {
        let new = |id, ppm, us| PlanVariant { candidate: true, demand: 9, ..variant(id, 1, ppm, us, 10) };
        // Better on every axis than what answers.
        let variants =
            alloc::vec![variant(1, 1, 800_000, 10, 10), variant(2, 1, 900_000, 20, 10), new(3, 950_000, 5)];
        assert_eq!(pinned(&plan(&device(20, variants.clone()), &Plan::default())), [1, 2]);
        let both = plan(&device(30, variants.clone()), &Plan::default());
        assert_eq!(pinned(&both), [1, 2, 3]);
        // Promoted, it is the one that answers, and the others give way where room is short.
        let promoted: Vec<_> =
            variants.into_iter().map(|v| PlanVariant { candidate: !v.candidate, demand: 0, ..v }).collect();
        assert_eq!(pinned(&plan(&device(10, promoted), &both)), [3]);
    }

    #[test]
    fn what_is_beaten_on_every_axis_is_not_pinned_and_the_report_says_so() {
        let variants = alloc::vec![variant(1, 1, 900_000, 10, 1), variant(2, 1, 800_000, 20, 1)];
        let made = plan(&device(100, variants), &Plan::default());
        assert_eq!(pinned(&made), [1]);
        assert!(
            made.report.iter().any(|step| step.variant == VariantId(2) && step.why.contains("every axis"))
        );
    }

    #[test]
    fn what_takes_the_least_memory_is_pinned_though_another_is_better_in_all_else() {
        let variants = alloc::vec![variant(1, 1, 900_000, 10, 30), variant(2, 1, 800_000, 20, 5)];
        assert_eq!(pinned(&plan(&device(100, variants.clone()), &Plan::default())), [1, 2]);
        assert_eq!(
            pinned(&plan(&device(10, variants), &Plan::default())),
            [2],
            "it is the only one with room"
        );
    }

    #[test]
    fn what_can_do_most_in_batches_comes_before_what_lies_between_though_alone_it_looks_beaten() {
        let variants = alloc::vec![
            variant(1, 1, 800_000, 10, 10),
            variant(2, 1, 850_000, 20, 10),
            variant(3, 1, 900_000, 30, 10),
            // Slower and less accurate than the first, but a batch takes half of the device that one of that takes.
            PlanVariant { work: 5_000, ..variant(4, 1, 780_000, 25, 10) },
        ];
        assert_eq!(pinned(&plan(&device(20, variants.clone()), &Plan::default())), [1, 3]);
        assert_eq!(pinned(&plan(&device(30, variants.clone()), &Plan::default())), [1, 3, 4]);
        assert_eq!(pinned(&plan(&device(40, variants), &Plan::default())), [1, 2, 3, 4]);
    }

    #[test]
    fn a_step_tells_the_figures_that_decided_and_a_change_tells_its_step() {
        let of =
            |us| device(15, alloc::vec![variant(1, 1, 800_000, us, 10), variant(2, 1, 900_000, 3_000, 10)]);
        let told = |plan: &Plan, id| {
            plan.report.iter().find(|step| step.variant == VariantId(id)).unwrap().why.clone()
        };
        let first = plan(&of(1_000), &Plan::default());
        assert!(
            told(&first, 1).contains("fastest") && told(&first, 1).contains("1.00 ms"),
            "{}",
            told(&first, 1)
        );
        assert!(
            told(&first, 2).contains("5.0 MiB is left") && told(&first, 2).contains("10.0 MiB"),
            "{}",
            told(&first, 2)
        );
        let second = plan(&of(4_000), &first);
        assert!(
            told(&second, 1).contains("4.00 ms")
                && second.report.iter().any(|step| step.beaten_by == Some(VariantId(2)))
        );
        let changed = changes(&first, &second);
        let shown: Vec<(u32, bool)> =
            changed.iter().map(|change| (change.pin.variant.0, change.comes)).collect();
        assert_eq!(shown, [(2, true), (1, false)]);
        assert!(changed[1].why.contains("every axis") && changes(&second, &second).is_empty(), "{changed:?}");
        let nowhere = changes(&second, &Plan::default());
        assert!(nowhere[0].why.contains("gone"), "{nowhere:?}");
    }

    #[test]
    fn nothing_of_a_task_that_sleeps_is_pinned_and_its_room_is_for_others() {
        let variants = alloc::vec![variant(1, 1, 800_000, 10, 10), variant(2, 2, 800_000, 20, 10)];
        let mut input = device(10, variants);
        let first = plan(&input, &Plan::default());
        assert_eq!(pinned(&first), [1]);
        let (keep, idle) = (Micros::from_secs(600), Some(Micros::from_secs(720)));
        input.tasks = alloc::vec![PlanTask {
            id: TaskId(1),
            keep: Some(keep),
            asked: idle,
            unasked: idle,
            ahead: None,
        }];
        let second = plan(&input, &first);
        assert_eq!(pinned(&second), [2]);
        let why = &second.report.iter().find(|step| step.variant == VariantId(1)).unwrap().why;
        let told = "not pinned, as nobody asked for its task for 12 min, and it is kept for 10 min";
        assert!(why.starts_with(told), "{why}");
        assert_eq!(check(&input, &first, &second), []);
        assert!(plan(&input, &second).asks_the_same(&second));
        let kept = check(&input, &first, &Plan { pins: first.pins.clone(), ..second });
        assert!(matches!(kept[..], [Broken::Asleep(_)]), "{kept:?}");
    }

    #[test]
    fn planning_again_changes_nothing_and_the_discretionary_share_stays_free() {
        let variants =
            (1..=9).map(|i| variant(i, i % 3, 800_000 + i * 1_000, u64::from(i) * 10, 10)).collect();
        let mut input = device(100, variants);
        input.devices[0].discretionary_permille = 500;
        let first = plan(&input, &Plan::default());
        assert_eq!(first.pins.len(), 5);
        assert_eq!(plan(&input, &first), first);
    }
}
