//! The loop: observe, decide, write down, ask.

use super::calls::{Calls, Outcome};
use super::config::Config;
use super::infaas;
use super::lead::Lead;
use crate::Handle;
use modelless_decision::baseline::{Rules, Targets};
use modelless_decision::fleet::{
    self, Decision, Input, List, Listed, Node, PoolReport, StartUp, Step, Strain, decide,
};
use modelless_fleet::{Error as FleetError, Fleet, Instance, Wanted as ToStart};
use modelless_live::{Member, Role};
use modelless_planning::{
    Demand, Foretold, Kinds, Learnt, Rentable, Times, Wanted, foreseen, learn, node, remembered, ruled,
    wanted,
};
use modelless_store::{
    Catalog, Machine, MachineStep, NewMachine, PoolStands, Result, Signed, Store, UnixMicros,
};
use modelless_types::{MachineId, MachineState, Micros, PricePerHour, Time};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// The store answers by then, or the round is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// So many machines that ended are looked at: for how long starts take and what failed in a row.
pub(super) const ENDED: u32 = 200;
/// What is asked for is asked of providers at once, and what that brings is looked at again, at most so often in a round.
const AGAIN: usize = 4;
/// How pools stand is said so often though nothing changed.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Between looks at the nodes' hardware.
const KINDS_EVERY: Duration = Duration::from_secs(10);
/// Machines that joined so lately may be loading still, so what is late says nothing of how many there are.
const WARM_AFTER: Micros = Micros::from_secs(10);

/// What it is made of.
pub struct Machinery {
    /// The pools.
    pub config: Config,
    /// Where their machines come from.
    pub fleets: BTreeMap<String, Arc<dyn Fleet>>,
    /// What is written down.
    pub store: Arc<dyn Store>,
    /// Whose rules say how many machines there should be.
    pub rules: Rules,
    /// Who is there and what is asked, as the scheduler hears it.
    pub handle: Handle,
    /// Its name, for people.
    pub name: String,
    /// Drawn at the start; at most 63 bits.
    pub instance: u64,
}

/// Sees to machines. [`Keeper::run`] until it is cancelled.
pub struct Keeper {
    config: Config,
    fleets: BTreeMap<String, Arc<dyn Fleet>>,
    store: Arc<dyn Store>,
    rules: Rules,
    targets: Targets,
    handle: Handle,
    name: String,
    lead: Lead,
    leads: bool,
    demand: Demand,
    foretold: Foretold,
    strain: Strain,
    calls: Calls,
    /// What is remembered of machines, by number.
    about: BTreeMap<MachineId, fleet::Calls>,
    seen: BTreeMap<MachineId, Time>,
    /// Since when it leads, or does not.
    leads_since: Time,
    listed: BTreeMap<String, List>,
    kinds: Vec<Kinds>,
    looked_at_kinds: Option<Instant>,
    said: Option<(Vec<PoolReport>, Vec<StartUp>, Instant)>,
    began: (Time, Instant),
    troubled: bool,
    /// Machines of pools that are not set any more.
    left_over: BTreeSet<String>,
}

/// Sees to machines of these pools.
pub fn build(of: Machinery) -> Keeper {
    let Machinery { config, fleets, store, rules, handle, name, instance } = of;
    if rules != Rules::Modelless {
        tracing::warn!(
            rules = rules.name(),
            "machines come and go by the rules of others: a baseline to compare with, not for use"
        );
    }
    let lead = Lead::new(Arc::clone(&store), instance, &format!("scheduler {name}"));
    let demand = Demand::over(config.remembered_s);
    Keeper {
        config,
        fleets,
        store,
        rules,
        targets: Targets::default(),
        handle,
        name,
        lead,
        leads: false,
        demand,
        foretold: Foretold::default(),
        strain: Strain::default(),
        calls: Calls::default(),
        about: BTreeMap::new(),
        seen: BTreeMap::new(),
        leads_since: Time::ZERO,
        listed: BTreeMap::new(),
        kinds: Vec::new(),
        looked_at_kinds: None,
        said: None,
        began: (Time(UnixMicros::of(SystemTime::now()).0), Instant::now()),
        troubled: false,
        left_over: BTreeSet::new(),
    }
}

