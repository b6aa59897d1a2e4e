//! What is asked of all gateways, second by second, and what machines of each pool would take for it.

use modelless_decision::RunModel;
use modelless_decision::fleet::Lateness;
use modelless_decision::hire::{self, Asked, Counts, Kind};
use modelless_decision::query::Class;
use modelless_live::{Member, Role};
use modelless_store::{Catalog, Node};
use modelless_types::{Micros, TaskId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Of late answers the last so many seconds count.
const LATE_S: usize = 5;
/// What a task's queries want where it does not say.
const LATENCY: Micros = modelless_decision::admission::DEFAULT_LATENCY;

/// Counts of all gateways.
pub(super) struct Demand {
    counts: Counts,
    /// What each gateway told last, by name and instance.
    told: BTreeMap<(String, u64), BTreeMap<Class, (u64, u64)>>,
    bounds: BTreeMap<TaskId, Micros>,
    next: Instant,
    /// Queries that came and those in time, of the last seconds; and those that waited then.
    late: VecDeque<(u64, u64, u64)>,
}

impl Demand {
    pub(super) fn over(remembered_s: usize) -> Self {
        Self {
            counts: Counts::over(remembered_s),
            told: BTreeMap::new(),
            bounds: BTreeMap::new(),
            next: Instant::now(),
            late: VecDeque::new(),
        }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Queries a second.
    pub(super) fn rate(&self) -> f64 {
        self.counts.level().values().fold(0.0, |sum, rate| sum + rate)
    }

    /// The bounds that tasks set.
    pub(super) fn know(&mut self, catalog: &Catalog) {
        let bound = |task: &modelless_types::Task| (task.id, task.defaults.latency.unwrap_or(LATENCY));
        self.bounds = catalog.tasks.iter().map(bound).collect();
    }

    /// Looks at what gateways announce, once a second. Counts of a gateway that is met for the first time say nothing of when its queries
    /// came.
    pub(super) fn look(&mut self, members: &[Member]) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        // After a longer absence no seconds are made up.
        self.next = (self.next + Duration::from_secs(1)).max(now);
        let mut told = BTreeMap::new();
        let (mut came, mut in_time, mut waiting) = (0, 0, 0);
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
                self.counts.came((asked.class, bound), more);
            }
            told.insert(key, counts);
        }
        self.told = told;
        self.counts.pass();
        self.counts.forget_silent();
        self.late.push_back((came, in_time, waiting));
        if self.late.len() > LATE_S {
            self.late.pop_front();
        }
    }

    /// What of the last seconds was late. What waits now and did not before is not late yet.
    pub(super) fn lateness(&self, members: &[Member], settled: bool) -> Lateness {
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

/// How a pool's machines are, as far as that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Kinds {
    pub(super) class: Option<String>,
    pub(super) lanes: u16,
}

impl Kinds {
    /// What its configuration says, or else the node of the pool that was there last.
    pub(super) fn of(pool: &str, (class, lanes): (Option<&str>, Option<u16>), nodes: &[Node]) -> Self {
        let last = nodes.iter().filter(|node| node.about.pool == pool).max_by_key(|node| node.last_seen);
        let told = last.map(|node| (node.about.device_class.as_str(), node.about.lanes));
        let class = class.or(told.map(|(class, _)| class)).map(ToOwned::to_owned);
        let lanes = lanes.or(told.map(|(_, lanes)| lanes)).unwrap_or(1).max(1);
        Self { class, lanes }
    }
}

/// Device time of queries by pool, from profiles: those of its device class or, while that is not known or has none, the slowest of all.
pub(super) struct Times<'a> {
    /// By pool: the variants that it could run.
    pools: Vec<Vec<(&'a modelless_types::Variant, TaskId, RunModel, u32)>>,
}

impl<'a> Times<'a> {
    pub(super) fn of(catalog: &'a Catalog, pools: &[Kinds]) -> Self {
        let tasks: BTreeMap<_, _> = catalog.models.iter().map(|model| (model.id, model.task)).collect();
        let run = |variant: &'a modelless_types::Variant, class: Option<&str>| {
            let task = *tasks.get(&variant.model)?;
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
    pub(super) fn wanted(&self, counts: &Counts, kinds: &[Kind], busy: f64) -> Vec<(usize, usize)> {
        hire::wanted(counts, (kinds, busy), &|pool, asked| self.takes(pool, asked))
    }
}
