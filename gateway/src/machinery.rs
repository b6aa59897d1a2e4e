//! What would become of machines: from what the scheduler told of its pools, what is written down of their machines, and what is asked,
//! by the calls that decide about them. For people: nothing here is asked for.
//!
//! What only the scheduler knows is left as it is: of providers it is believed that they have what is written down, and of nodes that
//! nobody has fallen silent this moment.

use crate::core::Core;
use crate::errors::ApiError;
use crate::routes::App;
use modelless_decision::baseline::Rules;
use modelless_decision::fleet::{Decision, Input, List, Listed, Pool, PoolReport, StartUp, Step, decide};
use modelless_decision::forecast::Forecast;
use modelless_decision::hire::Counts;
use modelless_live::Role;
use modelless_planning::{Kinds, Learnt, PoolSetting, Rentable, Times, foreseen, learn, node, ruled, wanted};
use modelless_store::{Catalog, Machine, Node, PoolStands, UnixMicros};
use modelless_types::{MachineState, Micros, PricePerHour, Time};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// As many as the scheduler looks at.
const ENDED: u32 = 200;
/// The most pools that can be supposed, and machines of all of them: each one more is weighed against all pools.
const POOLS_MAX: usize = 20;
const MACHINES_MAX: u64 = 1_000;
/// Times that can be supposed are no longer, and machines cost no more.
const DAY: Micros = Micros::from_secs(86_400);
const PRICE_MAX: PricePerHour = PricePerHour(1_000_000_000_000);

/// All pools, as somebody sets them.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    budget: Option<PricePerHour>,
    busy: f64,
    pools: Vec<PoolSetting>,
}

impl Setting {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.pools.is_empty() || self.pools.len() > POOLS_MAX {
            return Err(format!("there are {} pools; expected 1 to {POOLS_MAX}", self.pools.len()));
        }
        if !(self.busy > 0.0 && self.busy <= 1.0) {
            return Err(format!("`busy` is {}; expected a share above 0 and at most 1", self.busy));
        }
        for pool in &self.pools {
            let Pool { name, price, joins_within, drains_within, settles, young, lost_after, .. } =
                &pool.rules;
            let times = [*joins_within, *drains_within, *settles, *young, *lost_after, pool.start_up];
            if times.iter().any(|time| *time > DAY) || *price > PRICE_MAX {
                return Err(format!(
                    "pool {name:?}: a time is longer than a day, or a machine costs more than {} dollars an hour",
                    PRICE_MAX.as_usd()
                ));
            }
        }
        let all: u64 = self.pools.iter().map(|pool| u64::from(pool.rules.most)).sum();
        if all > MACHINES_MAX {
            return Err(format!(
                "the pools may have {all} machines together; expected {MACHINES_MAX} at most"
            ));
        }
        let wrong = self.pools.iter().map(|pool| &pool.rules).find(|rules| rules.least > rules.most);
        wrong.map_or(Ok(()), |rules| {
            let Pool { name, least, most, .. } = rules;
            Err(format!("pool {name:?}: `least` is {least} and `most` {most}; expected `least` <= `most`"))
        })
    }
}

/// What the scheduler said of a pool.
#[derive(Debug, Deserialize)]
struct Said {
    setting: PoolSetting,
    listed: bool,
    busy: f64,
    strain: f64,
    budget_usd_per_hour: Option<f64>,
    /// Whose rules say how many there should be; ours where it does not say.
    #[serde(default)]
    rules: Rules,
}

/// Everything there is to decide from.
pub(crate) struct Told {
    settings: Vec<PoolSetting>,
    budget: Option<PricePerHour>,
    busy: f64,
    /// What the scheduler learnt of how much more is needed than is counted.
    strain: f64,
    /// Pools of which it is known what their providers have.
    listed: BTreeSet<String>,
    /// Whose rules the scheduler goes by; ours where pools are supposed.
    rules: Rules,
    /// When the scheduler said all that.
    at: Option<UnixMicros>,
    machines: Vec<Machine>,
    ended: Vec<Machine>,
    nodes: Vec<Node>,
}

