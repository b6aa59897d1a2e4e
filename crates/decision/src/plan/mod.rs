//! Which replicas should exist where. A pure function of its input and the plan before it; planning twice from the
//! same input changes nothing.
//!
//! It pins what is worth having. Variants that another equals or beats on every axis are left out. Where more is asked than the most accurate could
//! carry, what takes least of the devices comes first (`carry`); then, and everywhere else at once, per task a *parachute* (the
//! fastest variant of the frontier) comes first, then the most accurate, then the *widest* (the one that can do most, in
//! batches of the size that pays: alone it may look worse than others on every axis), then what lies between, task after task in
//! turn, while the device has room beside its discretionary share; of each of these what is asked for most comes first. What stands on two
//! devices, and on as many as what is asked of it needs, comes after everything else on a third: so a cluster holds together what no single
//! node could, and what is asked for most stands on most of them. What is pinned
//! already stays unless four times as much is asked for something else, so that a plan does not move things without need.
//! Where it is known class by class what is asked, what is pinned so is weighed as a whole (`fluid`), and what another placement has, found by a
//! `search`, comes before all ranks if clearly more is served with it.
//! Candidates (versions that are not the default) come after all of these, so that promoting one finds it in memory where
//! there is room. Of tasks that sleep (`sleep`) nothing is pinned. What earlier days tell of a task ([`crate::forecast`]) counts as
//! asked where it is more than that.

mod carry;
mod changes;
mod check;
mod classes;
mod fluid;
mod neighbours;
mod report;
mod search;
mod sleep;

pub use changes::{Change, changes};
pub use check::{Broken, check};
pub use classes::PlanClass;
pub use sleep::{PlanTask, Rest, TaskStep, Turned, turns};

use crate::demand::{level_of, per_s_at_most};
use crate::forecast::Peak;
use crate::frontier::{Point, dominated, nanos};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Accuracy, Bytes, CostPer1k, DeviceIx, Micros, NodeId, TaskId, VariantId};
use report::{Draft, Said, Why};
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
    /// The same of those classes only that nothing less accurate may answer.
    #[serde(default)]
    pub least: u8,
    /// Of a version that answers only where it is pinned.
    #[serde(default)]
    pub candidate: bool,
}

impl PlanVariant {
    fn point(&self) -> Point {
        Point {
            accuracy: self.accuracy,
            latency: nanos(self.latency),
            cost: self.cost,
            work: self.work,
            memory: self.memory,
        }
    }
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
    /// What is asked, class by class: with it a plan is weighed as a whole. Inputs from before it was told have none, and
    /// neither have those of whom it is not known yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<PlanClass>,
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
    /// What came first because it carries most; empty while the most accurate could carry what is asked.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub carries: BTreeSet<VariantId>,
    /// What comes before all else because with it most is served of what is asked; empty while the order of ranks serves as much.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub serves: BTreeSet<Pin>,
    /// It, or one before it, was made when it was known who asks for what. Until then what is pinned is a guess.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub informed: bool,
}

impl Plan {
    /// Whether it asks for the same as another, whatever it says about it.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.pins == other.pins
            && self.rest == other.rest
            && self.carries == other.carries
            && self.serves == other.serves
            && self.informed == other.informed
    }

    /// Whether nothing of a task is to be in memory.
    pub fn sleeps(&self, task: TaskId) -> bool {
        self.rest.get(&task).is_some_and(|rest| rest.asleep)
    }
}

/// Makes the plan that follows `before`.
pub fn plan(input: &Input, before: &Plan) -> Plan {
    let (rest, tasks) = sleep::rests(&input.tasks, before);
    let expected: Foreseen =
        input.tasks.iter().filter_map(|task| Some((task.id, Expected::of(task)?))).collect();
    let carriers = carry::carriers(input, &expected, before);
    let carries = carriers.values().flatten().copied().collect();
    let informed = before.informed || !input.classes.is_empty();
    let fresh = Plan { rest, tasks, carries, informed, ..Plan::default() };
    let settle = |from: &Plan, serves: BTreeSet<Pin>| {
        settled(input, (from, &expected, &carriers), &Plan { serves, ..fresh.clone() })
    };
    let begun = settle(before, before.serves.clone());
    let anew = before.pins.is_empty() || !before.informed;
    search::search(input, &expected, begun, anew, &settle).told(&expected)
}

