//! The ways of batching side by side: the same arrivals, device and bound, once for each.
//!
//! Device times of the three models were measured (ONNX Runtime, one thread, medians of single runs on one machine, at
//! the batches given); sizes between lie on the line. Their scatter is assumed. There is no network, and the noise of
//! a shared processor is simulated only where [`Setup::jitter`] asks for it.

use crate::scenario::{Arrivals, Jitter, LinkSpec, NodeSpec, Scenario, Stream, TaskSpec, VariantSpec};
use crate::{Error, run};
use modelless_types::{
    Accuracy, BatchPoint, Batching, Bytes, Engine, Goals, Micros, ModelId, SpaceId, StageTime, TaskId,
    VariantId,
};
use serde::{Deserialize, Serialize};

/// Scatter assumed of device times: standard deviation over mean.
const SCATTER: f64 = 0.05;

/// A model by its device times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// For people.
    pub name: &'static str,
    /// Batch and microseconds, rising.
    pub points: &'static [(u32, f64)],
    /// The largest batch it is given.
    pub max_batch: u32,
}

/// The models of the comparison.
pub const MODELS: [Measured; 5] = [
    Measured { name: "cnn_m-fp32", points: &[(1, 85.0), (32, 1_800.0)], max_batch: 32 },
    Measured { name: "cnn_m-int8", points: &[(1, 55.0), (32, 1_300.0)], max_batch: 32 },
    Measured { name: "efficientnet-lite0-fp32", points: &[(1, 7_100.0), (8, 67_000.0)], max_batch: 8 },
    Measured { name: "efficientnet-lite0-int8", points: &[(1, 3_700.0), (8, 28_000.0)], max_batch: 8 },
    Measured { name: "minilm-l6-fp32", points: &[(1, 4_120.0), (32, 135_000.0)], max_batch: 32 },
];

/// What is compared under which load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Load as a share of the throughput at the best batch.
    pub load: f64,
    /// The latency bound as a multiple of the time of a single query.
    pub bound: f64,
    /// Batches that run side by side.
    pub lanes: u16,
    /// Queries of each run.
    pub queries: u32,
    /// One run each.
    pub seeds: Vec<u64>,
    /// Batches that are held up now and then.
    pub jitter: Option<Jitter>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { load: 0.7, bound: 5.0, lanes: 1, queries: 5_000, seeds: vec![1, 2, 3, 4, 5], jitter: None }
    }
}

/// What came of one way of batching under one load, over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// How queries come: `poisson`, or `bursty` (gamma-distributed gaps, coefficient of variation 4).
    pub arrivals: String,
    /// How batches are made.
    pub batching: Batching,
    /// Batches that run side by side.
    pub lanes: u16,
    /// Queries a second.
    pub rate: f64,
    /// The bound.
    pub bound: Micros,
    /// Queries that came.
    pub offered: u64,
    /// Answered after the bound, over those that came.
    pub late: f64,
    /// Refused because they would have been late, over those that came.
    pub refused: f64,
    /// Both.
    pub missed: f64,
    /// The largest share of both in any one run.
    pub missed_worst: f64,
    /// Mean over the runs of the median latency.
    pub p50: Micros,
    /// The largest 99th percentile of a run, of what was answered.
    pub p99: Micros,
    /// Mean members of a batch.
    pub batch: f64,
    /// Time on devices over time that lanes were there.
    pub busy: f64,
}

/// The coefficient of variation of bursty arrivals.
const CV: f64 = 4.0;

/// Runs every model under every way of batching, with Poisson and with bursty arrivals.
pub fn compare(setup: &Setup) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for model in &MODELS {
        for bursty in [false, true] {
            for batching in modes(model) {
                rows.push(row(setup, model, bursty, batching)?);
            }
        }
    }
    Ok(rows)
}

/// A fixed batch waits for half of the model's largest, for as long as one query takes: a usual setting.
fn modes(model: &Measured) -> [Batching; 4] {
    let wait = Micros(whole(model.points[0].1));
    let fixed = Batching::Fixed { size: (model.max_batch / 2).max(2), wait };
    [Batching::Deadline, Batching::Aimd, fixed, Batching::Off]
}

