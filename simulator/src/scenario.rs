//! A scenario: everything a run depends on besides its seed, as data. How people write one is told in [`file::File`].

mod build;
mod check;
pub(crate) use build::permille;
pub mod file;
pub mod live;
mod profiles;
pub mod timed;
mod times;
mod traffic;
mod unknown;

pub(crate) use traffic::servegen_clients;

use crate::rng::Rng;
use modelless_decision::route::{Limits, TaskInfo, VariantInfo};
use modelless_decision::worker::{DeviceConfig, WorkerConfig, WorkerVariant};
use modelless_decision::{Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Batching, Bytes, Engine, Goals, Micros, ModelId, PricePerHour, SpaceId, StageTime,
    TaskId, VariantId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A world and what happens in it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// For people.
    pub name: String,
    /// What is registered.
    pub tasks: Vec<TaskSpec>,
    /// The nodes; their ids are 1, 2, ...
    pub nodes: Vec<NodeSpec>,
    /// How many gateways share the arrivals.
    pub gateways: u32,
    /// Bounds on what waits at a gateway.
    pub limits: Limits,
    /// Between every gateway and every node.
    pub link: LinkSpec,
    /// Whether nodes bound what a gateway may have outstanding; without, gateways send at once whatever comes.
    #[serde(default = "yes")]
    pub credits: bool,
    /// How often a node speaks without being asked.
    pub heartbeat: Micros,
    /// From a replica's change of state until gateways route by it.
    pub table_delay: Micros,
    /// From losing a node until its gateways know.
    pub detect: Micros,
    /// Who asks.
    pub streams: Vec<Stream>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// When the first query may come; what is pinned loads before.
    pub start: Micros,
    /// How long queries come, from `start`.
    pub duration: Micros,
    /// Without, what is pinned stays pinned.
    #[serde(default)]
    pub planner: Option<Planner>,
    /// How busy lanes are to be at most, where ours starts and stops machines.
    #[serde(default = "seven_tenths")]
    pub busy: f64,
}

const fn seven_tenths() -> f64 {
    0.7
}

const fn yes() -> bool {
    true
}

/// A task with its variants.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Number.
    pub id: TaskId,
    /// The output space of queries without a pin.
    pub default_space: SpaceId,
    /// Goals where a stream gives none.
    pub defaults: Goals,
    /// How queries share batches. `None`: as each node is set.
    #[serde(default)]
    pub batching: Option<Batching>,
    /// By rising ordinal.
    pub variants: Vec<VariantSpec>,
}

/// A variant and its true behaviour, which is also what its profile says but where [`Behaviour::profiled`] says otherwise.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VariantSpec {
    /// For people.
    pub name: String,
    /// Number, unique over all tasks.
    pub id: VariantId,
    /// Its model; variants of a model for one engine share a process.
    pub model: ModelId,
    /// What runs it.
    #[serde(default = "onnx")]
    pub engine: Engine,
    /// Its position in the task.
    pub ordinal: u8,
    /// Its output space.
    pub space: SpaceId,
    /// What floors are compared with.
    pub accuracy: Accuracy,
    /// The largest batch it takes.
    pub max_batch: u32,
    /// Threads of a run; 0 stands for 1.
    #[serde(default)]
    pub threads: u16,
    /// Device time by batch.
    pub latency: Vec<BatchPoint>,
    /// Decoding one input.
    pub decode: StageTime,
    /// What decoding took of inputs like those that come, in microseconds, each as often as any: mean and variance do not tell of a few that are
    /// a hundred times as large. None: as above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decoded: Vec<f64>,
    /// Writing one input into a batch.
    pub prepare: StageTime,
    /// Memory of a replica.
    pub memory: Bytes,
    /// From asking for it to ready.
    pub load_time: Micros,
    /// How it behaves on each class of devices; it runs on no other. Empty: everywhere as above.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub on: BTreeMap<String, Behaviour>,
}

/// A variant on one class of devices.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Behaviour {
    /// Device time by batch.
    pub latency: Vec<BatchPoint>,
    /// The largest batch it takes there.
    pub max_batch: u32,
    /// Memory of a replica.
    pub memory: Bytes,
    /// From asking for it to ready.
    pub load_time: Micros,
    /// What nodes are told of device times before they have seen any, where that is not how long it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiled: Option<RunModel>,
}

