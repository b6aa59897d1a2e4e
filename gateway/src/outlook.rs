//! What a plan would be if it were made now, by the calls that a scheduler makes one with. For people: nothing here is planned.

use modelless_decision::hire::Counts;
use modelless_decision::plan::{Input, Pin, Plan, plan};
use modelless_live::Member;
use modelless_planning::{Aheads, Asked, Demand, input};
use modelless_store::Catalog;
use modelless_types::{NodeId, Time};
use modelless_wire::NodeStatus;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// What was left to workers by plans that do not say.
const USUAL_PERMILLE: u16 = 250;
/// Members are told about once a second; after longer the live state was away.
const AWAY: Duration = Duration::from_secs(5);

/// What is asked of all gateways, as a scheduler counts it: each counts from when it began to look.
#[derive(Default)]
pub(crate) struct Outlook {
    asked: Asked,
    /// How much second by second, for machines.
    seconds: Demand,
    looked: Option<Instant>,
}

impl Outlook {
    /// Takes in who is there; `at` by any clock that is always the same.
    pub(crate) fn look(&mut self, at: Time, members: &[Member], catalog: &Catalog) {
        self.seconds.know(catalog);
        self.seconds.look(at, members);
        let now = Instant::now();
        let after = self.looked.replace(now).map_or(Duration::ZERO, |before| now - before);
        if after > AWAY {
            self.asked.stand_still(after);
            self.asked.look(members, Duration::ZERO);
        } else {
            self.asked.look(members, after);
        }
    }

    pub(crate) fn asked(&self) -> Asked {
        self.asked.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.seconds.counts().clone()
    }
}

/// The plan that would follow `before`, and what it would be made from. Nodes that are not reached from here, or are left out,
/// keep nothing or what they have.
pub(crate) fn next(
    catalog: &Catalog,
    nodes: &[NodeStatus],
    (asked, aheads): (&Asked, &Aheads),
    before: &Plan,
    without: &BTreeSet<NodeId>,
) -> (Input, Plan) {
    let there: Vec<NodeStatus> = nodes.iter().filter(|node| !without.contains(&node.node)).cloned().collect();
    let share = before.discretionary_permille.unwrap_or(USUAL_PERMILLE);
    let input = input(catalog, &there, share, (asked, aheads));
    let mut next = plan(&input, before);
    let stays = |pin: &&Pin| !without.contains(&pin.node) && there.iter().all(|node| node.node != pin.node);
    next.pins.extend(before.pins.iter().filter(stays));
    next.pins.sort_unstable();
    (input, next)
}
