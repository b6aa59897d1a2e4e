//! A node whose engine replays measured latencies instead of computing: the real executor, worker and wire, so that there can be
//! more nodes than cores. Sleeping is as exact as the runtime's timer, a millisecond.
//!
//! `replay-node register DATABASE ARTEFACTS` makes the task `replay` with one variant; `register-all` makes two more: `replay-slow`,
//! whose variant takes five times as long, and `replay-large`, whose inputs are so large that they are sent in parts. Both tell of each
//! task what a single query takes and how many numbers it has, as JSON. `register-slow DATABASE ARTEFACTS BOUND_MS` makes the slow one alone, with a
//! bound. An answer is the sum of the numbers. `replay-node executor --database URL
//! --redis URL [--set NAME=VALUE]` serves it, taking of the settings of `modelless executor` those that it needs, and
//! `credits=false`: gateways are told that they may send what they like. While the file `slow.file` is there, batches take four times
//! as long for half a second out of every 4.5 s, `slow.offset_ms` later than those of a node without: so nodes fall behind in turns. It tells
//! of its load as `modelless executor` does and leaves when that is written down for it, so a scheduler may have it as a machine: then
//! it finds the database and Redis in its environment.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use modelless_bench::cluster::identity_of;
use modelless_decision::route::Limit;
use modelless_drive::Clock;
use modelless_engine::{FakeEngine, FakeModel};
use modelless_executor::{Config, Deps, build};
use modelless_live::{Load, Member, RedisLive, Resident, Role, keep_announced};
use modelless_simulator::VariantSpec;
use modelless_simulator::batching::{MODELS, spec};
use modelless_store::{Artefacts, NewModel, NewTask, NewVariant, PutArtefact, Signed, Store};
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, Bytes, DType, Engine, Goals, Micros, NodeId, Profile,
    Provenance, StageTime, TaskKind, TenantId, TensorSpec, VariantSettings,
};
use modelless_wire::{Address, FromNode, GatewayLink, Listener, NodeLink, NodeStatus, serve_node};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const TASK: &str = "replay";
const SLOW: &str = "replay-slow";
const LARGE: &str = "replay-large";
/// Numbers of an input; 200 kB of them.
const FEW: u32 = 4;
const MANY: u32 = 50_000;
/// How much longer batches of the slow one take: some tens of milliseconds.
const SLOWER: f64 = 5.0;
const CLASS: &str = "cpu:replayed:1";
/// EfficientNet-Lite0, as it was measured for the simulator.
const MODEL: usize = 2;
const ANY: u32 = 1_000_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["register", database, artefacts] => register(database, artefacts, &[TASK], None).await,
        ["register-all", database, artefacts] => {
            register(database, artefacts, &[TASK, SLOW, LARGE], None).await
        }
        ["register-slow", database, artefacts, bound_ms] => {
            let bound = Micros::from_millis(bound_ms.parse().context("a bound in milliseconds")?);
            register(database, artefacts, &[SLOW], Some(bound)).await
        }
        ["executor", rest @ ..] => {
            let mut given = BTreeMap::new();
            for (name, variable) in [("database", "MODELLESS_DATABASE"), ("redis", "MODELLESS_REDIS")] {
                given.extend(std::env::var(variable).ok().map(|value| (name.to_owned(), value)));
            }
            for pair in rest.chunks(2) {
                let [name, value] = pair else { bail!("{pair:?} without a value") };
                let (name, value) = if *name == "--set" {
                    value.split_once('=').with_context(|| format!("`--set {value}` gives no value"))?
                } else {
                    (name.trim_start_matches('-'), *value)
                };
                given.insert(name.to_owned(), value.to_owned());
            }
            serve(&given).await
        }
        other => bail!("usage: replay-node register|register-all|register-slow|executor, not {other:?}"),
    }
}

fn tensor(name: &str, size: u32) -> TensorSpec {
    TensorSpec { name: name.into(), dtype: DType::Fp32, shape: vec![size] }
}

/// What a task's queries are made of. Variants are called after their tasks.
fn input_of(task: &str) -> TensorSpec {
    tensor("x", if task == LARGE { MANY } else { FEW })
}

/// What batches of a task's variant take.
fn measured(task: &str) -> VariantSpec {
    let mut spec = spec(&MODELS[MODEL]);
    if task == SLOW {
        for point in &mut spec.latency {
            point.mean_us *= SLOWER;
            point.var_us2 *= SLOWER * SLOWER;
            point.p99_us *= SLOWER;
        }
    }
    spec
}

