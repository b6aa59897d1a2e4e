//! A provider that fails in every way, machines that never come or die, and a scheduler that forgets: what the rules are played in.

use super::*;
use alloc::format;
use alloc::string::ToString as _;

/// How often what goes wrong, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// A request is refused for want of machines.
    pub(super) capacity: u64,
    /// A request is done and its answer is lost.
    pub(super) lost: u64,
    /// The provider does not answer for a while.
    pub(super) away: u64,
    /// A list lacks a machine that is there.
    pub(super) lacks: u64,
    /// A machine never joins.
    pub(super) never: u64,
    /// A machine dies, each second.
    pub(super) dies: u64,
    /// The scheduler is killed, each second, and forgets what it did not write down.
    pub(super) killed: u64,
    /// What was written down is lost, as after an older backup.
    pub(super) forgotten: u64,
}

struct Real {
    name: String,
    instance: String,
    pool: String,
    started: u64,
    joins: Option<u64>,
    ends: Option<u64>,
}

/// Everything there is.
pub(super) struct World {
    pub(super) now: u64,
    pub(super) faults: Faults,
    pub(super) input: Input,
    real: Vec<Real>,
    ends: Vec<(String, Ended)>,
    rng: u64,
    away_until: u64,
    next: u64,
    /// What was done so far, by whom it was asked for.
    pub(super) asked: u64,
    pub(super) let_go: u64,
}

pub(super) const SETTLES_S: u64 = 5;

pub(super) fn pool(name: &str, least: u32, most: u32, price: u64) -> Pool {
    Pool {
        name: name.to_string(),
        least,
        most,
        price: PricePerHour(price),
        joins_within: Micros::from_secs(60),
        drains_within: Micros::from_secs(30),
        settles: Micros::from_secs(SETTLES_S),
        young: Micros::from_secs(60),
        lost_after: Micros::from_secs(30),
    }
}

impl World {
    pub(super) fn new(seed: u64, pools: Vec<Pool>, budget: Option<u64>) -> Self {
        let input = Input { pools, budget: budget.map(PricePerHour), ..Input::default() };
        Self {
            now: 1_000,
            faults: Faults::default(),
            input,
            real: Vec::new(),
            ends: Vec::new(),
            rng: seed | 1,
            away_until: 0,
            next: 1,
            asked: 0,
            let_go: 0,
        }
    }

    fn time(&self) -> Time {
        Time::ZERO + Micros::from_secs(self.now)
    }

    fn chance(&mut self, permille: u64) -> bool {
        self.below(1_000) < permille
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        (self.rng >> 11) % n
    }

    pub(super) fn want(&mut self, pool: &str, least: u32, most: u32) {
        self.input.wanted.insert(pool.to_string(), (least, most));
    }

    /// Machines that the provider really has.
    pub(super) fn really(&self, pool: &str) -> usize {
        self.real.iter().filter(|real| real.pool == pool).count()
    }

    pub(super) fn joined(&self, pool: &str) -> usize {
        let there = |real: &&Real| real.joins.is_some_and(|joins| joins <= self.now) && real.ends.is_none();
        self.real.iter().filter(|real| real.pool == pool).filter(there).count()
    }

    pub(super) fn states(&self) -> Vec<MachineState> {
        self.input.machines.iter().map(|machine| machine.state).collect()
    }

    /// A machine that nobody wrote down.
    pub(super) fn stray(&mut self, pool: &str) {
        let name = format!("stray-{}", self.next);
        self.begin(&name, pool);
        self.real.last_mut().expect("it was made just now").started = 0;
    }

    fn begin(&mut self, name: &str, pool: &str) -> String {
        if let Some(known) = self.real.iter().find(|real| real.name == name) {
            return known.instance.clone(); // the same request again
        }
        self.next += 1;
        let joins = if self.chance(self.faults.never) { None } else { Some(self.now + 2 + self.below(20)) };
        let instance = format!("i-{}", self.next);
        self.real.push(Real {
            name: name.to_string(),
            instance: instance.clone(),
            pool: pool.to_string(),
            started: self.now,
            joins,
            ends: None,
        });
        instance
    }

    /// A second passes, and the scheduler looks once.
    pub(super) fn second(&mut self) {
        self.now += 1;
        for at in 0..self.real.len() {
            if self.chance(self.faults.dies) {
                self.real[at].ends.get_or_insert(self.now);
            }
        }
        let now = self.now;
        self.real.retain(|real| real.ends.is_none_or(|ends| ends > now));
        if self.chance(self.faults.away) {
            self.away_until = now + 1 + self.below(90);
        }
        if self.chance(self.faults.killed) {
            self.input.calls.clear();
            self.input.seen.clear();
            self.input.listed.clear();
            self.input.began = self.time();
        }
        let lost = self.chance(self.faults.forgotten) && self.now >= self.away_until;
        if lost {
            // What its provider does not list yet nobody could find.
            let old = self.time().0.saturating_sub(Micros::from_secs(60).0);
            if let Some(at) = self.input.machines.iter().position(|machine| machine.asked.0 < old) {
                self.input.machines.remove(at);
            }
        }
        self.observe();
        // What is asked for is asked of the provider at once, as the live loop does it.
        for _ in 0..3 {
            let decision = decide(self.time(), &self.input);
            let more = decision.steps.iter().any(|step| matches!(step, Step::Ask { .. }));
            decision.steps.into_iter().for_each(|step| self.perform(step));
            if !more {
                break;
            }
        }
    }

