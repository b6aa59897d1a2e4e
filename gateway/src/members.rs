//! Who else is there, as the live state tells: other gateways and schedulers, nodes also where this gateway does not reach
//! them. Nothing here is needed to answer a query.
//!
//! What nodes saw of their profiles is lent to others of their device class that saw nothing yet: a machine that has just come is most
//! likely as much slower than the profile as its like are. What a node saw itself comes with its own status, and counts alone.

use modelless_decision::Correction;
use modelless_decision::route::Table;
use modelless_live::Member;
use modelless_types::{NodeId, TaskId};
use modelless_wire::NodeStatus;
use std::collections::BTreeMap;

/// Batches from which on a correction is lent.
const ENOUGH: u32 = 10;

/// What nodes of a device class saw of a variant.
type Seen<'a> = BTreeMap<(&'a str, TaskId, u8), Vec<(NodeId, Correction)>>;

fn seen(members: &[Member]) -> Seen<'_> {
    let mut seen = Seen::new();
    for member in members {
        let Some(node) = member.node else { continue };
        for corrected in member.corrections.iter().filter(|known| known.correction.samples >= ENOUGH) {
            let place = (member.device_class.as_str(), corrected.task, corrected.ordinal);
            seen.entry(place).or_default().push((node, corrected.correction));
        }
    }
    for known in seen.values_mut() {
        known.sort_by(|(_, a), (_, b)| a.ratio.total_cmp(&b.ratio));
    }
    seen
}

/// Corrects what a node has not run yet by the median of what its like saw.
pub(crate) fn lend(table: &mut Table, nodes: &[NodeStatus], members: &[Member]) {
    let seen = seen(members);
    if seen.is_empty() {
        return;
    }
    for (node, status) in table.nodes.iter_mut().zip(nodes) {
        for offer in node.offers.iter_mut().filter(|offer| offer.run.correction.samples == 0) {
            let Some(known) = seen.get(&(status.device_class.as_str(), offer.task, offer.ordinal)) else {
                continue;
            };
            let others: Vec<Correction> =
                known.iter().filter(|(other, _)| *other != node.id).map(|(_, seen)| *seen).collect();
            if let Some(median) = others.get(others.len() / 2) {
                offer.run.correction = *median;
                if !offer.run.is_sound() {
                    offer.run.correction = Correction::NONE;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::route::{NodeInfo, Offer, Ready};
    use modelless_decision::{Moments, RunModel};
    use modelless_live::{Corrected, Role};
    use modelless_types::{BatchPoint, PricePerHour};

    fn node(id: u32, class: &str, ratio: Option<f64>) -> NodeStatus {
        let point = BatchPoint { batch: 1, mean_us: 100.0, var_us2: 0.0, p99_us: 100.0, samples: 1 };
        let mut run = RunModel::from_points(&[point], Moments::ZERO).expect("a point");
        if let Some(ratio) = ratio {
            run.correction = Correction { ratio, spread: 0.0, samples: 20 };
        }
        let offer = Offer { task: TaskId(1), ordinal: 2, ready: Ready::Resident, run, width: 1 };
        let info =
            NodeInfo { id: NodeId(id), rtt: Moments::ZERO, price: PricePerHour(1), offers: vec![offer] };
        NodeStatus::idle(info, "n", class)
    }

    fn member(id: u32, class: &str, ratio: f64, samples: u32) -> Member {
        let correction = Correction { ratio, spread: 0.0, samples };
        Member {
            node: Some(NodeId(id)),
            device_class: class.to_owned(),
            corrections: vec![Corrected { task: TaskId(1), ordinal: 2, correction }],
            ..Member::new(Role::Node, &format!("node-{id}"), 1)
        }
    }

    #[test]
    fn a_node_that_saw_nothing_yet_is_taken_to_be_as_slow_as_its_like_and_one_that_did_is_not() {
        let nodes = [node(1, "a", None), node(2, "a", Some(3.0)), node(3, "b", None)];
        let members = [
            member(1, "a", 9.0, 20), // what it said itself some time ago
            member(4, "a", 1.2, 20),
            member(5, "a", 1.5, 20),
            member(6, "a", 2.0, 20),
            member(7, "a", 8.0, 3), // too little to go by
            member(8, "c", 5.0, 20),
        ];
        let infos = nodes.iter().map(|status| status.info.clone()).collect();
        let mut table = Table { tasks: Vec::new(), nodes: infos };
        lend(&mut table, &nodes, &members);
        let ratios: Vec<f64> = table.nodes.iter().map(|node| node.offers[0].run.correction.ratio).collect();
        assert_eq!(ratios, [1.5, 3.0, 1.0]);
    }
}
