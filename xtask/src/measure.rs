//! `cargo xtask measure NAME`: every figure the project tells, made by a command that anybody can repeat.
//!
//! The full form runs a release build, keeps every repetition as raw JSON under `bench/results/NAME/` and one line
//! in `docs/measurements.md`. The short form runs in CI: few repetitions, a development build, a loose bound, and
//! nothing written.

mod accuracy_python;
mod attack;
mod attribution;
mod burn;
mod chaos;
mod cluster;
mod cold_start;
mod coverage;
mod cycles;
mod decisions;
mod demo;
mod drift;
mod ec2;
mod front_overhead;
mod generate;
mod generate_text;
mod given_again;
mod gpu;
pub(crate) mod host;
mod hostile;
mod idle_memory;
mod lateness;
mod load_beside;
mod malformed;
mod models;
mod overhead;
mod pick;
mod profile_fit;
mod profile_time;
pub(crate) mod record;
mod recurrent;
mod same_weights;
mod sdk_overhead;
mod simulator_speed;
mod start;
mod throughput;
mod wake;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use modelless_testkit::server::cargo_build;
use serde_json::Value;

use crate::command::{cargo, output};
use crate::{root, say};

/// One thing that can be measured.
pub(crate) struct Measure {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    run: fn(&Context) -> Result<Outcome>,
}

const MEASURES: &[&Measure] = &[
    &start::MEASURE,
    &idle_memory::MEASURE,
    &pick::MEASURE,
    &overhead::MEASURE,
    &sdk_overhead::MEASURE,
    &front_overhead::MEASURE,
    &malformed::MEASURE,
    &attribution::MEASURE,
    &throughput::MEASURE,
    &lateness::MEASURE,
    &cycles::MEASURE,
    &chaos::MEASURE,
    &hostile::MEASURE,
    &attack::MEASURE,
    &load_beside::MEASURE,
    &cold_start::MEASURE,
    &wake::MEASURE,
    &same_weights::MEASURE,
    &gpu::MEASURE,
    &accuracy_python::MEASURE,
    &recurrent::MEASURE,
    &profile_fit::MEASURE,
    &profile_time::MEASURE,
    &drift::MEASURE,
    &coverage::MEASURE,
    &generate::MEASURE,
    &generate_text::MEASURE,
    &cluster::jobs::MEASURE,
    &cluster::kill::MEASURE,
    &ec2::MEASURE,
    &cluster::restart::MEASURE,
    &cluster::scheduler_away::MEASURE,
    &cluster::interference::MEASURE,
    &cluster::alone::MEASURE,
    &cluster::day::MEASURE,
    &cluster::step::MEASURE,
    &cluster::many::MEASURE,
    &cluster::wire::MEASURE,
    &cluster::goodput::MEASURE,
    &cluster::goodput_simulated::MEASURE,
    &simulator_speed::MEASURE,
    &decisions::MEASURE,
];

/// Whose short form takes over a minute, and whose behaviour another stage of the tests watches already: by their name.
const NOT_AMONG_ALL: &[(&str, &str)] = &[("ec2", "the stage `moto`")];

/// What a measure found.
pub(crate) struct Outcome {
    pub(crate) seeds: Vec<u64>,
    /// Everything that was seen, one entry a repetition. Nothing at all where what is measured is not on this machine: then
    /// nothing is written.
    pub(crate) repetitions: Value,
    /// Medians, worsts and the like, each defined by its name.
    pub(crate) summary: Value,
    /// The same for the line in the documents: short, with units.
    pub(crate) result: String,
    pub(crate) checks: Vec<Check>,
}

/// A figure that must not exceed its bound.
pub(crate) struct Check {
    pub(crate) what: &'static str,
    pub(crate) value: f64,
    pub(crate) limit: f64,
    pub(crate) unit: &'static str,
}

impl Check {
    pub(crate) fn holds(&self) -> bool {
        self.value <= self.limit // what is no number does not hold
    }

    fn line(&self) -> String {
        let verdict = if self.holds() { "ok" } else { "MISSED" };
        format!(
            "{verdict}: {} is {:.2} {}, at most {} {}",
            self.what, self.value, self.unit, self.limit, self.unit
        )
    }
}

/// How a measure is to run.
pub(crate) struct Context {
    pub(crate) root: PathBuf,
    pub(crate) short: bool,
    /// Of everything random; printed and recorded.
    pub(crate) seed: u64,
    given: Option<PathBuf>,
    built: OnceCell<PathBuf>,
    library: OnceCell<String>,
}

impl Context {
    fn new(root: PathBuf, short: bool, given: Option<PathBuf>) -> Self {
        Self { root, short, seed: 20_251_121, given, built: OnceCell::new(), library: OnceCell::new() }
    }

    /// One value for the full form, another for the short one.
    pub(crate) fn choose<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    /// `modelless`: always a release build of this checkout for the full form.
    pub(crate) fn binary(&self) -> Result<&Path> {
        if self.built.get().is_none() {
            let path = match (&self.given, self.short) {
                (Some(given), true) => given.clone(),
                (_, short) => build("modelless", "modelless", short)?,
            };
            let _ = self.built.set(path);
        }
        self.built.get().map(PathBuf::as_path).context("set above; this is a bug")
    }