/// Fills all devices by rank, after what is pinned in `from`.
fn settled<'a>(
    input: &'a Input,
    (from, expected, carriers): (&Plan, &Foreseen, &carry::Carriers),
    fresh: &Plan,
) -> Draft<'a> {
    let mut pins: BTreeSet<Pin> = from.pins.iter().copied().collect();
    let mut draft = pass(input, (&pins, expected, carriers), fresh.clone());
    // A device that had its turn may have counted on what a later one let go of, and what has no room any more serves nobody: whatever
    // follows is then the fastest of its task, and so on.
    for _ in 1..PASSES {
        let next: BTreeSet<Pin> = draft.plan.pins.iter().copied().collect();
        let before = draft.plan.serves.len();
        let serves: BTreeSet<Pin> = draft.plan.serves.intersection(&next).copied().collect();
        if next == pins && serves.len() == before {
            break;
        }
        pins = next;
        draft = pass(input, (&pins, expected, carriers), Plan { serves, ..fresh.clone() });
    }
    let Plan { pins, serves, .. } = &mut draft.plan;
    serves.retain(|pin| pins.binary_search(pin).is_ok());
    draft
}

/// Two are usual, and one where nothing changes.
const PASSES: usize = 8;

/// Fills one device after the other.
fn pass<'a>(
    input: &'a Input,
    (before, expected, carriers): (&BTreeSet<Pin>, &Foreseen, &carry::Carriers),
    plan: Plan,
) -> Draft<'a> {
    let mut draft = Draft { plan, why: Vec::new() };
    let none = BTreeSet::new();
    let there: BTreeSet<(NodeId, DeviceIx)> =
        input.devices.iter().map(|device| (device.node, device.device)).collect();
    let mut stands = Stands::new();
    for pin in before.iter().filter(|pin| there.contains(&(pin.node, pin.device))) {
        *stands.entry(pin.variant).or_default() += 1;
    }
    for device in &input.devices {
        let of_device = |variant| Pin { node: device.node, device: device.device, variant };
        for variant in &device.variants {
            if before.contains(&of_device(variant.id))
                && let Some(many) = stands.get_mut(&variant.id)
            {
                *many -= 1;
            }
        }
        let from = draft.plan.pins.len();
        let carries = carriers.get(&(device.node, device.device)).unwrap_or(&none);
        pin_device(device, (before, expected, &stands, carries), &mut draft);
        for pin in &draft.plan.pins[from..] {
            *stands.entry(pin.variant).or_default() += 1;
        }
    }
    draft.plan.pins.sort_unstable();
    draft
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

/// On how many other devices each variant stands: as they are pinned already, or else as they were before.
type Stands = BTreeMap<VariantId, u32>;

/// So many have each variant before anything else is pinned a further time: so that no single device takes it away.
const COPIES: u32 = 2;
/// And so many as are busy with what is asked of it for no more than this share of their time, were all of that its own.
const BUSY: f64 = 0.25;

/// On how many devices a variant is to stand of which so much is asked, before others come first.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time in nanoseconds, and a count that saturates"
)]
fn copies(level: u8, work: u64) -> u32 {
    let busy = per_s_at_most(level) * work as f64 / 1e9;
    let many = libm::ceil(busy / BUSY);
    if many > f64::from(COPIES) { many as u32 } else { COPIES }
}

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

