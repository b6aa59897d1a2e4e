//! SlackFit (SuperServe): the slack of who is due first picks variant and batch.
//!
//! Beforehand the range of run times is cut into equal buckets; each keeps the pair of variant and batch that fits into it with the
//! largest batch, and of these the most accurate. When a lane falls free, the slack of the earliest deadline picks the highest bucket
//! that is not beyond it. All variants are held in memory wherever they fit, as switching is taken to be instant there. Queries of one
//! set of admitted variants share a batch; times are 99th percentiles.

use super::cluster::{Ask, Cluster};
use super::given::{Given, value};
use super::place::{admitted, everywhere};
use super::{Policy, Queue};
use modelless_decision::Moments;
use modelless_types::{Micros, TaskId, VariantId, VariantSet};
use std::collections::BTreeMap;

/// Buckets that run times are cut into.
const BUCKETS: f64 = 16.0;

type Class = (TaskId, VariantSet);

/// What a bucket holds, and the 99th percentile of its run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pick {
    takes: Micros,
    variant: VariantId,
    batch: u32,
}

/// See above.
pub(super) struct SlackFit {
    parts: u64,
    /// Whether the quickest run of one query is a bucket of its own, for the least slack.
    alone: bool,
    queues: BTreeMap<Class, Queue>,
    /// By node and class, in rising order of time; made again when what is in memory changes.
    buckets: BTreeMap<(usize, Class), (Vec<VariantId>, Vec<Pick>)>,
}

/// The pairs that are kept of these variants.
fn buckets(
    cluster: &Cluster<'_>,
    node: usize,
    variants: &[VariantId],
    (parts, alone): (u64, bool),
) -> Vec<Pick> {
    let pairs = variants.iter().flat_map(|variant| {
        (1..=cluster.max_batch(node, *variant)).map(|batch| Pick {
            takes: cluster.p99(node, *variant, batch),
            variant: *variant,
            batch,
        })
    });
    let pairs: Vec<Pick> = pairs.collect();
    let (Some(least), Some(most)) =
        (pairs.iter().map(|p| p.takes.0).min(), pairs.iter().map(|p| p.takes.0).max())
    else {
        return Vec::new();
    };
    let width = ((most - least) / parts).max(1);
    let mut kept: BTreeMap<u64, Pick> = BTreeMap::new();
    for pair in pairs {
        let bucket = ((pair.takes.0 - least) / width).min(parts - 1);
        let worth = |p: &Pick| (p.batch, cluster.accuracy(p.variant), std::cmp::Reverse(p.takes));
        let known = kept.entry(bucket).or_insert(pair);
        if worth(&pair) > worth(known) {
            *known = pair;
        }
    }
    // The quickest of all stays, so that there is something for the least slack.
    let mut all: Vec<Pick> = kept.into_values().collect();
    let quickest = variants
        .iter()
        .map(|v| Pick { takes: cluster.p99(node, *v, 1), variant: *v, batch: 1 })
        .min_by_key(|pick| (pick.takes, pick.variant));
    all.extend(quickest.filter(|_| alone));
    all.sort_by_key(|pick| (pick.takes, pick.batch));
    all
}

impl SlackFit {
    pub(super) fn new(given: &Given) -> Self {
        let parts = Moments { mean: value(given, "buckets", BUCKETS), var: 0.0 }.mean().0.max(1);
        let alone = value(given, "alone", 0.0) > 0.5;
        Self { parts, alone, queues: BTreeMap::new(), buckets: BTreeMap::new() }
    }

    fn pick(&mut self, cluster: &Cluster<'_>, node: usize, class: Class, slack: Micros) -> Option<Pick> {
        let (task, admits) = class;
        let may = |v: &VariantId| {
            cluster.ready(node, *v) && cluster.task_of(*v) == task && admits.contains(cluster.ordinal(*v))
        };
        let here: Vec<VariantId> = cluster.models(node).into_iter().filter(may).collect();
        let (known, picks) = self.buckets.entry((node, class)).or_default();
        if *known != here {
            *picks = buckets(cluster, node, &here, (self.parts, self.alone));
            *known = here;
        }
        let beyond = picks.partition_point(|pick| pick.takes <= slack);
        picks.get(beyond.saturating_sub(1)).copied()
    }
}

