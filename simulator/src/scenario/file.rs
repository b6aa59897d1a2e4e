//! A scenario as people write it: one TOML file. Every key is told in `docs/simulator.md`.
//!
//! Here is only what may be written; `scenario::build` makes a world of it. A key that does not exist is refused, with those that
//! do, so that a slip never silently leaves a default in force.

use modelless_decision::route::ANNOUNCE;
use modelless_decision::worker::Foresight;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A scenario as it is written.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// For people, and for the names of results.
    pub name: String,
    /// What it is about, where its figures are from, and what was assumed.
    #[serde(default)]
    pub about: String,
    /// Every rate times this.
    #[serde(default = "one")]
    pub load: f64,
    /// How long queries come.
    pub duration_s: f64,
    /// Time before the first query, for what is pinned to be loaded.
    #[serde(default = "thirty")]
    pub warm_up_s: f64,
    /// Gateways that queries come to in turn.
    #[serde(default = "one_gateway")]
    pub gateways: u32,
    /// To so many nodes at most each query is announced that none could begin at once; below 2 each goes to one node. As many as by gateways that
    /// run, if nothing is said.
    #[serde(default = "announce")]
    pub announce: u16,
    /// Between gateways and nodes.
    #[serde(default)]
    pub network: Network,
    /// How models come into memory.
    #[serde(default)]
    pub loading: Loading,
    /// How machines come.
    #[serde(default)]
    pub renting: Renting,
    /// How what is pinned is chosen, unless pools say what they pin.
    #[serde(default)]
    pub planner: Planner,
    /// The machines.
    pub pool: Vec<Pool>,
    /// What can be asked.
    pub task: Vec<Task>,
    /// Who asks.
    #[serde(default)]
    pub application: Vec<Application>,
    /// Many who ask, by shares.
    #[serde(default)]
    pub mix: Vec<Mix>,
    /// What goes wrong.
    #[serde(default)]
    pub fault: Vec<Fault>,
}

/// Delays of frames.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// At least, one way.
    pub one_way_ms: f64,
    /// Mean of an exponentially distributed addition.
    pub jitter_ms: f64,
    /// Between reports of a node that nothing else brings.
    pub heartbeat_ms: f64,
}

impl Default for Network {
    fn default() -> Self {
        Self { one_way_ms: 0.05, jitter_ms: 0.01, heartbeat_ms: 250.0 }
    }
}

/// Loading and unloading.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Loading {
    /// Every load time times this; 0 is free.
    pub factor: f64,
    /// Standard deviation over mean.
    pub scatter: f64,
    /// Share of loads that fail.
    pub failure: f64,
    /// How long giving memory back takes.
    pub unload_ms: f64,
}

impl Default for Loading {
    fn default() -> Self {
        Self { factor: 1.0, scatter: 0.05, failure: 0.0, unload_ms: 2.0 }
    }
}

/// Starting machines of pools with `least`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Renting {
    /// Every start-up time times this; 0 is at once.
    pub factor: f64,
    /// Standard deviation over mean.
    pub scatter: f64,
}

impl Default for Renting {
    fn default() -> Self {
        Self { factor: 1.0, scatter: 0.1 }
    }
}

/// The live planner, and how nodes make do with what it has given them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Planner {
    /// Between two plans.
    pub every_s: f64,
    /// Share of each device's memory left to its worker.
    pub discretionary: f64,
    /// How busy lanes are to be at most, where machines come and go.
    pub busy: f64,
    /// How far nodes look ahead, planned for or not.
    pub foresight: Foresight,
}

impl Default for Planner {
    fn default() -> Self {
        Self { every_s: 1.0, discretionary: 0.25, busy: 0.7, foresight: Foresight::default() }
    }
}

/// Machines that are alike.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// For people, and for faults.
    pub name: String,
    /// How many; with `least`, at most.
    pub count: u32,
    /// Machines that are always there; the others are started and stopped as the policy decides, and paid while they are there.
    #[serde(default)]
    pub least: Option<u32>,
    /// Machines that are there from the beginning; without, the least.
    #[serde(default)]
    pub at_start: Option<u32>,
    /// From asking for a machine until it can load models; paid for, too.
    #[serde(default)]
    pub start_up_s: f64,
    /// Which profiles hold for their device.
    #[serde(default)]
    pub class: String,
    /// Batches that run side by side on one.
    #[serde(default = "one_lane")]
    pub lanes: u16,
    /// Memory for replicas on one.
    pub memory_mib: u64,
    /// What an hour of one costs.
    pub usd_per_hour: f64,
    /// Where they are.
    #[serde(default)]
    pub zone: String,
    /// What a frame takes to them beyond the network's time, one way.
    #[serde(default)]
    pub far_ms: f64,
    /// Variants that are pinned on each of them; the planner then rests.
    #[serde(default)]
    pub pinned: Option<Vec<String>>,
}

