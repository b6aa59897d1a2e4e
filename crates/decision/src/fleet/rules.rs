//! The rules: machine by machine what has become of it, then what nobody wrote down, then pool by pool what lacks or is too many.

use super::limits::Limits;
use super::{Decision, Input, List, Listed, Machine, Pool, PoolReport, Step};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use modelless_types::{MachineId, MachineState as S, Micros, PricePerHour, Time};

/// One that was asked for and that nobody has taken up is not wanted any more after so long, where fewer are wanted by then.
const GIVEN_UP_AFTER: Micros = Micros::from_secs(60);
/// One that does not go is taken away again after so long.
const STOP_AGAIN: Micros = Micros::from_secs(3);
/// A node that drains is gone when it was silent for so long.
const LEFT_AFTER: Micros = Micros::from_secs(3);

/// What to do now.
pub fn decide(now: Time, input: &Input) -> Decision {
    let mut rules = Rules { now, input, steps: Vec::new(), moved: BTreeMap::new() };
    let known = |machine: &&Machine| input.pools.iter().any(|pool| pool.name == machine.pool);
    for machine in input.machines.iter().filter(known) {
        if let Some(pool) = input.pools.iter().find(|pool| pool.name == machine.pool) {
            rules.follow(pool, machine);
        }
    }
    let mut limits = Limits::new(input);
    for pool in &input.pools {
        rules.orphans(pool, &mut limits);
    }
    let pools = rules.count(&mut limits);
    Decision { steps: rules.steps, pools }
}

struct Rules<'a> {
    now: Time,
    input: &'a Input,
    steps: Vec<Step>,
    /// Where machines stand after these steps.
    moved: BTreeMap<MachineId, S>,
}

impl<'a> Rules<'a> {
    fn state(&self, machine: &Machine) -> S {
        self.moved.get(&machine.id).copied().unwrap_or(machine.state)
    }

    fn to(&mut self, machine: &Machine, to: S, why: impl Into<String>) {
        self.step(machine, to, None, why.into());
    }

    fn step(&mut self, machine: &Machine, to: S, instance: Option<String>, why: String) {
        self.moved.insert(machine.id, to);
        self.steps.push(Step::Move { machine: machine.id, to, instance, why });
    }

    /// What became of a machine that is written down.
    fn follow(&mut self, pool: &'a Pool, machine: &'a Machine) {
        let list = self.input.listed.get(&pool.name);
        let listed = list.and_then(|list| list.named(&machine.name));
        let calls = self.input.calls(machine.id);
        // Nothing follows from a list that is older than what was done last, nor while a request is on its way.
        let gone =
            listed.is_none() && !calls.open && list.is_some_and(|list| self.tells(pool, machine, list));
        match machine.state {
            S::Asked => self.asked(pool, machine, listed, gone),
            S::Starting => self.starting(pool, machine, gone),
            S::Joined => self.joined(pool, machine, listed, gone),
            S::Draining => self.draining(pool, machine, gone),
            S::Stopping if gone => {
                // Whoever was let go before it joined has not failed.
                let never =
                    machine.joined.is_none() && machine.since.since(machine.asked) > pool.joins_within;
                let to = if never { S::Failed } else { S::Gone };
                self.to(machine, to, "it is not there any more");
            }
            S::Stopping | S::Gone | S::Failed => {}
        }
        self.call(machine, listed);
    }

    /// Requests that are due.
    fn call(&mut self, machine: &'a Machine, listed: Option<&Listed>) {
        let calls = self.input.calls(machine.id);
        if calls.open || calls.again() > self.now {
            return;
        }
        let id = machine.id;
        match self.state(machine) {
            S::Asked => self.steps.push(Step::Start { machine: id }),
            S::Stopping if calls.last == Time::ZERO || self.now >= calls.last + STOP_AGAIN => {
                let instance = listed.map(|listed| &listed.instance).or(machine.instance.as_ref());
                if let Some(instance) = instance {
                    self.steps.push(Step::Stop { machine: id, instance: instance.clone() });
                }
            }
            S::Starting | S::Joined | S::Draining | S::Stopping | S::Gone | S::Failed => {}
        }
    }

    /// Whether a list is new enough to tell that a machine is not there.
    fn tells(&self, pool: &Pool, machine: &Machine, list: &List) -> bool {
        // A request to start it that came to nothing may have been heard all the same, and one that was made just before this scheduler began, too.
        let called = self.input.calls(machine.id).last.max(self.input.began);
        let asked = if machine.state == S::Asked { called } else { Time::ZERO };
        list.at >= machine.since.max(asked) + pool.settles
    }