impl Policy for SlackFit {
    fn start(&mut self, cluster: &mut Cluster<'_>) {
        let mut wanted: Vec<(Micros, VariantId)> = Vec::new();
        for (task, admits, bound) in cluster.asked() {
            self.queues.entry((task, admits)).or_default();
            let all = admitted(cluster, task, admits);
            wanted.extend(all.into_iter().filter(|(_, alone)| *alone <= bound).map(|(v, alone)| (alone, v)));
        }
        wanted.sort_unstable();
        wanted.dedup();
        let wanted: Vec<VariantId> = wanted.into_iter().map(|(_, variant)| variant).collect();
        everywhere(cluster, &wanted);
    }

    fn arrive(&mut self, _cluster: &mut Cluster<'_>, ask: Ask) {
        self.queues.entry((ask.task, ask.admits)).or_default().push(ask);
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let heads = |queues: &BTreeMap<Class, Queue>| {
            let mut all: Vec<_> =
                queues.iter().filter_map(|(class, q)| Some((q.head()?.deadline, *class))).collect();
            all.sort_unstable();
            all
        };
        for (_, class) in heads(&self.queues) {
            let Some(quickest) = self.pick(cluster, node, class, Micros::ZERO) else { continue };
            let Some(queue) = self.queues.get_mut(&class) else { continue };
            // Who has less slack than the lowest bucket takes is not served by it.
            queue.drop_beyond(cluster, quickest.takes);
            let Some(head) = queue.head() else { continue };
            let slack = head.deadline - cluster.now();
            let Some(pick) = self.pick(cluster, node, class, slack) else { continue };
            if let Some(queue) = self.queues.get_mut(&class) {
                let members = queue.take(pick.batch);
                cluster.run(lane, pick.variant, members);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    fn ladder() -> World {
        World::of(vec![
            variant("good", 1, 950_000, &[(1, 40), (4, 64)], ms(1)),
            variant("quick", 2, 800_000, &[(1, 4), (8, 18)], ms(1)),
        ])
    }

    #[test]
    fn much_slack_takes_the_slow_and_accurate_and_little_the_quick() {
        for (bound, name) in [(100, "good"), (20, "quick")] {
            let world = ladder().bound(ms(bound)).asks(&[0]).build();
            let outcome = outcome(&world, &mut SlackFit::new(&Given::default()));
            assert_eq!(outcome.total.variants.keys().collect::<Vec<_>>(), [name], "{bound}");
        }
    }

    #[test]
    fn who_waited_has_less_slack_and_gets_a_quicker_one() {
        // The first takes 64 ms as a batch of one of at most four takes 40: the rest has 30 of 70 ms left.
        let world = ladder().bound(ms(70)).asks(&[0, 1, 1, 1]).build();
        let outcome = outcome(&world, &mut SlackFit::new(&Given::default()));
        assert_eq!(outcome.total.variants.get("good"), Some(&1), "{:?}", outcome.total);
        assert_eq!(outcome.total.variants.get("quick"), Some(&3));
        assert_eq!(outcome.total.in_time(), 4);
    }

    #[test]
    fn each_bucket_keeps_its_largest_batch() {
        let world = ladder().build();
        let cluster = Cluster::new(&world, 1, false).expect("a world");
        let picks = buckets(&cluster, 0, &[VariantId(1), VariantId(2)], (16, true));
        // From 4 to 64 ms in sixteen of 3.75: the first holds quick at 4 and 6 ms (batches 1 and 2).
        assert_eq!(picks[1], Pick { takes: ms(6), variant: VariantId(2), batch: 2 });
        assert_eq!(*picks.last().expect("some"), Pick { takes: ms(64), variant: VariantId(1), batch: 4 });
    }
}