/// A task with what can answer it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// For people.
    pub name: String,
    /// So many such tasks, each with models of its own: `name-1`, `name-2`, ...
    #[serde(default = "one_gateway")]
    pub copies: u32,
    /// Floor of who gives none.
    #[serde(default)]
    pub accuracy: Option<f64>,
    /// Bound of who gives none.
    #[serde(default)]
    pub latency_ms: Option<f64>,
    /// How queries share batches: `deadline`, `aimd`, `fixed:SIZE:WAIT` or `off`.
    #[serde(default)]
    pub batching: Option<String>,
    /// Written out.
    #[serde(default)]
    pub variant: Vec<Variant>,
    /// Out of files of profiles.
    #[serde(default)]
    pub profiles: Vec<Import>,
}

/// A variant with its figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// For people.
    pub name: String,
    /// What floors are compared with.
    pub accuracy: f64,
    /// Variants of one model share a process.
    #[serde(default)]
    pub model: Option<String>,
    /// Decoding one input.
    #[serde(default)]
    pub decode_ms: f64,
    /// Writing one input into a batch.
    #[serde(default)]
    pub prepare_ms: f64,
    /// By class of device, `any` for all; it runs on no other.
    pub on: BTreeMap<String, Figures>,
}

/// How a variant behaves on a class of devices.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Pairs of batch size and mean milliseconds.
    pub batch_ms: Vec<(u32, f64)>,
    /// Standard deviation of those over the mean.
    #[serde(default = "some_scatter")]
    pub scatter: f64,
    /// The largest batch; without, the largest of those above.
    #[serde(default)]
    pub max_batch: Option<u32>,
    /// Of a replica.
    pub memory_mib: u64,
    /// From asking for it to ready.
    pub load_ms: f64,
}

/// Variants out of a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// Where, from the scenario's folder. What `modelless profile export` writes, or one of `simulator/data/profiles`.
    pub file: String,
    /// What devices are called there, and which class that is here. Others are left out.
    pub classes: BTreeMap<String, String>,
    /// Only these variants.
    #[serde(default)]
    pub only: Vec<String>,
    /// What the file does not tell, by the start of a variant's name; the longest that fits counts.
    #[serde(default)]
    pub assume: BTreeMap<String, Assumed>,
}

/// What somebody assumed.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumed {
    /// Of a replica.
    pub memory_mib: Option<u64>,
    /// From asking for it to ready.
    pub load_ms: Option<f64>,
    /// The largest batch.
    pub max_batch: Option<u32>,
    /// Besides, where the file has none.
    pub accuracy: Option<f64>,
}

/// Queries that are alike.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    /// For people.
    pub name: String,
    /// What is asked.
    pub task: String,
    /// The floor.
    #[serde(default)]
    pub accuracy: Option<f64>,
    /// The bound.
    #[serde(default)]
    pub latency_ms: Option<f64>,
    /// The ceiling.
    #[serde(default)]
    pub usd_per_1000: Option<f64>,
    /// `accuracy`, `cost` or `latency`.
    #[serde(default)]
    pub prefer: Option<String>,
    /// 1 is the highest, 9 the lowest: each is worth twice the next.
    #[serde(default)]
    pub priority: u8,
    /// Share of clients that go away before their answer.
    #[serde(default)]
    pub gives_up: f64,
    /// Decoded size of an input.
    #[serde(default = "some_kib")]
    pub kib: u64,
    /// When.
    pub arrivals: Arrivals,
}

/// Applications by shares: each task, each floor, each bound.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// For people.
    pub name: String,
    /// Which tasks, the most popular first. Empty: all.
    #[serde(default)]
    pub tasks: Vec<String>,
    /// How unevenly they are asked: the `k`-th by `k` to this power less. 0 is evenly.
    #[serde(default)]
    pub zipf: f64,
    /// Floors and their shares. Empty: that of the task.
    #[serde(default)]
    pub floors: Vec<Floor>,
    /// Bounds and their shares. Empty: that of the task.
    #[serde(default)]
    pub bounds: Vec<Bound>,
    /// As of an application.
    #[serde(default)]
    pub prefer: Option<String>,
    /// As of an application.
    #[serde(default)]
    pub priority: u8,
    /// As of an application.
    #[serde(default = "some_kib")]
    pub kib: u64,
    /// All of them together.
    pub arrivals: Arrivals,
}