    fn asked(&mut self, pool: &Pool, machine: &Machine, listed: Option<&Listed>, gone: bool) {
        let waited = self.now.since(machine.asked);
        if let Some(listed) = listed {
            let why = "its provider has it".to_string();
            self.step(machine, S::Starting, Some(listed.instance.clone()), why);
        } else if gone && waited > pool.joins_within {
            let why = format!("its provider has not taken it up within {} s", waited.0 / 1_000_000);
            self.to(machine, S::Failed, why);
        } else if gone && waited > GIVEN_UP_AFTER && self.too_many(pool) > 0 {
            self.to(machine, S::Gone, "not wanted any more, and its provider has not taken it up");
        }
    }

    fn starting(&mut self, pool: &Pool, machine: &Machine, gone: bool) {
        let waited = self.now.since(machine.asked);
        if self.input.node(&machine.name).is_some() {
            self.to(
                machine,
                S::Joined,
                format!("its node is there after {:.1} s", waited.as_millis_f64() / 1e3),
            );
        } else if gone {
            self.to(machine, S::Failed, "it ended before its node was there");
        } else if self.input.nodes.is_some() && self.now.since(machine.since) > pool.joins_within {
            let within = pool.joins_within.0 / 1_000_000;
            self.to(machine, S::Stopping, format!("its node was not there within {within} s"));
        }
    }

    fn joined(&mut self, pool: &Pool, machine: &Machine, listed: Option<&Listed>, gone: bool) {
        let node = self.input.node(&machine.name);
        // A list may lack what is there. Whoever announces itself is, and while nobody can tell who does, nobody is taken for dead.
        if gone && self.input.nodes.is_some() && node.is_none() {
            self.to(machine, S::Failed, "it ended although nobody asked it to");
        } else if listed.is_some_and(|listed| listed.ending) {
            self.to(machine, S::Draining, "its provider takes it away");
        } else if node.is_some_and(|node| node.draining) {
            self.to(machine, S::Draining, "it drains by itself, or because its provider says that it goes");
        } else if self.silent(machine) > pool.lost_after {
            let after = pool.lost_after.0 / 1_000_000;
            let served =
                self.now.since(machine.joined.unwrap_or(machine.since)).saturating_sub(pool.lost_after);
            if served < pool.young {
                // Its provider has it still, and takes away what is written down as ended. Were it only let go, another would follow at once, and
                // so on for as long as they all die young.
                let why = format!(
                    "its node was silent for {after} s, {} s after it had joined",
                    served.0 / 1_000_000
                );
                self.to(machine, S::Failed, why);
            } else {
                self.to(machine, S::Stopping, format!("its node was silent for {after} s"));
            }
        }
    }

    fn draining(&mut self, pool: &Pool, machine: &Machine, gone: bool) {
        let drained = self.now.since(machine.since);
        if gone && self.input.node(&machine.name).is_none() {
            self.to(machine, S::Gone, "it is drained and not there any more");
        } else if drained > pool.drains_within {
            let within = pool.drains_within.0 / 1_000_000;
            self.to(machine, S::Stopping, format!("it was not drained within {within} s"));
        } else if drained > LEFT_AFTER && self.silent(machine) > LEFT_AFTER {
            self.to(machine, S::Stopping, "it is drained");
        }
    }

    /// For how long its node was not there; nothing while the live state is away.
    fn silent(&self, machine: &Machine) -> Micros {
        let seen = self.input.seen.get(&machine.id);
        match (&self.input.nodes, seen) {
            (Some(_), Some(seen)) => self.now.since(*seen),
            (_, None) | (None, _) => Micros::ZERO,
        }
    }

    /// What its provider has and nobody wrote down: kept where there is room, taken away elsewhere. One that is written down as
    /// ended is not taken back.
    fn orphans(&mut self, pool: &'a Pool, limits: &mut Limits<'a>) {
        for orphan in self.input.orphans(&pool.name).filter(|orphan| !orphan.ending) {
            let (pool_name, instance) = (pool.name.clone(), orphan.instance.clone());
            let ended = self.input.ended.contains(&orphan.name);
            let wanted = self.wanted(pool).1 > self.there(pool);
            if ended || limits.over(pool) || !wanted {
                limits.leaves(pool);
                let why = if ended {
                    "it is written down as ended"
                } else if wanted {
                    "nobody wrote it down, and there are too many"
                } else {
                    "nobody wrote it down, and it is not wanted"
                };
                self.steps.push(Step::Remove { pool: pool_name, instance, why: why.into() });
            } else {
                let why = "found at its provider, and nobody had written it down".into();
                self.steps.push(Step::Adopt { pool: pool_name, name: orphan.name.clone(), instance, why });
            }
        }
    }

    /// At least and at most so many are wanted, within what the pool may have.
    fn wanted(&self, pool: &Pool) -> (u32, u32) {
        let (least, most) = self.input.wanted.get(&pool.name).copied().unwrap_or((pool.least, pool.most));
        let least = least.max(pool.least).min(pool.most);
        (least, most.max(least).min(pool.most))
    }

