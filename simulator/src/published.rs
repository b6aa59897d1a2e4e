//! What the authors of each baseline published, looked for again: expected against seen, and what was missed.
//!
//! Nobody published all that a run depends on, so these are worlds of the same kind, not the same worlds: a ratio "up to" cannot be met
//! to the digit. *Reproduced* is at least four fifths of it, *same direction* is what is better but by less, and *missed* the rest.

use crate::baseline::{Given, baseline};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::scenario::file::File;
use crate::{Error, Scenario, oracle};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// How it is looked for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Measure {
    /// Violations of another one over its own, at a load of the fluid bound.
    Fewer { than: &'static str, load: f64 },
    /// The rate with 99 % in time over that of another one.
    Rate { than: &'static str },
    /// The share in time, in percent.
    InTime { load: f64 },
    /// Cost of a million answers in time of another one over its own.
    Cheaper { than: &'static str, load: f64 },
    /// Points of accuracy above the most accurate single model that violates no more.
    Sharper { load: f64 },
    /// Answers in time over those of the best single model that is as accurate.
    Attains { load: f64 },
    /// Accuracy times the share in time over that of the best single model.
    Effective { load: f64 },
    /// The share of an application's answers from a variant, in percent.
    Answers { application: &'static str, variant: &'static str },
}

/// Something that was published.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Claim {
    /// By whom: a baseline.
    pub policy: &'static str,
    /// Where.
    pub source: &'static str,
    /// What it says.
    pub says: &'static str,
    /// As a number.
    pub published: f64,
    /// What would be neither better nor worse.
    level: f64,
    scenario: &'static str,
    measure: Measure,
}

/// All that is looked for.
pub const CLAIMS: &[Claim] = &[
    Claim {
        policy: "infaas-code",
        source: "README of INFaaS' code",
        says: "within 300 ms ResNet-50 is answered by TensorFlow on a CPU (percent of answers)",
        published: 100.0,
        level: 50.0,
        scenario: "resnet50",
        measure: Measure::Answers { application: "in-300-ms", variant: "resnet50-tf-cpu-4" },
    },
    Claim {
        policy: "infaas-code",
        source: "README of INFaaS' code",
        says: "within 50 ms by Inferentia (percent of answers)",
        published: 100.0,
        level: 50.0,
        scenario: "resnet50",
        measure: Measure::Answers { application: "in-50-ms", variant: "resnet50-inferentia-1" },
    },
    Claim {
        policy: "infaas-paper",
        source: "INFaaS, ATC'21, abstract",
        says: "1.6 times fewer violations than preloaded variants of one kind each (here `clipper`)",
        published: 1.6,
        level: 1.0,
        scenario: "ladder",
        measure: Measure::Fewer { than: "clipper", load: 0.8 },
    },
    Claim {
        policy: "infaas-paper",
        source: "INFaaS, ATC'21, abstract",
        says: "8.5 times cheaper on average, up to 21.6 times (here than all machines all the time)",
        published: 8.5,
        level: 1.0,
        scenario: "rented",
        measure: Measure::Cheaper { than: "static-best", load: 0.3 },
    },
    Claim {
        policy: "clipper",
        source: "Clipper, NSDI'17",
        says: "batches that adapt raise throughput up to 26 times (its linear SVM, whose batches are nearly free)",
        published: 26.0,
        level: 1.0,
        scenario: "batching",
        measure: Measure::Rate { than: "batch of one" },
    },
    Claim {
        policy: "nexus",
        source: "Nexus, SOSP'19",
        says: "1.8 to 12.7 times the rate of Clipper with 99 % in time",
        published: 1.8,
        level: 1.0,
        scenario: "batching",
        measure: Measure::Rate { than: "clipper" },
    },
    Claim {
        policy: "symphony-like",
        source: "Symphony, arXiv 2308.07470",
        says: "N coordinated GPUs need (1 + 1/N) runs within the bound instead of two: here 1.43 times the throughput of Nexus",
        published: 1.43,
        level: 1.0,
        scenario: "batching",
        measure: Measure::Rate { than: "nexus" },
    },
    Claim {
        policy: "clockwork-like",
        source: "Clockwork, OSDI'20, abstract",
        says: "99.997 % within 100 ms with many more models than fit (percent in time)",
        published: 99.997,
        level: 99.0,
        scenario: "models",
        measure: Measure::InTime { load: 0.4 },
    },
    Claim {
        policy: "model-switching",
        source: "Model-Switching, HotCloud'20",
        says: "a higher effective accuracy than any one model under a load that changes (no ratio published)",
        published: 1.0,
        level: 1.0,
        scenario: "switching",
        measure: Measure::Effective { load: 0.5 },
    },
    Claim {
        policy: "slackfit",
        source: "SuperServe, NSDI'25, abstract",
        says: "4.67 points more accurate than fixed models that violate as little",
        published: 4.67,
        level: 0.0,
        scenario: "ladder",
        measure: Measure::Sharper { load: 0.5 },
    },
    Claim {
        policy: "slackfit",
        source: "SuperServe, NSDI'25, abstract",
        says: "2.85 times the attainment of fixed models that are as accurate",
        published: 2.85,
        level: 1.0,
        scenario: "ladder",
        measure: Measure::Attains { load: 0.8 },
    },
    Claim {
        policy: "proteus-like",
        source: "Proteus, ASPLOS'24, abstract",
        says: "10 times fewer violations than one that does not scale accuracy (here `clipper`), with loads that take no time",
        published: 10.0,
        level: 1.0,
        scenario: "tasks",
        measure: Measure::Fewer { than: "clipper", load: 0.6 },
    },
    Claim {
        policy: "proteus-like",
        source: "Proteus, ASPLOS'24",
        says: "4.3 times fewer violations than INFaaS, with loads that take no time",
        published: 4.3,
        level: 1.0,
        scenario: "tasks",
        measure: Measure::Fewer { than: "infaas-paper", load: 0.6 },
    },
    Claim {
        policy: "inferline-like",
        source: "InferLine, SoCC'20, abstract",
        says: "up to 7.6 times cheaper than coarse-grained provisioning (here than all machines all the time)",
        published: 7.6,
        level: 1.0,
        scenario: "rented",
        measure: Measure::Cheaper { than: "static-best", load: 0.3 },
    },
    Claim {
        policy: "mark-like",
        source: "MArk, ATC'19, abstract",
        says: "up to 7.8 times cheaper than SageMaker (here than all machines all the time)",
        published: 7.8,
        level: 1.0,
        scenario: "rented",
        measure: Measure::Cheaper { than: "static-best", load: 0.3 },
    },
];

/// What came of a claim.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// By whom.
    pub policy: String,
    /// Where it was published.
    pub source: String,
    /// What it says.
    pub says: String,
    /// As a number.
    pub published: f64,
    /// What is seen here.
    pub seen: f64,
    /// `reproduced`, `same direction` or `missed`.
    pub verdict: String,
}