/// Queries a second at the best batch.
fn peak(spec: &VariantSpec) -> f64 {
    let model = spec.run_model().expect("a model with points");
    let rate = |batch| f64::from(batch) * 1e6 / model.uncorrected(batch).mean;
    (1..=spec.max_batch).map(rate).fold(0.0, f64::max)
}

fn row(setup: &Setup, model: &Measured, bursty: bool, batching: Batching) -> Result<Row, Error> {
    let spec = spec(model);
    let rate = setup.load * peak(&spec) * f64::from(setup.lanes);
    let bound = Micros(whole(setup.bound * model.points[0].1));
    let arrivals = if bursty { Arrivals::Renewal { rate, cv: CV } } else { Arrivals::Poisson { rate } };
    let goals = Goals { latency: Some(bound), ..Goals::default() };
    let task = TaskSpec {
        id: TaskId(1),
        default_space: SpaceId(1),
        defaults: Goals::default(),
        batching: Some(batching),
        variants: vec![spec],
    };
    let mut node = NodeSpec::with(setup.lanes, Bytes::from_mib(1_024), vec![VariantId(1)]);
    node.jitter = setup.jitter;
    let stream = Stream::new(model.name, TaskId(1), arrivals, goals);
    let mut scenario = Scenario::new(model.name, vec![task], vec![node], vec![stream]);
    scenario.link = LinkSpec { one_way: Micros(1), jitter: Micros::ZERO };
    scenario.duration = Micros(whole(f64::from(setup.queries) * 1e6 / rate));
    let outcomes = setup.seeds.iter().map(|seed| run(&scenario, *seed)).collect::<Result<Vec<_>, _>>()?;
    let sum = |of: &dyn Fn(&crate::Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let offered = sum(&|o| o.total.offered);
    let share = |n: u64| crate::outcome::ratio(n, offered);
    let (late, refused) = (sum(&|o| o.total.late), sum(&|o| o.total.refusals()));
    let batches = sum(&|o| o.batches.values().sum());
    let runs = u64::try_from(outcomes.len()).unwrap_or(1).max(1);
    Ok(Row {
        model: model.name.into(),
        arrivals: if bursty { "bursty" } else { "poisson" }.into(),
        batching,
        lanes: setup.lanes,
        rate,
        bound,
        offered,
        late: share(late),
        refused: share(refused),
        missed: share(late + refused),
        missed_worst: outcomes.iter().map(|o| o.total.violations).fold(0.0, f64::max),
        p50: Micros(sum(&|o| o.total.latency.p50.0) / runs),
        p99: outcomes.iter().map(|o| o.total.latency.p99).max().unwrap_or_default(),
        batch: crate::outcome::ratio(sum(&|o| o.total.answered), batches),
        busy: outcomes.iter().map(|o| o.busy).sum::<f64>() / f64::from(u32::try_from(runs).unwrap_or(1)),
    })
}

fn spec(model: &Measured) -> VariantSpec {
    let point = |&(batch, mean_us): &(u32, f64)| {
        let sd = SCATTER * mean_us;
        BatchPoint { batch, mean_us, var_us2: sd * sd, p99_us: mean_us + 2.33 * sd, samples: 1 }
    };
    VariantSpec {
        name: model.name.into(),
        id: VariantId(1),
        model: ModelId(1),
        engine: Engine::Onnx,
        ordinal: 0,
        space: SpaceId(1),
        accuracy: Accuracy::ONE,
        max_batch: model.max_batch,
        threads: 1,
        latency: model.points.iter().map(point).collect(),
        decode: StageTime { mean_us: 1.0, var_us2: 0.0, samples: 0 },
        prepare: StageTime { mean_us: 1.0, var_us2: 0.0, samples: 0 },
        memory: Bytes::from_mib(10),
        load_time: Micros::from_millis(20),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn whole(us: f64) -> u64 {
    us.round() as u64
}
