//! How many machines there should be, for ours: the rule is `decision::hire`; here is only what a scenario says for it.

use crate::known::Known;
use crate::scenario::Scenario;
use modelless_decision::hire::{self, Kind};
pub(crate) use modelless_decision::hire::{Asked, Counts, Expected, Room, wanted};

/// Machines of a scenario by class and price: how they are, and which by node, those that stay first.
pub(crate) fn kinds(scenario: &Scenario) -> (Vec<Kind>, Vec<Vec<usize>>) {
    let kind = |mut nodes: Vec<usize>| {
        let stays = |node: &usize| scenario.nodes[*node].rented.is_none();
        nodes.sort_by_key(|node| (!stays(node), *node));
        let first = &scenario.nodes[nodes[0]];
        let leads = nodes.iter().filter_map(|node| scenario.nodes[*node].rented);
        let kind = Kind {
            most: nodes.len(),
            stay: nodes.iter().filter(|node| stays(node)).count(),
            lanes: first.worker.devices.iter().map(|d| f64::from(d.lanes.max(1))).sum(),
            usd_per_hour: first.usd_per_hour(),
            lead_s: leads.map(|rented| rented.start_up.as_millis_f64() / 1e3).fold(0.0, f64::max),
        };
        (kind, nodes)
    };
    scenario.kinds().into_iter().map(kind).unzip()
}

/// Device time of a query on a kind of machines in seconds, in the variant that takes least; `None` where nothing may answer.
pub(crate) fn takes<'a>(known: impl Iterator<Item = &'a Known<'a>>, (class, bound): Asked) -> Option<f64> {
    let admits = |v: &&Known<'_>| v.task == class.task && class.admits.contains(v.spec.ordinal);
    hire::takes(known.filter(admits).map(|v| (&v.told, v.max_batch)), bound)
}
