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
    let least = accuracies(catalog);
    let device = |node: &NodeStatus| PlanDevice {
        node: node.node,
        device: DeviceIx(0),
        memory: node.memory_budget,
        discretionary_permille,
        variants: catalog
            .variants
            .iter()
            .filter_map(|variant| planned((catalog, &defaults), node, variant, (&asked.demands, &least)))
            .collect(),
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

/// What each variant's accuracy is, of those that were measured or declared anywhere: where it is lowest.
fn accuracies(catalog: &Catalog) -> BTreeMap<(TaskId, u8), Accuracy> {
    let mut all = BTreeMap::new();
    for variant in &catalog.variants {
        let model = catalog.models.iter().find(|model| model.id == variant.model);
        let task = model.and_then(|model| catalog.tasks.iter().find(|task| task.id == model.task));
        let Some(task) = task else { continue };
        let of = |profile| catalog.floor_accuracy(task, variant.id, profile);
        if let Some(least) = variant.profiles.iter().map(of).min() {
            all.insert((task.id, variant.ordinal), least);
        }
    }
    all
}

fn planned(
    (catalog, defaults): (&Catalog, &BTreeSet<ModelId>),
    node: &NodeStatus,
    variant: &Variant,
    (demands, least): (&Demands, &BTreeMap<(TaskId, u8), Accuracy>),
) -> Option<PlanVariant> {
    let task = catalog.models.iter().find(|model| model.id == variant.model)?.task;
    let asked = catalog.tasks.iter().find(|known| known.id == task)?;
    let offer =
        node.info.offers.iter().find(|offer| offer.task == task && offer.ordinal == variant.ordinal)?;
    let profile = variant.profile_on(&node.device_class)?;
    // The profile's own figures, not the corrected ones: a plan that followed every correction would never rest.
    let mut run = offer.run.clone();
    run.forget_live();
    Some(PlanVariant {
        id: variant.id,
        task,
        accuracy: catalog.floor_accuracy(asked, variant.id, profile),
        latency: run.service().p99(),
        cost: run.cost(1, node.price),
        work: run.work(profile.largest_batch(variant.settings.max_batch)),
        memory: profile.memory,
        demand: demands.level(task, variant.ordinal),
        least: demands.level_at_least(task, variant.ordinal, |ordinal| least.get(&(task, ordinal)).copied()),
        candidate: !defaults.contains(&variant.model),
    })
}