    /// Machines that serve or will, adopted ones included.
    fn there(&self, pool: &Pool) -> u32 {
        let of_pool = self.input.machines.iter().filter(|machine| machine.pool == pool.name);
        let stay = of_pool.filter(|machine| self.state(machine).stays()).count();
        let adopted =
            self.steps.iter().filter(|step| matches!(step, Step::Adopt { pool: p, .. } if *p == pool.name));
        u32::try_from(stay + adopted.count()).unwrap_or(u32::MAX)
    }

    fn too_many(&self, pool: &Pool) -> u32 {
        self.there(pool).saturating_sub(self.wanted(pool).1)
    }

    /// Asks for what lacks and lets go of what is too many: all minimums first, then what is wanted beyond.
    fn count(&mut self, limits: &mut Limits<'a>) -> Vec<PoolReport> {
        let mut blocked = BTreeMap::new();
        for minimum in [true, false] {
            for pool in &self.input.pools {
                let least = if minimum { pool.least } else { self.wanted(pool).0 };
                // Steps asked for in the round before this one stand among the steps.
                let asked = |step: &&Step| matches!(step, Step::Ask { pool: p, .. } if *p == pool.name);
                let mut there =
                    self.there(pool) + u32::try_from(self.steps.iter().filter(asked).count()).unwrap_or(0);
                while there < least {
                    if let Err(why) = limits.one_more(pool, self.now) {
                        blocked.insert(&pool.name, why);
                        break;
                    }
                    let kind = if minimum { "the minimum" } else { "wanted" };
                    let mut why = format!("{least} are {kind}, {there} there or on their way");
                    let foreseen = self.input.foreseen.get(&pool.name).filter(|_| !minimum);
                    if let Some(foreseen) = foreseen.filter(|foreseen| there >= foreseen.without.0) {
                        why = format!(
                            "{why}; {} by what is asked now, and {}",
                            foreseen.without.0, foreseen.why
                        );
                    }
                    self.steps.push(Step::Ask { pool: pool.name.clone(), why });
                    there += 1;
                }
            }
        }
        for pool in &self.input.pools {
            let (most, there) = (self.wanted(pool).1, self.there(pool));
            for _ in most..there {
                let why = format!("{most} are enough, {} are there", self.there(pool));
                self.let_go(pool, &why);
            }
        }
        self.keep_within_budget();
        let report = |pool: &Pool| {
            let (least, most) = self.wanted(pool);
            let blocked = blocked.get(&pool.name).copied();
            let (there, paid) = (self.there(pool), limits.paid(&pool.name));
            PoolReport { pool: pool.name.clone(), least, most, there, paid, blocked }
        };
        self.input.pools.iter().map(report).collect()
    }

    /// Where more is spent than may be, what is beyond the minimums goes whatever is wanted, the dearest first.
    fn keep_within_budget(&mut self) {
        let Some(budget) = self.input.budget else { return };
        let mut pools: Vec<&Pool> = self.input.pools.iter().collect();
        pools.sort_by_key(|pool| core::cmp::Reverse(pool.price));
        for pool in pools {
            loop {
                let stay = self.input.machines.iter().filter(|machine| self.state(machine).stays());
                let spent: u64 = stay.map(|machine| machine.price.0).sum();
                let why = format!(
                    "{} USD an hour are spent, and {} may be",
                    PricePerHour(spent).as_usd(),
                    budget.as_usd()
                );
                if spent <= budget.0 || self.there(pool) <= pool.least || !self.let_go(pool, &why) {
                    break;
                }
            }
        }
    }

    /// Lets one go, if one may: those that are not there yet first, then the emptiest, then the youngest. Nobody that serves while
    /// nobody can tell how empty it is.
    fn let_go(&mut self, pool: &Pool, why: &str) -> bool {
        let load = |machine: &Machine| {
            let node = self.input.node(&machine.name);
            (self.state(machine) == S::Joined, node.map_or((0, 0), |node| (node.queries, node.busy_lanes)))
        };
        let may = |machine: &&Machine| match self.state(machine) {
            S::Starting => true,
            S::Joined => self.input.nodes.is_some(),
            S::Asked | S::Draining | S::Stopping | S::Gone | S::Failed => false,
        };
        let of_pool = self.input.machines.iter().filter(|machine| machine.pool == pool.name).filter(may);
        let first =
            of_pool.min_by_key(|machine| (load(machine), core::cmp::Reverse(machine.asked), machine.id));
        let Some(machine) = first else { return false };
        if self.state(machine) == S::Starting {
            self.to(machine, S::Stopping, why);
        } else {
            self.to(machine, S::Draining, format!("{why}; of these it has least to do"));
        }
        true
    }
}
