//! From how pools are set and what is written down of their machines to what is decided about them from.

use crate::ahead::Foreseen;
use crate::asked::{Kinds, Times};
use modelless_decision::fleet::{self, Ended, Failures, Pool, StartUp};
use modelless_decision::hire::{Counts, Expected, Kind, Room};
use modelless_live::Member;
use modelless_store::Machine;
use modelless_types::{MachineState, Micros, PricePerHour, Time};
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
    // Of one that was found nobody knows when it was asked for.
    let asked = |machine: &&Machine| !machine.was_found();
    let took = |machine: &Machine| Some(Micros(machine.joined?.0.saturating_sub(machine.asked.0)));
    let took: Vec<Micros> =
        ended.iter().rev().chain(machines).filter(own).filter(asked).filter_map(took).collect();
    let start_up = StartUp::learn(of.start_up, &took);
    let ends: Vec<Ended> = ended.iter().filter(own).map(end).collect();
    let joined = machines.iter().filter(own).filter_map(|machine| Some(Time(machine.joined?.0)));
    let failures = Failures::of(&ends, &joined.collect::<Vec<_>>(), of.rules.young, now);
    let joins_within = if of.joins_within_is_set {
        of.rules.joins_within
    } else {
        start_up.joins_within(failures.never_joined)
    };
    let pool = Pool { joins_within, ..of.rules.clone() };
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

/// What there is of pools, and what there may be.
#[derive(Clone, Copy, Debug)]
pub struct Rentable<'a> {
    /// Each with what was learnt of it.
    pub pools: &'a [Learnt],
    /// How machines of each are.
    pub kinds: &'a [Kinds],
    /// Those that have not ended.
    pub machines: &'a [Machine],
    /// What all together may cost, if that is limited.
    pub budget: Option<PricePerHour>,
    /// None is to be busier than this share of its time.
    pub busy: f64,
}

/// So many a pool may be counted on to have: where those before failed no more than are there and the one that is tried next, so that others
/// do meanwhile what it cannot.
fn may_have(Learnt { pool, failures, .. }: &Learnt, machines: &[Machine]) -> u32 {
    if failures.in_a_row == 0 {
        return pool.most;
    }
    let there = |of: &&Machine| {
        of.pool == pool.name && matches!(of.state, MachineState::Starting | MachineState::Joined)
    };
    let there = u32::try_from(machines.iter().filter(there).count()).unwrap_or(u32::MAX);
    pool.most.min(there.saturating_add(1))
}

