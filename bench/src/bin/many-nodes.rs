//! Nodes that run nothing but speak the real wire, as many as are asked for, for a gateway to find.
//!
//! `many-nodes SPEC`, where SPEC is JSON: `{"database", "redis", "task", "seed"}`; then `{"do": "join", "count"}`: so many nodes
//! are there from now on. Each listens on a port of its own, announces itself in Redis, offers every variant of the task as
//! measured (with a speed of its own), tells its status about once a second, and answers every query at once with nothing.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes as Buffer;
use modelless_decision::route::{Limit, Made, NodeInfo, NodeReport, Offer, Ready};
use modelless_decision::{Moments, RunModel};
use modelless_drive::Clock;
use modelless_live::{Live, Load, Member, RedisLive, Role, keep_announced};
use modelless_simulator::Rng;
use modelless_store::{Catalog, Store};
use modelless_testkit::turns;
use modelless_types::{Bytes, CostPer1k, Micros, NodeId, PricePerHour, ReplicaState, Task, Variant};
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
    clock: Clock,
    seed: u64,
}

async fn world(database: &str, redis: &str, task: &str, seed: u64) -> Result<World> {
    let store: Arc<dyn Store> = Arc::new(modelless_store::open(database).await?);
    let catalog: Catalog = store.catalog().await?;
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
    Ok(World {
        live: Arc::new(RedisLive::new(redis, "default")?),
        space: space.context("the task has no model")?,
        task,
        variants,
        clock: Clock::start(),
        seed,
    })
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
            variant,
            gateway: OnceLock::new(),
            rng: Mutex::new(Rng::new(self.seed, &format!("load of {number}"))),
        });
        let clock = self.clock;
        let server = serve_node(
            listener,
            Arc::clone(&node) as Arc<dyn NodeLink>,
            status.clone(),
            Config::new(move || clock.now()),
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
                    status.load.queries += 17;
                    status.load.batches += 5;
                    status.load.running = u32::try_from(rng.below(4)).unwrap_or(0);
                    let at = rng.below(status.info.offers.len());
                    status.info.offers[at].run.correction.ratio *= 0.99 + 0.02 * rng.unit();
                });
            }
        });
        Ok(())
    }

    fn status(&self, number: u32, rng: &mut Rng) -> NodeStatus {
        let slower = 0.7 + rng.unit();
        let offers = self.variants.iter().map(|(variant, run)| {
            let mut run = run.clone();
            run.correction.ratio = slower;
            Offer { task: self.task.id, ordinal: variant.ordinal, ready: Ready::Resident, run, width: 1 }
        });
        let price = PricePerHour(20_000 + rng.next_u64() % 80_000);
        let info =
            NodeInfo { id: NodeId(FIRST + number), rtt: Moments::ZERO, price, offers: offers.collect() };
        let replicas = self.variants.iter().map(|(variant, _)| ReplicaStatus {
            variant: variant.id,
            state: ReplicaState::Active,
            memory: Bytes::from_mib(20),
            slowdown: Some(slower),
            cause: "the plan pins it".into(),
            loads: LoadTimes { count: 1, cold: Some(Micros(80_000)), warm: None },
        });
        NodeStatus {
            price,
            lanes: 2,
            memory_budget: Bytes::from_mib(1_024),
            memory_used: Bytes::from_mib(240),
            load: NodeLoad::default(),
            replicas: replicas.collect(),
            ..NodeStatus::idle(info, &format!("simulated-{number}"), "cpu:simulated:2")
        }
    }
}

fn describe(status: &NodeStatus, address: &str) -> Member {
    Member {
        role: Role::Node,
        name: status.name.clone(),
        instance: u64::from(status.node.0),
        node: Some(status.node),
        address: Some(address.to_owned()),
        draining: false,
        load: Load { lanes: status.lanes, ..Load::default() },
        resident: Vec::new(),
        demand: Vec::new(),
        device_class: String::new(),
        corrections: Vec::new(),
    }
}

/// Answers at once.
struct Node {
    id: NodeId,
    space: modelless_types::SpaceId,
    variant: Variant,
    gateway: OnceLock<Arc<dyn GatewayLink>>,
    rng: Mutex<Rng>,
}

impl Node {
    fn say(&self, body: Body) {
        let wait = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            Moments { mean: 500.0 * rng.exponential(), var: 10_000.0 }
        };
        let limit = Limit { queries: 8, bytes: Bytes::from_mib(16) };
        let report = NodeReport { limit, wait, waits: Vec::new(), made: Made::default() };
        if let Some(gateway) = self.gateway.get() {
            gateway.receive(self.id, FromNode { body, report });
        }
    }
}

impl NodeLink for Node {
    fn send(&self, frame: ToNode) {
        let ToNode::Query(query) = frame else { return };
        let answer = Answer {
            body: Buffer::from_static(b"{}"),
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
        self.say(Body::Answer { key: query.key, answer: Box::new(answer) });
    }
}
