//! From how pools are set and what is written down of their machines to what is decided about them from.

use crate::ahead::Foreseen;
use crate::asked::{Kinds, Times};
use modelless_decision::fleet::{self, Ended, Failures, Pool, StartUp};
use modelless_decision::hire::{Counts, Expected, Kind};
use modelless_live::Member;
use modelless_store::Machine;
use modelless_types::{Micros, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A pool as it is set. A scheduler tells it, so that others can say what it would do; whoever wants to know what it would do with
/// another one makes one up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSetting {
    /// As the rules see it.
    pub rules: Pool,
    /// Whether `joins_within` of the rules is set; otherwise it follows from how long starts take.
    pub joins_within_is_set: bool,
    /// What a start-up takes where none was seen.
    pub start_up: Micros,
    /// Hardware that behaves alike, where nobody of the pool has told yet.
    pub device_class: Option<String>,
    /// Batches that one runs side by side, the same.
    pub lanes: Option<u16>,
}

/// A pool with what was learnt from machines of its.
#[derive(Clone, PartialEq, Debug)]
pub struct Learnt {
    /// As the rules see it now.
    pub pool: Pool,
    /// How long starts take.
    pub start_up: StartUp,
    /// What failed lately.
    pub failures: Failures,
}

/// Learns from machines that are there and those that ended lately, the newest first.
pub fn learn(of: &PoolSetting, (machines, ended): (&[Machine], &[Machine]), now: Time) -> Learnt {
    let own = |machine: &&Machine| machine.pool == of.rules.name;
    let took = |machine: &Machine| Some(Micros(machine.joined?.0.saturating_sub(machine.asked.0)));
    let took: Vec<Micros> = ended.iter().rev().chain(machines).filter(own).filter_map(took).collect();
    let start_up = StartUp::learn(of.start_up, &took);
    let joins_within = if of.joins_within_is_set { of.rules.joins_within } else { start_up.joins_within() };
    let pool = Pool { joins_within, ..of.rules.clone() };
    let ends: Vec<Ended> = ended.iter().filter(own).map(end).collect();
    let joined = machines.iter().filter(own).filter_map(|machine| Some(Time(machine.joined?.0)));
    let failures = Failures::of(&ends, &joined.collect::<Vec<_>>(), pool.young, now);
    Learnt { pool, start_up, failures }
}

/// How many of each pool are wanted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// At least and at most so many.
    pub many: BTreeMap<String, (u32, u32)>,
    /// Why, where that is more than by what is asked now.
    pub foreseen: BTreeMap<String, fleet::Foreseen>,
}

/// How many of each pool are wanted, none of them busier than `busy`. Nobody is let go before demand was watched for as long as it is
/// remembered.
pub fn wanted(
    (counts, foreseen): (&Counts, &Foreseen),
    (pools, start_ups, kinds): (&[Pool], &[StartUp], &[Kinds]),
    times: &Times<'_>,
    busy: f64,
) -> Wanted {
    let each = pools.iter().zip(start_ups).zip(kinds);
    let kinds: Vec<Kind> = each
        .map(|((pool, start_up), kind)| Kind {
            most: pool.most as usize,
            stay: pool.least as usize,
            lanes: f64::from(kind.lanes),
            usd_per_hour: pool.price.as_usd(),
            lead_s: start_up.lead().as_millis_f64() / 1e3,
        })
        .collect();
    let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
    let watched = counts.watched();
    let of = |(pool, (least, most)): (&Pool, (usize, usize))| {
        (pool.name.clone(), (count(least), if watched { count(most) } else { pool.most }))
    };
    let by = |expected: &Expected| -> Vec<(String, (u32, u32))> {
        pools.iter().zip(times.wanted(counts, expected, (&kinds, busy))).map(of).collect()
    };
    let many = by(&foreseen.expected);
    let mut all = Wanted { many: many.iter().cloned().collect(), foreseen: BTreeMap::new() };
    if foreseen.peaks.is_empty() {
        return all;
    }
    let each = by(&Expected::default()).into_iter().zip(many).zip(pools.iter().zip(start_ups));
    for (((name, without), (_, with)), (pool, start_up)) in each {
        if with.0 > without.0 || with.1 > without.1 {
            all.foreseen.insert(name, fleet::Foreseen { without, why: foreseen.why(start_up, pool) });
        }
    }
    all
}

/// A node as its member tells it.
pub fn node(member: &Member) -> fleet::Node {
    let Member { load, draining, .. } = member;
    fleet::Node { queries: load.queries, busy_lanes: load.busy_lanes, draining: *draining }
}

/// A machine as the rules see it.
pub fn ruled(of: Machine) -> fleet::Machine {
    fleet::Machine {
        id: of.id,
        pool: of.pool,
        name: of.name,
        instance: of.instance,
        state: of.state,
        since: Time(of.since.0),
        asked: Time(of.asked.0),
        joined: of.joined.map(|at| Time(at.0)),
        price: of.price,
    }
}

fn end(machine: &Machine) -> Ended {
    Ended { state: machine.state, joined: machine.joined.map(|at| Time(at.0)), at: Time(machine.since.0) }
}