/// A floor and how many have it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// The floor.
    pub accuracy: f64,
    /// Its share, of the sum of all.
    pub share: f64,
}

/// A bound and how many have it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The bound.
    pub latency_ms: f64,
    /// Its share, of the sum of all.
    pub share: f64,
}

/// When queries come.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// Independently of each other.
    Poisson {
        /// A second.
        rate: f64,
    },
    /// With gamma-distributed gaps.
    Gamma {
        /// A second.
        rate: f64,
        /// Standard deviation of a gap over its mean.
        cv: f64,
    },
    /// At a rate that switches between two at random.
    Mmpp {
        /// While calm.
        calm: f64,
        /// While bursting.
        burst: f64,
        /// Mean length of a calm.
        calm_s: f64,
        /// Mean length of a burst.
        burst_s: f64,
    },
    /// At a rate that changes at stated times.
    Steps {
        /// Pairs of seconds since the start and a rate.
        steps: Vec<(f64, f64)>,
        /// How gaps scatter.
        #[serde(default = "one")]
        cv: f64,
    },
    /// At a rate that rises and falls as a sine.
    Diurnal {
        /// Its mean.
        rate: f64,
        /// How far it goes from there, as a share.
        swing: f64,
        /// Of one day.
        period_s: f64,
        /// When it is highest.
        #[serde(default)]
        peak_at_s: f64,
        /// How gaps scatter.
        #[serde(default = "one")]
        cv: f64,
    },
    /// A crowd that comes all at once and goes again.
    Flash {
        /// Usually.
        rate: f64,
        /// At most.
        peak: f64,
        /// When it begins.
        at_s: f64,
        /// How long it takes until the peak.
        rise_s: f64,
        /// How long it stays.
        hold_s: f64,
        /// How long it takes until it is over.
        fall_s: f64,
        /// How gaps scatter.
        #[serde(default = "one")]
        cv: f64,
    },
    /// As somebody recorded them: a file with a line of milliseconds for each.
    Recorded {
        /// Where, from the scenario's folder.
        file: String,
        /// What is skipped.
        #[serde(default)]
        from_s: f64,
        /// How many times as fast.
        #[serde(default = "one")]
        speed: f64,
    },
    /// As a client of ServeGen's: rate and law of gaps by window.
    Servegen {
        /// Where, from the scenario's folder.
        file: String,
        /// Which, by its place in the file, from 1. In a mix each takes the next.
        #[serde(default)]
        client: Option<usize>,
        /// The first window's start.
        #[serde(default)]
        from_s: f64,
        /// How long a window lasts here.
        #[serde(default = "ten_minutes")]
        window_s: f64,
        /// Every rate times this.
        #[serde(default = "one")]
        factor: f64,
    },
    /// At these times.
    At {
        /// Since the start.
        times_ms: Vec<f64>,
    },
}

/// What goes wrong. Nodes are named `POOL/NUMBER`, from 1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// A node is gone with all it had.
    NodeDown {
        /// Which.
        node: String,
        /// When.
        at_s: f64,
        /// When it is back, empty.
        #[serde(default)]
        back_s: Option<f64>,
    },
    /// A gateway is gone with its clients.
    GatewayDown {
        /// Which, from 1.
        gateway: usize,
        /// When.
        at_s: f64,
        /// When it is back.
        #[serde(default)]
        back_s: Option<f64>,
    },
    /// A model's process dies.
    Crash {
        /// Where.
        node: String,
        /// When.
        at_s: f64,
        /// One of its variants.
        variant: String,
    },
    /// A node's devices take longer for a while.
    Slow {
        /// Which.
        node: String,
        /// Since when.
        at_s: f64,
        /// Until when.
        until_s: f64,
        /// How many times as long.
        factor: f64,
    },
    /// A node stands still for a while.
    Pause {
        /// Which.
        node: String,
        /// Since when.
        at_s: f64,
        /// Until when.
        until_s: f64,
    },
    /// A node is told to drain.
    Drain {
        /// Which.
        node: String,
        /// When.
        at_s: f64,
    },
}

const fn one() -> f64 {
    1.0
}

const fn thirty() -> f64 {
    30.0
}

const fn ten_minutes() -> f64 {
    600.0
}

const fn one_gateway() -> u32 {
    1
}

const fn announce() -> u16 {
    ANNOUNCE
}

const fn one_lane() -> u16 {
    1
}

const fn some_scatter() -> f64 {
    0.05
}

const fn some_kib() -> u64 {
    150
}
