//! A run as it is handed out: JSON for programs, a table for people, pictures over time.

use crate::chart::{Frame, Line, svg};
use crate::oracle::Fluid;
use crate::outcome::{Outcome, ratio, table};
use crate::series::{Bucket, Series};
use modelless_types::Micros;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What a report calls itself.
pub const REPORT: &str = "modelless-simulation";

/// A run with all that it depends on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`REPORT`].
    pub format: String,
    /// Of the program: the same scenario, seed and version give the same report.
    pub version: String,
    /// Who decided.
    pub policy: String,
    /// All rates were multiplied by this, beside what the scenario says.
    pub load: f64,
    /// Answers in time for each second in which queries came.
    pub goodput: f64,
    /// What the machines cost while queries came, for a million answers in time. `None` without any.
    pub usd_per_million: Option<f64>,
    /// What nobody can be better than.
    pub fluid: Fluid,
    /// What came of it.
    pub outcome: Outcome,
}

impl Report {
    /// Of a run whose queries came for so long.
    pub fn new(policy: &str, load: f64, duration: Micros, fluid: Fluid, outcome: Outcome) -> Self {
        let in_time = outcome.total.in_time();
        Self {
            format: REPORT.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            policy: policy.into(),
            load,
            goodput: ratio(in_time * 1_000_000, duration.0),
            usd_per_million: (in_time > 0).then(|| outcome.served_usd / ratio(in_time, 1_000_000)),
            fluid,
            outcome,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = table(&self.outcome);
        let usd = self.usd_per_million.map_or_else(|| "-".into(), |usd| format!("{usd:.2} USD"));
        let _ = write!(
            out,
            "\ndecided by         {}\ngoodput            {:.1} answers in time a second\n\
             cost               {usd} for a million answers in time\n\
             nobody does better than {:.2} % violations ({:.1} a second could be served at most), {} a million\n",
            self.policy,
            self.goodput,
            100.0 * self.fluid.violations,
            self.fluid.capacity,
            self.fluid.usd_per_million.map_or_else(|| "-".into(), |usd| format!("{usd:.2} USD")),
        );
        if self.fluid.charged > self.fluid.violations {
            let _ = writeln!(
                out,
                "nor, as a rule, than {:.2} % who starts machines when what comes needs them",
                100.0 * self.fluid.charged
            );
        }
        out
    }

    /// Pictures over time, by file name.
    pub fn pictures(&self) -> Vec<(&'static str, String)> {
        let series = &self.outcome.series;
        let each = |value: &dyn Fn(&Bucket) -> Option<f64>| series.buckets.iter().map(value).collect();
        let line = |name: &str, value: &dyn Fn(&Bucket) -> Option<f64>| Line {
            name: name.into(),
            values: each(value),
        };
        let seconds = series.every.as_millis_f64() / 1e3;
        let rate = |count: u64| Some(ratio(count, 1) / seconds);
        let share = |b: &Bucket, part: u64| (b.offered > 0).then(|| 100.0 * ratio(part, b.offered));
        let by_variant = |of: &dyn Fn(&Bucket, usize) -> f64| {
            let line = |(at, name): (usize, &String)| Line {
                name: name.clone(),
                values: each(&|b: &Bucket| Some(of(b, at))),
            };
            let all: Vec<Line> = series.variants.iter().enumerate().map(line).collect();
            all.into_iter().filter(|line| line.values.iter().flatten().any(|v| *v > 0.0)).collect::<Vec<_>>()
        };
        vec![
            (
                "violations.svg",
                self.draw(
                    "violations",
                    "% of what came",
                    &[
                        line("late", &|b| share(b, b.late)),
                        line("refused or lost", &|b| share(b, b.refused)),
                        line("both", &|b| share(b, b.late + b.refused)),
                    ],
                ),
            ),
            (
                "accuracy.svg",
                self.draw("accuracy of answers in time", "accuracy", &[line("mean", &Bucket::accuracy)]),
            ),
            (
                "rates.svg",
                self.draw(
                    "queries",
                    "a second",
                    &[line("offered", &|b| rate(b.offered)), line("answered in time", &|b| rate(b.in_time))],
                ),
            ),
            (
                "variants.svg",
                self.draw(
                    "answers by variant",
                    "a second",
                    &by_variant(&|b, at| ratio(b.answers[at], 1) / seconds),
                ),
            ),
            (
                "residency.svg",
                self.draw("in memory", "replicas", &by_variant(&|b, at| f64::from(b.resident[at]))),
            ),
            (
                "machines.svg",
                self.draw(
                    "machines",
                    "machines, and % of lanes busy",
                    &[
                        line("up", &|b| Some(f64::from(b.machines))),
                        line("% busy", &|b| Some(100.0 * b.busy)),
                    ],
                ),
            ),
        ]
    }

    fn draw(&self, what: &str, beside: &str, lines: &[Line]) -> String {
        let Series { every, buckets, .. } = &self.outcome.series;
        let at: Vec<f64> =
            (0..buckets.len() as u64).map(|n| Micros(n * every.0).as_millis_f64() / 1e3).collect();
        let title = format!("{}, {}: {what}", self.outcome.scenario, self.policy);
        svg(&Frame { title: &title, below: "seconds", beside, at: &at }, lines)
    }
}
