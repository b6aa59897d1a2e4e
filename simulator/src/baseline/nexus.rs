//! Nexus: squishy bin packing of sessions onto lanes, and early drop.
//!
//! A session is an application with one model. Every 30 s, by its measured rate: as long as a whole lane is filled by it with the largest batch
//! that takes half of the bound, it gets whole lanes; what is left gets the largest batch that can be gathered and run within the bound, and
//! such leftovers share lanes, best fit by occupancy, as long as all their batches fit into the shortest duty cycle. A lane goes round its
//! sessions. Before a batch is made, heads that cannot be in time in the batch that is planned are dropped. Its description gives
//! lanes back that it does not need; here rates are scaled up until all are used, which favours it.

use super::cluster::{Ask, Cluster};
use super::fixed::{Asked, Choice, Rule, choose};
use super::given::{Given, value};
use super::{Policy, Queue};
use modelless_decision::Moments;
use modelless_types::{Micros, VariantId};
use std::collections::BTreeMap;

/// Between two packings, in seconds.
const EPOCH: u32 = 30;
const WEIGHT: f64 = 0.3;
/// How much rates are scaled up at a time until all lanes are used.
const GROW: f64 = 1.1;
const SCALES: usize = 120;

/// A session's part of a lane: its batch, and which part of a cycle that takes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Slot {
    session: usize,
    batch: u32,
    takes_us: f64,
}

/// What a lane goes round: slots, and how long a cycle is.
#[derive(Clone, PartialEq, Debug, Default)]
struct Cycle {
    slots: Vec<Slot>,
    duty_us: f64,
}

struct Session {
    asked: Asked,
    variant: VariantId,
    queue: Queue,
    count: u32,
    rate: f64,
}

/// See above.
pub(super) struct Nexus {
    rule: Rule,
    weight: f64,
    sessions: Vec<Session>,
    cycles: Vec<Cycle>,
    next: Vec<usize>,
    seconds: u32,
}

/// What packing asks of a session: its times, its bound, its rate a microsecond.
struct Wanted<'a> {
    session: usize,
    bound: Micros,
    rate: f64,
    most: u32,
    takes: &'a dyn Fn(u32) -> f64,
}

