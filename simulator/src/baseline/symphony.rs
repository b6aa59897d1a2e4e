//! Symphony-like: batches are dispatched as late as is safe, to the lowest-numbered idle lane.
//!
//! An application has one model, the most accurate one that leaves half of the bound; a model's queries wait in one queue in order of
//! deadlines. Its candidate is the largest batch that is in time for the earliest of them. It may be dispatched from `deadline - run of one
//! more` (then nobody else could join) until `deadline - its run`; a lane that is idle takes the candidate whose latest moment comes first.
//! As lanes are looked at by rising number, few of them work under a low load. Its description splits models into groups of lanes by a solver;
//! here all lanes that hold a model serve it.

use super::cluster::{Ask, Cluster};
use super::fixed::{Asked, Choice, Rule, choose};
use super::given::Given;
use super::place::everywhere;
use super::{Policy, Queue};
use modelless_types::{Time, VariantId};
use std::collections::BTreeMap;

/// See above.
pub(super) struct Symphony {
    rule: Rule,
    of: BTreeMap<Asked, VariantId>,
    queues: BTreeMap<VariantId, Queue>,
}

impl Symphony {
    pub(super) fn new(given: &Given) -> Self {
        Self { rule: Rule::new(Choice::Best, given), of: BTreeMap::new(), queues: BTreeMap::new() }
    }
}

impl Policy for Symphony {
    fn start(&mut self, cluster: &mut Cluster<'_>) {
        for asked in cluster.asked() {
            if let Some(variant) = choose(cluster, self.rule, asked) {
                self.of.insert(asked, variant);
                self.queues.entry(variant).or_default();
            }
        }
        let wanted: Vec<VariantId> = self.queues.keys().copied().collect();
        everywhere(cluster, &wanted);
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let variant = self.of.get(&(ask.task, ask.admits, ask.bound));
        match variant.and_then(|variant| self.queues.get_mut(variant)) {
            Some(queue) => queue.push(ask),
            None => cluster.refuse(&ask, "no_variant"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let mut first: Option<(Time, VariantId, u32)> = None;
        for (variant, queue) in &mut self.queues {
            if !cluster.ready(node, *variant) {
                continue;
            }
            queue.drop_late(cluster, node, *variant);
            let Some(head) = queue.head() else { continue };
            let batch = queue.in_time(cluster, node, *variant);
            let before =
                |size: u32| Time(head.deadline.0.saturating_sub(cluster.p99(node, *variant, size).0));
            let full = batch >= cluster.max_batch(node, *variant);
            let from = if full { cluster.now() } else { before(batch + 1) };
            if cluster.now() < from {
                cluster.wake_at(from);
                continue;
            }
            let candidate = (before(batch), *variant, batch);
            first = Some(first.map_or(candidate, |known| known.min(candidate)));
        }
        let Some((_, variant, batch)) = first else { return };
        if let Some(queue) = self.queues.get_mut(&variant) {
            let members = queue.take(batch);
            cluster.run(lane, variant, members);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    fn only() -> World {
        World::of(vec![variant("only", 1, 900_000, &[(1, 20), (4, 50)], ms(1))])
    }

    #[test]
    fn a_batch_waits_until_one_more_could_not_join_it_in_time() {
        // Within 100 ms: one waits until 100 - 30 for a second and runs alone, though the lane is idle; two until 100 - 40.
        for (at, ends) in [(&[0_u64][..], 90), (&[0, 5], 90), (&[0, 5, 10], 90)] {
            let outcome = outcome(&only().asks(at).build(), &mut Symphony::new(&Given::default()));
            assert_eq!((outcome.total.latency.max, outcome.total.late), (ms(ends), 0), "{at:?}");
            assert_eq!(outcome.batches.get(&u32::try_from(at.len()).expect("few")), Some(&1));
        }
    }

    #[test]
    fn a_full_batch_waits_for_nobody() {
        let outcome = outcome(&only().asks(&[0, 0, 0, 10]).build(), &mut Symphony::new(&Given::default()));
        assert_eq!((outcome.total.latency.max, outcome.batches.get(&4)), (ms(60), Some(&1)));
    }

    #[test]
    fn under_a_low_load_one_lane_does_all_the_work() {
        let at: Vec<u64> = (0..40).map(|n| n * 25).collect();
        let world = only().nodes(3, 1).asks(&at).build();
        let mut policy = Symphony::new(&Given::default());
        let (outcome, worked) = super::super::testing::worked(&world, &mut policy);
        assert_eq!(outcome.total.in_time(), 40);
        assert!(worked[0] > 0 && worked[1..] == [0, 0], "{worked:?}");
    }
}