/// How many of each pool are wanted. Nobody is let go before demand was watched for as long as it is remembered.
pub fn wanted(
    (counts, foreseen): (&Counts, &Foreseen),
    Rentable { pools, kinds, machines, budget, busy }: Rentable<'_>,
    times: &Times<'_>,
) -> Wanted {
    let each = pools.iter().zip(kinds);
    let kinds: Vec<Kind> = each
        .map(|(of @ Learnt { pool, start_up, .. }, kind)| Kind {
            most: may_have(of, machines) as usize,
            stay: pool.least as usize,
            lanes: f64::from(kind.lanes),
            usd_per_hour: pool.price.as_usd(),
            lead_s: start_up.lead().as_millis_f64() / 1e3,
        })
        .collect();
    let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
    let watched = counts.watched();
    let of = |(Learnt { pool, .. }, (least, most)): (&Learnt, (usize, usize))| {
        (pool.name.clone(), (count(least), if watched { count(most) } else { pool.most }))
    };
    let room = Room { kinds: &kinds, busy, budget_usd: budget.map_or(f64::INFINITY, PricePerHour::as_usd) };
    let by = |expected: &Expected| -> Vec<(String, (u32, u32))> {
        pools.iter().zip(times.wanted(counts, expected, room)).map(of).collect()
    };
    let many = by(&foreseen.expected);
    let mut all = Wanted { many: many.iter().cloned().collect(), foreseen: BTreeMap::new() };
    if foreseen.peaks.is_empty() {
        return all;
    }
    let each = by(&Expected::default()).into_iter().zip(many).zip(pools);
    for (((name, without), (_, with)), Learnt { pool, start_up, .. }) in each {
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
    Ended {
        state: machine.state,
        joined: machine.joined.map(|at| Time(at.0)),
        taken_up: machine.instance.is_some(),
        at: Time(machine.since.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::UnixMicros;
    use modelless_types::MachineId;

    fn setting() -> PoolSetting {
        let rules = Pool {
            name: "p".to_owned(),
            least: 0,
            most: 9,
            price: PricePerHour(1),
            joins_within: Micros::ZERO,
            drains_within: Micros::from_secs(60),
            settles: Micros::from_secs(5),
            young: Micros::from_secs(60),
            lost_after: Micros::from_secs(30),
        };
        let start_up = Micros::from_secs(90);
        PoolSetting { rules, joins_within_is_set: false, start_up, device_class: None, lanes: None }
    }

    fn machine(name: &str, id: u64, (asked, joined): (u64, Option<u64>), state: MachineState) -> Machine {
        let at = |s: u64| UnixMicros(s * 1_000_000);
        Machine {
            id: MachineId(id),
            pool: "p".to_owned(),
            name: name.to_owned(),
            instance: None,
            state,
            price: PricePerHour(1),
            asked: at(asked),
            since: at(asked + 500),
            joined: joined.map(at),
        }
    }

    #[test]
    fn of_a_machine_that_was_found_nobody_knows_how_long_it_took_to_come() {
        let all: Vec<Machine> = (1..=8)
            .map(|id| machine(&format!("p-{}", id + 90), id, (100, Some(101)), MachineState::Joined))
            .collect();
        let learnt = learn(&setting(), (&all, &[]), Time(200_000_000));
        assert_eq!((learnt.start_up.samples, learnt.start_up.median), (0, Micros::from_secs(90)));
        let own = [machine("p-9", 9, (100, Some(130)), MachineState::Joined)];
        assert_eq!(learn(&setting(), (&own, &[]), Time(200_000_000)).start_up.samples, 1);
    }

    #[test]
    fn one_is_waited_for_longer_while_none_comes_in_time() {
        let failed = |id: u64, taken_up: bool| Machine {
            instance: taken_up.then(|| format!("i-{id}")),
            ..machine(&format!("p-{id}"), id, (id * 1_000, None), MachineState::Failed)
        };
        let within = |taken_up: bool, many: u64| {
            let ended: Vec<Machine> = (1..=many).rev().map(|id| failed(id, taken_up)).collect();
            learn(&setting(), (&[], &ended), Time(90_000_000_000)).pool.joins_within.0 / 1_000_000
        };
        assert_eq!([0, 1, 2, 7].map(|many| within(true, many)), [360, 720, 1_440, 1_440]);
        assert_eq!(within(false, 7), 360, "its provider refused: that says nothing of how long starts take");
        let set = PoolSetting { joins_within_is_set: true, ..setting() };
        let learnt = learn(&set, (&[], &[failed(1, true)]), Time(90_000_000_000));
        assert_eq!(learnt.pool.joins_within, set.rules.joins_within, "what is set holds");
    }

    #[test]
    fn a_pool_whose_machines_fail_is_counted_on_for_what_is_there_and_one_more() {
        let joined = |id| machine(&format!("p-{id}"), id, (100, Some(130)), MachineState::Joined);
        let failed = machine("p-9", 9, (199_000, None), MachineState::Failed);
        let now = Time(199_600_000_000);
        let many = |machines: &[Machine], ended: &[Machine]| {
            may_have(&learn(&setting(), (machines, ended), now), machines)
        };
        assert_eq!(many(&[joined(1), joined(2)], &[]), 9);
        assert_eq!(many(&[joined(1), joined(2)], std::slice::from_ref(&failed)), 3);
        let draining = Machine { state: MachineState::Draining, ..joined(3) };
        assert_eq!(many(&[draining], &[failed]), 1);
    }
}