/// Who plans, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Planner {
    /// Between two plans.
    pub every: Micros,
    /// Share of each device's memory that is left to its worker, in thousandths.
    pub discretionary_permille: u16,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeSpec {
    /// What its device is, for variants that behave differently on each.
    #[serde(default)]
    pub class: String,
    /// Where it is, for people.
    #[serde(default)]
    pub zone: String,
    /// What a frame takes to it beyond the link's time, one way.
    #[serde(default)]
    pub far: Micros,
    /// What its worker is told of it.
    pub worker: WorkerConfig,
    /// What the plan pins there, on the first device.
    pub pinned: Vec<VariantId>,
    /// Scatter of load times: standard deviation over mean.
    pub load_scatter: f64,
    /// How often a load fails.
    pub load_failure: f64,
    /// How long giving memory back takes.
    pub unload: Micros,
    /// How often a batch takes its process with it.
    pub crash: f64,
    /// Batches that are held up now and then, as by another tenant of the processor.
    #[serde(default)]
    pub jitter: Option<Jitter>,
    /// How much later than asked a timer of its shell wakes.
    #[serde(default)]
    pub timer_late: Micros,
    /// How long it takes until a device that has nothing to do runs the batch that is handed to it.
    #[serde(default)]
    pub handover: Micros,
    /// How it is rented; without, it is there and paid for all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rented: Option<Rented>,
}

/// A machine that is started and stopped as somebody decides. It is paid from when it is asked for until it is gone.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rented {
    /// Whether it is there from the beginning.
    pub at_start: bool,
    /// From asking for it until it can load models.
    pub start_up: Micros,
    /// Standard deviation of that over its mean.
    pub scatter: f64,
}

/// Some batches take longer than their model does.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Jitter {
    /// How often.
    pub chance: f64,
    /// By how much: the mean of an exponentially distributed addition.
    pub mean: Micros,
}

/// Delay of a frame one way.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkSpec {
    /// At least.
    pub one_way: Micros,
    /// Mean of an exponentially distributed addition. Frames never overtake each other.
    pub jitter: Micros,
}

/// Queries that are alike.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stream {
    /// For people.
    pub name: String,
    /// What is asked.
    pub task: TaskId,
    /// When.
    pub arrivals: Arrivals,
    /// Under which goals.
    pub goals: Goals,
    /// Decoded size of an input.
    pub bytes: Bytes,
    /// How often a client goes away, at a random moment before its deadline.
    pub gives_up: f64,
    /// How often an input takes the process down that runs it.
    pub poison: f64,
}

/// When queries come. Rates are per second; times count from the scenario's `start`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Independently of each other.
    Poisson {
        /// Mean rate.
        rate: f64,
    },
    /// Poisson with a rate that jumps at stated times.
    Steps(Vec<Step>),
    /// Poisson with a rate that switches between two at random (a two-state Markov-modulated process).
    Bursty {
        /// While calm.
        calm: f64,
        /// While bursting.
        burst: f64,
        /// Mean length of a calm.
        calm_for: Micros,
        /// Mean length of a burst.
        burst_for: Micros,
    },
    /// With gamma-distributed gaps that are independent of each other.
    Renewal {
        /// Mean rate.
        rate: f64,
        /// Standard deviation of a gap over its mean: 1 is Poisson, more is burstier.
        cv: f64,
    },
    /// With independent gaps that are drawn by one law and passed through at a rate that changes at stated times, so that the
    /// mean rate is kept whatever the law.
    Modulated(Vec<Span>),
    /// At exactly these times.
    At(Vec<Micros>),
}

/// From a time on, a rate and how gaps scatter.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Since when.
    pub from: Micros,
    /// How many a second.
    pub rate: f64,
    /// How gaps scatter.
    pub gap: Gap,
}

/// A law of gaps; all have mean 1 here.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// By standard deviation over mean: 1 is Poisson, more is burstier, 0 a metronome.
    Gamma(f64),
    /// By shape: 1 is Poisson, less is burstier.
    Weibull(f64),
}

/// From a time on, a rate.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Since when.
    pub from: Micros,
    /// How many a second.
    pub rate: f64,
}