impl Claim {
    /// Looks for it; scenarios lie in the folder.
    pub fn look(&self, folder: &Path, seed: u64) -> Result<Found, Error> {
        let looked = Look { path: folder.join(format!("{}.toml", self.scenario)), seed };
        let seen = looked.measure(self.policy, self.measure)?;
        // Of the way from what is level to what was published.
        let most = self.published - self.level;
        let verdict = if seen - self.level >= 0.8 * most && seen >= self.level {
            "reproduced"
        } else if seen > self.level {
            "same direction"
        } else {
            "missed"
        };
        let (policy, source, says) = (self.policy.into(), self.source.into(), self.says.into());
        Ok(Found { policy, source, says, published: self.published, seen, verdict: verdict.into() })
    }
}

struct Look {
    path: std::path::PathBuf,
    seed: u64,
}

impl Look {
    fn world(&self, load: f64) -> Result<Scenario, Error> {
        let one = File::load(&self.path, 1.0)?;
        let offered: usize = crate::workload::Source::all(&one, 1).iter().map(Vec::len).sum();
        let rate = crate::outcome::ratio(offered as u64 * 1_000_000, one.duration.0);
        let capacity = oracle::capacity(&one, 1)?;
        File::load(&self.path, load * capacity / rate.max(f64::MIN_POSITIVE))
    }

    fn report(&self, world: &Scenario, policy: &str) -> Result<Report, Error> {
        let mut world = world.clone();
        let policy = if policy == "batch of one" {
            for variant in world.tasks.iter_mut().flat_map(|task| &mut task.variants) {
                variant.max_batch = 1;
                for on in variant.on.values_mut() {
                    on.max_batch = 1;
                }
            }
            "static-best"
        } else {
            policy
        };
        let known =
            baseline(policy).ok_or_else(|| Error::Scenario(format!("there is no policy {policy}")))?;
        // As described: what a search chose for another world is not what was published.
        let outcome = known.run_with(&world, &Given::default(), self.seed)?;
        let fluid = oracle::fluid(&world, self.seed)?;
        Ok(Report::new(policy, 1.0, world.duration, fluid, outcome))
    }

