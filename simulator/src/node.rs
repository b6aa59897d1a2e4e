//! A node's shell: the [`Worker`], its lanes and processes, and what it tells its gateways.

mod announced;
mod frames;
mod suspects;

use crate::Error;
use crate::check::ensure;
use crate::known::Known;
use crate::pause::Pause;
use crate::quarantine::Wards;
use crate::scenario::VariantSpec;
use crate::told::{self, Told};
use crate::world::{Ev, World};
pub(crate) use frames::{FromNode, ToNode};
use modelless_decision::query::Class;
use modelless_decision::route::{Asker, IDLE_AFTER, Limit, NodeInfo, NodeReport, share};
use modelless_decision::worker::{Action, BatchId, Event, Failure, LaneIx, Outcome, Worker};
use modelless_decision::{Machine, Moments, Query, Rank};
use modelless_types::{
    Bytes, CostPer1k, DeviceIx, Engine, Micros, ModelId, NodeId, PricePerHour, QueryKey, Time, VariantId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

struct Held {
    gateway: usize,
    epoch: u32,
    query: Query,
}

pub(crate) struct Batch {
    pub(crate) device: DeviceIx,
    lane: LaneIx,
    pub(crate) variant: VariantId,
    /// The process that has the variant.
    runner: (ModelId, Engine),
    members: Vec<QueryKey>,
    /// Who was cancelled meanwhile: members among them are told nothing, and may come again.
    gone: Vec<QueryKey>,
    prepared: bool,
    started: bool,
    pub(crate) ended: bool,
    /// What its node had lost to pauses when it began, or was put off last.
    pub(crate) stolen: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Loading,
    Loaded,
    Unloading,
}

pub(crate) struct Resident {
    pub(crate) state: Memory,
    pub(crate) bytes: Bytes,
    /// Which load it was; what is said of an earlier one is void.
    pub(crate) load: u64,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) up: bool,
    /// Counts its lives.
    pub(crate) life: u32,
    pub(crate) worker: Worker,
    pub(crate) info: NodeInfo,
    pub(crate) slow: f64,
    pub(crate) drained: bool,
    held: BTreeMap<QueryKey, Held>,
    /// What is only announced, and by which life of which gateway.
    heard: BTreeMap<QueryKey, (usize, u32)>,
    pub(crate) batches: BTreeMap<BatchId, Batch>,
    /// What was handed to each process of each lane; the first is on the device.
    lanes: BTreeMap<(DeviceIx, LaneIx, ModelId, Engine), VecDeque<BatchId>>,
    /// Those of them that were taken back and had not begun.
    revoked: BTreeSet<BatchId>,
    /// Those that ran too long, or stand behind one that does: they take no place of their lane.
    suspected: BTreeSet<BatchId>,
    /// Width and number of lanes of devices that were cut otherwise than at first.
    cuts: BTreeMap<DeviceIx, (u16, u16)>,
    pub(crate) memory: BTreeMap<(DeviceIx, VariantId), Resident>,
    pub(crate) next_load: u64,
    /// What waits at each gateway, per class.
    demand: BTreeMap<Class, BTreeMap<usize, Told>>,
    /// What each gateway asked for lately.
    askers: BTreeMap<usize, Asker>,
    armed: Option<Time>,
    pub(crate) wards: Wards,
    pub(crate) pause: Pause,
}

impl Node {
    pub(crate) fn new(id: NodeId, life: u32, worker: Worker, info: NodeInfo) -> Self {
        Self {
            id,
            up: true,
            life,
            worker,
            info,
            slow: 1.0,
            drained: false,
            held: BTreeMap::new(),
            heard: BTreeMap::new(),
            batches: BTreeMap::new(),
            lanes: BTreeMap::new(),
            revoked: BTreeSet::new(),
            suspected: BTreeSet::new(),
            cuts: BTreeMap::new(),
            memory: BTreeMap::new(),
            next_load: 0,
            demand: BTreeMap::new(),
            askers: BTreeMap::new(),
            armed: None,
            wards: Wards::default(),
            pause: Pause::default(),
        }
    }
}

impl Node {
    /// What is announced to it, by its shell's book or its machine's.
    pub(crate) fn heard(&self) -> usize {
        self.heard.len().max(self.worker.announced_here())
    }

