//! What is asked of all gateways, second by second, and what machines of each pool would take for it.

use modelless_decision::RunModel;
use modelless_decision::fleet::{Lateness, StartUp};
use modelless_decision::hire::{self, Asked, Counts, Expected};
use modelless_decision::query::Class;
use modelless_live::{Member, Role};
use modelless_store::{Catalog, Node};
use modelless_types::{Micros, Processor, TaskId, Time};
use std::collections::{BTreeMap, VecDeque};

/// Of late answers the last so many seconds count.
const LATE_S: usize = 5;
/// What a task's queries want where it does not say.
pub(crate) const LATENCY: Micros = modelless_decision::admission::DEFAULT_LATENCY;

/// However long machines take to come, no more seconds are remembered.
const MOST_S: usize = 3_600;
/// Between counts.
const SECOND: Micros = Micros::from_secs(1);
/// Where nobody looked for longer than so many seconds, what came meanwhile is not counted: nobody knows when it came.
const ABSENT_S: u64 = 30;

/// What gateways announce, counted second by second for machines to go by.
#[derive(Debug)]
pub struct Demand {
    counts: Counts,
    /// What each gateway told last, by name and instance.
    told: BTreeMap<(String, u64), BTreeMap<Class, (u64, u64)>>,
    bounds: BTreeMap<TaskId, Micros>,
    next: Time,
    /// When it was looked the last time.
    looked: Option<Time>,
    /// Queries that came and those in time, of the last seconds; and those that waited then.
    late: VecDeque<(u64, u64, u64)>,
}

impl Default for Demand {
    fn default() -> Self {
        Self::over(hire::REMEMBERED)
    }
}

impl Demand {
    /// That remembers so many seconds.
    pub fn over(remembered_s: usize) -> Self {
        Self {
            counts: Counts::over(remembered_s),
            told: BTreeMap::new(),
            bounds: BTreeMap::new(),
            next: Time::ZERO,
            looked: None,
            late: VecDeque::new(),
        }
    }

    /// The counts.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Remembers so many seconds from now on.
    pub fn remember(&mut self, seconds: usize) {
        self.counts.remember(seconds);
    }

    /// Queries a second.
    pub fn rate(&self) -> f64 {
        self.counts.level().values().fold(0.0, |sum, rate| sum + rate)
    }

    /// The bounds that tasks set.
    pub fn know(&mut self, catalog: &Catalog) {
        let bound = |task: &modelless_types::Task| (task.id, task.defaults.latency.unwrap_or(LATENCY));
        self.bounds = catalog.tasks.iter().map(bound).collect();
    }

    /// Looks at what gateways announce, once a second. Counts of a gateway that is met for the first time say nothing of when its queries
    /// came.
    pub fn look(&mut self, now: Time, members: &[Member]) {
        if now < self.next {
            return;
        }
        // Whoever looks late looks again a second later, and not at once for each second that it missed.
        self.next = (self.next + SECOND).max(now);
        // What came while nobody could look came in all of those seconds, and not in the last one.
        let passed = self.looked.replace(now).map_or(1, |looked| seconds(now.since(looked)));
        let mut told = BTreeMap::new();
        let (mut came, mut in_time, mut waiting) = (0, 0, 0);
        let mut arrived_since: Vec<(Asked, u64)> = Vec::new();
        for member in members.iter().filter(|member| member.role == Role::Gateway) {
            let key = (member.name.clone(), member.instance);
            let before = self.told.remove(&key);
            let mut counts = BTreeMap::new();
            for asked in member.demand.iter() {
                counts.insert(asked.class, (asked.arrived, asked.in_time));
                waiting += u64::from(asked.waiting);
                let Some(before) = &before else { continue };
                // A class that was not announced before had nothing, unless some are left out.
                let known = before.get(&asked.class).copied();
                let Some((arrived, answered)) = known.or((member.left_out == 0).then_some((0, 0))) else {
                    continue;
                };
                let more = asked.arrived.saturating_sub(arrived);
                came += more;
                in_time += asked.in_time.saturating_sub(answered);
                let bound = self.bounds.get(&asked.class.task).copied().unwrap_or(LATENCY);
                arrived_since.push(((asked.class, bound), more));
            }
            told.insert(key, counts);
        }
        self.told = told;
        if passed > ABSENT_S {
            self.late.clear();
            return;
        }
        for second in 0..passed {
            let part = |all: u64| all * (second + 1) / passed - all * second / passed;
            for (asked, more) in &arrived_since {
                self.counts.came(*asked, part(*more));
            }
            self.counts.pass();
            self.late.push_back((part(came), part(in_time), waiting));
            if self.late.len() > LATE_S {
                self.late.pop_front();
            }
        }
        self.counts.forget_silent();
    }

