//! How many machines there should be, for ours: enough for what is asked now and will be once a machine that is asked for is there.
//!
//! The live system starts no machines yet; this is the rule that it is to have, tried here first. Demand of each kind of query is the
//! highest of its mean rates over 2 and 10 s, and what it rises by, if it does, for as long as a machine takes to start. Work is counted
//! in the cheapest variant that keeps the floor, in batches that take half of the bound: what is more accurate is for lanes that
//! are paid and idle. Machines that stay come first, then those that do most for their price, until none is busier than the scenario wants. A
//! machine goes only when the highest five seconds of the last minute would do without it.

use crate::known::Known;
use crate::oracle::best_rate;
use crate::outcome::ratio;
use crate::scenario::Scenario;
use modelless_decision::query::Class;
use modelless_types::Micros;
use std::collections::{BTreeMap, VecDeque};

/// So many seconds are remembered.
const REMEMBERED: usize = 60;
/// Of these an hour's worth of trend is not believed: a rise is carried on for so many seconds at most.
const AHEAD_S: f64 = 60.0;

/// Queries that are alike: who may answer them, and their bound.
pub(crate) type Asked = (Class, Micros);

/// What was asked, second by second, the last one at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    now: BTreeMap<Asked, u64>,
    past: BTreeMap<Asked, VecDeque<u64>>,
    seconds: usize,
}

/// Machines that are alike.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Kind {
    /// By node, those that stay first.
    pub(crate) nodes: Vec<usize>,
    /// How many of them stay.
    pub(crate) stay: usize,
    lanes: f64,
    usd_per_hour: f64,
    /// From asking for one until it serves.
    lead_s: f64,
}

impl Counts {
    pub(crate) fn came(&mut self, asked: Asked, many: u64) {
        *self.now.entry(asked).or_default() += many;
    }

    /// A second has passed.
    pub(crate) fn pass(&mut self) {
        for (asked, many) in &self.now {
            let past = self.past.entry(*asked).or_default();
            past.push_back(*many);
            if past.len() > REMEMBERED {
                past.pop_front();
            }
        }
        self.now.values_mut().for_each(|many| *many = 0);
        self.seconds = (self.seconds + 1).min(REMEMBERED);
    }

    /// Means over so many seconds until so many seconds ago.
    fn mean(past: &VecDeque<u64>, over: usize, until: usize) -> f64 {
        let counts = past.iter().rev().skip(until).take(over);
        ratio(counts.sum(), over as u64)
    }

    /// What will be asked a second, when a machine that is asked for now is there.
    fn soon(&self, lead_s: f64) -> BTreeMap<Asked, f64> {
        let rate = |past: &VecDeque<u64>| {
            let level = Self::mean(past, 2, 0).max(Self::mean(past, 10.min(past.len().max(1)), 0));
            let (late, early) = (Self::mean(past, 5, 0), Self::mean(past, 5, 5));
            // Less than this is chance.
            let sure = 2.0 * ((late + early) / 5.0).sqrt();
            let rises = if past.len() >= 10 && late - early > sure { (late - early) / 5.0 } else { 0.0 };
            level + rises * lead_s.min(AHEAD_S)
        };
        self.past.iter().map(|(asked, past)| (*asked, rate(past))).collect()
    }

    /// The most that was asked for five seconds.
    fn lately(&self) -> BTreeMap<Asked, f64> {
        let rate = |past: &VecDeque<u64>| {
            let means = (0..past.len().div_ceil(5)).map(|n| Self::mean(past, 5, 5 * n));
            means.fold(0.0, f64::max)
        };
        self.past.iter().map(|(asked, past)| (*asked, rate(past))).collect()
    }
}

/// Machines of a scenario by class and price.
pub(crate) fn kinds(scenario: &Scenario) -> Vec<Kind> {
    let kind = |mut nodes: Vec<usize>| {
        let stays = |node: &usize| scenario.nodes[*node].rented.is_none();
        nodes.sort_by_key(|node| (!stays(node), *node));
        let first = &scenario.nodes[nodes[0]];
        let leads = nodes.iter().filter_map(|node| scenario.nodes[*node].rented);
        Kind {
            stay: nodes.iter().filter(|node| stays(node)).count(),
            lanes: first.worker.devices.iter().map(|d| f64::from(d.lanes.max(1))).sum(),
            usd_per_hour: first.usd_per_hour(),
            lead_s: leads.map(|rented| rented.start_up.as_millis_f64() / 1e3).fold(0.0, f64::max),
            nodes,
        }
    };
    scenario.kinds().into_iter().map(kind).collect()
}

/// Device time of a query on a kind of machines in seconds, in the variant that takes least; `None` where nothing may answer.
pub(crate) fn takes<'a>(known: impl Iterator<Item = &'a Known<'a>>, (class, bound): Asked) -> Option<f64> {
    let admits = |v: &&Known<'_>| v.task == class.task && class.admits.contains(v.spec.ordinal);
    let rate = |v: &Known<'_>| {
        let half = best_rate(&v.run, v.max_batch, Micros(bound.0 / 2));
        if half > 0.0 { half } else { best_rate(&v.run, 1, bound) }
    };
    let best = known.filter(admits).map(rate).fold(0.0, f64::max);
    (best > 0.0).then(|| 1.0 / best)
}