    fn observe(&mut self) {
        let now = self.time();
        if self.now >= self.away_until {
            for pool in self.input.pools.clone() {
                let mut all = Vec::new();
                for at in 0..self.real.len() {
                    // A list may lack what is new.
                    let new = self.now < self.real[at].started + SETTLES_S - 1;
                    let lacks = (new && self.chance(500)) || self.chance(self.faults.lacks);
                    if self.real[at].pool == pool.name && !lacks {
                        let real = &self.real[at];
                        let (name, instance) = (real.name.clone(), real.instance.clone());
                        all.push(Listed { name, instance, ending: false });
                    }
                }
                self.input.listed.insert(pool.name, List { at: now, all });
            }
        }
        let there = self.real.iter().filter(|real| real.joins.is_some_and(|joins| joins <= self.now));
        let draining = |name: &str| {
            let of = self.input.machines.iter().find(|machine| machine.name == name);
            of.is_some_and(|machine| machine.state == MachineState::Draining)
        };
        let node = |real: &Real| {
            (real.name.clone(), Node { queries: 0, busy_lanes: 0, draining: draining(&real.name) })
        };
        let nodes: BTreeMap<_, _> = there.map(node).collect();
        // What drains is empty a few seconds later and ends by itself.
        for real in &mut self.real {
            if nodes.get(&real.name).is_some_and(|node| node.draining) {
                real.ends.get_or_insert(self.now + 2);
            }
        }
        for machine in &self.input.machines {
            let seen = self.input.seen.entry(machine.id).or_insert(now);
            if nodes.contains_key(&machine.name) {
                *seen = now;
            }
        }
        self.input.nodes = Some(nodes);
        for pool in &self.input.pools {
            let ends: Vec<Ended> =
                self.ends.iter().filter(|(of, _)| *of == pool.name).map(|(_, end)| *end).collect();
            let joined: Vec<Time> = self.input.machines.iter().filter_map(|machine| machine.joined).collect();
            let failures = Failures::of(&ends, &joined, pool.young, now);
            self.input.failures.insert(pool.name.clone(), failures);
        }
    }

    fn perform(&mut self, step: Step) {
        let now = self.time();
        match step {
            Step::Ask { pool, .. } => {
                self.asked += 1;
                self.next += 1;
                let name = format!("{pool}-{}", self.next);
                let id = self.write(&pool, name, None, MachineState::Asked);
                self.input.calls.insert(id, Calls { fresh: true, ..Calls::default() });
            }
            Step::Adopt { pool, name, instance, .. } => {
                let _ = self.write(&pool, name, Some(instance), MachineState::Starting);
            }
            Step::Start { machine } => self.start(machine),
            Step::Stop { machine, instance } => {
                let failed = self.now < self.away_until;
                if !failed {
                    self.end(&instance);
                }
                self.called(machine, failed);
            }
            Step::Remove { instance, .. } => {
                if self.now >= self.away_until {
                    self.end(&instance);
                }
            }
            Step::Move { machine, to, instance, .. } => {
                if to == MachineState::Draining {
                    self.let_go += 1;
                }
                let known = self.input.machines.iter_mut().find(|known| known.id == machine);
                let known = known.expect("rules speak of what is written down");
                assert!(known.state.may_become(to), "{:?} to {to:?}", known.state);
                (known.state, known.since) = (to, now);
                known.instance = instance.or(known.instance.take());
                if to == MachineState::Joined {
                    known.joined = Some(now);
                }
                if to.ended() {
                    let end = Ended {
                        state: to,
                        joined: known.joined,
                        taken_up: known.instance.is_some(),
                        at: now,
                    };
                    self.ends.push((known.pool.clone(), end));
                    self.input.ended.insert(known.name.clone());
                    self.input.machines.retain(|known| known.id != machine);
                }
            }
        }
    }

    fn write(
        &mut self,
        pool: &str,
        name: String,
        instance: Option<String>,
        state: MachineState,
    ) -> MachineId {
        let now = self.time();
        self.next += 1;
        let price = self.input.pools.iter().find(|known| known.name == pool).expect("a known pool").price;
        let pool = pool.to_string();
        let (since, asked, joined) = (now, now, None);
        let id = MachineId(self.next);
        self.input.machines.push(Machine { id, pool, name, instance, state, since, asked, joined, price });
        id
    }

    fn called(&mut self, machine: MachineId, failed: bool) {
        let now = self.time();
        let calls = self.input.calls.entry(machine).or_default();
        *calls = calls.ended(failed, now);
    }

    fn start(&mut self, id: MachineId) {
        let machine =
            self.input.machines.iter().find(|machine| machine.id == id).expect("written down").clone();
        if self.now < self.away_until {
            return self.called(id, true);
        }
        if self.chance(self.faults.capacity) {
            if !self.input.calls.get(&id).is_some_and(Calls::refused_for_good) {
                return self.called(id, true);
            }
            let why = "there are none".to_string();
            return self.perform(Step::Move { machine: id, to: MachineState::Failed, instance: None, why });
        }
        let instance = self.begin(&machine.name, &machine.pool);
        if self.chance(self.faults.lost) {
            return self.called(id, true);
        }
        self.called(id, false);
        let (to, why) = (MachineState::Starting, "its provider has it".to_string());
        self.perform(Step::Move { machine: id, to, instance: Some(instance), why });
    }

    fn end(&mut self, instance: &str) {
        let ends = self.now + 1 + self.below(5);
        if let Some(real) = self.real.iter_mut().find(|real| real.instance == instance) {
            real.ends.get_or_insert(ends);
        }
    }
}