impl Keeper {
    /// Looks every interval, and whenever a provider answers. A failed round is logged and tried again.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut tick = interval(Duration::from_millis(self.config.interval_ms));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                outcome = self.calls.next() => self.take(outcome).await,
                _ = tick.tick() => self.look().await,
            }
        }
        let _ = timeout(ANSWER_WITHIN, self.lead.leave()).await;
    }

    async fn look(&mut self) {
        let round = timeout(ANSWER_WITHIN, self.round()).await;
        let why = match round {
            Ok(Ok(())) => {
                if std::mem::take(&mut self.troubled) {
                    tracing::info!("machines are seen to again");
                }
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the store did not answer within {} s", ANSWER_WITHIN.as_secs()),
        };
        if !std::mem::replace(&mut self.troubled, true) {
            tracing::warn!(why, "machines cannot be seen to; those that are there stay");
        }
    }

    /// Since 1970 by the wall clock of its start, and steadily from then on.
    fn now(&self) -> Time {
        let (wall, since) = self.began;
        wall + Micros(u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn by(&self) -> Signed {
        let at = UnixMicros(self.now().0);
        Signed { who: self.name.clone(), at }
    }

    async fn round(&mut self) -> Result<()> {
        let (members, answers) = self.handle.members();
        if answers {
            self.demand.look(self.now(), &members);
        }
        let leads = self.lead.look().await?;
        if leads != std::mem::replace(&mut self.leads, leads) {
            tracing::info!(leads, "which scheduler sees to machines changed");
            self.about.clear();
            self.seen.clear();
            self.leads_since = self.now();
            self.listed.clear();
            self.targets = Targets::default();
        }
        if !leads {
            return Ok(());
        }
        let now = self.now();
        let pools: Vec<String> = self.config.pools.keys().cloned().collect();
        for pool in &pools {
            if let Some(fleet) = self.fleets.get(pool) {
                self.calls.list(pool, fleet, self.config.pools[pool].list_every(), now);
            }
        }
        let catalog = self.store.catalog().await?;
        self.demand.know(&catalog);
        if self.looked_at_kinds.is_none_or(|at| at.elapsed() >= KINDS_EVERY) {
            let nodes = self.store.nodes().await?;
            let kind = |(name, pool): (&String, &super::PoolConfig)| {
                Kinds::of(name, (pool.device_class.as_deref(), pool.lanes), &nodes)
            };
            self.kinds = self.config.pools.iter().map(kind).collect();
            self.looked_at_kinds = Some(Instant::now());
        }
        let times = Times::of(&catalog, &self.kinds);
        for _ in 0..AGAIN {
            let (input, start_ups) = self.input(&members, answers, (&catalog, &times)).await?;
            let decision = decide(self.now(), &input);
            let again = decision.steps.iter().any(|step| matches!(step, Step::Ask { .. }));
            let Decision { steps, pools } = decision;
            for step in steps {
                self.perform(step, &input).await?;
            }
            if !again {
                return self.say(pools, &start_ups, &input).await;
            }
        }
        Ok(())
    }

    /// Everything that is known now.
    async fn input(
        &mut self,
        members: &[Member],
        answers: bool,
        (catalog, times): (&Catalog, &Times<'_>),
    ) -> Result<(Input, Vec<StartUp>)> {
        let rented = self.store.rented();
        let (mut machines, ended) = (rented.machines().await?, rented.ended_machines(ENDED).await?);
        let now = self.now();
        let nodes = members.iter().filter(|member| member.role == Role::Node);
        let nodes: BTreeMap<String, Node> = nodes.map(|of| (of.name.clone(), node(of))).collect();
        self.remember(&machines, answers.then_some(&nodes), now);
        self.say_left_over(&machines);

        let settings = self.config.settings();
        let learnt: Vec<Learnt> = settings.iter().map(|pool| learn(pool, (&machines, &ended), now)).collect();
        let start_ups: Vec<StartUp> = learnt.iter().map(|of| of.start_up).collect();
        let pools: Vec<fleet::Pool> = learnt.iter().map(|of| of.pool.clone()).collect();
        self.demand.remember(remembered(self.config.remembered_s, &start_ups));
        for pool in &pools {
            let of_pool = machines
                .iter_mut()
                .filter(|machine| machine.pool == pool.name && machine.price != pool.price);
            let otherwise: Vec<&mut Machine> = of_pool.collect();
            if !otherwise.is_empty() {
                tracing::info!(
                    pool = pool.name,
                    usd_per_hour = pool.price.as_usd(),
                    "its machines cost this now"
                );
                self.store.rented().price_machines(&pool.name, pool.price).await?;
            }
            for machine in otherwise {
                machine.price = pool.price;
            }
        }
        let ended = self.ended(&machines, ended).await?;
        let settled = machines.iter().all(|machine| {
            let warm = machine.joined.is_some_and(|joined| now.since(Time(joined.0)) > WARM_AFTER);
            machine.state == MachineState::Joined && warm
        });
        if answers {
            let lateness = self.demand.lateness(members, settled);
            self.strain.look(now, lateness);
        }
        let wanted = match self.rules {
            Rules::Modelless => {
                if let Err(error) = self.foretold.read(&*self.store, now).await {
                    tracing::debug!(%error, "earlier days cannot be read; what was known of them stands");
                }
                let foreseen = foreseen(self.foretold.last(), catalog, &start_ups, now);
                let (counts, busy) = (self.demand.counts(), self.config.busy / self.strain.factor());
                let (kinds, budget) = (&self.kinds[..], self.config.budget());
                let room = Rentable { pools: &learnt, kinds, machines: &machines, budget, busy };
                wanted((counts, &foreseen), room, times)
            }
            Rules::Infaas => {
                let seen = (&machines[..], answers.then_some(members));
                let many = infaas::wanted(&mut self.targets, now, &pools, seen);
                Wanted { many, ..Wanted::default() }
            }
        };
        let input = Input {
            budget: self.config.budget(),
            machines: machines.into_iter().map(ruled).collect(),
            ended,
            listed: self.listed.clone(),
            nodes: answers.then_some(nodes),
            seen: self.seen.clone(),
            wanted: wanted.many,
            foreseen: wanted.foreseen,
            failures: learnt.into_iter().map(|of| (of.pool.name, of.failures)).collect(),
            calls: self.about.clone(),
            began: self.leads_since,
            pools,
        };
        Ok((input, start_ups))
    }

    /// Names of machines that ended: the last ones, and whatever else a provider still has.
    async fn ended(&self, machines: &[Machine], ended: Vec<Machine>) -> Result<BTreeSet<String>> {
        let mut names: BTreeSet<String> = ended.into_iter().map(|machine| machine.name).collect();
        for listed in self.listed.values().flat_map(|list| &list.all) {
            let known = names.contains(&listed.name) || machines.iter().any(|of| of.name == listed.name);
            let found = if known { None } else { self.store.rented().machine_named(&listed.name).await? };
            names.extend(found.filter(|machine| machine.state.ended()).map(|machine| machine.name));
        }
        Ok(names)
    }

    /// Says which machines nobody sees to any more: their pool's provider is not known here.
    fn say_left_over(&mut self, machines: &[Machine]) {
        let left = machines.iter().filter(|machine| !self.config.pools.contains_key(&machine.pool));
        let left: BTreeSet<String> = left.map(|machine| machine.name.clone()).collect();
        if left != self.left_over && !left.is_empty() {
            let names = left.iter().take(9).cloned().collect::<Vec<_>>().join(", ");
            tracing::warn!(
                machines = left.len(),
                names,
                "these are of pools that are not set any more: they run on, cost, and count against the budget. Set their pools \
                 again with `most = 0` to have them drained and taken away"
            );
        }
        self.left_over = left;
    }

    /// Forgets machines that ended, and notes whose node is there.
    fn remember(&mut self, machines: &[Machine], nodes: Option<&BTreeMap<String, Node>>, now: Time) {
        let open: BTreeSet<MachineId> = machines.iter().map(|machine| machine.id).collect();
        self.about.retain(|id, _| open.contains(id));
        self.seen.retain(|id, _| open.contains(id));
        for machine in machines {
            let seen = self.seen.entry(machine.id).or_insert(now);
            // While nobody can tell, nobody's silence goes on.
            if nodes.is_none_or(|nodes| nodes.contains_key(&machine.name)) {
                *seen = now;
            }
        }
    }

    async fn perform(&mut self, step: Step, input: &Input) -> Result<()> {
        match step {
            Step::Ask { pool, why } => {
                if let Some(machine) = self.write(&pool, None, why, input).await? {
                    // Nobody can have asked for what was not written down.
                    self.about.insert(machine.id, fleet::Calls { fresh: true, ..fleet::Calls::default() });
                }
            }
            Step::Adopt { pool, name, instance, why } => {
                self.write(&pool, Some((name, instance)), why, input).await?;
            }
            Step::Start { machine } => {
                let of = input.machines.iter().find(|known| known.id == machine);
                if let Some((of, fleet)) = of.and_then(|of| Some((of, self.fleets.get(&of.pool)?))) {
                    let wanted =
                        ToStart { name: of.name.clone(), settings: self.settings(&of.pool, &of.name) };
                    self.about.entry(machine).or_default().open = self.calls.start(machine, fleet, wanted);
                }
            }
            Step::Stop { machine, instance } => {
                let pool = input.machines.iter().find(|known| known.id == machine).map(|known| &known.pool);
                if let Some(fleet) = pool.and_then(|pool| self.fleets.get(pool)) {
                    self.about.entry(machine).or_default().open =
                        self.calls.stop(Some(machine), fleet, instance);
                }
            }
            Step::Remove { pool, instance, why } => {
                if let Some(fleet) = self.fleets.get(&pool)
                    && self.calls.stop(None, fleet, instance.clone())
                {
                    tracing::warn!(pool, instance, why, "a machine is taken away");
                }
            }
            Step::Move { machine, to, instance, why } => {
                let from = input.machines.iter().find(|known| known.id == machine).map(|known| known.state);
                if let Some(from) = from {
                    self.move_on(machine, (from, to), instance, why).await?;
                }
            }
        }
        Ok(())
    }

    /// What an executor is told.
    fn settings(&self, pool: &str, name: &str) -> Vec<String> {
        let mut settings = vec![format!("executor.name={name}"), format!("executor.pool={pool}")];
        if let Some(config) = self.config.pools.get(pool) {
            settings.extend(config.zone.iter().map(|zone| format!("executor.zone={zone}")));
            settings.extend(config.set.iter().cloned());
        }
        settings
    }

    async fn write(
        &mut self,
        pool: &str,
        found: Option<(String, String)>,
        why: String,
        input: &Input,
    ) -> Result<Option<Machine>> {
        let Some(rules) = input.pools.iter().find(|known| known.name == pool) else { return Ok(None) };
        let (price, most, budget, by) = (rules.price, rules.most, input.budget, self.by());
        let new = NewMachine { pool: pool.to_owned(), found, price, most, budget, why: why.clone(), by };
        let machine = self.store.rented().add_machine(new).await?;
        if let Some(machine) = &machine {
            tracing::info!(name = machine.name, state = machine.state.name(), why, "a machine");
        } else {
            tracing::info!(
                pool,
                "no machine more is written down: another scheduler was first, or it is known already"
            );
        }
        Ok(machine)
    }

    async fn move_on(
        &mut self,
        machine: MachineId,
        (from, to): (MachineState, MachineState),
        instance: Option<String>,
        why: String,
    ) -> Result<()> {
        let step = MachineStep { machine, from, to, instance, why: why.clone(), by: self.by() };
        match self.store.rented().move_machine(step).await {
            Ok(machine) => tracing::info!(name = machine.name, state = to.name(), why, "a machine"),
            // The next round sees where it is.
            Err(modelless_store::Error::MachineMoved { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What came of a call.
    async fn take(&mut self, outcome: Outcome) {
        let now = self.now();
        let (machine, passing, done) = match outcome {
            Outcome::Listed { pool, at, told } => return self.heard(pool, at, told),
            Outcome::Stopped { machine, instance, told } => {
                if let Err(error) = &told {
                    tracing::warn!(instance, %error, "a machine could not be taken away; it is tried again");
                }
                let Some(machine) = machine else { return };
                (machine, told.is_err(), None)
            }
            Outcome::Started { machine, told } => {
                let about = self.about.get(&machine).copied().unwrap_or_default();
                match told {
                    Ok(Instance { id, .. }) => (
                        machine,
                        false,
                        Some((MachineState::Starting, Some(id), "its provider has it".to_owned())),
                    ),
                    Err(error) if error.is_passing() || !about.refused_for_good() => {
                        tracing::warn!(%machine, %error, "a machine could not be asked for; it is tried again");
                        (machine, true, None)
                    }
                    Err(error) => (machine, true, Some((MachineState::Failed, None, error.to_string()))),
                }
            }
        };
        let about = self.about.entry(machine).or_default();
        *about = about.ended(passing, now);
        if let Some((to, instance, why)) = done {
            let moved = self.move_on(machine, (MachineState::Asked, to), instance, why);
            // What could not be written down shows in the provider's list.
            if let Ok(Err(error)) = timeout(ANSWER_WITHIN, moved).await {
                tracing::warn!(%machine, %error, "what became of a machine could not be written down yet");
            }
        }
    }

    fn heard(&mut self, pool: String, at: Time, told: std::result::Result<Vec<Instance>, FleetError>) {
        match told {
            Ok(all) => {
                let listed = |of: Instance| Listed { name: of.name, instance: of.id, ending: of.ending };
                self.listed.insert(pool, List { at, all: all.into_iter().map(listed).collect() });
            }
            Err(error) => tracing::warn!(pool, %error, "it is not known which machines there are"),
        }
    }

    /// Says how pools stand, when that changed and now and then.
    async fn say(&mut self, reports: Vec<PoolReport>, start_ups: &[StartUp], input: &Input) -> Result<()> {
        let same = self.said.as_ref().is_some_and(|(said, starts, at)| {
            *said == reports && starts == start_ups && at.elapsed() < SAY_EVERY
        });
        if same {
            return Ok(());
        }
        for report in &reports {
            let before = self.said.iter().flat_map(|(said, ..)| said).find(|said| said.pool == report.pool);
            if let Some(why) =
                report.blocked.filter(|why| before.and_then(|before| before.blocked) != Some(*why))
            {
                tracing::warn!(pool = report.pool, %why, "no more machines, although they are wanted");
            }
        }
        let at = UnixMicros(self.now().0);
        let each = reports.iter().zip(start_ups).zip(input.pools.iter().zip(&self.kinds));
        let settings = self.config.settings();
        let stands = each.map(|((report, start_up), (pool, kind))| {
            let seconds = |time: Micros| time.as_millis_f64() / 1e3;
            let failed = input.failures.get(&pool.name).copied().unwrap_or_default();
            let body = json!({
                "least": pool.least,
                "most": pool.most,
                "wanted_least": report.least,
                "wanted_most": report.most,
                "there": report.there,
                "paid": report.paid,
                "blocked": report.blocked.map(|why| why.to_string()),
                "foreseen": input.foreseen.get(&pool.name).map(|foreseen| foreseen_json(report, foreseen)),
                "price_usd_per_hour": pool.price.as_usd(),
                "price_source": self.config.pools.get(&pool.name).and_then(|of| Some(self.config.priced(of).ok()?.1)),
                "budget_usd_per_hour": input.budget.map(PricePerHour::as_usd),
                "start_up": {
                    "median_s": seconds(start_up.median),
                    "spread_s": seconds(start_up.spread),
                    "samples": start_up.samples,
                },
                "joins_within_s": seconds(pool.joins_within),
                "failed_in_a_row": failed.in_a_row,
                "device_class": kind.class,
                "lanes": kind.lanes,
                "demand_per_s": self.demand.rate(),
                "busy": self.config.busy,
                "strain": self.strain.factor(),
                "rules": self.rules.name(),
                "watched": self.demand.counts().watched(),
                "scheduler": self.name,
                // For whoever asks what would be decided otherwise.
                "setting": settings.iter().find(|of| of.rules.name == pool.name),
                "listed": input.listed.contains_key(&pool.name),
            });
            PoolStands { name: pool.name.clone(), json: body.to_string(), at }
        });
        let stands = stands.collect();
        self.store.rented().put_pools(stands).await?;
        self.said = Some((reports, start_ups.to_vec(), Instant::now()));
        Ok(())
    }
}

/// What earlier days add to what is asked now.
fn foreseen_json(report: &PoolReport, foreseen: &fleet::Foreseen) -> serde_json::Value {
    let (least, most) = foreseen.without;
    json!({
        "more_least": report.least.saturating_sub(least),
        "more_most": report.most.saturating_sub(most),
        "why": foreseen.why,
    })
}