/// What goes wrong. Times count from the scenario's `start`; nodes and gateways by position.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fault {
    /// A node is gone with all it had; perhaps it comes back empty.
    NodeDown {
        /// Which.
        node: usize,
        /// When.
        at: Micros,
        /// When it is back.
        back: Option<Micros>,
    },
    /// A gateway is gone with all its clients; perhaps it comes back knowing nothing.
    GatewayDown {
        /// Which.
        gateway: usize,
        /// When.
        at: Micros,
        /// When it is back.
        back: Option<Micros>,
    },
    /// A model's processes die, whatever they do.
    RunnerCrash {
        /// Where.
        node: usize,
        /// When.
        at: Micros,
        /// Which.
        model: ModelId,
    },
    /// A node's devices take longer for a while.
    Slow {
        /// Which.
        node: usize,
        /// Since when.
        at: Micros,
        /// Until when.
        until: Micros,
        /// How many times as long.
        factor: f64,
    },
    /// A node stands still for a while, its shell and its devices, and goes on as if nothing had been.
    Pause {
        /// Which.
        node: usize,
        /// Since when.
        at: Micros,
        /// Until when; shorter than it takes to find a node dead.
        until: Micros,
    },
    /// A node is told to drain.
    Drain {
        /// Which.
        node: usize,
        /// When.
        at: Micros,
    },
    /// The cores of a node's first device are cut into lanes of another width.
    Recut {
        /// Where.
        node: usize,
        /// When.
        at: Micros,
        /// Cores of each lane.
        width: u16,
    },
    /// The plan pins something else.
    Pin {
        /// Where.
        node: usize,
        /// When.
        at: Micros,
        /// What, on the first device.
        variants: Vec<VariantId>,
    },
}

/// A [`Behaviour`], wherever it stands.
struct On<'a> {
    latency: &'a [BatchPoint],
    max_batch: u32,
    memory: Bytes,
    load_time: Micros,
    profiled: Option<&'a RunModel>,
}

const fn onnx() -> Engine {
    Engine::Onnx
}

impl Gap {
    fn is_sound(self) -> bool {
        match self {
            Self::Gamma(cv) => cv.is_finite() && (0.0..=100.0).contains(&cv),
            Self::Weibull(shape) => shape.is_finite() && (0.1..=100.0).contains(&shape),
        }
    }
}

impl VariantSpec {
    /// Its performance model, as it truly is.
    pub fn run_model(&self) -> Option<RunModel> {
        self.model_of(&self.latency)
    }

    fn model_of(&self, latency: &[BatchPoint]) -> Option<RunModel> {
        let model = RunModel::from_points(latency, Self::stage(self.prepare))?;
        Some(model.with_decode(Self::stage(self.decode)))
    }

    /// How it behaves on a class of devices; `None` where it cannot run.
    fn behaviour(&self, class: &str) -> Option<On<'_>> {
        if self.on.is_empty() {
            let (max_batch, memory, load_time) = (self.max_batch, self.memory, self.load_time);
            return Some(On { latency: &self.latency, max_batch, memory, load_time, profiled: None });
        }
        let Behaviour { latency, max_batch, memory, load_time, profiled } = self.on.get(class)?;
        let (max_batch, memory, load_time) = (*max_batch, *memory, *load_time);
        Some(On { latency, max_batch, memory, load_time, profiled: profiled.as_ref() })
    }

    /// How long it truly takes on a class of devices.
    pub(crate) fn truth(&self, class: &str) -> Option<RunModel> {
        self.model_of(self.behaviour(class)?.latency)
    }

    /// What decoding an input takes, as luck has it.
    pub(crate) fn decoding(&self, rng: &mut Rng) -> Micros {
        if self.decoded.is_empty() {
            return rng.duration(Self::stage(self.decode));
        }
        Moments { mean: self.decoded[rng.below(self.decoded.len())], var: 0.0 }.mean()
    }

    pub(crate) fn stage(time: StageTime) -> Moments {
        Moments { mean: time.mean_us.max(0.0), var: time.var_us2.max(0.0) }
    }
}

