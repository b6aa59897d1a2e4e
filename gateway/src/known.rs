//! Nodes' statuses as they were last looked at, and what a look found changed: most of what a node makes known (its load, its history,
//! what it says of itself) concerns people and not routing, and a table is not made for that.

use crate::core::Node;
use http::HeaderValue;
use modelless_decision::Moments;
use modelless_decision::route::{Offer, Ready};
use modelless_types::NodeId;
use modelless_wire::NodeStatus;
use std::sync::Arc;
use tokio::sync::watch;

/// The way to a node leaps when it becomes so many times as long, or as short, and by so many microseconds.
const LEAP: f64 = 2.0;
const LEAP_US: f64 = 1_000.0;

/// What is other than before, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Change {
    /// Nothing.
    Nothing,
    /// Something that routing does not read.
    Shown,
    /// An estimate moved a little.
    Estimates,
    /// Where queries may go, or an estimate by much.
    Places,
}

/// One node.
struct Entry {
    node: Arc<Node>,
    changes: watch::Receiver<NodeStatus>,
    status: Arc<NodeStatus>,
    /// As the table that is routed by has it.
    tabled: Option<Arc<NodeStatus>>,
    /// Its name, as answers repeat it.
    shown: HeaderValue,
}

/// All of them, in the order in which they came.
#[derive(Default)]
pub(crate) struct Known(Vec<Entry>);

impl Known {
    /// Looks at every node, and copies the status of those that told something since.
    pub(crate) fn look(&mut self, nodes: &[Arc<Node>]) -> Change {
        let same = self.0.len() == nodes.len()
            && self.0.iter().zip(nodes).all(|(entry, node)| Arc::ptr_eq(&entry.node, node));
        let mut change = Change::Nothing;
        if !same {
            change = Change::Places;
            let mut before = std::mem::take(&mut self.0);
            // Both are in the order of coming, but for those that came back, so that mostly the first is the one.
            let entry = |node: &Arc<Node>| match before.iter().position(|e| Arc::ptr_eq(&e.node, node)) {
                Some(at) => before.remove(at),
                None => Entry::new(Arc::clone(node)),
            };
            self.0 = nodes.iter().map(entry).collect();
        }
        for entry in &mut self.0 {
            change = change.max(entry.look());
        }
        change
    }

    pub(crate) fn statuses(&self) -> Vec<Arc<NodeStatus>> {
        self.0.iter().map(|entry| Arc::clone(&entry.status)).collect()
    }

    pub(crate) fn headers(&self) -> Vec<(NodeId, HeaderValue)> {
        self.0.iter().map(|entry| (entry.node.id, entry.shown.clone())).collect()
    }

    /// A table was made of what they said last.
    pub(crate) fn tabled(&mut self) {
        for entry in &mut self.0 {
            entry.tabled = Some(Arc::clone(&entry.status));
        }
    }
}

impl Entry {
    fn new(node: Arc<Node>) -> Self {
        let mut changes = node.status.clone();
        let status = Arc::new(changes.borrow_and_update().clone());
        let shown = crate::view::header(&status.name);
        Self { node, changes, status, tabled: None, shown }
    }

    fn look(&mut self) -> Change {
        // One whose connection ended has no news; it is taken out by whoever watches it.
        if !self.changes.has_changed().unwrap_or(false) {
            return Change::Nothing;
        }
        let now = Arc::new(self.changes.borrow_and_update().clone());
        if now.name != self.status.name {
            self.shown = crate::view::header(&now.name);
        }
        self.status = now;
        self.tabled.as_ref().map_or(Change::Places, |tabled| change(tabled, &self.status))
    }
}