    /// What of the last seconds was late. What waits now and did not before is not late yet.
    pub fn lateness(&self, members: &[Member], settled: bool) -> Lateness {
        let sum = |of: fn(&(u64, u64, u64)) -> u64| self.late.iter().map(of).sum::<u64>();
        let (came, in_time) = (sum(|(came, ..)| *came), sum(|(_, in_time, _)| *in_time));
        let waits = |at: Option<&(u64, u64, u64)>| at.map_or(0, |(_, _, waiting)| *waiting);
        let more = waits(self.late.back()).saturating_sub(waits(self.late.front()));
        let nodes = || members.iter().filter(|member| member.role == Role::Node);
        Lateness {
            came,
            late: came.saturating_sub(in_time).saturating_sub(more),
            busy_lanes: nodes().map(|node| u64::from(node.load.busy_lanes)).sum(),
            lanes: nodes().map(|node| u64::from(node.load.lanes)).sum(),
            settled: settled && self.late.len() == LATE_S,
        }
    }
}

/// To the nearest, one at least.
fn seconds(passed: Micros) -> u64 {
    ((passed.0 + SECOND.0 / 2) / SECOND.0).max(1)
}

/// For how long demand is remembered: as long as is set, but twice as long as machines take to come at the least. Who asked when one was called
/// would else be forgotten before it serves.
pub fn remembered(set_s: usize, start_ups: &[StartUp]) -> usize {
    let longest = start_ups.iter().map(|start_up| start_up.nearly_always().0 / SECOND.0).max().unwrap_or(0);
    set_s.max(usize::try_from(2 * longest).unwrap_or(MOST_S).min(MOST_S))
}

/// How a pool's machines are, as far as that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kinds {
    /// Hardware that behaves alike.
    pub class: Option<String>,
    /// Batches that one runs side by side.
    pub lanes: u16,
}

impl Kinds {
    /// What its configuration says, or else the node of the pool that was there last.
    pub fn of(pool: &str, (class, lanes): (Option<&str>, Option<u16>), nodes: &[Node]) -> Self {
        let last = nodes.iter().filter(|node| node.about.pool == pool).max_by_key(|node| node.last_seen);
        let told = last.map(|node| (node.about.device_class.as_str(), node.about.lanes));
        let class = class.or(told.map(|(class, _)| class)).map(ToOwned::to_owned);
        let lanes = lanes.or(told.map(|(_, lanes)| lanes)).unwrap_or(1).max(1);
        Self { class, lanes }
    }
}

/// Whether machines of a class have no graphics processor for certain. Whoever names a class of his own says nothing of that.
fn without_gpu(class: &str) -> bool {
    matches!(class.split(':').collect::<Vec<_>>()[..], ["cpu", _, _])
}

/// Device time of queries by pool, from profiles: those of its device class or, while that is not known or has none, the slowest of all. What needs
/// a graphics processor runs on no machine that has none.
pub struct Times<'a> {
    /// By pool: the variants that it could run.
    pools: Vec<Vec<(&'a modelless_types::Variant, TaskId, RunModel, u32)>>,
}