/// Nothing where no scheduler sees to machines, and none is supposed to.
pub(crate) async fn told(app: &App, supposed: Option<&Setting>) -> Result<Option<Told>, ApiError> {
    let rented = app.store.rented();
    let stand = rented.pools().await?;
    let read = |pool: &PoolStands| serde_json::from_str::<Said>(&pool.json).ok();
    let said: Vec<Said> = stand.iter().filter_map(read).collect();
    let strain = said.iter().map(|said| said.strain).fold(1.0, f64::max);
    let usd = |usd: f64| PricePerHour::parse_usd(&format!("{usd}"));
    let (settings, budget, busy, listed, rules) = if let Some(Setting { budget, busy, pools }) = supposed {
        let all = pools.iter().map(|pool| pool.rules.name.clone()).collect();
        (pools.clone(), *budget, *busy, all, Rules::Modelless)
    } else {
        let Some(first) = said.first() else { return Ok(None) };
        let (budget, busy, rules) = (first.budget_usd_per_hour.and_then(usd), first.busy, first.rules);
        let listed = said.iter().filter(|said| said.listed).map(|said| said.setting.rules.name.clone());
        let listed = listed.collect();
        (said.into_iter().map(|said| said.setting).collect(), budget, busy, listed, rules)
    };
    Ok(Some(Told {
        settings,
        budget,
        busy,
        strain,
        listed,
        rules,
        at: stand.iter().map(|pool| pool.at).max(),
        machines: rented.machines().await?,
        ended: rented.ended_machines(ENDED).await?,
        nodes: app.store.nodes().await?,
    }))
}

impl Told {
    /// Whether there is a machine of this name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.machines.iter().any(|machine| machine.name == name)
    }

    /// What would be done about machines, and why; as if one of them were not there.
    pub(crate) fn decided(
        self,
        core: &Core,
        catalog: &Catalog,
        (counts, forecast): (&Counts, &Forecast),
        without: Option<&str>,
    ) -> Value {
        let now = Time(UnixMicros::of(SystemTime::now()).0);
        if self.rules != Rules::Modelless {
            return self.undecided(counts);
        }
        let Self { settings, budget, busy, strain, listed, rules, at, mut machines, ended, nodes: stored } =
            self;
        machines.retain(|machine| without != Some(machine.name.as_str()));
        for machine in &mut machines {
            let of = settings.iter().find(|of| of.rules.name == machine.pool);
            machine.price = of.map_or(machine.price, |of| of.rules.price); // as a scheduler does
        }
        let learnt: Vec<Learnt> = settings.iter().map(|of| learn(of, (&machines, &ended), now)).collect();
        let start_ups: Vec<StartUp> = learnt.iter().map(|of| of.start_up).collect();
        let pools: Vec<Pool> = learnt.iter().map(|of| of.pool.clone()).collect();
        let kind =
            |of: &PoolSetting| Kinds::of(&of.rules.name, (of.device_class.as_deref(), of.lanes), &stored);
        let kinds: Vec<Kinds> = settings.iter().map(kind).collect();
        let times = Times::of(catalog, &kinds);
        let foreseen = foreseen(forecast, catalog, &start_ups, now);
        let room =
            Rentable { pools: &learnt, kinds: &kinds, machines: &machines, budget, busy: busy / strain };
        let wanted = wanted((counts, &foreseen), room, &times);
        let members = core.members();
        let there = members.iter().filter(|member| member.role == Role::Node);
        let there = there.filter(|member| without != Some(member.name.as_str()));
        let known = |pool: &String| (pool.clone(), has(pool, &machines));
        let input = Input {
            budget,
            ended: ended.iter().map(|machine| machine.name.clone()).collect(),
            listed: listed.iter().map(known).collect(),
            nodes: Some(there.map(|member| (member.name.clone(), node(member))).collect()),
            seen: machines.iter().map(|machine| (machine.id, now)).collect(),
            wanted: wanted.many,
            foreseen: wanted.foreseen,
            failures: learnt.into_iter().map(|of| (of.pool.name, of.failures)).collect(),
            calls: BTreeMap::new(),
            began: Time::ZERO,
            machines: machines.into_iter().map(ruled).collect(),
            pools,
        };
        let decision = decide(now, &input);
        let level = counts.level();
        json!({
            "rules": rules.name(),
            "pools": decision.pools.iter().zip(&input.pools).map(|(report, pool)| stands(report, pool)).collect::<Vec<_>>(),
            "steps": steps(&input, &decision),
            "usd_per_hour": spent(&input, &decision),
            "budget_usd_per_hour": budget.map(PricePerHour::as_usd),
            "demand_per_s": level.values().sum::<f64>(),
            "busy": busy,
            "strain": strain,
            "watched": counts.watched(),
            "as_of_unix_us": at,
        })
    }

    /// The rules of others go by what they saw over time, which only the scheduler knows: what they would do is not told, and what ours
    /// would do is not what happens.
    fn undecided(&self, counts: &Counts) -> Value {
        let now: u64 = self.machines.iter().map(|machine| machine.price.0).sum();
        json!({
            "rules": self.rules.name(),
            "pools": [],
            "steps": [],
            "usd_per_hour": {"now": PricePerHour(now).as_usd(), "then": null},
            "budget_usd_per_hour": self.budget.map(PricePerHour::as_usd),
            "demand_per_s": counts.level().values().sum::<f64>(),
            "busy": self.busy,
            "strain": self.strain,
            "watched": counts.watched(),
            "as_of_unix_us": self.at,
        })
    }
}

