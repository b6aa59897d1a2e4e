//! Clipper: each application has one model, each replica a queue of its own and a batch size that adapts.
//!
//! Queries go to the replicas in turn. A batch size grows by one with every batch that kept the objective and shrinks to nine tenths
//! with one that did not (additive increase, multiplicative decrease). A replica is a lane of a node that holds the model. The model is
//! the most accurate one that leaves half of the bound, or in the throughput form the one with the least device time.

use super::cluster::{Ask, Cluster, Ran};
use super::fixed::{Asked, Choice, Rule, choose};
use super::given::{Given, value};
use super::place::everywhere;
use super::{Policy, Queue};
use modelless_types::{Micros, VariantId};
use std::collections::BTreeMap;

/// What is left of a batch size after a batch that took too long.
const BACK_OFF: f64 = 0.9;

#[derive(Debug)]
struct Replica {
    queue: Queue,
    /// The batch size, with its fraction.
    size: f64,
}

/// See above.
pub(super) struct Clipper {
    rule: Rule,
    back_off: f64,
    bound: BTreeMap<Asked, VariantId>,
    /// The tightest bound that a model is asked under: its objective.
    objectives: BTreeMap<VariantId, Micros>,
    replicas: BTreeMap<(usize, VariantId), Replica>,
    turn: BTreeMap<VariantId, usize>,
}

impl Clipper {
    pub(super) fn new(choice: Choice, given: &Given) -> Self {
        let (rule, back_off) = (Rule::new(choice, given), value(given, "back_off", BACK_OFF));
        let (bound, objectives, turn) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { rule, back_off, bound, objectives, replicas: BTreeMap::new(), turn }
    }
}

impl Policy for Clipper {
    fn start(&mut self, cluster: &mut Cluster<'_>) {
        for asked in cluster.asked() {
            if let Some(variant) = choose(cluster, self.rule, asked) {
                self.bound.insert(asked, variant);
                let objective = self.objectives.entry(variant).or_insert(asked.2);
                *objective = asked.2.min(*objective);
            }
        }
        let wanted: Vec<VariantId> = self.objectives.keys().copied().collect();
        everywhere(cluster, &wanted);
        for lane in 0..cluster.lanes() {
            for variant in &wanted {
                if cluster.placed(cluster.node_of(lane), *variant) {
                    let replica = Replica { queue: Queue::of_comers(), size: 1.0 };
                    self.replicas.insert((lane, *variant), replica);
                }
            }
        }
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let Some(&variant) = self.bound.get(&(ask.task, ask.admits, ask.bound)) else {
            return cluster.refuse(&ask, "no_variant");
        };
        let places: Vec<usize> =
            self.replicas.keys().filter(|(_, of)| *of == variant).map(|(lane, _)| *lane).collect();
        let turn = self.turn.entry(variant).or_default();
        *turn += 1;
        match places.get(*turn % places.len().max(1)) {
            Some(lane) => {
                if let Some(replica) = self.replicas.get_mut(&(*lane, variant)) {
                    replica.queue.push(ask);
                }
            }
            None => cluster.refuse(&ask, "no_variant"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let own = (lane, VariantId(0))..(lane + 1, VariantId(0));
        for ((_, variant), replica) in self.replicas.range_mut(own.clone()) {
            replica.queue.drop_late(cluster, node, *variant);
        }
        let next = self.replicas.range(own);
        let next = next.filter_map(|((_, variant), r)| Some((r.queue.head()?.came, *variant))).min();
        let Some((_, variant)) = next.filter(|(_, variant)| cluster.ready(node, *variant)) else { return };
        let most = cluster.max_batch(node, variant);
        if let Some(replica) = self.replicas.get_mut(&(lane, variant)) {
            let size = whole(replica.size).clamp(1, most);
            let members = replica.queue.take(size);
            cluster.run(lane, variant, members);
        }
    }

    fn ran(&mut self, cluster: &mut Cluster<'_>, ran: Ran) {
        let objective = self.objectives.get(&ran.variant).copied().unwrap_or_default();
        let most = f64::from(cluster.max_batch(cluster.node_of(ran.lane), ran.variant));
        if let Some(replica) = self.replicas.get_mut(&(ran.lane, ran.variant)) {
            if ran.took > objective {
                replica.size = (replica.size * self.back_off).max(1.0);
            } else if f64::from(ran.batch) >= replica.size.floor() {
                replica.size = (replica.size + 1.0).min(most);
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn whole(size: f64) -> u32 {
    size as u32
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    #[test]
    fn a_batch_size_grows_by_one_with_each_batch_that_kept_the_objective() {
        // 10 ms whatever the batch: sizes 1, 2, 3, 4 answer 10 that come at once in 40 ms.
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 10), (8, 10)], ms(1))]);
        let outcome =
            outcome(&world.asks(&[0; 10]).build(), &mut Clipper::new(Choice::Best, &Given::default()));
        assert_eq!(outcome.batches.into_iter().collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1), (4, 1)]);
        assert_eq!(outcome.total.latency.max, ms(40));
    }

    #[test]
    fn a_batch_size_shrinks_to_nine_tenths_after_one_that_took_too_long() {
        // A batch of 1 takes 10 ms, of 2 takes 40, which is beyond the bound of 30: 2 x 0.9 is 1 again.
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 10), (2, 40)], ms(1))]).bound(ms(30));
        let world = world.asks(&[0, 5, 5, 60, 60]).build();
        let outcome = outcome(&world, &mut Clipper::new(Choice::Best, &Given::default()));
        assert_eq!(outcome.batches.into_iter().collect::<Vec<_>>(), [(1, 3), (2, 1)]);
        assert_eq!((outcome.total.in_time(), outcome.total.late), (3, 2));
    }

    #[test]
    fn replicas_take_turns() {
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 10)], ms(1))]).nodes(2, 1);
        let outcome =
            outcome(&world.asks(&[0, 0, 0, 0]).build(), &mut Clipper::new(Choice::Best, &Given::default()));
        assert_eq!(outcome.total.latency.max, ms(20), "two each");
    }
}
