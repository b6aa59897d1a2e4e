//! Nodes that run nothing but speak the real wire, as many as are asked for, for a gateway to find.
//!
//! `many-nodes SPEC`, where SPEC is JSON: `{"database", "redis", "task", "seed"}`; then `{"do": "join", "count"}`: so many nodes
//! are there from now on. Each listens on a port of its own, announces itself in Redis as executors do (device class, load,
//! residency, corrections), offers every variant of the task as measured (with a speed of its own), tells its status and makes a
//! report about once a second, and answers every query at once with nothing. Of the nodes every fifth has seen nothing of its
//! variants yet, so that it is lent what its like saw; what they have at hand goes up and down, and variants come and go.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes as Buffer;
use modelless_bench::cluster::identity_of;
use modelless_decision::route::{Limit, Made, NodeInfo, NodeReport, Offer, Ready};
use modelless_decision::{Correction, Moments, RunModel};
use modelless_drive::Clock;
use modelless_live::{Corrected, Live, Load, Member, RedisLive, Resident, Role, keep_announced};
use modelless_simulator::Rng;
use modelless_store::{Catalog, Store};
use modelless_testkit::turns;
use modelless_types::tensor::packed;
use modelless_types::{
    Bytes, CostPer1k, DeviceIx, Micros, NodeId, PricePerHour, ReplicaState, Task, Variant,
};
use modelless_wire::{
    Address, Answer, Body, Config, FromNode, GatewayLink, Listener, LoadTimes, NodeLink, NodeLoad,
    NodeStatus, Reason, ReplicaStatus, ToNode, serve_node,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const BEAT: Duration = Duration::from_secs(1);
/// Numbers that no registered node has.
const FIRST: u32 = 1_000_000;
const LANES: u16 = 2;
const CLASSES: u32 = 4;
/// What a node never has more of at hand.
const DEEPEST: u32 = 12;
const EACH: Bytes = Bytes::from_mib(20);
const COLD: Micros = Micros(80_000);

fn main() -> Result<()> {
    let spec: Value = serde_json::from_str(&std::env::args().nth(1).context("usage: many-nodes SPEC")?)?;
    let text = |name: &str| spec[name].as_str().with_context(|| format!("`{name}`"));
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: most, maximum: most };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let world = runtime.block_on(world(
        text("database")?,
        text("redis")?,
        text("task")?,
        spec["seed"].as_u64().unwrap_or(1),
    ))?;
    let mut there = 0;
    turns::serve(|question| match question["do"].as_str() {
        Some("join") => {
            let count = u32::try_from(question["count"].as_u64().context("`count`")?)?;
            for number in there..count {
                runtime.block_on(world.join(number))?;
            }
            there = there.max(count);
            Ok(json!({"nodes": there}))
        }
        other => bail!("cannot do {other:?}"),
    })?;
    runtime.shutdown_background();
    Ok(())
}

struct World {
    live: Arc<dyn Live>,
    task: Task,
    variants: Vec<(Variant, RunModel)>,
    space: modelless_types::SpaceId,
    answer: Buffer,
    clock: Clock,
    identity: String,
    seed: u64,
}

async fn world(database: &str, redis: &str, task: &str, seed: u64) -> Result<World> {
    let store: Arc<dyn Store> = Arc::new(modelless_store::open(database).await?);
    let (catalog, identity): (Catalog, String) = (store.catalog().await?, identity_of(&*store).await?);
    store.close().await;
    let task = catalog.tasks.iter().find(|known| known.name == task).context("no such task")?.clone();
    let mut variants = Vec::new();
    let mut space = None;
    for model in catalog.models_of(task.id) {
        space = Some(model.space);
        for variant in catalog.variants_of(model.id) {
            let profile = variant.profiles.first().context("a registered variant was measured")?;
            let run = RunModel::from_profile(profile).context("a profile that cannot be used")?;
            variants.push((variant.clone(), run));
        }
    }
    let answer = zeros(&task);
    Ok(World {
        answer,
        live: Arc::new(RedisLive::new(redis, &format!("default:{identity}"))?),
        space: space.context("the task has no model")?,
        task,
        variants,
        clock: Clock::start(),
        identity,
        seed,
    })
}

/// What a model might answer.
fn zeros(task: &Task) -> Buffer {
    let mut body = Vec::new();
    for output in &task.outputs {
        packed::push(&output.shape, &vec![0; output.item_bytes().unwrap_or(0)], &mut body);
    }
    body.into()
}

