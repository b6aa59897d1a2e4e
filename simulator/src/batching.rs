//! The ways of batching side by side: the same arrivals, device and bound, once for each.
//!
//! Device times of the three models were measured (ONNX Runtime, one thread, medians of single runs on one machine, at
//! the batches given); sizes between lie on the line. Their scatter is assumed. There is no network, and the noise of
//! a shared processor is simulated only where [`Setup::jitter`] asks for it. [`Given`] is the same for a profile and
//! arrivals that were seen elsewhere. Beside each row stands the least that any policy would have missed.

use crate::clairvoyant::{least_missed, least_missed_as_sent};
use crate::direct::{Lane, drive};
use crate::scenario::{Arrivals, Jitter, LinkSpec, NodeSpec, Scenario, Stream, TaskSpec, VariantSpec};
use crate::workload::Source;
use crate::{Error, Outcome, run};
use modelless_types::{
    Accuracy, BatchPoint, Batching, Bytes, Engine, Goals, Micros, ModelId, SpaceId, StageTime, TaskId,
    VariantId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

/// A timer of the async runtime wakes at its next whole millisecond.
const TIMER_LATE: Micros = Micros(1_000);

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
    /// How much later than asked a timer of the shell wakes.
    pub timer_late: Micros,
    /// How long it takes until an idle device runs the batch that is handed to it.
    pub handover: Micros,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            load: 0.7,
            bound: 5.0,
            lanes: 1,
            queries: 5_000,
            seeds: vec![1, 2, 3, 4, 5],
            jitter: None,
            timer_late: TIMER_LATE,
            handover: Micros(15),
        }
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
    /// What somebody who knew all arrivals, and to whom a batch of each size took its mean time and nothing else any,
    /// would have missed of them; `None` with several lanes.
    pub least: Option<f64>,
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
pub(crate) fn peak(spec: &VariantSpec) -> f64 {
    let model = spec.run_model().expect("a model with points");
    let rate = |batch| f64::from(batch) * 1e6 / model.uncorrected(batch).mean;
    (1..=spec.max_batch).map(rate).fold(0.0, f64::max)
}

/// What was seen elsewhere: how long a model's batches take, and when its queries came.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Given {
    /// For people.
    pub model: String,
    /// How queries came, for people.
    pub arrivals: String,
    /// Device times by batch.
    pub latency: Vec<BatchPoint>,
    /// The largest batch it is given.
    pub max_batch: u32,
    /// When each query came, rising.
    pub at: Vec<Micros>,
    /// What they were promised.
    pub bound: Micros,
    /// How long it takes until an idle device runs the batch that is handed to it, and its answer is out.
    pub handover: Micros,
}

impl Given {
    /// The least that must be missed of these arrivals on one lane, over those that came.
    ///
    /// # Errors
    ///
    /// Without a usable device time.
    pub fn least(&self) -> Result<f64, Error> {
        least(&self.spec(), &self.at, self.bound)
    }

    /// The same of queries that were really sent: when each should have been, and when it was, in nanoseconds. They are due
    /// from when they should have been.
    ///
    /// # Errors
    ///
    /// Without a usable device time, or where they are not in order.
    pub fn least_as_sent(&self, planned: &[u64], sent: &[u64]) -> Result<f64, Error> {
        let fits = planned.len() == sent.len() && planned.is_sorted() && sent.is_sorted();
        if !fits {
            return Err(Error::Scenario(
                "what was sent is told in order, each with when it should have been".into(),
            ));
        }
        let due: Vec<u64> = planned.iter().map(|at| at.saturating_add(self.bound.0 * 1_000)).collect();
        let missed = least_missed_as_sent(sent, &due, &service(&self.spec())?);
        Ok(crate::outcome::ratio(missed as u64, sent.len() as u64))
    }

