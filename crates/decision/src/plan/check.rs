//! What must hold of every plan before it is saved, whoever made it and however.
//!
//! A plan is obeyed by nodes that look at nothing else, and kept by them while no scheduler is there to mend it. So it is looked at once more,
//! by rules that know nothing of how it was made.

use super::{Input, Pin, Plan, PlanDevice, PlanVariant, sleep};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use modelless_types::{Bytes, DeviceIx, NodeId, TaskId};

/// A rule that a plan breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The same is pinned twice.
    Twice(Pin),
    /// The device does not run that variant.
    CannotRun(Pin),
    /// Nobody knows the device, and the plan before did not have it there.
    Nowhere(Pin),
    /// Its task sleeps.
    Asleep(Pin),
    /// A task turns, and nothing that is known of it says that it should.
    Unfounded {
        /// Which.
        task: TaskId,
        /// It falls asleep; otherwise it wakes.
        asleep: bool,
    },
    /// More is pinned than there is room for beside the discretionary share.
    NoRoom {
        /// Where.
        node: NodeId,
        /// On which of its devices.
        device: DeviceIx,
        /// What the pins take.
        pinned: Bytes,
        /// What there is for them.
        room: Bytes,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice(Pin { node, device, variant }) => {
                write!(f, "{variant} is pinned twice on {device} of {node}")
            }
            Self::CannotRun(Pin { node, device, variant }) => {
                write!(f, "{variant} is pinned on {device} of {node}, which cannot run it")
            }
            Self::Nowhere(Pin { node, device, variant }) => {
                write!(f, "{variant} is pinned anew on {device} of {node}, which is not there")
            }
            Self::Asleep(Pin { node, device, variant }) => {
                write!(f, "{variant} is pinned on {device} of {node}, though its task sleeps")
            }
            Self::Unfounded { task, asleep: true } => {
                write!(
                    f,
                    "{task} falls asleep though it is not known that nobody asked for as long as it is kept, or it is expected to be asked"
                )
            }
            Self::Unfounded { task, asleep: false } => {
                write!(f, "{task} wakes though nobody is known to have asked for it, or expected to")
            }
            Self::NoRoom { node, device, pinned, room } => {
                write!(f, "{pinned} are pinned on {device} of {node}, which has {room} for it")
            }
        }
    }
}

/// Which rules a plan breaks that was made from this, after the one before.
pub fn check(input: &Input, before_plan: &Plan, plan: &Plan) -> Vec<Broken> {
    let known: BTreeMap<(NodeId, DeviceIx), &PlanDevice> =
        input.devices.iter().map(|device| ((device.node, device.device), device)).collect();
    let before: BTreeSet<&Pin> = before_plan.pins.iter().collect();
    let (mut broken, mut seen) = (Vec::new(), BTreeSet::new());
    let mut pinned: BTreeMap<(NodeId, DeviceIx), Bytes> = BTreeMap::new();
    for pin in &plan.pins {
        if !seen.insert(pin) {
            broken.push(Broken::Twice(*pin));
            continue;
        }
        let Some(device) = known.get(&(pin.node, pin.device)) else {
            // What a node has that cannot be reached is left to it, and none gets more.
            if !before.contains(pin) {
                broken.push(Broken::Nowhere(*pin));
            }
            continue;
        };
        match device.variants.iter().find(|variant| variant.id == pin.variant) {
            Some(PlanVariant { task, .. }) if plan.sleeps(*task) => broken.push(Broken::Asleep(*pin)),
            Some(variant) => {
                let taken = pinned.entry((pin.node, pin.device)).or_default();
                *taken = Bytes(taken.0.saturating_add(variant.memory.0));
            }
            None => broken.push(Broken::CannotRun(*pin)),
        }
    }
    let turned = sleep::unfounded(input, before_plan, plan);
    broken.extend(turned.into_iter().map(|(task, asleep)| Broken::Unfounded { task, asleep }));
    for (at, pinned) in pinned {
        let (node, device) = at;
        let room = known[&at].room();
        if pinned > room {
            broken.push(Broken::NoRoom { node, device, pinned, room });
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlanVariant, plan};
    use modelless_types::{Accuracy, CostPer1k, Micros, TaskId, VariantId};

    const HERE: NodeId = NodeId(1);

    fn pin(node: u32, variant: u32) -> Pin {
        Pin { node: NodeId(node), device: DeviceIx(0), variant: VariantId(variant) }
    }

    fn plan_of(pins: &[Pin]) -> Plan {
        Plan { pins: pins.to_vec(), ..Plan::default() }
    }

    /// One device with room for two of three.
    fn input() -> Input {
        let variants = [1, 2, 3].map(|id| PlanVariant {
            id: VariantId(id),
            task: TaskId(id),
            accuracy: Accuracy::ZERO,
            latency: Micros(1),
            cost: CostPer1k(1),
            work: 1,
            memory: Bytes(10),
            demand: 0,
            least: 0,
            candidate: false,
        });
        let device = PlanDevice {
            node: HERE,
            device: DeviceIx(0),
            memory: Bytes(40),
            discretionary_permille: 500,
            variants: variants.into(),
        };
        Input { devices: alloc::vec![device], ..Input::default() }
    }

    #[test]
    fn each_rule_is_broken_by_what_breaks_it_and_by_nothing_else() {
        let nothing = Plan::default();
        let broken = |pins: &[Pin], before: &Plan| check(&input(), before, &plan_of(pins));
        assert_eq!(broken(&[pin(1, 1), pin(1, 2)], &nothing), []);
        assert_eq!(broken(&[pin(1, 1), pin(1, 1)], &nothing), [Broken::Twice(pin(1, 1))]);
        assert_eq!(broken(&[pin(1, 9)], &nothing), [Broken::CannotRun(pin(1, 9))]);
        assert_eq!(broken(&[pin(2, 1)], &nothing), [Broken::Nowhere(pin(2, 1))]);
        assert_eq!(broken(&[pin(2, 1)], &plan_of(&[pin(2, 1)])), [], "it was there before");
        let all = broken(&[pin(1, 1), pin(1, 2), pin(1, 3)], &nothing);
        let (pinned, room) = (Bytes(30), Bytes(20));
        assert_eq!(all, [Broken::NoRoom { node: HERE, device: DeviceIx(0), pinned, room }]);
    }

    #[test]
    fn what_is_planned_breaks_none() {
        let made = plan(&input(), &Plan::default());
        assert_eq!(made.pins.len(), 2);
        assert_eq!(check(&input(), &Plan::default(), &made), []);
    }
}
