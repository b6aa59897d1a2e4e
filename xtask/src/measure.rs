//! `cargo xtask measure NAME`: every figure the project tells, made by a command that anybody can repeat.
//!
//! The full form runs a release build, keeps every repetition as raw JSON under `bench/results/NAME/` and one line
//! in `docs/measurements.md`. The short form runs in CI: few repetitions, a development build, a loose bound, and
//! nothing written.

mod accuracy_python;
mod attack;
mod attribution;
mod batches;
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
mod ladder;
mod lateness;
mod load_beside;
mod malformed;
mod models;
mod overhead;
mod parity;
mod pick;
mod placement;
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
use modelless_testkit::server::{cargo_build, cargo_build_release};
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
    &parity::MEASURE,
    &placement::MEASURE,
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
                _ => self.program_of("modelless", "modelless")?,
            };
            let _ = self.built.set(path);
        }
        self.built.get().map(PathBuf::as_path).context("set above; this is a bug")
    }

    /// A program of `bench/`.
    pub(crate) fn bench_program(&self, name: &str) -> Result<PathBuf> {
        self.program_of("modelless-bench", name)
    }

    /// A program of a package of ours.
    pub(crate) fn program_of(&self, package: &str, name: &str) -> Result<PathBuf> {
        if self.short { cargo_build(name) } else { cargo_build_release(package, name) }
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
        if run_one(measure, &context)?.iter().any(|check| !check.holds()) {
            missed.push(measure.name);
        }
    }
    ensure!(missed.is_empty(), "missed a bound: {}", missed.join(", "));
    Ok(())
}

/// Which short forms are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    All,
    /// Those whose turn it is by the commit: a third, so that three commits see about all of them, and one commit always the same.
    Third(usize),
}

impl Turn {
    /// What is asked for: nothing for all, or `third`.
    pub(crate) fn of(asked: Option<&str>, commit: &str) -> Result<Self> {
        match asked {
            None | Some("" | "all") => Ok(Self::All),
            Some("third") => {
                let digits = commit.get(..6).and_then(|digits| usize::from_str_radix(digits, 16).ok());
                Ok(digits.map_or(Self::All, |digits| Self::Third(digits % 3)))
            }
            Some(other) => bail!("XTASK_SHORT_FORMS is {other:?}; it takes `all` or `third`"),
        }
    }

    fn has(self, place: usize) -> bool {
        self == Self::All || self == Self::Third(place % 3)
    }
}

/// Every short form but those that take too long, one after the other; gives what failed, each with its why.
///
/// Its few repetitions share two cores with whatever else the machine does, so a figure that misses its bound is taken once more and
/// both are told. What counts wrong answers, lost queries and the like (a bound of zero) is no such figure: once is enough.
pub(crate) fn run_all_short(root: &Path, binary: &Path, turn: Turn) -> Vec<String> {
    let context = Context::new(root.to_owned(), true, Some(binary.to_owned()));
    let (mut failed, mut took, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for (place, measure) in MEASURES.iter().enumerate() {
        if !turn.has(place) {
            left.push(measure.name);
            continue;
        }
        if let Some((name, stage)) = NOT_AMONG_ALL.iter().find(|(name, _)| *name == measure.name) {
            say(format!("\n--- {name}: not measured here; {stage} tests what it measures"));
            continue;
        }
        let began = Instant::now();
        if let Err(why) = short_of(measure, &context) {
            eprintln!("{}: {why}", measure.name);
            failed.push(format!("{}: {why}", measure.name));
        }
        took.push((began.elapsed(), measure.name));
    }
    took.sort_unstable_by(|one, other| other.cmp(one));
    let longest: Vec<String> =
        took.iter().map(|(took, name)| format!("{name} {:.0} s", took.as_secs_f64())).collect();
    say(format!("\nshort forms, the longest first: {}", longest.join(", ")));
    if !left.is_empty() {
        say(format!("not in their turn at this commit: {}", left.join(", ")));
    }
    failed
}

fn short_of(measure: &Measure, context: &Context) -> Result<(), String> {
    let run = || run_one(measure, context).map_err(|error| format!("{error:#}"));
    let (first, again) = missed(&run()?);
    if first.is_empty() {
        return Ok(());
    }
    if !again {
        return Err(first.join("; "));
    }
    say(format!("{} is measured once more, as its figures depend on what else runs here", measure.name));
    let (second, _) = missed(&run()?);
    if second.is_empty() {
        Ok(())
    } else {
        Err(format!("{}; once more: {}", first.join("; "), second.join("; ")))
    }
}

/// The lines of the bounds that were missed, and whether it helps to measure again.
fn missed(checks: &[Check]) -> (Vec<String>, bool) {
    let missed: Vec<&Check> = checks.iter().filter(|check| !check.holds()).collect();
    let counted = |check: &&Check| check.limit <= 0.0;
    (missed.iter().map(|check| check.line()).collect(), !missed.iter().any(counted))
}

fn run_one(measure: &Measure, context: &Context) -> Result<Vec<Check>> {
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
    Ok(outcome.checks)
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
    fn what_counts_what_went_wrong_is_not_measured_again() {
        let check = |value, limit| Check { what: "x", value, limit, unit: "" };
        assert_eq!(missed(&[check(1.0, 1.0), check(0.0, 0.0)]), (Vec::new(), true));
        let (lines, again) = missed(&[check(2.0, 1.0), check(0.0, 0.0)]);
        assert!(again && lines.len() == 1, "{lines:?}");
        let (lines, again) = missed(&[check(2.0, 1.0), check(1.0, 0.0)]);
        assert!(!again && lines.len() == 2, "{lines:?}");
    }

    #[test]
    fn a_third_is_the_same_for_a_commit_and_all_thirds_are_everything() {
        let third = |commit| Turn::of(Some("third"), commit).unwrap();
        assert_eq!(third("00000a4d"), third("00000aff"));
        let all = [third("000000"), third("000001"), third("000002")];
        assert!((0..MEASURES.len()).all(|at| all.iter().filter(|turn| turn.has(at)).count() == 1));
        assert_eq!((Turn::of(None, "").unwrap(), third("no commit")), (Turn::All, Turn::All));
        assert!(Turn::of(Some("half"), "000000").unwrap_err().to_string().contains("third"));
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
