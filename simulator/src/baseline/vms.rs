//! INFaaS' VM autoscaler: looks every two seconds, by kind of machines.
//!
//! One is added where the least used of a kind is busier than 80 %, where each of them has an interfered variant, or, of the kind that is
//! busiest, where more than 80 % of all have an overloaded one; never a second while one is on its way. The paper tells no rule for taking
//! one away; this is that of its code: after fifteen looks in a row at which those of a kind were busy for less than 30 % on average,
//! the least used one that has nothing to do goes. Its code waits fifteen looks after each action; its paper does not say so.

use super::cluster::Cluster;
use modelless_types::Micros;

const EVERY: Micros = Micros::from_secs(2);
const BUSY: f64 = 0.8;
const IDLE: f64 = 0.3;
const LOOKS: u32 = 15;

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
    /// Looks in a row at which each kind was idle.
    idle: Vec<u32>,
    waits: u32,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Add,
    Take,
}

/// By how busy the machines of a kind are, and how they are.
fn act(busy: &[f64], health: &[Health], idle_looks: u32) -> Option<Act> {
    let least = busy.iter().copied().fold(f64::INFINITY, f64::min);
    if busy.is_empty() || least > BUSY || health.iter().all(|h| h.interfered) {
        return Some(Act::Add);
    }
    (idle_looks >= LOOKS).then_some(Act::Take)
}

impl Vms {
    /// As in its code: nothing for so many looks after each action.
    pub(super) fn with_back_off() -> Self {
        Self { back_off: LOOKS, ..Self::default() }
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
        self.idle.resize(kinds.len(), 0);
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
        let all = here(&(0..cluster.nodes()).collect::<Vec<_>>());
        let overloaded = all.iter().filter(|node| health(**node).overloaded).count();
        let crowded = overloaded * 5 > all.len() * 4;
        let mut acts: Vec<(Act, usize, f64)> = Vec::new();
        for (kind, nodes) in kinds.iter().enumerate() {
            let there = here(nodes);
            let used: Vec<f64> = there.iter().map(|node| busy(*node)).collect();
            let mean = used.iter().sum::<f64>() / f64::from(u32::try_from(used.len()).unwrap_or(1)).max(1.0);
            self.idle[kind] = if !there.is_empty() && mean <= IDLE { self.idle[kind] + 1 } else { 0 };
            let healths: Vec<Health> = there.iter().map(|node| health(*node)).collect();
            // A kind of which nothing is there is only added where all is crowded.
            let act = if there.is_empty() { None } else { act(&used, &healths, self.idle[kind]) };
            acts.extend(act.map(|act| (act, kind, mean)));
            if crowded && act != Some(Act::Add) {
                acts.push((Act::Add, kind, mean));
            }
        }
        if self.waits > 0 {
            self.waits -= 1;
            return None;
        }
        acts.sort_by(|a, b| {
            (b.0 == Act::Add).cmp(&(a.0 == Act::Add)).then(b.2.total_cmp(&a.2)).then(a.1.cmp(&b.1))
        });
        for (act, kind, _) in acts {
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
                        (self.waits, self.idle[kind]) = (self.back_off, 0);
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
    use super::*;

    #[test]
    fn the_least_used_machine_tells_whether_one_is_added_and_fifteen_idle_looks_whether_one_goes() {
        let well = Health { empty: true, ..Health::default() };
        let sick = Health { interfered: true, ..well };
        assert_eq!(act(&[0.81, 0.9], &[well; 2], 0), Some(Act::Add));
        assert_eq!(act(&[0.79, 0.99], &[well; 2], 0), None);
        assert_eq!(act(&[0.1, 0.1], &[sick; 2], 0), Some(Act::Add));
        assert_eq!(act(&[0.1, 0.1], &[sick, well], 0), None);
        assert_eq!((act(&[0.1], &[well], 14), act(&[0.1], &[well], 15)), (None, Some(Act::Take)));
    }

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