    /// A program of `bench/`.
    pub(crate) fn bench_program(&self, name: &str) -> Result<PathBuf> {
        build("modelless-bench", name, self.short)
    }

    /// Where the ONNX Runtime library is, installing it if need be.
    pub(crate) fn onnx_library(&self) -> Result<&str> {
        if self.library.get().is_none() {
            let printed = output(
                crate::command::program(&self.root, self.binary()?).args(["engine", "install", "onnx"]),
            )?;
            let path = printed.split_whitespace().rfind(|word| word.contains("libonnxruntime"));
            let path = path.with_context(|| format!("`engine install onnx` names no library: {printed}"))?;
            let _ = self.library.set(path.to_owned());
        }
        self.library.get().map(String::as_str).context("set above; this is a bug")
    }

    pub(crate) fn cargo(&self) -> std::process::Command {
        cargo(&self.root)
    }
}

fn build(package: &str, binary: &str, short: bool) -> Result<PathBuf> {
    let profile = if short { "dev" } else { "release" };
    // Beside `modelless`, so that what both need is built once and not again with fewer features.
    cargo_build(&["--package", "modelless", "--package", package, "--bin", binary, "--profile", profile])
}

pub(crate) use demo::register;
pub(crate) use record::indent_top as indented;

pub(crate) fn names() -> Vec<&'static str> {
    MEASURES.iter().map(|measure| measure.name).collect()
}

pub(crate) fn run(args: &[&str]) -> Result<()> {
    let (options, wanted): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| arg.starts_with("--"));
    let short = options.contains(&"--short");
    if let Some(unknown) = options.iter().find(|option| !["--short", "--list"].contains(*option)) {
        bail!("`{unknown}` is no option of `cargo xtask measure`: it takes --short and --list");
    }
    if options.contains(&"--list") {
        for measure in MEASURES {
            say(format!("{:<15} {}", measure.name, measure.what));
        }
        return Ok(());
    }
    ensure!(!wanted.is_empty(), "name what to measure: {}", names().join(", "));
    let measures = wanted
        .iter()
        .map(|name| {
            let found = MEASURES.iter().find(|measure| measure.name == *name);
            found
                .copied()
                .with_context(|| format!("there is no measurement `{name}`: {}", names().join(", ")))
        })
        .collect::<Result<Vec<_>>>()?;
    let given = std::env::var_os("MODELLESS_BIN").map(PathBuf::from);
    let context = Context::new(root()?, short, given);
    let mut missed = Vec::new();
    for measure in measures {
        if !run_one(measure, &context)? {
            missed.push(measure.name);
        }
    }
    ensure!(missed.is_empty(), "missed a bound: {}", missed.join(", "));
    Ok(())
}

/// Every short form but those that take too long, one after the other; gives the names of those that failed or missed their bound.
pub(crate) fn run_all_short(root: &Path, binary: &Path) -> Vec<&'static str> {
    let context = Context::new(root.to_owned(), true, Some(binary.to_owned()));
    let mut failed = Vec::new();
    for measure in MEASURES {
        if let Some((name, stage)) = NOT_AMONG_ALL.iter().find(|(name, _)| *name == measure.name) {
            say(format!("\n--- {name}: not measured here; {stage} tests what it measures"));
            continue;
        }
        let held = run_one(measure, &context).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", measure.name);
            false
        });
        if !held {
            failed.push(measure.name);
        }
    }
    failed
}

fn run_one(measure: &Measure, context: &Context) -> Result<bool> {
    let form = if context.short { " (short form)" } else { "" };
    say(format!("\n--- {}{form}: {}", measure.name, measure.what));
    let (began, before) = (Instant::now(), host::Load::read()?);
    let outcome = (measure.run)(context).with_context(|| format!("measuring {}", measure.name))?;
    let after = host::Load::read()?;
    say(&outcome.result);
    say(format!("took {:.0} s", began.elapsed().as_secs_f64()));
    for check in &outcome.checks {
        say(check.line());
    }
    if !context.short && !outcome.repetitions.is_null() {
        let figure = record::Figure {
            name: measure.name.to_owned(),
            folder: measure.name,
            what: measure.what.to_owned(),
            command: format!("cargo xtask measure {}", measure.name),
        };
        let raw = record::write(&figure, &outcome, &context.root, &before, &after)?;
        say(format!("written to {raw} and docs/measurements.md"));
    }
    Ok(outcome.checks.iter().all(Check::holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_missed_by_what_is_above_it_or_no_number() {
        let check = |value| Check { what: "x", value, limit: 1.0, unit: "s" }.holds();
        assert!(check(1.0) && !check(1.1) && !check(f64::NAN));
    }

    #[test]
    fn names_are_unique_and_can_stand_in_a_document() {
        let mut names = names();
        assert!(
            names
                .iter()
                .all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), MEASURES.len());
        assert!(NOT_AMONG_ALL.iter().all(|(name, _)| names.contains(name)));
    }

    #[test]
    fn an_unknown_name_or_option_is_refused_with_what_there_is() {
        assert!(run(&["no-such-thing"]).unwrap_err().to_string().contains("idle-memory"));
        assert!(run(&["--long", "pick"]).is_err());
        assert!(run(&[]).is_err());
    }
}