    /// What would have come of them on one lane, in virtual time. Fed as a load generator feeds an executor, with its
    /// credit and without a gateway.
    ///
    /// # Errors
    ///
    /// Without a usable device time, or at a dead end.
    pub fn simulate(&self, batching: Batching, seed: u64) -> Result<Row, Error> {
        let (bound, handover) = (self.bound, self.handover);
        let spec = self.spec();
        let lane = Lane { spec: &spec, batching, bound, handover, timer_late: TIMER_LATE, seed };
        let mut ends = drive(&lane, &self.at)?;
        let offered = self.at.len() as u64;
        let lasted = self.at.last().map_or(0, |at| at.0);
        let share = |n: u64| crate::outcome::ratio(n, offered);
        ends.latencies.sort_unstable();
        let percentile = |share: usize| {
            let rank = (ends.latencies.len() * share).div_ceil(100).max(1);
            ends.latencies.get(rank - 1).copied().unwrap_or_default()
        };
        Ok(Row {
            model: self.model.clone(),
            arrivals: self.arrivals.clone(),
            batching,
            lanes: 1,
            rate: crate::outcome::ratio(offered * 1_000_000, lasted),
            bound,
            offered,
            late: share(ends.late),
            refused: share(ends.refused),
            missed: share(ends.late + ends.refused),
            least: Some(self.least()?),
            missed_worst: share(ends.late + ends.refused),
            p50: percentile(50),
            p99: percentile(99),
            batch: crate::outcome::ratio(ends.latencies.len() as u64, ends.batches),
            busy: crate::outcome::ratio(ends.busy.0, lasted),
        })
    }

    fn spec(&self) -> VariantSpec {
        variant(&self.model, self.latency.clone(), self.max_batch)
    }
}

/// What batches of each size take, in nanoseconds: rounding up to a microsecond would make short ones take longer than they do.
fn service(spec: &VariantSpec) -> Result<Vec<u64>, Error> {
    let model =
        spec.run_model().ok_or_else(|| Error::Scenario(format!("{} has no device time", spec.name)))?;
    Ok((1..=spec.max_batch).map(|b| whole(model.uncorrected(b).mean * 1e3)).collect())
}

fn least(spec: &VariantSpec, at: &[Micros], bound: Micros) -> Result<f64, Error> {
    let at: Vec<u64> = at.iter().map(|at| at.0 * 1_000).collect();
    let missed = least_missed(&at, &service(spec)?, bound.0 * 1_000);
    Ok(crate::outcome::ratio(missed as u64, at.len() as u64))
}

fn row(setup: &Setup, model: &Measured, bursty: bool, batching: Batching) -> Result<Row, Error> {
    let spec = spec(model);
    let rate = setup.load * peak(&spec) * f64::from(setup.lanes);
    let bound = Micros(whole(setup.bound * model.points[0].1));
    let arrivals = if bursty { Arrivals::Renewal { rate, cv: CV } } else { Arrivals::Poisson { rate } };
    let end = Micros(whole(f64::from(setup.queries) * 1e6 / rate));
    let case = Case {
        spec,
        lanes: setup.lanes,
        jitter: setup.jitter,
        bound,
        arrivals,
        end,
        timer_late: setup.timer_late,
        handover: setup.handover,
    };
    let kind = if bursty { "bursty" } else { "poisson" };
    let what = Row { model: model.name.into(), arrivals: kind.into(), rate, ..case.blank(batching) };
    let row = case.rows(what, &setup.seeds)?;
    if setup.lanes > 1 {
        return Ok(row);
    }
    let one = |seed: &u64| {
        let mut source = Source::new(case.arrivals.clone(), *seed, &format!("0 {}", model.name));
        let at: Vec<Micros> = std::iter::from_fn(|| source.next()).take_while(|at| *at < end).collect();
        least(&case.spec, &at, bound)
    };
    let shares = setup.seeds.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    Ok(Row { least: Some(shares.iter().sum::<f64>() / count(shares.len())), ..row })
}

/// One variant on one node under one stream.
struct Case {
    spec: VariantSpec,
    lanes: u16,
    jitter: Option<Jitter>,
    bound: Micros,
    arrivals: Arrivals,
    end: Micros,
    timer_late: Micros,
    handover: Micros,
}