/// What of a node routing would read otherwise.
fn change(before: &NodeStatus, now: &NodeStatus) -> Change {
    let fixed = |status: &NodeStatus| (status.node, status.info.price, status.draining);
    if fixed(before) != fixed(now)
        || before.device_class != now.device_class
        || before.info.offers.len() != now.info.offers.len()
    {
        return Change::Places;
    }
    let offers = before.info.offers.iter().zip(&now.info.offers).map(|(before, now)| offer(before, now));
    let rtt = if before.info.rtt == now.info.rtt {
        Change::Shown
    } else if leapt(before.info.rtt, now.info.rtt) {
        // The first estimate is how long a greeting took. One that was held up says that nobody can be in time there, and whoever
        // loses another node must not believe that.
        Change::Places
    } else {
        Change::Estimates
    };
    offers.fold(rtt, Change::max)
}

/// Whether the way to a node is much longer or shorter than was thought.
fn leapt(before: Moments, now: Moments) -> bool {
    let (less, more) = (before.mean.min(now.mean), before.mean.max(now.mean));
    more - less > LEAP_US && more > less * LEAP
}

fn offer(before: &Offer, now: &Offer) -> Change {
    // How well it was predicted is for people.
    let mut seen = now.clone();
    seen.run.coverage = before.run.coverage;
    if *before == seen {
        return Change::Shown;
    }
    let placed = |offer: &Offer| (offer.task, offer.ordinal, offer.width);
    let ready = match (before.ready, now.ready) {
        (Ready::Loading { .. }, Ready::Loading { .. }) => true,
        (before, now) => before == now,
    };
    let same = placed(before) == placed(now) && ready && before.run.profiled() == now.run.profiled();
    if same && !now.run.correction.leapt_from(&before.run.correction) {
        Change::Estimates
    } else {
        Change::Places
    }
}

/// Whether an estimate that all nodes share moved.
pub(crate) fn moved(before: Moments, now: Moments) -> Change {
    if before == now { Change::Nothing } else { Change::Estimates }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::RunModel;
    use modelless_decision::route::NodeInfo;
    use modelless_types::{BatchPoint, Micros, PricePerHour, TaskId, Time};

    fn status() -> NodeStatus {
        let point = BatchPoint { batch: 1, mean_us: 100.0, var_us2: 0.0, p99_us: 100.0, samples: 1 };
        let run = RunModel::from_points(&[point], Moments::ZERO).expect("a point");
        let offer = Offer { task: TaskId(1), ordinal: 2, ready: Ready::Resident, run, width: 1 };
        let info =
            NodeInfo { id: NodeId(1), rtt: Moments::ZERO, price: PricePerHour(1), offers: vec![offer] };
        NodeStatus::idle(info, "n", "cpu")
    }

    fn check(with: impl Fn(&mut NodeStatus), wanted: Change) {
        let mut now = status();
        with(&mut now);
        assert_eq!(change(&status(), &now), wanted);
    }

    #[test]
    fn only_what_routing_reads_makes_a_table() {
        check(|_| {}, Change::Shown);
        check(|status| status.load.queued = 7, Change::Shown);
        check(|status| status.memory_used = modelless_types::Bytes(5), Change::Shown);
        check(|status| status.info.rtt.mean = 5.0, Change::Estimates);
        check(|status| status.info.rtt.mean = 5_000.0, Change::Places);
        check(|status| status.info.offers[0].run.correction.ratio = 1.1, Change::Estimates);
        check(|status| status.info.offers[0].run.correction.ratio = 1.5, Change::Places);
        check(|status| status.info.offers[0].ready = Ready::Cold { load: Micros(5) }, Change::Places);
        check(|status| status.info.offers[0].ready = Ready::Loading { at: Time(5) }, Change::Places);
        check(|status| status.info.offers.clear(), Change::Places);
        check(|status| status.draining = true, Change::Places);
        check(|status| status.device_class = "other".into(), Change::Places);
    }

    #[test]
    fn a_way_leaps_by_a_multiple_and_not_by_little() {
        let of = |before, now| leapt(Moments { mean: before, var: 0.0 }, Moments { mean: now, var: 0.0 });
        assert!(of(700_000.0, 400.0) && of(400.0, 700_000.0) && of(0.0, 2_000.0));
        assert!(!of(400.0, 1_200.0) && !of(50_000.0, 90_000.0) && !of(90_000.0, 50_000.0));
    }
}