impl World {
    async fn join(&self, number: u32) -> Result<()> {
        let listener = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).await?;
        let mut rng = Rng::new(self.seed, &format!("node {number}"));
        let (sender, status) = watch::channel(self.status(number, &mut rng));
        let variant = self.variants[rng.below(self.variants.len())].0.clone();
        let node = Arc::new(Node {
            id: NodeId(FIRST + number),
            space: self.space,
            answer: self.answer.clone(),
            variant,
            gateway: OnceLock::new(),
            rng: Mutex::new(Rng::new(self.seed, &format!("load of {number}"))),
            clock: self.clock,
            handled: AtomicU64::new(0),
            queued: AtomicU32::new(0),
        });
        let clock = self.clock;
        let server = serve_node(
            listener,
            Arc::clone(&node) as Arc<dyn NodeLink>,
            status.clone(),
            Config { store: Some(self.identity.clone()), ..Config::new(move || clock.now()) },
        );
        let _ = node.gateway.set(server.link());
        node.say(Body::Report);
        let address = server.address().to_string();
        let stop = CancellationToken::new();
        tokio::spawn(server.run(stop.clone()));
        let describe = move || describe(&status.borrow(), &address);
        tokio::spawn(keep_announced(Arc::clone(&self.live), describe, BEAT, stop));
        // Its figures change as those of a node that is used do.
        tokio::spawn(async move {
            // Not all at once.
            let first =
                tokio::time::Instant::now() + BEAT + Duration::from_micros(rng.below(1_000_000) as u64);
            let mut beat = tokio::time::interval_at(first, BEAT);
            loop {
                beat.tick().await;
                sender.send_modify(|status| {
                    node.handled.fetch_add(moved(status, &mut rng), Ordering::Relaxed);
                    node.queued.store(status.load.queued, Ordering::Relaxed);
                });
                node.say(Body::Report);
            }
        });
        Ok(())
    }

    fn status(&self, number: u32, rng: &mut Rng) -> NodeStatus {
        let slower = 0.7 + rng.unit();
        let fresh = number.is_multiple_of(5);
        let offers = self.variants.iter().map(|(variant, run)| {
            let mut run = run.clone();
            if !fresh {
                let samples = 10 + u32::try_from(rng.below(500)).unwrap_or(0);
                run.correction = Correction { ratio: slower, spread: 0.01, samples };
            }
            let ready = if rng.chance(0.75) { Ready::Resident } else { Ready::Cold { load: COLD } };
            Offer { task: self.task.id, ordinal: variant.ordinal, ready, run, width: 1 }
        });
        let offers: Vec<Offer> = offers.collect();
        let price = PricePerHour(20_000 + rng.next_u64() % 80_000);
        let replicas = self.variants.iter().zip(&offers).map(|((variant, _), offer)| ReplicaStatus {
            device: DeviceIx(0),
            variant: variant.id,
            state: state(offer.ready),
            memory: EACH,
            slowdown: (!fresh).then_some(slower),
            cause: "the plan pins it".into(),
            loads: LoadTimes { count: 1, cold: Some(COLD), warm: None },
            signs: None,
        });
        let replicas: Vec<ReplicaStatus> = replicas.collect();
        let info = NodeInfo { id: NodeId(FIRST + number), rtt: Moments::ZERO, price, offers };
        let class = format!("cpu:simulated-{}:{LANES}", number / 5 % CLASSES);
        NodeStatus {
            price,
            lanes: LANES,
            memory_budget: Bytes::from_mib(1_024),
            memory_used: used(&replicas),
            load: NodeLoad::default(),
            replicas,
            ..NodeStatus::idle(info, &format!("simulated-{number}"), &class)
        }
    }
}

fn state(ready: Ready) -> ReplicaState {
    match ready {
        Ready::Resident => ReplicaState::Active,
        Ready::Loading { .. } => ReplicaState::Loading,
        Ready::Cold { .. } => ReplicaState::Inactive,
    }
}

fn used(replicas: &[ReplicaStatus]) -> Bytes {
    let resident = replicas.iter().filter(|replica| replica.state == ReplicaState::Active);
    Bytes(resident.map(|replica| replica.memory.0).sum())
}

