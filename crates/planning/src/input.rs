//! From what is registered and what nodes say of themselves to the plan's input.

use crate::Asked;
use crate::ahead::Aheads;
use crate::demand::Demands;
use modelless_decision::plan::{Input, PlanDevice, PlanTask, PlanVariant};
use modelless_store::Catalog;
use modelless_types::{Accuracy, DeviceIx, ModelId, Task, TaskId, Variant, VariantId};
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
    let tasks: BTreeMap<ModelId, TaskId> =
        catalog.models.iter().map(|model| (model.id, model.task)).collect();
    let number = |variant: &Variant| Some(((*tasks.get(&variant.model)?, variant.ordinal), variant.id));
    let numbers: BTreeMap<(TaskId, u8), VariantId> = catalog.variants.iter().filter_map(number).collect();
    Input {
        devices: nodes.iter().filter(|node| !node.draining).map(device).collect(),
        tasks: catalog.tasks.iter().map(task).collect(),
        classes: asked.demands.classes(|task, ordinal| numbers.get(&(task, ordinal)).copied()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::query::Class;
    use modelless_types::{Bytes, CostPer1k, Micros, VariantId};

    const TASK: TaskId = TaskId(3);

    fn planned(ordinal: u8, ppm: u32, demands: &Demands) -> (u8, PlanVariant) {
        let planned = PlanVariant {
            id: VariantId(u32::from(ordinal)),
            task: TASK,
            accuracy: Accuracy::from_ppm(ppm).expect("below one"),
            latency: Micros(1_000),
            cost: CostPer1k(1),
            work: 1_000_000,
            memory: Bytes(1),
            demand: demands.level(TASK, ordinal),
            least: 0,
            candidate: false,
        };
        (ordinal, planned)
    }

    #[test]
    fn a_floor_counts_for_the_least_accurate_on_the_node_that_keeps_it() {
        let mut demands = Demands::default();
        let class = |admits: &[u8]| (Class { task: TASK, admits: admits.iter().copied().collect() }, None);
        demands.suppose(TASK, &[(class(&[0, 1, 2]), 100.0), (class(&[2]), 1.0)]);
        let least = |ordinals: &[u8]| -> Vec<u8> {
            let of = |ordinal: &u8| planned(*ordinal, 700_000 + 100_000 * u32::from(*ordinal), &demands);
            with_floors(ordinals.iter().map(of).collect(), &demands).iter().map(|v| v.least).collect()
        };
        assert_eq!(least(&[0, 1, 2]), [13, 0, 6]);
        assert_eq!(least(&[1, 2]), [13, 6], "a node without the first");
    }
}