impl<'a> Times<'a> {
    /// From what is registered.
    pub fn of(catalog: &'a Catalog, pools: &[Kinds]) -> Self {
        let tasks: BTreeMap<_, _> = catalog.models.iter().map(|model| (model.id, model.task)).collect();
        let run = |variant: &'a modelless_types::Variant, class: Option<&str>| {
            let task = *tasks.get(&variant.model)?;
            if variant.settings.processor != Processor::Cpu && class.is_some_and(without_gpu) {
                return None;
            }
            let own = class.and_then(|class| variant.profile_on(class));
            let modelled =
                |profile: &'a modelless_types::Profile| Some((profile, RunModel::from_profile(profile)?));
            let slowest = || {
                let all = variant.profiles.iter().filter_map(modelled);
                all.max_by(|(_, a), (_, b)| a.uncorrected(1).mean.total_cmp(&b.uncorrected(1).mean))
            };
            let (profile, run) = own.and_then(modelled).or_else(slowest)?;
            Some((variant, task, run, profile.largest_batch(variant.settings.max_batch)))
        };
        let of_pool = |kind: &Kinds| {
            catalog.variants.iter().filter_map(|variant| run(variant, kind.class.as_deref())).collect()
        };
        Self { pools: pools.iter().map(of_pool).collect() }
    }

    fn takes(&self, pool: usize, (class, bound): Asked) -> Option<f64> {
        let may = self.pools[pool]
            .iter()
            .filter(|(variant, task, ..)| *task == class.task && class.admits.contains(variant.ordinal));
        hire::takes(may.map(|(_, _, run, batch)| (run, *batch)), bound)
    }

    /// At least and at most so many machines of each pool.
    pub fn wanted(&self, counts: &Counts, expected: &Expected, room: hire::Room<'_>) -> Vec<(usize, usize)> {
        hire::wanted((counts, expected), room, &|pool, asked| self.takes(pool, asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_live::Demand as Told;

    fn gateway(instance: u64, arrived: &[(u32, u64, u64)]) -> Member {
        let class = |(task, arrived, in_time): &(u32, u64, u64)| Told {
            class: Class { task: TaskId(*task), admits: [0].into_iter().collect() },
            arrived: *arrived,
            in_time: *in_time,
            waiting: 0,
            within: Vec::new(),
        };
        Member { demand: arrived.iter().map(class).collect(), ..Member::new(Role::Gateway, "g", instance) }
    }

    #[test]
    fn demand_counts_what_came_since_a_gateway_was_met() {
        let mut demand = Demand::over(10);
        let mut at = Time(1);
        demand.look(at, &[gateway(1, &[(1, 1_000, 900)])]);
        assert!(demand.rate() < 0.1, "nobody knows when those came");
        at = at + SECOND;
        demand.look(at, &[gateway(1, &[(1, 1_100, 950), (2, 20, 20)])]);
        demand.look(at, &[gateway(1, &[(1, 9_999, 950)])]);
        at = at + SECOND;
        demand.look(at, &[gateway(1, &[(1, 1_200, 1_000), (2, 40, 40)])]);
        assert!((demand.rate() - 120.0).abs() < 0.1, "once a second only: {}", demand.rate());
        let late = demand.lateness(&[], true);
        assert_eq!((late.came, late.late, late.settled), (240, 100, false));
        demand.look(at + SECOND, &[gateway(2, &[(1, 9_000, 0)])]);
        assert!(demand.rate() < 121.0, "another instance begins anew");
    }

    #[test]
    fn only_a_class_that_says_so_has_no_graphics_processor() {
        assert!(without_gpu("cpu:amd-epyc-9r14:8"));
        assert!(!without_gpu("cpu:amd-epyc-9r14:8:nvidia-l4+nvidia-l4"));
        assert!(!without_gpu("our-large-ones") && !without_gpu("p4d.24xlarge"));
    }

    #[test]
    fn what_came_while_nobody_could_look_is_no_rush() {
        let mut demand = Demand::over(60);
        let mut at = Time(1);
        let mut arrived = 0;
        let mut after = |demand: &mut Demand, seconds: u64| {
            at = at + Micros::from_secs(seconds);
            arrived += 100 * seconds;
            demand.look(at, &[gateway(1, &[(1, arrived, arrived)])]);
        };
        (0..10).for_each(|_| after(&mut demand, 1));
        after(&mut demand, 16);
        assert!((demand.rate() - 100.0).abs() < 1.0, "16 seconds as 16 seconds: {}", demand.rate());
        after(&mut demand, 60);
        assert!((demand.rate() - 100.0).abs() < 1.0, "a minute says nothing: {}", demand.rate());
        assert_eq!(demand.lateness(&[], true).came, 0);
        after(&mut demand, 1);
        assert!((demand.rate() - 100.0).abs() < 1.0 && demand.lateness(&[], true).came == 100);
    }

    #[test]
    fn demand_is_remembered_for_twice_as_long_as_machines_take_to_come() {
        let of = |s: u64| StartUp::learn(Micros::from_secs(s), &[]);
        assert_eq!(remembered(60, &[]), 60);
        assert_eq!(remembered(60, &[of(2), of(20)]), 60);
        assert_eq!(remembered(60, &[of(90), of(20)]), 180);
        assert_eq!(remembered(60, &[of(1_000_000)]), MOST_S);
    }
}