/// A second of a node that is used: work comes and goes, what is measured moves, now and then a variant goes or is back. How many
/// queries it handled.
fn moved(status: &mut NodeStatus, rng: &mut Rng) -> u64 {
    let below = |rng: &mut Rng, n: usize| u32::try_from(rng.below(n)).unwrap_or(0);
    let load = &mut status.load;
    load.queued = (load.queued + below(rng, 5)).saturating_sub(below(rng, 5)).min(DEEPEST);
    load.lanes_busy = if load.queued > 0 { LANES } else { u16::from(rng.chance(0.5)) };
    load.running = u32::from(load.lanes_busy) * (1 + below(rng, 4));
    let handled = u64::from(load.queued + load.running + below(rng, 20));
    load.queries += handled;
    load.batches += handled.div_ceil(3);
    let offers = &mut status.info.offers;
    let at = rng.below(offers.len());
    let correction = &mut offers[at].run.correction;
    if correction.samples > 0 {
        // Around what it is, and never far from the profile.
        correction.ratio = (correction.ratio * (0.99 + 0.02 * rng.unit())).clamp(0.3, 3.0);
        correction.samples = correction.samples.saturating_add(1);
        status.replicas[at].slowdown = Some(correction.ratio);
    }
    if rng.chance(0.1) {
        let at = rng.below(offers.len());
        offers[at].ready = match offers[at].ready {
            Ready::Cold { .. } => Ready::Resident,
            Ready::Resident | Ready::Loading { .. } => Ready::Cold { load: COLD },
        };
        status.replicas[at].state = state(offers[at].ready);
        status.memory_used = used(&status.replicas);
    }
    handled
}

/// What an executor's own announcement holds.
fn describe(status: &NodeStatus, address: &str) -> Member {
    let seen = status.info.offers.iter().filter(|offer| offer.run.correction.samples > 0);
    let corrections = seen.map(|offer| Corrected {
        task: offer.task,
        ordinal: offer.ordinal,
        correction: offer.run.correction,
    });
    let resident = status.replicas.iter().map(|replica| Resident {
        device: DeviceIx(0),
        variant: replica.variant,
        state: replica.state,
    });
    Member {
        node: Some(status.node),
        address: Some(address.to_owned()),
        load: Load {
            queries: status.load.queued + status.load.running,
            waiting: status.load.queued,
            busy_lanes: status.load.lanes_busy,
            lanes: status.lanes,
            memory_used: status.memory_used,
            memory_budget: status.memory_budget,
        },
        resident: resident.collect(),
        device_class: status.device_class.clone(),
        corrections: corrections.collect(),
        ..Member::new(Role::Node, &status.name, u64::from(status.node.0))
    }
}

/// Answers at once.
struct Node {
    id: NodeId,
    space: modelless_types::SpaceId,
    answer: Buffer,
    variant: Variant,
    gateway: OnceLock<Arc<dyn GatewayLink>>,
    rng: Mutex<Rng>,
    clock: Clock,
    /// Queries of this gateway, and of others that are not there.
    handled: AtomicU64,
    queued: AtomicU32,
}

impl Node {
    fn say(&self, body: Body) {
        let wait = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            let queued = f64::from(self.queued.load(Ordering::Relaxed));
            Moments { mean: 500.0 * (queued + rng.exponential()), var: 10_000.0 * (1.0 + queued) }
        };
        let made = Made { inputs: self.handled.load(Ordering::Relaxed), at: self.clock.now() };
        let limit = Limit { queries: 8, bytes: Bytes::from_mib(16) };
        let report = NodeReport { limit, wait, made, ..NodeReport::default() };
        if let Some(gateway) = self.gateway.get() {
            gateway.receive(self.id, FromNode { body, report });
        }
    }
}

impl NodeLink for Node {
    fn send(&self, frame: ToNode) {
        let ToNode::Query(query) = frame else { return };
        let answer = Answer {
            body: self.answer.clone(),
            model: self.variant.model,
            variant: self.variant.id,
            space: self.space,
            batch: 1,
            predicted_run: Micros(1),
            cost: CostPer1k(0),
            queued: Micros::ZERO,
            decode: Micros::ZERO,
            prepare: Micros::ZERO,
            run: Micros::ZERO,
            at_node: Micros::ZERO,
            why: Reason::Only,
        };
        self.handled.fetch_add(1, Ordering::Relaxed);
        self.say(Body::Answer { key: query.key, answer: Box::new(answer) });
    }
}
