//! What came of a run: counts and figures for programs, a table for people.

use crate::series::Series;
use modelless_types::{Accuracy, Micros};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What came of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Which scenario.
    pub scenario: String,
    /// Which seed.
    pub seed: u64,
    /// Virtual time until the last query had left.
    pub lasted: Micros,
    /// All streams together.
    pub total: StreamOutcome,
    /// Each stream.
    pub streams: Vec<StreamOutcome>,
    /// Batches that ran to their end, by size.
    pub batches: BTreeMap<u32, u64>,
    /// Loads that were started.
    pub loads: u64,
    /// Of these, how many failed.
    pub load_failures: u64,
    /// Replicas taken out of memory.
    pub unloads: u64,
    /// Processes that died.
    pub crashes: u64,
    /// Times that lanes were cut anew.
    #[serde(default)]
    pub recuts: u64,
    /// Profiles that were marked as stale.
    #[serde(default)]
    pub drifted: u64,
    /// Such marks that were taken back.
    #[serde(default)]
    pub steadied: u64,
    /// Queries that a node gave back.
    pub handed_back: u64,
    /// Queries that nodes asked for, of those that were announced to them.
    #[serde(default)]
    pub claims: u64,
    /// Answers that came when nobody waited any more.
    pub echoes: u64,
    /// Time on devices over time that lanes were there, since the scenario's start.
    pub busy: f64,
    /// What the machines cost, in dollars.
    pub machines_usd: f64,
    /// Of that, since the first query could come.
    #[serde(default)]
    pub served_usd: f64,
    /// Machines that were started.
    #[serde(default)]
    pub machine_starts: u64,
    /// What the time on devices cost, in dollars.
    pub device_usd: f64,
    /// The most that a gateway ever had outstanding at a node.
    pub outstanding_max: u32,
    /// Events of the run.
    pub events: u64,
    /// How things were over time.
    #[serde(default)]
    pub series: Series,
}

/// What came of a stream.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// Which.
    pub name: String,
    /// Queries that came.
    pub offered: u64,
    /// Answered, in time or late.
    pub answered: u64,
    /// Answered after their deadline.
    pub late: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Left by their clients.
    pub cancelled: u64,
    /// Gone with their gateway.
    pub lost: u64,
    /// (Late + refused + lost) over offered.
    pub violations: f64,
    /// Mean accuracy of the answers in time.
    pub accuracy: f64,
    /// From arrival to answer.
    pub latency: Percentiles,
    /// The mean of that.
    #[serde(default)]
    pub mean_latency: Micros,
    /// Answers by variant.
    pub variants: BTreeMap<String, u64>,
}

/// Nearest-rank percentiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half are at most this.
    pub p50: Micros,
    /// 90 in 100.
    pub p90: Micros,
    /// 99 in 100.
    pub p99: Micros,
    /// All.
    pub max: Micros,
}

impl StreamOutcome {
    /// All that were refused.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Answered in time.
    pub fn in_time(&self) -> u64 {
        self.answered - self.late
    }
}

/// A stream while it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: StreamOutcome,
    latencies: Vec<Micros>,
    accuracy_ppm: u64,
}

impl Tally {
    pub(crate) fn answered(&mut self, latency: Micros, in_time: bool, accuracy: Accuracy, variant: &str) {
        self.counts.answered += 1;
        self.latencies.push(latency);
        if in_time {
            self.accuracy_ppm += u64::from(accuracy.ppm());
        } else {
            self.counts.late += 1;
        }
        *self.counts.variants.entry(variant.into()).or_default() += 1;
    }

    pub(crate) fn refused(&mut self, name: &str) {
        *self.counts.refused.entry(name.into()).or_default() += 1;
    }

    fn add(&mut self, other: &Self) {
        let (a, b) = (&mut self.counts, &other.counts);
        a.offered += b.offered;
        a.answered += b.answered;
        a.late += b.late;
        a.cancelled += b.cancelled;
        a.lost += b.lost;
        for (name, count) in &b.refused {
            *a.refused.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &b.variants {
            *a.variants.entry(name.clone()).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
        self.accuracy_ppm += other.accuracy_ppm;
    }

    pub(crate) fn finish(mut self, name: &str) -> StreamOutcome {
        self.latencies.sort_unstable();
        let at = |percent: usize| {
            let rank = (self.latencies.len() * percent).div_ceil(100).max(1);
            self.latencies.get(rank - 1).copied().unwrap_or_default()
        };
        let latency = Percentiles { p50: at(50), p90: at(90), p99: at(99), max: at(100) };
        let took: u64 = self.latencies.iter().map(|latency| latency.0).sum();
        let mean_latency = Micros(took / (self.latencies.len() as u64).max(1));
        let counts = self.counts;
        let violated = counts.late + counts.refusals() + counts.lost;
        StreamOutcome {
            name: name.into(),
            violations: ratio(violated, counts.offered),
            accuracy: ratio(self.accuracy_ppm, counts.in_time()) / 1e6,
            latency,
            mean_latency,
            ..counts
        }
    }

    /// All streams as one.
    pub(crate) fn sum(all: &[Self]) -> Self {
        let mut sum = Self::default();
        for tally in all {
            sum.add(tally);
        }
        sum
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53, for people")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// An outcome for people.
pub fn table(outcome: &Outcome) -> String {
    let mut out = format!(
        "{} (seed {}): {} queries in {}\n\n{:<16} {:>8} {:>8} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9} {:>9}\n",
        outcome.scenario,
        outcome.seed,
        outcome.total.offered,
        outcome.lasted,
        "stream",
        "offered",
        "answered",
        "late",
        "refused",
        "viol %",
        "accuracy",
        "p50",
        "p99",
        "max",
    );
    for s in outcome.streams.iter().chain([&outcome.total]) {
        let (p50, p99, max) =
            (s.latency.p50.to_string(), s.latency.p99.to_string(), s.latency.max.to_string());
        let _ = writeln!(
            out,
            "{:<16} {:>8} {:>8} {:>6} {:>8} {:>7.2} {:>9.4} {p50:>9} {p99:>9} {max:>9}",
            s.name,
            s.offered,
            s.answered,
            s.late,
            s.refusals(),
            100.0 * s.violations,
            s.accuracy,
        );
    }
    let pairs = |map: &BTreeMap<String, u64>| {
        let list: Vec<String> = map.iter().map(|(name, n)| format!("{name} {n}")).collect();
        if list.is_empty() { "none".into() } else { list.join(", ") }
    };
    let batches = outcome.batches.iter().map(|(size, n)| (size.to_string(), *n));
    let batches: Vec<String> = batches.map(|(size, n)| format!("{size}x{n}")).collect();
    let _ = write!(
        out,
        "\nanswers by variant  {}\nrefusals by reason  {}\nbatches (size x n)  {}\n\
         loads {}, failed {}, unloads {}, crashes {}, cuts {}, handed back {}, claims {}, echoes {}\n\
         devices busy {:.1} %, machines {:.6} USD ({} started), device time {:.6} USD, {} events\n",
        pairs(&outcome.total.variants),
        pairs(&outcome.total.refused),
        batches.join(" "),
        outcome.loads,
        outcome.load_failures,
        outcome.unloads,
        outcome.crashes,
        outcome.recuts,
        outcome.handed_back,
        outcome.claims,
        outcome.echoes,
        100.0 * outcome.busy,
        outcome.machines_usd,
        outcome.machine_starts,
        outcome.device_usd,
        outcome.events,
    );
    out
}