/// Squishy bin packing: the lanes that are needed.
fn pack(wanted: &[Wanted<'_>]) -> Vec<Cycle> {
    let mut lanes = Vec::new();
    let mut left: Vec<Cycle> = Vec::new();
    let mut rates = BTreeMap::new();
    for one in wanted {
        let bound = Moments::exactly(one.bound).mean;
        let full = (1..=one.most).rev().find(|b| (one.takes)(*b) <= bound / 2.0).unwrap_or(1);
        let takes = (one.takes)(full);
        let per_lane = f64::from(full) / takes;
        let mut rate = one.rate;
        while rate >= per_lane && lanes.len() < 10_000 {
            let slots = vec![Slot { session: one.session, batch: full, takes_us: takes }];
            lanes.push(Cycle { slots, duty_us: takes });
            rate -= per_lane;
        }
        if rate <= 0.0 {
            continue;
        }
        // The largest that is gathered and run within the bound.
        let gathered = |b: u32| f64::from(b - 1) / rate + (one.takes)(b);
        let batch = (1..=one.most).rev().find(|b| gathered(*b) <= bound).unwrap_or(1);
        let takes = (one.takes)(batch);
        let duty = (bound - takes).min(f64::from(batch) / rate).max(takes);
        left.push(Cycle {
            slots: vec![Slot { session: one.session, batch, takes_us: takes }],
            duty_us: duty,
        });
        rates.insert(one.session, (rate, one));
    }
    let occupancy = |cycle: &Cycle| cycle.slots.iter().map(|s| s.takes_us).sum::<f64>() / cycle.duty_us;
    left.sort_by(|a, b| occupancy(b).total_cmp(&occupancy(a)));
    let mut shared: Vec<Cycle> = Vec::new();
    for one in left {
        let merged = |with: &Cycle| {
            let duty_us = with.duty_us.min(one.duty_us);
            let slot = |slot: &Slot| {
                let (rate, wanted) = &rates[&slot.session];
                let batch = ceil(duty_us * rate).clamp(1, wanted.most);
                Slot { batch, takes_us: (wanted.takes)(batch), ..*slot }
            };
            let slots: Vec<Slot> = with.slots.iter().chain(&one.slots).map(slot).collect();
            let fits = slots.iter().map(|s| s.takes_us).sum::<f64>() <= duty_us;
            fits.then_some(Cycle { slots, duty_us })
        };
        let best = shared.iter().enumerate().filter_map(|(at, with)| Some((at, merged(with)?)));
        let best = best.max_by(|a, b| occupancy(&a.1).total_cmp(&occupancy(&b.1)).then(b.0.cmp(&a.0)));
        match best {
            Some((at, cycle)) => shared[at] = cycle,
            None => shared.push(one),
        }
    }
    lanes.extend(shared);
    lanes
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn ceil(x: f64) -> u32 {
    x.ceil() as u32
}

impl Nexus {
    pub(super) fn new(given: &Given) -> Self {
        Self {
            rule: Rule::new(Choice::Best, given),
            weight: value(given, "weight", WEIGHT),
            sessions: Vec::new(),
            cycles: Vec::new(),
            next: Vec::new(),
            seconds: 0,
        }
    }

    fn pack(&mut self, cluster: &mut Cluster<'_>) {
        let node_of = |variant: VariantId| {
            (0..cluster.nodes()).find(|node| cluster.max_batch(*node, variant) > 0).unwrap_or(0)
        };
        let at: Vec<usize> = self.sessions.iter().map(|s| node_of(s.variant)).collect();
        let times: Vec<Box<dyn Fn(u32) -> f64 + '_>> = self
            .sessions
            .iter()
            .zip(&at)
            .map(|(s, node)| {
                let (variant, node) = (s.variant, *node);
                let cluster = &*cluster;
                Box::new(move |b| Moments::exactly(cluster.p99(node, variant, b)).mean)
                    as Box<dyn Fn(u32) -> f64>
            })
            .collect();
        let packed = |scale: f64| {
            let wanted: Vec<Wanted<'_>> = self
                .sessions
                .iter()
                .enumerate()
                .map(|(session, s)| Wanted {
                    session,
                    bound: s.asked.2,
                    rate: s.rate.max(0.1) * scale / 1e6,
                    most: cluster.max_batch(at[session], s.variant),
                    takes: &*times[session],
                })
                .collect();
            pack(&wanted)
        };
        let mut best = packed(1.0);
        let mut scale = 1.0;
        for _ in 0..SCALES {
            scale *= GROW;
            let more = packed(scale);
            if more.len() > cluster.lanes() {
                break;
            }
            best = more;
        }
        drop(times);
        best.resize(cluster.lanes(), Cycle::default());
        // Lanes that nothing is left for help in turn.
        let used: Vec<Cycle> = best.iter().filter(|cycle| !cycle.slots.is_empty()).cloned().collect();
        for (at, cycle) in best.iter_mut().enumerate().filter(|(_, cycle)| cycle.slots.is_empty()) {
            *cycle = used.get(at % used.len().max(1)).cloned().unwrap_or_default();
        }
        self.cycles = best;
        for (lane, cycle) in self.cycles.iter().enumerate() {
            let node = cluster.node_of(lane);
            for slot in &cycle.slots {
                let variant = self.sessions[slot.session].variant;
                if !cluster.placed(node, variant) && !cluster.load(node, variant) {
                    let needed = |v: VariantId| {
                        let lanes = (0..self.cycles.len()).filter(|lane| cluster.node_of(*lane) == node);
                        let mut slots = lanes.flat_map(|lane| &self.cycles[lane].slots);
                        slots.any(|slot| self.sessions[slot.session].variant == v)
                    };
                    let idle: Vec<VariantId> =
                        cluster.models(node).into_iter().filter(|v| !needed(*v)).collect();
                    for variant in idle {
                        cluster.unload(node, variant);
                    }
                    cluster.load(node, variant);
                }
            }
        }
    }
}

impl Policy for Nexus {
    fn every(&self) -> Option<Micros> {
        Some(Micros::from_secs(1))
    }

    fn start(&mut self, cluster: &mut Cluster<'_>) {
        for asked in cluster.asked() {
            if let Some(variant) = choose(cluster, self.rule, asked) {
                let (queue, count, rate) = (Queue::default(), 0, 0.0);
                self.sessions.push(Session { asked, variant, queue, count, rate });
            }
        }
        self.next = vec![0; cluster.lanes()];
        self.pack(cluster);
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let asked = (ask.task, ask.admits, ask.bound);
        match self.sessions.iter_mut().find(|session| session.asked == asked) {
            Some(session) => {
                session.count += 1;
                session.queue.push(ask);
            }
            None => cluster.refuse(&ask, "no_variant"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let slots = &self.cycles[lane].slots;
        for turn in 0..slots.len() {
            let at = (self.next[lane] + turn) % slots.len();
            let slot = slots[at];
            let session = &mut self.sessions[slot.session];
            if !cluster.ready(node, session.variant) {
                continue;
            }
            // Early drop: the head must be in time in the batch that is planned.
            while let Some(head) = session.queue.head().copied() {
                let batch = slot.batch.min(session.queue.len());
                if cluster.now() + cluster.p99(node, session.variant, batch) <= head.deadline {
                    break;
                }
                session.queue.take(1);
                cluster.refuse(&head, "too_late");
            }
            let members = session.queue.take(slot.batch);
            if !members.is_empty() {
                self.next[lane] = at + 1;
                cluster.run(lane, session.variant, members);
                return;
            }
        }
    }

    fn tick(&mut self, cluster: &mut Cluster<'_>) {
        for session in &mut self.sessions {
            let count = f64::from(core::mem::take(&mut session.count));
            session.rate += self.weight * (count - session.rate);
        }
        self.seconds += 1;
        // The first packing knew no rates.
        if self.seconds == 3 || self.seconds.is_multiple_of(EPOCH) {
            self.pack(cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    fn wanted(session: usize, bound: u64, per_second: f64, takes: &dyn Fn(u32) -> f64) -> Wanted<'_> {
        Wanted { session, bound: ms(bound), rate: per_second / 1e6, most: 8, takes }
    }

    #[test]
    fn a_session_gets_whole_lanes_for_what_fills_them_and_a_part_for_the_rest() {
        // 10 ms and 5 ms for each more; within half of 100 ms 8 run in 45 ms: 177.8 a second.
        let takes = |b: u32| 10_000.0 + 5_000.0 * f64::from(b - 1);
        let lanes = pack(&[wanted(0, 100, 400.0, &takes)]);
        assert_eq!(lanes.iter().map(|c| c.slots[0].batch).collect::<Vec<_>>(), [8, 8, 4]);
        // 44.4 a second are left: four are gathered in 67.5 ms and run in 25, five would take 120.
        assert!((lanes[2].duty_us - 75_000.0).abs() < 1.0, "{lanes:?}");
    }

    #[test]
    fn leftovers_share_a_lane_if_their_batches_fit_into_the_shorter_cycle() {
        let takes = |b: u32| 10_000.0 + 1_000.0 * f64::from(b - 1);
        // 20 a second each within 100 ms: two are gathered in 50 ms; a cycle of 89 ms has room for both.
        let two = pack(&[wanted(0, 100, 20.0, &takes), wanted(1, 100, 20.0, &takes)]);
        assert_eq!((two.len(), two[0].slots.len()), (1, 2), "{two:?}");
        // A bound of 25 ms leaves a cycle of 15 ms, which has no room for a second run of 10.
        let tight = pack(&[wanted(0, 25, 20.0, &takes), wanted(1, 25, 20.0, &takes)]);
        assert_eq!(tight.len(), 2, "{tight:?}");
    }

    #[test]
    fn heads_that_cannot_be_in_time_in_the_planned_batch_are_dropped() {
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 40), (8, 60)], ms(1))]).bound(ms(82));
        let outcome = outcome(&world.asks(&[0, 0, 39, 39, 39]).build(), &mut Nexus::new(&Given::default()));
        // Only a batch of one takes half of the bound: runs end at 40, 80 and 120, and the last two were due at 121.
        assert_eq!((outcome.total.in_time(), outcome.total.late), (3, 0), "{:?}", outcome.total);
        assert_eq!(outcome.total.refused.get("too_late"), Some(&2));
    }
}