impl TaskSpec {
    pub(crate) fn info(&self) -> TaskInfo {
        let variants = self.variants.iter().map(|v| VariantInfo {
            id: v.id,
            model: v.model,
            ordinal: v.ordinal,
            space: v.space,
            accuracy: v.accuracy,
            max_batch: v.max_batch,
            candidate: false,
        });
        TaskInfo {
            id: self.id,
            default_space: self.default_space,
            defaults: self.defaults,
            variants: variants.collect(),
        }
    }
}

impl NodeSpec {
    /// One device, with bounds and habits that suit most tests.
    pub fn with(lanes: u16, memory: Bytes, pinned: Vec<VariantId>) -> Self {
        Self {
            class: String::new(),
            zone: String::new(),
            far: Micros::ZERO,
            worker: WorkerConfig {
                devices: vec![DeviceConfig { lanes, width: 1, memory, price: PricePerHour(50_000) }],
                queue: 1_024,
                queue_bytes: Bytes::from_mib(256),
                back_off: Micros::from_millis(100),
                give_up_after: 5,
                ..WorkerConfig::default()
            },
            pinned,
            load_scatter: 0.05,
            load_failure: 0.0,
            unload: Micros::from_millis(2),
            crash: 0.0,
            jitter: None,
            timer_late: Micros::ZERO,
            handover: Micros::ZERO,
            rented: None,
        }
    }

    /// What an hour of it costs, in dollars.
    pub(crate) fn usd_per_hour(&self) -> f64 {
        self.worker.devices.iter().map(|d| d.price.as_usd() * f64::from(d.lanes.max(1))).sum()
    }

    /// Whether it is there before the first query.
    pub(crate) fn there_at_start(&self) -> bool {
        self.rented.is_none_or(|rented| rented.at_start)
    }
}

impl Stream {
    /// Small inputs from well-behaved clients.
    pub fn new(name: &str, task: TaskId, arrivals: Arrivals, goals: Goals) -> Self {
        let bytes = Bytes(784);
        Self { name: name.into(), task, arrivals, goals, bytes, gives_up: 0.0, poison: 0.0 }
    }
}

impl Scenario {
    /// A small local network.
    pub fn new(name: &str, tasks: Vec<TaskSpec>, nodes: Vec<NodeSpec>, streams: Vec<Stream>) -> Self {
        Self {
            name: name.into(),
            tasks,
            nodes,
            gateways: 1,
            limits: Limits::default(),
            link: LinkSpec { one_way: Micros(50), jitter: Micros(10) },
            credits: true,
            heartbeat: Micros::from_millis(50),
            table_delay: Micros::from_millis(5),
            detect: Micros::from_millis(20),
            streams,
            faults: Vec::new(),
            start: Micros::from_secs(1),
            duration: Micros::from_secs(1),
            planner: None,
            busy: seven_tenths(),
        }
    }

    pub(crate) fn variants(&self) -> impl Iterator<Item = (TaskId, &VariantSpec)> {
        self.tasks.iter().flat_map(|task| task.variants.iter().map(move |v| (task.id, v)))
    }

    /// What nodes of a class of devices are told that they can run.
    pub fn catalog(&self, class: &str) -> Vec<WorkerVariant> {
        let batching = |id| self.tasks.iter().find(|task| task.id == id).and_then(|task| task.batching);
        let variant = |(task, v): (TaskId, &VariantSpec)| {
            let on = v.behaviour(class)?;
            Some(WorkerVariant {
                id: v.id,
                model: v.model,
                engine: v.engine,
                task,
                ordinal: v.ordinal,
                accuracy: v.accuracy,
                max_batch: on.max_batch,
                run: on.profiled.cloned().or_else(|| v.model_of(on.latency))?,
                memory: on.memory,
                load_time: on.load_time,
                threads: v.threads,
                batching: batching(task),
                gpu: false,
                keep: None,
            })
        };
        self.variants().filter_map(variant).collect()
    }

    /// Machines that are alike, by position: of one class, at one price.
    pub(crate) fn kinds(&self) -> Vec<Vec<usize>> {
        let mut kinds: Vec<Vec<usize>> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let alike = |known: &&mut Vec<usize>| {
                let first = &self.nodes[known[0]];
                first.class == node.class && first.usd_per_hour().to_bits() == node.usd_per_hour().to_bits()
            };
            match kinds.iter_mut().find(alike) {
                Some(kind) => kind.push(at),
                None => kinds.push(vec![at]),
            }
        }
        kinds
    }
}
