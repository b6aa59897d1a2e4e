//! What carries most of what is asked: where the most accurate variants could not, it comes into memory before them.

use super::{Expected, Foreseen, Input, Plan, PlanDevice, PlanVariant};
use crate::demand::per_s_at_most;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use modelless_types::{DeviceIx, NodeId, TaskId, VariantId};

/// Where the most accurate of every task would be busy for more than this share of the time of all devices that can run them.
const CARRIED: f64 = 0.5;
/// It stays so until so much less is asked.
const CARRIED_STILL: f64 = CARRIED / 4.0;
/// A floor counts under which at least this many doublings less is asked than of its task as a whole.
const WORTH: u8 = 4;
/// And at least so much: eight queries lately.
const ENOUGH: u8 = 4;

/// A task's variants on a device, candidates apart.
fn of_tasks(device: &PlanDevice) -> BTreeMap<TaskId, Vec<&PlanVariant>> {
    let mut of_task: BTreeMap<TaskId, Vec<&PlanVariant>> = BTreeMap::new();
    for variant in device.variants.iter().filter(|variant| !variant.candidate) {
        of_task.entry(variant.task).or_default().push(variant);
    }
    of_task
}

/// What carries most on each device.
pub(super) type Carriers = BTreeMap<(NodeId, DeviceIx), BTreeSet<VariantId>>;

/// Nothing while the most accurate could carry all; what is pinned as such while nothing is known of what is asked, as after a start.
pub(super) fn carriers(input: &Input, expected: &Foreseen, before: &Plan) -> Carriers {
    let nothing_known = input.devices.iter().flat_map(|device| &device.variants).all(|v| v.demand == 0);
    if nothing_known && expected.is_empty() {
        let mut carriers = Carriers::new();
        for pin in before.pins.iter().filter(|pin| before.carries.contains(&pin.variant)) {
            carriers.entry((pin.node, pin.device)).or_default().insert(pin.variant);
        }
        return carriers;
    }
    let most = if before.carries.is_empty() { CARRIED } else { CARRIED_STILL };
    if busy(input, expected) <= most {
        return Carriers::new();
    }
    input.devices.iter().map(|device| ((device.node, device.device), on(device, &before.carries))).collect()
}

/// Of each task, for each floor that is asked under, what takes the least device time of those that keep the floor.
fn on(device: &PlanDevice, before: &BTreeSet<VariantId>) -> BTreeSet<VariantId> {
    let mut carriers = BTreeSet::new();
    for variants in of_tasks(device).into_values() {
        let asked = variants.iter().map(|v| v.demand).max().unwrap_or(0);
        for floor in variants.iter().filter(|variant| variant.least > 0) {
            let keep = variants.iter().filter(|v| v.accuracy >= floor.accuracy);
            let Some(carrier) = keep.min_by_key(|v| (v.work, v.latency, v.id)) else { continue };
            // A single query under a floor moves nothing, and what carries one stays while anybody asks.
            let counts = floor.least >= ENOUGH && floor.least + WORTH >= asked;
            if counts || before.contains(&carrier.id) {
                carriers.insert(carrier.id);
            }
        }
    }
    carriers
}

/// The share of their time for which devices would be busy with what is asked, were all of it answered by the most accurate.
fn busy(input: &Input, expected: &Foreseen) -> f64 {
    let mut shares: BTreeMap<TaskId, (f64, f64)> = BTreeMap::new();
    for device in &input.devices {
        for (task, variants) in of_tasks(device) {
            let Some(best) = variants.iter().max_by_key(|v| (v.accuracy, core::cmp::Reverse(v.work))) else {
                continue;
            };
            let level = |v: &&PlanVariant| v.demand.max(Expected::level(expected, v, false));
            let asked = variants.iter().map(level).max().unwrap_or(0);
            #[expect(clippy::cast_precision_loss, reason = "a time in nanoseconds")]
            let each = best.work as f64 / 1e9;
            let (busy, devices) = shares.entry(task).or_default();
            *busy += per_s_at_most(asked) * each;
            *devices += 1.0;
        }
    }
    // Each device that can run a task would have an equal part of it.
    shares.values().map(|(busy, devices)| busy / (devices * devices)).sum()
}