async fn register(database: &str, artefacts: &str, tasks: &[&str], bound: Option<Micros>) -> Result<()> {
    let store = modelless_store::open(database).await?;
    let artefact = Artefacts::new(artefacts)?.put(&b"nothing that runs"[..])?;
    let mut told = Vec::new();
    for name in tasks {
        let model = measured(name);
        let single = model.latency.first().context("a model with points")?.mean_us;
        told.push(serde_json::json!({"task": name, "single_us": single, "input": input_of(name)}));
        make(&store, (name, bound), &model, &artefact).await?;
    }
    store.close().await;
    writeln!(std::io::stdout(), "{}", serde_json::Value::Array(told))?;
    Ok(())
}

/// A task with one model of one variant.
async fn make(
    store: &dyn Store,
    (name, bound): (&str, Option<Micros>),
    model: &VariantSpec,
    artefact: &PutArtefact,
) -> Result<()> {
    let task = NewTask {
        tenant: TenantId::DEFAULT,
        name: name.into(),
        kind: TaskKind::Tensor,
        metric: "none".into(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: modelless_types::LiveRule::default(),
        declared_accuracy: modelless_types::DeclaredRule::default(),
        labels: Vec::new(),
        inputs: vec![input_of(name)],
        outputs: vec![tensor("sum", 1)],
        space: None,
        defaults: Goals { latency: bound, ..Goals::default() },
        batching: None,
        cache: modelless_types::CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    };
    let task = store.create_task(task).await?.id;
    let accuracy = AccuracyMeasure {
        value: Accuracy::ONE,
        low: Accuracy::ONE,
        high: Accuracy::ONE,
        samples: 1,
        set: "none".into(),
        provenance: Provenance::Declared,
        device_class: CLASS.into(),
        command: "replay-node register".into(),
    };
    let profile = Profile {
        device_class: CLASS.into(),
        latency: model.latency.clone(),
        latency_provenance: Provenance::Declared,
        decode: StageTime::default(),
        prepare: StageTime::default(),
        memory: Bytes::from_mib(10),
        peak: None,
        load_time: Micros::from_millis(20),
        accuracy,
        also: Vec::new(),
        detail: modelless_types::Detail::default(),
    };
    let variant = NewVariant {
        name: name.into(),
        settings: VariantSettings::new(Engine::Onnx, "fp32", model.max_batch),
        artefact: artefact.sha256.clone(),
        artefact_bytes: Bytes(artefact.bytes),
        profiles: vec![profile],
    };
    let model = NewModel {
        task,
        tenant: TenantId::DEFAULT,
        name: name.into(),
        version: 1,
        architecture: "none".into(),
        licence: "Apache-2.0".into(),
        owner: String::new(),
        promote: false,
        by: Signed::default(),
        space: None,
        adapter: r#"{"kind": "tensor"}"#.into(),
        variants: vec![variant],
    };
    store.register_model(model).await?;
    Ok(())
}

/// Tells gateways that they may send what they like.
struct NoCredit(Arc<dyn GatewayLink>);

impl GatewayLink for NoCredit {
    fn receive(&self, node: NodeId, mut frame: FromNode) {
        frame.report.limit = Limit { queries: ANY, bytes: Bytes::from_mib(100_000) };
        self.0.receive(node, frame);
    }
}

/// A node that falls behind now and then.
#[derive(Clone)]
struct Slow {
    file: PathBuf,
    offset_ms: u128,
}

impl Slow {
    const EVERY_MS: u128 = 4_500;
    const FOR_MS: u128 = 500;
    const FACTOR: f64 = 4.0;

    fn of(given: &BTreeMap<String, String>) -> Result<Option<Self>> {
        let Some(file) = given.get("slow.file") else { return Ok(None) };
        let offset_ms = given.get("slow.offset_ms").map_or(Ok(0), |text| text.parse())?;
        Ok(Some(Self { file: file.into(), offset_ms }))
    }

    /// How many times as long a batch takes that begins now.
    fn factor(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis());
        let slow = (now + Self::EVERY_MS - self.offset_ms % Self::EVERY_MS) % Self::EVERY_MS < Self::FOR_MS;
        if slow && self.file.exists() { Self::FACTOR } else { 1.0 }
    }
}

