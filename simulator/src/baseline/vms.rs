//! INFaaS' VM autoscaler on simulated machines: what it wants is decided in [`modelless_decision::baseline`], here it is done.
//!
//! It looks every two seconds, by kind of machines, and never asks for a second machine while one is on its way. One that goes has nothing
//! to do. Its code waits fifteen looks after each action; its paper does not say so.

use super::cluster::Cluster;
use modelless_decision::baseline::{Act, Autoscaler, Worker};
use modelless_types::Micros;

const EVERY: Micros = Micros::from_secs(2);
/// For so many looks its code does nothing after each action.
const BACK_OFF: u32 = 15;

/// How a node's variants are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Health {
    pub(super) overloaded: bool,
    pub(super) interfered: bool,
    /// Nothing waits.
    pub(super) empty: bool,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Vms {
    back_off: u32,
    worked: Vec<u64>,
    looked: Option<modelless_types::Time>,
    rules: Autoscaler,
    waits: u32,
}

impl Vms {
    /// As in its code: nothing for so many looks after each action.
    pub(super) fn with_back_off() -> Self {
        Self { back_off: BACK_OFF, ..Self::default() }
    }

    /// To be called now and then; gives back a machine that has left.
    pub(super) fn look(
        &mut self,
        cluster: &mut Cluster<'_>,
        health: &dyn Fn(usize) -> Health,
    ) -> Option<usize> {
        let now = cluster.now();
        let since = now - *self.looked.get_or_insert(now);
        if since < EVERY {
            return None;
        }
        self.looked = Some(now);
        let kinds = cluster.kinds();
        self.worked.resize(cluster.nodes(), 0);
        let before = std::mem::replace(
            &mut self.worked,
            (0..cluster.nodes()).map(|node| cluster.worked_us(node)).collect(),
        );
        let busy = |node: usize| {
            let worked = crate::outcome::ratio(self.worked[node] - before[node], since.0);
            worked / f64::from(u32::try_from(cluster.lanes_of(node)).unwrap_or(1))
        };
        let here =
            |nodes: &[usize]| nodes.iter().copied().filter(|node| cluster.here(*node)).collect::<Vec<_>>();
        let worker = |node: &usize| {
            let Health { overloaded, interfered, .. } = health(*node);
            Worker { busy: busy(*node), overloaded, interfered }
        };
        let seen: Vec<Vec<Worker>> =
            kinds.iter().map(|nodes| here(nodes).iter().map(worker).collect()).collect();
        let acts = self.rules.look(&seen);
        if self.waits > 0 {
            self.waits -= 1;
            return None;
        }
        for (act, kind) in acts {
            let nodes = &kinds[kind];
            match act {
                Act::Add => {
                    let comes = nodes.iter().any(|node| cluster.hired(*node) && !cluster.here(*node));
                    let away =
                        nodes.iter().copied().find(|node| cluster.rented(*node) && !cluster.hired(*node));
                    if let Some(node) = away.filter(|_| !comes)
                        && cluster.rent(node)
                    {
                        self.waits = self.back_off;
                        return None;
                    }
                }
                Act::Take => {
                    let idle = |node: &usize| {
                        cluster.rented(*node)
                            && cluster.here(*node)
                            && cluster.busy_lanes(*node) == 0
                            && health(*node).empty
                    };
                    let used = |node: usize| self.worked[node] - before[node];
                    let least = nodes.iter().copied().filter(idle).min_by_key(|node| (used(*node), *node));
                    if let Some(node) = least
                        && cluster.release(node)
                    {
                        self.waits = self.back_off;
                        self.rules.took(kind);
                        return Some(node);
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::super::infaas::Infaas;
    use super::super::testing::{World, ms, outcome, variant};

    #[test]
    fn machines_follow_the_load_one_by_one_as_they_take_time_to_start() {
        // One machine does 50 a second. 45 a second keep it 90 % busy for 20 s, then 2 a second for 60.
        let mut at: Vec<u64> = (0..900).map(|n| n * 200 / 9).collect();
        at.extend((0..120).map(|n| 20_000 + n * 500));
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 20)], ms(100))])
            .nodes(4, 1)
            .rented(3, ms(5_000));
        let outcome = outcome(&world.asks(&at).build(), &mut Infaas::new(&Given::default()));
        let parts = outcome.series.buckets.len();
        let at_s = |s: usize| outcome.series.buckets[s * parts / 80].machines;
        assert_eq!((at_s(1), at_s(12)), (1, 2), "one comes five seconds after the first look");
        // Idle from 20 s on: thirty seconds of looks later it goes.
        assert_eq!((at_s(45), at_s(75)), (2, 1));
    }
}