fn pin_device<'a>(
    device: &'a PlanDevice,
    (before, expected, stands, carries): (&BTreeSet<Pin>, &Foreseen, &Stands, &BTreeSet<VariantId>),
    Draft { plan, why: said }: &mut Draft<'a>,
) {
    let mut free = device.room().0;
    let pinned: BTreeSet<VariantId> = of_device(before, device).map(|pin| pin.variant).collect();
    let serves: BTreeSet<VariantId> = of_device(&plan.serves, device).map(|pin| pin.variant).collect();
    let pinned_before = |id: VariantId| pinned.contains(&id);
    let turns = in_turn(device, (expected, stands), (&serves, carries), &pinned_before);
    for (rank, variant, beaten_by) in turns {
        let why = if plan.sleeps(variant.task) {
            Why::Asleep
        } else if rank == Rank::Beaten {
            Why::Beaten(beaten_by)
        } else if variant.memory.0 > free {
            Why::NoRoom { left: Bytes(free), others: stands.get(&variant.id).copied().unwrap_or(0) }
        } else {
            free -= variant.memory.0;
            plan.pins.push(Pin { node: device.node, device: device.device, variant: variant.id });
            Why::Pinned(rank)
        };
        let foretold = Expected::level(expected, variant, pinned_before(variant.id)) > variant.demand;
        said.push(Said { node: device.node, variant, why, foretold });
    }
}

/// Those of pins that are of a device.
fn of_device<'a>(pins: &'a BTreeSet<Pin>, device: &PlanDevice) -> impl Iterator<Item = &'a Pin> {
    let at = |variant| Pin { node: device.node, device: device.device, variant: VariantId(variant) };
    pins.range(at(0)..=at(u32::MAX))
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Serves,
    Carries,
    Parachute,
    Best,
    Widest,
    Between,
    Candidate,
    Beaten,
}

/// What comes first: what too few other devices have, then rank, then what no other has, then demand, then what is pinned already, then latency.
type Turn = (bool, Rank, bool, core::cmp::Reverse<u8>, bool, usize);

/// By so many doublings more must be asked for what is to take the place of what is pinned. A count that hovers around a power
/// of two, and two schedulers that count from different moments, are one apart and move nothing.
const AHEAD: u8 = 2;

/// What a variant is to its task, and by which it is beaten, if it is.
type InTurn<'a> = (Rank, &'a PlanVariant, Option<VariantId>);

/// The order in which room is given out: what carries most, where that is needed, every task's parachute, every task's best, then the rest by turns; after all that what enough other
/// devices have.
fn in_turn<'a>(
    device: &'a PlanDevice,
    (expected, stands): (&Foreseen, &Stands),
    (serves, carriers): (&BTreeSet<VariantId>, &BTreeSet<VariantId>),
    before: &dyn Fn(VariantId) -> bool,
) -> Vec<InTurn<'a>> {
    let tasks: BTreeSet<TaskId> = device.variants.iter().map(|v| v.task).collect();
    let mut order: Vec<(Turn, TaskId, &PlanVariant, Option<VariantId>)> = Vec::new();
    // Candidates are weighed among themselves: they must not take the place of what answers.
    for (task, candidate) in tasks.into_iter().flat_map(|task| [(task, false), (task, true)]) {
        let of_kind = |v: &&PlanVariant| v.task == task && v.candidate == candidate;
        let mut of_task: Vec<&PlanVariant> = device.variants.iter().filter(of_kind).collect();
        of_task.sort_by_key(|v| (v.latency, core::cmp::Reverse(v.accuracy), v.id));
        let points: Vec<Point> = of_task.iter().map(|v| v.point()).collect();
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
            } else if serves.contains(&variant.id) {
                Rank::Serves
            } else if carriers.contains(&variant.id) {
                Rank::Carries
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
            // What is here stays here, or nodes would pass it round.
            let enough = !pinned
                && rank != Rank::Serves
                && stands.get(&variant.id).is_some_and(|others| *others >= copies(asked, variant.work));
            let demand = core::cmp::Reverse(asked.saturating_add(held));
            // What is asked for most may need several devices, but not before everything that is asked for has one.
            let is_asked = asked > 0 || pinned;
            let there = !is_asked || stands.get(&variant.id).is_some_and(|others| *others > 0);
            order.push((
                (enough, rank, there, demand, !pinned, turn),
                task,
                variant,
                beaten.map(|at| ids[at]),
            ));
        }
    }
    order.sort_by_key(|(key, task, variant, _)| (*key, *task, variant.id));
    order.into_iter().map(|((_, rank, ..), _, variant, beaten_by)| (rank, variant, beaten_by)).collect()
}

#[cfg(test)]
mod tests;