async fn serve(given: &BTreeMap<String, String>) -> Result<()> {
    let text = |name: &str| given.get(name).map(String::as_str).with_context(|| format!("no `{name}`"));
    let store: Arc<dyn Store> = Arc::new(modelless_store::open(text("database")?).await?);
    let variants = store.catalog().await?.variants;
    let runs = variants.iter().map(|variant| {
        let run = measured(&variant.name).run_model().context("a model with points")?;
        Ok((variant.id, input_of(&variant.name), run))
    });
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let slow = Slow::of(given)?;
    let fake = || {
        let engine = FakeEngine::new();
        for (variant, input, model) in &runs {
            let (model, slow) = (model.clone(), slow.clone());
            let latency = move |batch| {
                let factor = slow.as_ref().map_or(1.0, Slow::factor);
                Duration::from_secs_f64(model.uncorrected(batch).mean * factor / 1e6)
            };
            let inputs = vec![input.clone()];
            engine.behave(*variant, FakeModel { inputs, latency: Arc::new(latency), ..FakeModel::default() });
        }
        Arc::new(engine)
    };
    let config = Config {
        name: text("executor.name")?.into(),
        pool: given.get("executor.pool").cloned().unwrap_or_else(|| Config::default().pool),
        device_class: CLASS.into(),
        lanes: text("executor.lanes")?.parse()?,
        hand_back: given.get("executor.hand_back").is_none_or(|given| given != "false"),
        ..Config::default()
    };
    let clock = Clock::start();
    let deps = Deps {
        store: Arc::clone(&store),
        artefacts: Arc::new(Artefacts::new(text("artefacts")?)?),
        engine: fake(),
        quarantine: fake(),
        clock,
        recorder: None,
        warnings: vec!["its engine replays measured latencies".into()],
    };
    let (service, handle) = build(config, deps).await?;
    let listener = Listener::bind(&text("listen")?.parse::<Address>().map_err(anyhow::Error::msg)?).await?;
    let link: Arc<dyn NodeLink> = Arc::new(handle.clone());
    let identity = identity_of(&*store).await?;
    let config = modelless_wire::Config {
        store: Some(identity.clone()),
        ..modelless_wire::Config::new(move || clock.now())
    };
    let server = serve_node(listener, link, handle.status(), config);
    if given.get("credits").is_some_and(|credits| credits == "false") {
        handle.connect(Arc::new(NoCredit(server.link())));
    } else {
        handle.connect(server.link());
    }
    let (address, status, stop) = (server.address().to_string(), handle.status(), CancellationToken::new());
    writeln!(std::io::stdout(), "ready node {address}")?;
    let serving = tokio::spawn(server.run(stop.clone()));
    let instance = u64::from(std::process::id());
    let describe = move || described(&status.borrow(), &address, instance);
    let cluster = given.get("cluster").map_or("default", String::as_str);
    let live = Arc::new(RedisLive::new(text("redis")?, &format!("{cluster}:{identity}"))?);
    let announcing = tokio::spawn(keep_announced(live, describe, Duration::from_secs(1), stop.clone()));
    let (ended, mut term) = (CancellationToken::new(), signal(SignalKind::terminate())?);
    let (over, written, name) = (ended.clone(), Arc::clone(&store), text("executor.name")?.to_owned());
    let asked = tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            () = told_to_leave(&*written, &name) => {}
        }
        over.cancel();
    });
    service.run(ended).await;
    asked.abort();
    stop.cancel();
    let _ = (announcing.await, serving.await);
    store.close().await;
    Ok(())
}

fn described(status: &NodeStatus, address: &str, instance: u64) -> Member {
    let resident = status.replicas.iter().map(|replica| Resident {
        device: replica.device,
        variant: replica.variant,
        state: replica.state,
    });
    Member {
        node: Some(status.node),
        address: Some(address.to_owned()),
        draining: status.draining,
        load: Load {
            queries: status.load.queued + status.load.running,
            waiting: status.load.queued,
            busy_lanes: status.load.lanes_busy,
            lanes: status.lanes,
            memory_used: status.memory_used,
            memory_budget: status.memory_budget,
        },
        device_class: status.device_class.clone(),
        resident: resident.collect(),
        ..Member::new(Role::Node, &status.name, instance)
    }
}

/// Returns when it is written down that the machine of this name is to go; not at all for a node that is none.
async fn told_to_leave(store: &dyn Store, name: &str) {
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    loop {
        beat.tick().await;
        if store
            .rented()
            .machine_named(name)
            .await
            .is_ok_and(|machine| machine.is_some_and(|of| !of.state.stays()))
        {
            return;
        }
    }
}
