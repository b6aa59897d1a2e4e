//! From what is registered and what the nodes make known to the table that routing reads.

use modelless_decision::Moments;
use modelless_decision::admission::DEFAULT_LATENCY;
use modelless_decision::route::{NodeInfo, Ready, Table, TaskInfo, VariantInfo};
use modelless_store::Catalog;
use modelless_types::{Accuracy, Goals, ModelId, SpaceId, Task, TaskId, Time, Variant};
use modelless_wire::NodeStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The table of this moment. Tasks and variants in the order of ids and ordinals, so that equal worlds give equal
/// tables.
pub(crate) fn build(catalog: &Catalog, nodes: &[Arc<NodeStatus>], handover: Moments) -> Table {
    let classes = offered_on(nodes);
    let defaults = catalog.defaults();
    let tasks: Vec<TaskInfo> =
        catalog.tasks.iter().map(|task| task_info(catalog, task, &classes, &defaults)).collect();
    let known: BTreeSet<(TaskId, u8)> =
        tasks.iter().flat_map(|task| task.variants.iter().map(|v| (task.id, v.ordinal))).collect();
    let nodes = nodes.iter().map(|status| node_info(status, &known, handover)).collect();
    Table { tasks, nodes }
}

/// The table without what only moves estimates: two tables of one shape send queries to the same places, so a
/// difference in the rest is not urgent.
pub(crate) fn shape(table: &Table) -> Table {
    let mut shape = table.clone();
    for node in &mut shape.nodes {
        node.rtt = Moments::ZERO;
        for offer in &mut node.offers {
            offer.run.forget_live();
            if let Ready::Loading { at } = &mut offer.ready {
                *at = Time::ZERO;
            }
        }
    }
    shape
}

type Classes<'a> = BTreeMap<(TaskId, u8), BTreeSet<&'a str>>;

/// The device classes of the nodes that offer each variant.
fn offered_on(nodes: &[Arc<NodeStatus>]) -> Classes<'_> {
    let mut classes = Classes::new();
    for node in nodes {
        for offer in &node.info.offers {
            classes.entry((offer.task, offer.ordinal)).or_default().insert(&node.device_class);
        }
    }
    classes
}

fn task_info(
    catalog: &Catalog,
    task: &Task,
    classes: &Classes<'_>,
    defaults: &BTreeSet<ModelId>,
) -> TaskInfo {
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
                accuracy: accuracy(catalog, task, variant, classes.get(&(task.id, variant.ordinal)))?,
                max_batch: variant.settings.max_batch,
                candidate: !defaults.contains(&variant.model),
            })
        })
        .collect();
    variants.sort_by_key(|variant| variant.ordinal);
    let defaults = Goals { latency: Some(task.defaults.latency.unwrap_or(DEFAULT_LATENCY)), ..task.defaults };
    TaskInfo { id: task.id, default_space: task.default_space, defaults, variants }
}

/// What floors are compared with: the lowest accuracy on any device class that may answer, since the node is chosen
/// after the floor was checked. Where nothing offers it, the lowest known. `None` if nothing was measured.
fn accuracy(
    catalog: &Catalog,
    task: &Task,
    variant: &Variant,
    classes: Option<&BTreeSet<&str>>,
) -> Option<Accuracy> {
    let of = |profile: &modelless_types::Profile| catalog.floor_accuracy(task, variant.id, profile);
    let on = |class: &str| classes.is_some_and(|classes| classes.contains(class));
    let measured = |profile: &&modelless_types::Profile| on(&profile.device_class);
    let offered = variant.profiles.iter().filter(measured).map(of).min();
    offered.or_else(|| variant.profiles.iter().map(of).min())
}

