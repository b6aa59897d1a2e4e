//! Static choices: every application is bound to one variant for ever, as most serving systems are used.
//!
//! *Best* takes the most accurate variant that is in time with half of the bound to spare for waiting, *cheapest* the one with the
//! least device time a query within that. Each variant has one queue in order of deadlines for all nodes that hold it; a lane takes the
//! earliest head and as large a batch as takes that part of the bound.

use super::cluster::{Ask, Cluster};
use super::given::{Given, value};
use super::place::{admitted, cheapest_us, everywhere};
use super::{Policy, Queue};
use modelless_decision::Moments;
use modelless_types::{Micros, TaskId, Time, VariantId, VariantSet};
use std::collections::BTreeMap;

/// How the one variant is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// The most accurate.
    Best,
    /// The one with the least device time.
    Cheapest,
}

/// What is asked alike.
pub(super) type Asked = (TaskId, VariantSet, Micros);

/// How it is chosen, with how much of the bound left for a run: half as described.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rule {
    choice: Choice,
    share: f64,
}

impl Rule {
    pub(super) fn new(choice: Choice, given: &Given) -> Self {
        Self { choice, share: value(given, "share", 0.5) }
    }
}

/// One variant for each application.
pub(super) struct Fixed {
    rule: Rule,
    pub(super) bound: BTreeMap<Asked, VariantId>,
    queues: BTreeMap<VariantId, Queue>,
}

impl Fixed {
    pub(super) fn new(choice: Choice, given: &Given) -> Self {
        Self { rule: Rule::new(choice, given), bound: BTreeMap::new(), queues: BTreeMap::new() }
    }
}

/// The variant for what is asked; none if nothing may answer.
pub(super) fn choose(cluster: &Cluster<'_>, rule: Rule, asked: Asked) -> Option<VariantId> {
    let (task, admits, bound) = asked;
    let all = admitted(cluster, task, admits);
    let half = Moments::exactly(bound).times(rule.share).mean();
    let within = |limit: Micros| all.iter().filter(move |(_, alone)| *alone <= limit).map(|(v, _)| *v);
    // Where nothing leaves half to spare, what is in time at all.
    let within: Vec<VariantId> =
        if within(half).next().is_some() { within(half).collect() } else { within(bound).collect() };
    let cost = |v: &VariantId| cheapest_us(cluster, *v, half.max(Micros(1)));
    match rule.choice {
        Choice::Best => within.into_iter().min_by(|a, b| {
            let more = cluster.accuracy(*b).cmp(&cluster.accuracy(*a));
            more.then(cost(a).total_cmp(&cost(b))).then(a.cmp(b))
        }),
        Choice::Cheapest => within.into_iter().min_by(|a, b| {
            let less = cost(a).total_cmp(&cost(b));
            less.then(cluster.accuracy(*b).cmp(&cluster.accuracy(*a))).then(a.cmp(b))
        }),
    }
}

/// On an idle lane: of the queues of what is in memory there, the earliest head, in the largest batch that takes at most a share of its
/// bound. Whoever would be late in it is refused.
pub(super) fn serve_earliest(
    cluster: &mut Cluster<'_>,
    queues: &mut BTreeMap<VariantId, Queue>,
    lane: usize,
    share: f64,
) {
    let node = cluster.node_of(lane);
    let mut first: Option<(Time, VariantId, u32)> = None;
    for (variant, queue) in
        queues.iter_mut().filter(|(variant, _)| cluster.ready(node, **variant)).collect::<Vec<_>>()
    {
        let Some(bound) = queue.head().map(|head| head.bound) else { continue };
        let most = cluster.fits(node, *variant, Moments::exactly(bound).times(share).mean());
        let batch = queue.shed(cluster, (node, *variant), most, |batch| batch);
        let head = queue.head().map(|head| (head.deadline, *variant, batch));
        first = [first, head].into_iter().flatten().min();
    }
    let Some((_, variant, batch)) = first else { return };
    if let Some(queue) = queues.get_mut(&variant) {
        let members = queue.take(batch);
        cluster.run(lane, variant, members);
    }
}

impl Policy for Fixed {
    fn start(&mut self, cluster: &mut Cluster<'_>) {
        for asked in cluster.asked() {
            if let Some(variant) = choose(cluster, self.rule, asked) {
                self.bound.insert(asked, variant);
                self.queues.entry(variant).or_default();
            }
        }
        let wanted: Vec<VariantId> = self.queues.keys().copied().collect();
        everywhere(cluster, &wanted);
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let bound = self.bound.get(&(ask.task, ask.admits, ask.bound));
        match bound.and_then(|variant| self.queues.get_mut(variant)) {
            Some(queue) => queue.push(ask),
            None => cluster.refuse(&ask, "no_variant"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        serve_earliest(cluster, &mut self.queues, lane, self.rule.share);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, outcome};
    use super::*;

    #[test]
    fn the_most_accurate_and_the_cheapest_are_bound_for_ever() {
        // `good` takes 20 ms, `quick` 5 ms alone and 10 ms for 8; a bound of 100 ms leaves room for both.
        let world = World::ladder().asks(&[0, 0, 0]).build();
        for (choice, name) in [(Choice::Best, "good"), (Choice::Cheapest, "quick")] {
            let outcome = outcome(&world, &mut Fixed::new(choice, &Given::default()));
            assert_eq!(outcome.total.variants.keys().collect::<Vec<_>>(), [name]);
            assert_eq!(outcome.total.in_time(), 3);
        }
    }

    #[test]
    fn a_floor_holds_for_the_cheapest_too() {
        let world = World::ladder().floor("0.9").asks(&[0]).build();
        let outcome = outcome(&world, &mut Fixed::new(Choice::Cheapest, &Given::default()));
        assert_eq!(outcome.total.variants.keys().collect::<Vec<_>>(), ["good"]);
    }

    #[test]
    fn what_cannot_be_in_time_is_dropped_before_a_batch_is_made() {
        // On one lane `good` takes 20 ms in any batch up to 2, and the first finds it idle: in 100 ms that is one and four pairs.
        let world = World::ladder().asks(&[0; 20]).build();
        let outcome = outcome(&world, &mut Fixed::new(Choice::Best, &Given::default()));
        assert_eq!((outcome.total.in_time(), outcome.total.late), (9, 0), "{:?}", outcome.total);
        assert_eq!(outcome.total.refused.get("too_late"), Some(&11));
        assert_eq!(outcome.batches.get(&2), Some(&4));
    }
}