    /// Batches on its devices now.
    pub(crate) fn running(&self) -> u64 {
        self.lanes.values().filter(|lane| !lane.is_empty()).count() as u64
    }

    /// What is in memory, once for each device.
    pub(crate) fn loaded_variants(&self) -> impl Iterator<Item = VariantId> {
        let loaded = self.memory.iter().filter(|(_, m)| m.state == Memory::Loaded);
        loaded.map(|((_, variant), _)| *variant)
    }

    /// A gateway's weight among those that share the credit.
    fn weight(&self, now: Time, gateway: usize) -> Option<u64> {
        let open = self.held.values().any(|held| held.gateway == gateway);
        // What was said to wait a while ago may have gone to other nodes since.
        let lately = |told: &&Told| now - told.at < IDLE_AFTER;
        let here = self.demand.values().filter_map(|by_gateway| by_gateway.get(&gateway));
        let waiting = here.filter(lately).map(|told| u64::from(told.waiting)).sum();
        self.askers.get(&gateway)?.weight(now, open, waiting)
    }
}

impl World<'_> {
    pub(crate) fn feed_worker(&mut self, at: usize, event: Event) -> Result<(), Error> {
        if !self.nodes[at].up {
            return Ok(());
        }
        self.nodes[at].worker.handle(self.now, event);
        self.after_worker(at)
    }

    pub(crate) fn worker_timer(&mut self, at: usize) -> Result<(), Error> {
        let node = &mut self.nodes[at];
        node.armed = None;
        if node.worker.poll_timeout().is_some_and(|wake| wake.at <= self.now) {
            node.worker.handle_timeout(self.now);
        }
        self.after_worker(at)
    }

    fn after_worker(&mut self, at: usize) -> Result<(), Error> {
        let mut frames = Vec::new();
        while let Some(action) = self.nodes[at].worker.poll_action() {
            match action {
                Action::Prepare { batch, device, lane, variant, queries, expected, .. } => {
                    self.prepare(at, batch, (device, lane), variant, queries, expected)?;
                }
                Action::Claim { queries, lanes } => self.claim(at, &queries, lanes, &mut frames),
                Action::Start { batch } => self.start(at, batch)?,
                Action::Revoke { batch } => {
                    let node = &mut self.nodes[at];
                    let handed = node.batches.get(&batch).is_some_and(|b| b.started && !b.ended);
                    let once = node.revoked.insert(batch);
                    ensure(handed && once, self.now, "what was handed over is taken back, once", || {
                        format!("{batch:?}")
                    })?;
                }
                Action::Suspect { batch } => self.suspect(at, batch)?,
                Action::Discard { batch } => {
                    let gone = self.nodes[at].batches.remove(&batch);
                    let idle = gone.is_some_and(|b| !b.started);
                    ensure(idle, self.now, "only what has not started is discarded", || {
                        format!("{batch:?}")
                    })?;
                }
                Action::Deliver { batch, queries } => {
                    let node = &mut self.nodes[at];
                    node.suspected.remove(&batch);
                    let ended = node.batches.remove(&batch).filter(|b| b.ended);
                    let Some(ended) = ended else {
                        let what = format!("{batch:?} has not");
                        return Ok(ensure(false, self.now, "only what has ended is delivered", || what)?);
                    };
                    for key in queries {
                        let held = node
                            .held
                            .remove(&key)
                            .filter(|_| ended.members.contains(&key) && !ended.gone.contains(&key));
                        let Some(held) = held else {
                            let what = format!("{key} is not one of {batch:?}");
                            return Ok(ensure(false, self.now, "a batch answers its own members", || what)?);
                        };
                        let answer = FromNode::Answer { key, variant: ended.variant };
                        frames.push((held.gateway, held.epoch, answer));
                    }
                }
                Action::Quarantine { key, variant, device, .. } => {
                    self.quarantine(at, device, variant, key)?;
                }
                Action::Discharge { key } => {
                    let answer = self.discharged(at, key)?;
                    let held = self.take(at, key)?;
                    frames.push((held.gateway, held.epoch, answer));
                }
                Action::QuarantineOver { device } => self.quarantine_over(at, device),
                Action::Refuse { key, refusal } => {
                    let held = self.take(at, key)?;
                    frames.push((held.gateway, held.epoch, FromNode::Refused { key, refusal }));
                }
                Action::HandBack { key, why } => {
                    self.handed_back += 1;
                    let held = self.take(at, key)?;
                    frames.push((held.gateway, held.epoch, FromNode::HandedBack { key, why }));
                }
                Action::Decline { key, why } => {
                    // One that came meanwhile is this node's.
                    if let Some((gateway, epoch)) = self.nodes[at].heard.remove(&key) {
                        frames.push((gateway, epoch, FromNode::Declined { key, why }));
                    }
                }
                Action::Recut { device, width, lanes } => {
                    self.recuts += 1;
                    self.nodes[at].cuts.insert(device, (width, lanes));
                    let mut batches = self.nodes[at].batches.values();
                    let busy = batches.any(|b| b.device == device && !b.ended && !b.is_apart());
                    let which = || format!("{device}");
                    ensure(!busy, self.now, "lanes are empty when they are cut anew", which)?;
                }
                Action::Load { device, variant } => self.load(at, device, variant)?,
                Action::Unload { device, variant } => self.unload(at, device, variant)?,
                Action::Transition { .. } => self.refresh_table(),
                Action::Narrow { .. } => {}
                Action::Drifted { .. } => self.drifted += 1,
                Action::Steadied { .. } => self.steadied += 1,
            }
        }
        if !frames.is_empty() {
            let report = self.report(at);
            for (gateway, epoch, frame) in frames {
                self.post_to_gateway(at, gateway, epoch, frame, report.clone());
            }
        }
        let node = &mut self.nodes[at];
        let wake = node.worker.poll_timeout().map(|wake| wake.at.max(self.now));
        if let Some(wake) = wake
            && node.armed.is_none_or(|armed| wake < armed)
        {
            node.armed = Some(wake);
            let life = node.life;
            let wake = wake + self.scenario.nodes[at].timer_late;
            self.push(wake, Rank::Timer, Ev::NodeTimer { node: at, life });
        }
        Ok(())
    }

    fn take(&mut self, at: usize, key: QueryKey) -> Result<Held, Error> {
        let held = self.nodes[at].held.remove(&key);
        let node = self.nodes[at].id;
        let what = || format!("{node} does not hold {key}");
        ensure(held.is_some(), self.now, "a node answers for what it holds", what)?;
        Ok(held.expect("just checked"))
    }

    fn report(&self, at: usize) -> NodeReport {
        self.nodes[at].worker.report(self.now)
    }

    /// What each gateway gets of the credit.
    fn limit(&self, at: usize, gateway: usize, limit: Limit) -> Limit {
        if !self.scenario.credits {
            return Limit { queries: u32::MAX, bytes: Bytes(u64::MAX / 2) };
        }
        let weight = |gateway| self.nodes[at].weight(self.now, gateway);
        let all = self.nodes[at].askers.keys().filter_map(|gateway| weight(*gateway)).sum();
        share(limit, weight(gateway), all)
    }

    /// Counts what gateways ask for anew.
    pub(crate) fn beat(&mut self, at: usize) {
        self.nodes[at].askers.values_mut().for_each(Asker::beat);
    }

    fn post_to_gateway(
        &mut self,
        at: usize,
        gateway: usize,
        epoch: u32,
        frame: FromNode,
        report: NodeReport,
    ) {
        let report = NodeReport { limit: self.limit(at, gateway, report.limit), ..report };
        let node = &self.nodes[at];
        let life = node.life;
        let arrives = self.link_delay(at).max(self.gateways[gateway].last_in[at]);
        self.gateways[gateway].last_in[at] = arrives;
        self.push(arrives, Rank::Completion, Ev::FromNode { gateway, epoch, node: at, life, frame, report });
    }

    /// Tells every gateway how things stand.
    pub(crate) fn speak(&mut self, at: usize) {
        let report = self.report(at);
        for gateway in 0..self.gateways.len() {
            let epoch = self.gateways[gateway].epoch;
            self.post_to_gateway(at, gateway, epoch, FromNode::Report, report.clone());
        }
    }

    /// A frame from a gateway came in.
    pub(crate) fn hear_gateway(
        &mut self,
        at: usize,
        gateway: usize,
        epoch: u32,
        frame: &ToNode,
    ) -> Result<(), Error> {
        match *frame {
            ToNode::Query { query, deadline_in, expires_in, spent, waiting, among, first_in } => {
                let key = query.key;
                let query = Query {
                    arrived: Time(self.now.0.saturating_sub(spent.0)),
                    deadline: self.now + deadline_in,
                    expires: self.now + expires_in,
                    ..query
                };
                self.nodes[at].heard.remove(&key);
                let before = self.nodes[at].held.insert(key, Held { gateway, epoch, query });
                ensure(before.is_none(), self.now, "a query is at one place", || {
                    format!("{key} came twice")
                })?;
                if self.nodes[at].askers.entry(gateway).or_default().sent(self.now) {
                    self.share_anew(at);
                }
                let first = first_in.map(|left| self.now + left);
                let demand = self.nodes[at].demand.entry(query.class).or_default();
                demand.insert(gateway, Told { waiting, first, among, at: self.now });
                let event = told::together(query.class, demand.values());
                self.feed_worker(at, event)?;
                let decode = self.decode_time(at, &query);
                let life = self.nodes[at].life;
                self.push(self.now + decode, Rank::Arrival, Ev::Decoded { node: at, life, key });
                Ok(())
            }
            ToNode::Announce { query, deadline_in, expires_in, spent, part_ppm, quickest } => {
                self.nodes[at].heard.insert(query.key, (gateway, epoch));
                let query = Query {
                    arrived: Time(self.now.0.saturating_sub(spent.0)),
                    deadline: self.now + deadline_in,
                    expires: self.now + expires_in,
                    ..query
                };
                self.feed_worker(at, Event::Announce { query, part_ppm, quickest })
            }
            ToNode::Withdraw { key } => self.withdrawn(at, key),
            ToNode::MayReturn { key } => self.feed_worker(at, Event::MayReturn { key }),
            ToNode::Cancel { key } => self.cancel(at, key),
            ToNode::Wake { task, ordinal } => self.feed_worker(at, Event::Wake { task, ordinal }),
        }
    }

    fn decode_time(&mut self, at: usize, query: &Query) -> Micros {
        let admitted =
            |v: &&Known<'_>| v.task == query.class.task && query.class.admits.contains(v.spec.ordinal);
        let like = self.known.all_on(at).find(admitted);
        like.map_or(Micros::ZERO, |v| v.spec.decoding(&mut self.rng_runs))
    }

    pub(crate) fn decoded(&mut self, at: usize, key: QueryKey) -> Result<(), Error> {
        // Cancelled meanwhile, or not.
        match self.nodes[at].held.get(&key).map(|held| held.query) {
            Some(query) => self.feed_worker(at, Event::Arrive(query)),
            None => Ok(()),
        }
    }

    fn cancel(&mut self, at: usize, key: QueryKey) -> Result<(), Error> {
        if self.nodes[at].held.remove(&key).is_none() {
            return Ok(());
        }
        self.nodes[at].batches.values_mut().for_each(|batch| batch.gone.push(key));
        self.feed_worker(at, Event::Cancel { key })
    }

    pub(crate) fn gateway_lost(&mut self, at: usize, gateway: usize, epoch: u32) -> Result<(), Error> {
        let node = &mut self.nodes[at];
        node.askers.remove(&gateway);
        for demand in node.demand.values_mut() {
            demand.remove(&gateway);
        }
        let theirs = node.held.iter().filter(|(_, h)| h.gateway == gateway && h.epoch == epoch);
        let keys: Vec<QueryKey> = theirs.map(|(key, _)| *key).collect();
        keys.into_iter().try_for_each(|key| self.cancel(at, key))?;
        self.hears_no_more_of(at, (gateway, epoch))
    }

    fn prepare(
        &mut self,
        at: usize,
        id: BatchId,
        (device, lane): (DeviceIx, LaneIx),
        variant: VariantId,
        members: Vec<QueryKey>,
        expected: Moments,
    ) -> Result<(), Error> {
        let now = self.now;
        let known = Rc::clone(&self.known);
        let Some(&Known { task, spec, max_batch, .. }) = known.on(at, variant) else { return Ok(()) };
        let node = &self.nodes[at];
        let size = u32::try_from(members.len()).unwrap_or(u32::MAX);
        ensure((1..=max_batch).contains(&size), now, "no batch is larger than its variant takes", || {
            format!("{size} for {}", spec.name)
        })?;
        let on_lane = node.on_lane(device, lane);
        ensure(on_lane < 2, now, "a lane runs one batch and has one prepared", || {
            format!("{on_lane} before")
        })?;
        let at_first = &self.scenario.nodes[at].worker.devices[usize::from(device.0)];
        let (cores, price) = (at_first.lanes.max(1) * at_first.width.max(1), at_first.price);
        let cut = node.cuts.get(&device).copied();
        let (width, lanes) = cut.unwrap_or((at_first.width.max(1), at_first.lanes.max(1)));
        ensure(width * lanes <= cores, now, "no core is in two lanes", || format!("{lanes} of {width}"))?;
        let fits = lane.0 < lanes && spec.threads.min(cores) <= width;
        ensure(fits, now, "a batch runs on a lane that is wide enough", || {
            format!("{} with {} threads on {lane:?} of {lanes}, {width} wide", spec.name, spec.threads)
        })?;
        let loaded = node.memory.get(&(device, variant)).map(|m| m.state) == Some(Memory::Loaded);
        ensure(loaded, now, "only what is in memory answers", || format!("{} is not", spec.name))?;
        // A wide lane costs as much as its cores.
        let price = PricePerHour(price.0 * u64::from(width));
        let cost = CostPer1k::of_batch(expected.mean(), price, size);
        for key in &members {
            let query = node.held.get(key).map(|held| held.query);
            let taken = node.batches.values().any(|b| b.members.contains(key) && !b.gone.contains(key));
            ensure(!taken, now, "a query is in one batch", || format!("{key} is in two"))?;
            let admitted =
                query.is_some_and(|q| q.class.task == task && q.class.admits.contains(spec.ordinal));
            ensure(admitted, now, "a variant answers only classes that admit it", || {
                format!("{key}: {query:?}")
            })?;
            let dear = query.is_some_and(|q| !q.best_effort && q.max_cost.is_some_and(|c| cost > c));
            ensure(!dear, now, "no price ceiling is broken at dispatch", || format!("{key} at {cost:?}"))?;
        }
        let write = self.rng_runs.duration(VariantSpec::stage(spec.prepare).times(f64::from(size)));
        let batch = Batch {
            device,
            lane,
            variant,
            runner: (spec.model, spec.engine),
            members,
            gone: Vec::new(),
            prepared: false,
            started: false,
            ended: false,
            stolen: 0,
        };
        self.nodes[at].batches.insert(id, batch);
        let life = self.nodes[at].life;
        self.push(now + write, Rank::Completion, Ev::Prepared { node: at, life, batch: id });
        Ok(())
    }

    pub(crate) fn prepared(&mut self, at: usize, id: BatchId) -> Result<(), Error> {
        let Some(batch) = self.nodes[at].batches.get_mut(&id) else { return Ok(()) };
        batch.prepared = true;
        self.feed_worker(at, Event::Prepared { batch: id, dropped: Vec::new() })
    }

    fn start(&mut self, at: usize, id: BatchId) -> Result<(), Error> {
        let node = &mut self.nodes[at];
        let batch = node.batches.get_mut(&id).filter(|b| b.prepared && !b.started);
        let Some(batch) = batch else {
            return Ok(ensure(false, self.now, "only what is prepared starts, once", || format!("{id:?}"))?);
        };
        batch.started = true;
        let lane = node.lanes.entry((batch.device, batch.lane, batch.runner.0, batch.runner.1)).or_default();
        lane.push_back(id);
        let waiting = lane.len();
        ensure(waiting <= 2, self.now, "a lane runs one batch and has one prepared", || {
            format!("{waiting}")
        })?;
        if waiting == 1 {
            self.run_batch(at, id, self.scenario.nodes[at].handover);
        }
        Ok(())
    }

    fn run_batch(&mut self, at: usize, id: BatchId, handover: Micros) {
        let node = &self.nodes[at];
        let Some(batch) = node.batches.get(&id) else { return };
        let known = self.known.on(at, batch.variant);
        let size = u32::try_from(batch.members.len()).unwrap_or(u32::MAX);
        let raw = known.map_or(Moments::ZERO, |known| known.run.uncorrected(size));
        let time = Moments { mean: raw.mean * node.slow, var: raw.var * node.slow * node.slow };
        let device = usize::from(batch.device.0);
        let life = node.life;
        let held_up = self.scenario.nodes[at].jitter.filter(|jitter| self.rng_jitter.chance(jitter.chance));
        let held_up =
            held_up.map(|jitter| Moments::exactly(jitter.mean).times(self.rng_jitter.exponential()).mean());
        let took = handover + self.rng_runs.duration(time) + held_up.unwrap_or(Micros::ZERO);
        let took = if node.revoked.contains(&id) { Micros::ZERO } else { took };
        let stolen = node.pause.stolen();
        let price = self.scenario.nodes[at].worker.devices[device].price;
        self.busy_us += took.0;
        self.device_nano_usd += CostPer1k::of_batch(took, price, 1).0 / 1_000;
        if let Some(batch) = self.nodes[at].batches.get_mut(&id) {
            batch.stolen = stolen;
        }
        self.push(self.now + took, Rank::Completion, Ev::Ran { node: at, life, batch: id });
    }

    /// The batch on a device has come to its end, or its process has.
    pub(crate) fn ran(&mut self, at: usize, id: BatchId) -> Result<(), Error> {
        if self.still_owed(at, id) {
            return Ok(());
        }
        let Some(batch) = self.nodes[at].batches.get(&id).filter(|b| !b.ended) else { return Ok(()) };
        let (model, engine) = batch.runner;
        let (lane, variant) = ((batch.device, batch.lane, model, engine), batch.variant);
        let size = u32::try_from(batch.members.len()).unwrap_or(u32::MAX);
        let poisoned = batch.members.iter().any(|key| self.books.get(*key).is_some_and(|c| c.poison));
        let revoked = self.nodes[at].revoked.remove(&id);
        if !revoked && (poisoned || self.rng_faults.chance(self.scenario.nodes[at].crash)) {
            let spec = self.known.spec(variant);
            return spec.map_or(Ok(()), |spec| self.crash(at, spec.model, spec.engine));
        }
        if !revoked {
            *self.batch_sizes.entry(size).or_default() += 1;
        }
        let node = &mut self.nodes[at];
        if let Some(batch) = node.batches.get_mut(&id) {
            batch.ended = true;
        }
        let lane = node.lanes.entry(lane).or_default();
        lane.pop_front();
        if let Some(next) = lane.front().copied() {
            self.run_batch(at, next, Micros::ZERO);
        }
        let outcome = if revoked { Outcome::Revoked } else { Outcome::Ran };
        self.feed_worker(at, Event::Done { batch: id, outcome })
    }

    /// A model's process dies: first that is told, then the end of each batch it had, in the order it got them.
    pub(crate) fn crash(&mut self, at: usize, model: ModelId, engine: Engine) -> Result<(), Error> {
        let shared = self.scenario.variants().filter(|(_, v)| v.model == model && v.engine == engine);
        let inside: Vec<VariantId> = shared.map(|(_, v)| v.id).collect();
        let node = &mut self.nodes[at];
        let mut failed = Vec::new();
        for lane in node.lanes.values_mut() {
            let dead = |id: &BatchId| node.batches.get(id).is_some_and(|b| inside.contains(&b.variant));
            failed.extend(lane.iter().copied().filter(dead));
            lane.retain(|id| !dead(id));
        }
        for id in &failed {
            if let Some(batch) = node.batches.get_mut(id) {
                batch.ended = true;
            }
        }
        let theirs = node.memory.extract_if(.., |(_, variant), _| inside.contains(variant));
        let gone: Vec<_> = theirs.map(|((device, variant), m)| (device, variant, m.state)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        self.crashes += 1;
        let why = || String::from("the process died");
        let resident = gone.iter().filter(|(_, _, state)| *state != Memory::Loading);
        let variants = Some(resident.map(|(_, variant, _)| *variant).collect());
        self.feed_worker(at, Event::RunnerDied { model, variants, why: why(), hung: false })?;
        for (device, variant, state) in gone {
            match state {
                Memory::Loading => {
                    self.load_failures += 1;
                    self.feed_worker(at, Event::LoadFailed { device, variant, why: why() })?;
                }
                Memory::Unloading => self.feed_worker(at, Event::Unloaded { device, variant })?,
                Memory::Loaded => {}
            }
        }
        for batch in failed {
            let outcome = Outcome::Failed { failure: Failure::Process, why: why() };
            self.feed_worker(at, Event::Done { batch, outcome })?;
        }
        Ok(())
    }
}