/// A node that drains offers nothing but stays, because it still has queries; offers of what is no longer registered
/// are left out.
fn node_info(status: &NodeStatus, known: &BTreeSet<(TaskId, u8)>, handover: Moments) -> NodeInfo {
    let mut info = status.info.clone();
    info.rtt += handover;
    if status.draining {
        info.offers.clear();
    }
    info.offers.retain(|offer| known.contains(&(offer.task, offer.ordinal)));
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::world::{new_model, new_task, profile};
    use modelless_decision::RunModel;
    use modelless_decision::route::Offer;
    use modelless_store::{MemStore, Store as _};
    use modelless_types::{AccuracyRule, Micros, NodeId, PricePerHour, TaskKind};

    fn node(id: u32, class: &str, offers: Vec<Offer>) -> Arc<NodeStatus> {
        let info = NodeInfo { id: NodeId(id), rtt: Moments::ZERO, price: PricePerHour(1), offers };
        Arc::new(NodeStatus::idle(info, &format!("node-{id}"), class))
    }

    /// A variant measured at 90 % on one device class and at 88 % on another, and its offer.
    async fn catalog() -> (Catalog, Offer) {
        let store = MemStore::new();
        let task = store.create_task(new_task("t", TaskKind::ImageClassification)).await.unwrap();
        let mut model = new_model(&task, "m", 1_000.0, 900);
        model.variants[0].profiles[0].device_class = "fast".to_owned();
        let mut slow = profile(9_000.0, 880, 1_000);
        slow.device_class = "slow".to_owned();
        model.variants[0].profiles.push(slow);
        let registered = store.register_model(model).await.unwrap();
        let run = RunModel::from_profile(&registered.variants[0].profiles[0]).unwrap();
        let offer = Offer {
            task: task.id,
            ordinal: registered.variants[0].ordinal,
            ready: Ready::Resident,
            run,
            width: 1,
        };
        (store.catalog().await.unwrap(), offer)
    }

    fn accuracy_of(table: &Table) -> f64 {
        table.tasks[0].variants[0].accuracy.as_f64()
    }

    #[tokio::test]
    async fn floors_hold_on_every_device_class_that_may_answer() {
        let (catalog, offer) = catalog().await;
        let (fast, slow) = (node(1, "fast", vec![offer.clone()]), node(2, "slow", vec![offer]));
        assert!(
            (accuracy_of(&build(&catalog, std::slice::from_ref(&fast), Moments::ZERO)) - 0.9).abs() < 1e-9
        );
        assert!((accuracy_of(&build(&catalog, &[fast, slow], Moments::ZERO)) - 0.88).abs() < 1e-9);
        assert!(
            (accuracy_of(&build(&catalog, &[], Moments::ZERO)) - 0.88).abs() < 1e-9,
            "nobody knows yet who will answer"
        );
        assert_eq!(build(&catalog, &[], Moments::ZERO).tasks[0].defaults.latency, Some(DEFAULT_LATENCY));
    }

    #[tokio::test]
    async fn a_task_that_asks_for_the_lower_bound_has_its_floors_compared_with_that() {
        let (mut catalog, offer) = catalog().await;
        catalog.tasks[0].accuracy_rule = AccuracyRule::LowerBound;
        let low = Accuracy::from_ppm(870_000).unwrap();
        catalog.variants[0].profiles[0].accuracy.low = low;
        let table = build(&catalog, &[node(1, "fast", vec![offer])], Moments::ZERO);
        assert_eq!(table.tasks[0].variants[0].accuracy, low);
    }

    #[tokio::test]
    async fn draining_nodes_and_unknown_variants_are_not_offered() {
        let (catalog, offer) = catalog().await;
        let unknown = Offer { ordinal: 200, ..offer.clone() };
        let mut status = node(1, "fast", vec![offer, unknown]);
        assert_eq!(build(&catalog, std::slice::from_ref(&status), Moments::ZERO).nodes[0].offers.len(), 1);
        Arc::make_mut(&mut status).draining = true;
        let table = build(&catalog, &[status], Moments::ZERO);
        assert!(table.nodes[0].offers.is_empty());
        assert_eq!(table.nodes.len(), 1, "it still has queries");
    }

    #[tokio::test]
    async fn corrections_do_not_change_the_shape_and_residency_does() {
        let (catalog, offer) = catalog().await;
        let shaped = |ready, ratio| {
            let mut offer = Offer { ready, ..offer.clone() };
            offer.run.correction.ratio = ratio;
            shape(&build(&catalog, &[node(1, "fast", vec![offer])], Moments::ZERO))
        };
        let before = shaped(Ready::Resident, 1.0);
        assert_eq!(before, shaped(Ready::Resident, 1.7));
        assert_eq!(shaped(Ready::Loading { at: Time(5) }, 1.0), shaped(Ready::Loading { at: Time(9) }, 1.0));
        assert_ne!(before, shaped(Ready::Loading { at: Time(5) }, 1.0));
        assert_ne!(before, shaped(Ready::Cold { load: Micros(5) }, 1.0));
    }
}
