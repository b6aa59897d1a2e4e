//! Who else is there, as the live state tells: other gateways and schedulers, nodes also where this gateway does not reach
//! them. Nothing here is needed to answer a query.
//!
//! What nodes saw of their profiles is lent to others of their device class that saw nothing yet: a machine that has just come is most
//! likely as much slower than the profile as its like are. What a node saw itself comes with its own status, and counts alone.

use modelless_decision::Correction;
use modelless_decision::route::Table;
use modelless_live::{Corrected, ENOUGH, Member};
use modelless_types::{NodeId, TaskId};
use modelless_wire::NodeStatus;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What nodes of a device class saw of a variant: by task, ordinal and class.
pub(crate) type Seen = BTreeMap<(TaskId, u8), BTreeMap<String, Vec<(NodeId, Correction)>>>;

/// Who is there, and what can be lent of what they saw.
#[derive(Default)]
pub(crate) struct Members {
    all: Arc<Vec<Member>>,
    seen: Arc<Seen>,
}

impl Members {
    pub(crate) fn all(&self) -> Arc<Vec<Member>> {
        Arc::clone(&self.all)
    }

    pub(crate) fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen)
    }

    /// Takes what was told. Whether anything can be lent that could not before.
    pub(crate) fn take(&mut self, members: Vec<Member>) -> bool {
        let lent = lending(&self.all).ne(lending(&members));
        if lent {
            self.seen = Arc::new(seen(&members));
        }
        self.all = Arc::new(members);
        lent
    }
}

/// What of members can be lent to others.
fn lending(members: &[Member]) -> impl Iterator<Item = (NodeId, &str, &Arc<[Corrected]>)> {
    members
        .iter()
        .filter_map(|member| Some((member.node?, member.device_class.as_str(), &member.corrections)))
}

fn seen(members: &[Member]) -> Seen {
    let mut seen = Seen::new();
    for (node, class, corrections) in lending(members) {
        for known in corrections.iter().filter(|known| known.correction.samples >= ENOUGH) {
            let classes = seen.entry((known.task, known.ordinal)).or_default();
            match classes.get_mut(class) {
                Some(all) => all.push((node, known.correction)),
                None => drop(classes.insert(class.to_owned(), vec![(node, known.correction)])),
            }
        }
    }
    for known in seen.values_mut().flat_map(BTreeMap::values_mut) {
        known.sort_by(|(_, a), (_, b)| a.ratio.total_cmp(&b.ratio));
    }
    seen
}

/// Corrects what a node has not run yet by the median of what its like saw.
pub(crate) fn lend(table: &mut Table, nodes: &[Arc<NodeStatus>], seen: &Seen) {
    if seen.is_empty() {
        return;
    }
    for (node, status) in table.nodes.iter_mut().zip(nodes) {
        for offer in node.offers.iter_mut().filter(|offer| offer.run.correction.samples == 0) {
            let known = seen.get(&(offer.task, offer.ordinal));
            let Some(known) = known.and_then(|classes| classes.get(&status.device_class)) else { continue };
            // The median of the others, without making a list of them.
            let own = known.iter().position(|(other, _)| *other == node.id);
            let others = known.len() - usize::from(own.is_some());
            if others == 0 {
                continue;
            }
            let at = others / 2;
            let at = at + usize::from(own.is_some_and(|own| own <= at));
            offer.run.correction = known[at].1;
            if !offer.run.is_sound() {
                offer.run.correction = Correction::NONE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::route::{NodeInfo, Offer, Ready};
    use modelless_decision::{Moments, RunModel};
    use modelless_live::Role;
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
            corrections: [Corrected { task: TaskId(1), ordinal: 2, correction }].into(),
            ..Member::new(Role::Node, &format!("node-{id}"), 1)
        }
    }

    #[test]
    fn a_node_that_saw_nothing_yet_is_taken_to_be_as_slow_as_its_like_and_one_that_did_is_not() {
        let nodes = [node(1, "a", None), node(2, "a", Some(3.0)), node(3, "b", None)].map(Arc::new);
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
        lend(&mut table, &nodes, &seen(&members));
        let ratios: Vec<f64> = table.nodes.iter().map(|node| node.offers[0].run.correction.ratio).collect();
        assert_eq!(ratios, [1.5, 3.0, 1.0]);
    }

    #[test]
    fn members_that_only_tell_of_their_load_change_nothing_that_is_lent() {
        let mut members = Members::default();
        assert!(members.take(vec![member(1, "a", 1.2, 20)]));
        let seen = members.seen();
        let busy = modelless_live::Load { queries: 7, ..modelless_live::Load::default() };
        assert!(!members.take(vec![Member { load: busy, ..member(1, "a", 1.2, 20) }]));
        assert!(Arc::ptr_eq(&seen, &members.seen()) && members.all()[0].load == busy);
        assert!(members.take(vec![member(1, "a", 1.3, 20)]));
        assert!(members.take(Vec::new()) && members.seen().is_empty());
    }
}