impl Case {
    fn blank(&self, batching: Batching) -> Row {
        Row {
            model: String::new(),
            arrivals: String::new(),
            batching,
            lanes: self.lanes,
            rate: 0.0,
            bound: self.bound,
            offered: 0,
            late: 0.0,
            refused: 0.0,
            missed: 0.0,
            least: None,
            missed_worst: 0.0,
            p50: Micros::ZERO,
            p99: Micros::ZERO,
            batch: 0.0,
            busy: 0.0,
        }
    }

    /// One run for each seed.
    fn rows(&self, what: Row, seeds: &[u64]) -> Result<Row, Error> {
        let goals = Goals { latency: Some(self.bound), ..Goals::default() };
        let task = TaskSpec {
            id: TaskId(1),
            default_space: SpaceId(1),
            defaults: Goals::default(),
            batching: Some(what.batching),
            variants: vec![self.spec.clone()],
        };
        let mut node = NodeSpec::with(self.lanes, Bytes::from_mib(1_024), vec![VariantId(1)]);
        node.jitter = self.jitter;
        node.timer_late = self.timer_late;
        node.handover = self.handover;
        let stream = Stream::new(&what.model, TaskId(1), self.arrivals.clone(), goals);
        let mut scenario = Scenario::new(&what.model, vec![task], vec![node], vec![stream]);
        scenario.link = LinkSpec { one_way: Micros(1), jitter: Micros::ZERO };
        scenario.duration = self.end;
        let outcomes = seeds.iter().map(|seed| run(&scenario, *seed)).collect::<Result<Vec<_>, _>>()?;
        let sum = |of: &dyn Fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        let offered = sum(&|o| o.total.offered);
        let share = |n: u64| crate::outcome::ratio(n, offered);
        let (late, refused) = (sum(&|o| o.total.late), sum(&|o| o.total.refusals()));
        let batches = sum(&|o| o.batches.values().sum());
        let runs = u64::try_from(outcomes.len()).unwrap_or(1).max(1);
        Ok(Row {
            offered,
            late: share(late),
            refused: share(refused),
            missed: share(late + refused),
            missed_worst: outcomes.iter().map(|o| o.total.violations).fold(0.0, f64::max),
            p50: Micros(sum(&|o| o.total.latency.p50.0) / runs),
            p99: outcomes.iter().map(|o| o.total.latency.p99).max().unwrap_or_default(),
            batch: crate::outcome::ratio(sum(&|o| o.total.answered), batches),
            busy: outcomes.iter().map(|o| o.busy).sum::<f64>() / count(outcomes.len()),
            ..what
        })
    }
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX).max(1))
}

/// A model as a variant that nothing else competes with.
pub fn spec(model: &Measured) -> VariantSpec {
    let point = |&(batch, mean_us): &(u32, f64)| {
        let sd = SCATTER * mean_us;
        BatchPoint { batch, mean_us, var_us2: sd * sd, p99_us: mean_us + 2.33 * sd, samples: 1 }
    };
    variant(model.name, model.points.iter().map(point).collect(), model.max_batch)
}

fn variant(name: &str, latency: Vec<BatchPoint>, max_batch: u32) -> VariantSpec {
    VariantSpec {
        name: name.into(),
        id: VariantId(1),
        model: ModelId(1),
        engine: Engine::Onnx,
        ordinal: 0,
        space: SpaceId(1),
        accuracy: Accuracy::ONE,
        max_batch,
        threads: 1,
        latency,
        decode: StageTime { mean_us: 1.0, var_us2: 0.0, samples: 0 },
        decoded: Vec::new(),
        prepare: StageTime { mean_us: 1.0, var_us2: 0.0, samples: 0 },
        memory: Bytes::from_mib(10),
        load_time: Micros::from_millis(20),
        on: BTreeMap::new(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
pub(crate) fn whole(us: f64) -> u64 {
    us.round() as u64
}
