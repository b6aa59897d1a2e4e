//! From what is registered and what nodes say of themselves to the plan's input.

use crate::Asked;
use crate::ahead::Aheads;
use crate::demand::Demands;
use modelless_decision::plan::{Input, PlanDevice, PlanTask, PlanVariant};
use modelless_store::Catalog;
use modelless_types::{Accuracy, DeviceIx, ModelId, Task, TaskId, Variant};
use modelless_wire::NodeStatus;
use std::collections::{BTreeMap, BTreeSet};

/// Only what a node offers and has a profile for can be planned there.
pub fn input(
    catalog: &Catalog,
    nodes: &[NodeStatus],
    discretionary_permille: u16,
    (asked, aheads): (&Asked, &Aheads),
) -> Input {
    let defaults = catalog.defaults();
    let device = |node: &NodeStatus| PlanDevice {
        node: node.node,
        device: DeviceIx(0),
        memory: node.memory_budget,
        discretionary_permille,
        variants: with_floors(
            catalog
                .variants
                .iter()
                .filter_map(|variant| planned((catalog, &defaults), node, variant, &asked.demands))
                .collect(),
            &asked.demands,
        ),
    };
    let task = |task: &Task| PlanTask {
        id: task.id,
        keep: task.keep.time(),
        asked: asked.idle.asked(task.id),
        unasked: asked.idle.unasked(task.id),
        ahead: aheads.get(&task.id).copied(),
    };
    Input {
        devices: nodes.iter().filter(|node| !node.draining).map(device).collect(),
        tasks: catalog.tasks.iter().map(task).collect(),
    }
}

fn planned(
    (catalog, defaults): (&Catalog, &BTreeSet<ModelId>),
    node: &NodeStatus,
    variant: &Variant,
    demands: &Demands,
) -> Option<(u8, PlanVariant)> {
    let task = catalog.models.iter().find(|model| model.id == variant.model)?.task;
    let asked = catalog.tasks.iter().find(|known| known.id == task)?;
    let offer =
        node.info.offers.iter().find(|offer| offer.task == task && offer.ordinal == variant.ordinal)?;
    let profile = variant.profile_on(&node.device_class)?;
    // The profile's own figures, not the corrected ones: a plan that followed every correction would never rest.
    let mut run = offer.run.clone();
    run.forget_live();
    let planned = PlanVariant {
        id: variant.id,
        task,
        accuracy: catalog.floor_accuracy(asked, variant.id, profile),
        latency: run.service().p99(),
        cost: run.cost(1, node.price),
        work: run.work(profile.largest_batch(variant.settings.max_batch)),
        memory: profile.memory,
        demand: demands.level(task, variant.ordinal),
        least: 0,
        candidate: !defaults.contains(&variant.model),
    };
    Some((variant.ordinal, planned))
}

/// Says of each what is asked of those classes that nothing less accurate on its device may answer.
fn with_floors(planned: Vec<(u8, PlanVariant)>, demands: &Demands) -> Vec<PlanVariant> {
    let accuracies: BTreeMap<(TaskId, u8), Accuracy> =
        planned.iter().map(|(ordinal, v)| ((v.task, *ordinal), v.accuracy)).collect();
    let with = |(ordinal, v): (u8, PlanVariant)| {
        let accuracy = |ordinal| accuracies.get(&(v.task, ordinal)).copied();
        PlanVariant { least: demands.level_at_least(v.task, ordinal, accuracy), ..v }
    };
    planned.into_iter().map(with).collect()
}