/// As if its provider had told nothing else than is written down, so long ago that nothing follows from what it lacks.
fn has(pool: &str, machines: &[Machine]) -> List {
    let own = machines.iter().filter(|machine| machine.pool == pool);
    let listed = |machine: &Machine| {
        let instance = machine.instance.clone()?;
        Some(Listed { name: machine.name.clone(), instance, ending: false })
    };
    List { at: Time::ZERO, all: own.filter_map(listed).collect() }
}

fn stands(report: &PoolReport, pool: &Pool) -> Value {
    json!({
        "pool": report.pool,
        "least": pool.least,
        "most": pool.most,
        "wanted_least": report.least,
        "wanted_most": report.most,
        "there": report.there,
        "paid": report.paid,
        "price_usd_per_hour": pool.price.as_usd(),
        "blocked": report.blocked.map(|why| why.to_string()),
    })
}

/// Those that people care for: what comes and what goes.
fn steps(input: &Input, decision: &Decision) -> Vec<Value> {
    let step = |step: &Step| match step {
        Step::Ask { pool, why } => Some(json!({"step": "start", "pool": pool, "machine": null, "why": why})),
        Step::Move { machine, to, why, .. } => {
            let of = input.machines.iter().find(|known| known.id == *machine)?;
            let what = match to {
                MachineState::Draining => "drain",
                MachineState::Stopping => "take away",
                MachineState::Failed => "give up",
                MachineState::Asked | MachineState::Starting | MachineState::Joined | MachineState::Gone => {
                    return None;
                }
            };
            Some(json!({"step": what, "pool": of.pool, "machine": of.name, "why": why}))
        }
        Step::Start { .. } | Step::Stop { .. } | Step::Adopt { .. } | Step::Remove { .. } => None,
    };
    decision.steps.iter().filter_map(step).collect()
}

/// Dollars an hour for machines now, and once that is done.
fn spent(input: &Input, decision: &Decision) -> Value {
    let now: u64 = input.machines.iter().map(|machine| machine.price.0).sum();
    let mut then = now;
    for step in &decision.steps {
        match step {
            Step::Ask { pool, .. } => {
                then += input.pools.iter().find(|known| known.name == *pool).map_or(0, |pool| pool.price.0);
            }
            Step::Move { machine, to, .. } if !to.stays() => {
                let of = input.machines.iter().find(|known| known.id == *machine);
                then = then.saturating_sub(of.map_or(0, |of| of.price.0));
            }
            Step::Move { .. }
            | Step::Start { .. }
            | Step::Stop { .. }
            | Step::Adopt { .. }
            | Step::Remove { .. } => {}
        }
    }
    json!({"now": PricePerHour(now).as_usd(), "then": PricePerHour(then).as_usd()})
}
