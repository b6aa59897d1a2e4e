//! From what is registered and what the nodes make known to the table that routing reads.

use modelless_decision::Correction;
use modelless_decision::admission::DEFAULT_LATENCY;
use modelless_decision::route::{NodeInfo, Ready, Table, TaskInfo, VariantInfo};
use modelless_store::Catalog;
use modelless_types::{Accuracy, Goals, ModelId, SpaceId, Task, TaskId, Time, Variant};
use modelless_wire::NodeStatus;
use std::collections::{BTreeMap, BTreeSet};

/// The table of this moment. Tasks and variants in the order of ids and ordinals, so that equal worlds give equal
/// tables.
pub(crate) fn build(catalog: &Catalog, nodes: &[NodeStatus]) -> Table {
    let classes = offered_on(nodes);
    let tasks: Vec<TaskInfo> = catalog.tasks.iter().map(|task| task_info(catalog, task, &classes)).collect();
    let known: BTreeSet<(TaskId, u8)> =
        tasks.iter().flat_map(|task| task.variants.iter().map(|v| (task.id, v.ordinal))).collect();
    let nodes = nodes.iter().map(|status| node_info(status, &known)).collect();
    Table { tasks, nodes }
}

/// The table without what only moves estimates: two tables of one shape send queries to the same places, so a
/// difference in the rest is not urgent.
pub(crate) fn shape(table: &Table) -> Table {
    let mut shape = table.clone();
    for node in &mut shape.nodes {
        node.rtt = modelless_decision::Moments::ZERO;
        for offer in &mut node.offers {
            offer.run.correction = Correction::NONE;
            if let Ready::Loading { at } = &mut offer.ready {
                *at = Time::ZERO;
            }
        }
    }
    shape
}

type Classes<'a> = BTreeMap<(TaskId, u8), BTreeSet<&'a str>>;

/// The device classes of the nodes that offer each variant.
fn offered_on(nodes: &[NodeStatus]) -> Classes<'_> {
    let mut classes = Classes::new();
    for node in nodes {
        for offer in &node.info.offers {
            classes.entry((offer.task, offer.ordinal)).or_default().insert(&node.device_class);
        }
    }
    classes
}

fn task_info(catalog: &Catalog, task: &Task, classes: &Classes<'_>) -> TaskInfo {
    let spaces: BTreeMap<ModelId, SpaceId> =
        catalog.models_of(task.id).map(|model| (model.id, model.space)).collect();
    let mut variants: Vec<VariantInfo> = catalog
        .variants
        .iter()
        .filter_map(|variant| {
            Some(VariantInfo {
                id: variant.id,
                model: variant.model,
                ordinal: variant.ordinal,
                space: *spaces.get(&variant.model)?,
                accuracy: accuracy(variant, classes.get(&(task.id, variant.ordinal)))?,
                max_batch: variant.settings.max_batch,
            })
        })
        .collect();
    variants.sort_by_key(|variant| variant.ordinal);
    let defaults = Goals { latency: Some(task.defaults.latency.unwrap_or(DEFAULT_LATENCY)), ..task.defaults };
    TaskInfo { id: task.id, default_space: task.default_space, defaults, variants }
}

/// What floors are compared with: the lowest accuracy on any device class that may answer, since the node is chosen
/// after the floor was checked. Where nothing offers it, the lowest known. `None` if nothing was measured.
fn accuracy(variant: &Variant, classes: Option<&BTreeSet<&str>>) -> Option<Accuracy> {
    let on = |class: &str| classes.is_some_and(|classes| classes.contains(class));
    let measured = |profile: &&modelless_types::Profile| on(&profile.device_class);
    let offered = variant.profiles.iter().filter(measured).map(|profile| profile.accuracy.value).min();
    offered.or_else(|| variant.profiles.iter().map(|profile| profile.accuracy.value).min())
}

/// A node that drains offers nothing but stays, because it still has queries; offers of what is no longer registered
/// are left out.
fn node_info(status: &NodeStatus, known: &BTreeSet<(TaskId, u8)>) -> NodeInfo {
    let mut info = status.info.clone();
    if status.draining {
        info.offers.clear();
    }
    info.offers.retain(|offer| known.contains(&(offer.task, offer.ordinal)));
    info
}