    fn run(&self, load: f64, policy: &str) -> Result<Report, Error> {
        self.report(&self.world(load)?, policy)
    }

    /// Answers in time a second at the highest load at which 99 in 100 are.
    fn rate(&self, policy: &str) -> Result<f64, Error> {
        let (mut low, mut high, mut best) = (0.02, 1.1, 0.0);
        for _ in 0..6 {
            let middle = f64::midpoint(low, high);
            let report = self.run(middle, policy)?;
            if report.outcome.total.violations <= 0.01 {
                (low, best) = (middle, report.goodput);
            } else {
                high = middle;
            }
        }
        Ok(best)
    }

    /// Each model alone.
    fn singles(&self, load: f64) -> Result<Vec<Outcome>, Error> {
        let world = self.world(load)?;
        let only = |id| {
            let mut world = world.clone();
            for task in &mut world.tasks {
                task.variants.retain(|variant| variant.id == id);
            }
            Ok(self.report(&world, "static-best")?.outcome)
        };
        world.variants().map(|(_, variant)| only(variant.id)).collect()
    }

    fn measure(&self, policy: &str, measure: Measure) -> Result<f64, Error> {
        let in_time = |outcome: &Outcome| 1.0 - outcome.total.violations;
        Ok(match measure {
            Measure::Fewer { than, load } => {
                let other = self.run(load, than)?.outcome.total.violations;
                // One in a hundred thousand is the least that tells anything.
                other / self.run(load, policy)?.outcome.total.violations.max(1e-5)
            }
            Measure::Rate { than } => self.rate(policy)? / self.rate(than)?.max(1e-9),
            Measure::InTime { load } => 100.0 * in_time(&self.run(load, policy)?.outcome),
            Measure::Cheaper { than, load } => {
                let usd = |report: Report| report.usd_per_million.unwrap_or(f64::INFINITY);
                usd(self.run(load, than)?) / usd(self.run(load, policy)?)
            }
            Measure::Sharper { load } => {
                let own = self.run(load, policy)?.outcome;
                let singles = self.singles(load)?.into_iter();
                let no_worse = singles.filter(|o| o.total.violations <= own.total.violations + 0.001);
                let best = no_worse.map(|o| o.total.accuracy).fold(0.0, f64::max);
                100.0 * (own.total.accuracy - best)
            }
            Measure::Attains { load } => {
                let own = self.run(load, policy)?.outcome;
                let singles = self.singles(load)?.into_iter();
                let as_sharp = singles.filter(|o| o.total.accuracy >= own.total.accuracy - 0.001);
                in_time(&own) / as_sharp.map(|o| in_time(&o)).fold(0.0, f64::max).max(1e-9)
            }
            Measure::Effective { load } => {
                let effective = |o: &Outcome| o.total.accuracy * in_time(o);
                let best = self.singles(load)?.iter().map(effective).fold(0.0, f64::max);
                effective(&self.run(load, policy)?.outcome) / best.max(1e-9)
            }
            Measure::Answers { application, variant } => {
                let world = File::load(&self.path, 1.0)?;
                let outcome = self.report(&world, policy)?.outcome;
                let stream = outcome.streams.iter().find(|stream| stream.name == application);
                stream.map_or(0.0, |stream| {
                    let of = stream.variants.get(variant).copied().unwrap_or(0);
                    100.0 * crate::outcome::ratio(of, stream.offered)
                })
            }
        })
    }
}

/// All of them as people read it.
pub fn markdown(found: &[Found]) -> String {
    let mut out = String::from(
        "# What was published of each baseline, and what is seen\n\nMade by `cargo xtask scoreboard --published`. The worlds are of the same kind as \
         the papers', not the same (`simulator/published`). *Reproduced* is at least four fifths of the gain, *same direction* less, *missed* \
         nothing.\n\n| policy | source | what it says | published | seen | |\n|---|---|---|---:|---:|---|\n",
    );
    for Found { policy, source, says, published, seen, verdict } in found {
        let _ = writeln!(out, "| `{policy}` | {source} | {says} | {published} | {seen:.2} | {verdict} |");
    }
    out
}