/// Machines of each kind that do these rates; `takes` by kind and what is asked.
fn enough(
    rates: &BTreeMap<Asked, f64>,
    (kinds, busy): (&[Kind], f64),
    takes: &dyn Fn(usize, Asked) -> Option<f64>,
) -> Vec<usize> {
    let mut left = rates.clone();
    let mut many: Vec<usize> = vec![0; kinds.len()];
    // Of what is left, what one more machine of a kind takes, and which part of its time that fills.
    let serve = |left: &mut BTreeMap<Asked, f64>, kind: usize| -> f64 {
        let each = |asked: &Asked, rate: f64| takes(kind, *asked).map(|takes| takes * rate);
        let work: f64 = left.iter().filter_map(|(asked, rate)| each(asked, *rate)).sum();
        let share = (busy * kinds[kind].lanes / work.max(1e-12)).min(1.0);
        for (asked, rate) in left.iter_mut() {
            if takes(kind, *asked).is_some() {
                *rate *= 1.0 - share;
            }
        }
        work * share
    };
    for (at, kind) in kinds.iter().enumerate() {
        many[at] = kind.stay;
        for _ in 0..kind.stay {
            serve(&mut left, at);
        }
    }
    loop {
        let before: f64 = left.values().sum();
        if before <= 1e-6 {
            return many;
        }
        let gain = |at: usize| {
            let mut after = left.clone();
            serve(&mut after, at);
            // What the last one takes less of is no reason to take a dearer one: a part of it is paid in whole.
            (before - after.values().sum::<f64>()) / kinds[at].usd_per_hour.max(1e-9)
        };
        let open = (0..kinds.len()).filter(|at| many[*at] < kinds[*at].nodes.len());
        let best = open.map(|at| (gain(at), at)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        match best {
            Some((gain, at)) if gain > 1e-9 => {
                many[at] += 1;
                serve(&mut left, at);
            }
            Some(_) | None => return many,
        }
    }
}

/// At least and at most so many machines of each kind there should be now.
pub(crate) fn wanted(
    counts: &Counts,
    (kinds, busy): (&[Kind], f64),
    takes: &dyn Fn(usize, Asked) -> Option<f64>,
) -> Vec<(usize, usize)> {
    let lead_s = kinds.iter().map(|kind| kind.lead_s).fold(0.0, f64::max);
    let least = enough(&counts.soon(lead_s), (kinds, busy), takes);
    let most = enough(&counts.lately(), (kinds, busy), takes);
    least.into_iter().zip(most).map(|(least, most)| (least, most.max(least))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{TaskId, VariantSet};

    const TAKES_S: f64 = 0.01;

    fn asked() -> Asked {
        (Class { task: TaskId(1), admits: [0].into_iter().collect::<VariantSet>() }, Micros::from_millis(100))
    }

    fn kind(nodes: usize, stay: usize, usd_per_hour: f64) -> Kind {
        Kind { nodes: (0..nodes).collect(), stay, lanes: 1.0, usd_per_hour, lead_s: 10.0 }
    }

    fn after(counts: &[u64]) -> Counts {
        let mut all = Counts::default();
        for many in counts {
            all.came(asked(), *many);
            all.pass();
        }
        all
    }

    #[test]
    fn there_are_as_many_machines_as_keep_them_seven_tenths_busy() {
        // A query takes 10 ms, so that a machine does 70 a second.
        for (rate, many) in [(0, 1), (60, 1), (69, 1), (71, 2), (139, 2), (141, 3), (900, 4)] {
            let counts = after(&[rate; 20]);
            let seen = wanted(&counts, (&[kind(4, 1, 1.0)], 0.7), &|_, _| Some(TAKES_S));
            assert_eq!(seen, [(many, many)], "{rate}");
        }
    }

    #[test]
    fn a_rise_is_answered_for_the_time_that_a_machine_takes_and_a_fall_after_a_minute() {
        // From 50 to 58 a second: so little may be chance.
        assert_eq!(
            wanted(&after(&[&[50; 5][..], &[58; 5]].concat()), (&[kind(9, 1, 1.0)], 0.7), &|_, _| Some(
                TAKES_S
            )),
            [(1, 1)]
        );
        // From 100 to 200: 20 more a second each, 400 when it comes: 5.7 machines.
        let rising = after(&[&[100; 5][..], &[200; 5]].concat());
        assert_eq!(wanted(&rising, (&[kind(9, 1, 1.0)], 0.7), &|_, _| Some(TAKES_S)), [(6, 6)]);
        let fallen = after(&[&[300; 10][..], &[10; 30]].concat());
        assert_eq!(wanted(&fallen, (&[kind(9, 1, 1.0)], 0.7), &|_, _| Some(TAKES_S)), [(1, 5)]);
        let long_ago = after(&[&[300; 10][..], &[10; 60]].concat());
        assert_eq!(wanted(&long_ago, (&[kind(9, 1, 1.0)], 0.7), &|_, _| Some(TAKES_S)), [(1, 1)]);
    }

    #[test]
    fn the_kind_that_does_most_for_its_price_is_taken_and_another_when_there_is_no_more_of_it() {
        // The second takes a quarter of the time and costs thrice as much.
        let takes = |kind: usize, _: Asked| Some(if kind == 0 { TAKES_S } else { TAKES_S / 4.0 });
        let kinds = [kind(9, 0, 1.0), kind(2, 0, 3.0)];
        assert_eq!(wanted(&after(&[500; 20]), (&kinds, 0.7), &takes), [(0, 0), (2, 2)]);
        let many = wanted(&after(&[700; 20]), (&kinds, 0.7), &takes);
        assert_eq!(many[1], (2, 2));
        assert_eq!(many[0], (2, 2), "560 a second are done by two, 140 are left");
    }
}
