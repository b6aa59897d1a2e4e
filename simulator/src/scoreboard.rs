//! Every policy on every published scenario under several loads, with several seeds: who violates, answers, and costs how much.
//!
//! A load of 1 is what the fluid bound could just serve, so that scenarios can be compared. Intervals are of 95 % over seeds (Student's t).
//! Rows where another policy does better than ours are told first, not hidden.

mod bounds;
mod shown;

use bounds::Bounds;
pub use bounds::bounds_anew;
pub use shown::{Shown, shown};

use crate::baseline::{BASELINES, Baseline};
use crate::chart::{Frame, Line, svg};
use crate::oracle::Fluid;
use crate::outcome::ratio;
use crate::report::Report;
use crate::scenario::file::File;
use crate::spread::spread;
use crate::{Error, Scenario, oracle, run, tuning};
use modelless_types::Micros;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of the fluid bound.
    pub loads: Vec<f64>,
    /// One run each.
    pub seeds: Vec<u64>,
    /// At most so long, in virtual seconds; four times that where machines are rented.
    pub seconds: u64,
    /// Loads of models and starts of machines take so many times as long.
    pub starts: f64,
    /// To so many nodes ours announces each query, in place of what the scenario says.
    pub announce: Option<u16>,
    /// Only these policies; none says all.
    pub policies: Vec<String>,
    /// In the place of which rows, if any: [`instead`] could not put them there otherwise, which is found before anything has run.
    pub before: Option<Vec<Row>>,
}

impl Plan {
    /// Who decides in turn: what is live, and then the others.
    fn who(&self) -> impl Iterator<Item = Option<&'static Baseline>> {
        let all = std::iter::once(None).chain(BASELINES.iter().map(Some));
        all.filter(|policy| {
            let name = policy.map_or(OURS, |policy| policy.name);
            self.policies.is_empty() || self.policies.iter().any(|wanted| wanted == name)
        })
    }
}

/// A figure over seeds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figure {
    /// Its mean.
    pub mean: f64,
    /// Half of its 95 % interval.
    pub half: f64,
}

/// A policy on a scenario under a load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Which scenario.
    pub scenario: String,
    /// Of the fluid bound.
    pub load: f64,
    /// Which policy.
    pub policy: String,
    /// Share of queries late, refused or lost.
    pub violations: Figure,
    /// The least that must be violated.
    pub fluid: f64,
    /// The same with the start of machines that come and go, and a load, charged. Rows from before it was told have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<f64>,
    /// At most so accurate are answers on average of who misses no more than a point above that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharpest: Option<f64>,
    /// The least that a million answers cost, were machines rented by the lane and the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_usd: Option<f64>,
    /// Answers in time a second.
    pub goodput: Figure,
    /// Mean accuracy of the answers in time.
    pub accuracy: Figure,
    /// Dollars for a million answers in time.
    pub usd_per_million: Figure,
    /// Loads that were started.
    pub loads: Figure,
    /// How many seeds, and virtual seconds of each.
    #[serde(default)]
    pub runs: (usize, u64),
    /// Whether machines come and go.
    #[serde(default)]
    pub rented: bool,
    /// The tightest bound, in single runs of the most accurate model that may answer within it.
    #[serde(default)]
    pub tightest: f64,
    /// The same of the quickest.
    #[serde(default)]
    pub single_runs: f64,
}

/// The name of what decides live.
pub const OURS: &str = "modelless";

/// Runs all of it, on all cores; `tell` hears of each row as it is done.
pub fn board(files: &[&Path], plan: &Plan, tell: impl Fn(&Row) + Sync) -> Result<Vec<Row>, Error> {
    let known = |name: &String| name == OURS || BASELINES.iter().any(|policy| policy.name == name);
    if let Some(unknown) = plan.policies.iter().find(|name| !known(name)) {
        return Err(Error::Scenario(format!("there is no policy {unknown}")));
    }
    let mut worlds = Vec::new();
    for path in files {
        let headroom = headroom(path, plan.seconds)?;
        for load in &plan.loads {
            let mut world = cut(File::load_starting(path, load * headroom, plan.starts)?, plan.seconds);
            world.limits.announce = plan.announce.unwrap_or(world.limits.announce);
            worlds.push((world, *load));
        }
    }
    let jobs = |at: usize| plan.who().map(move |policy| (at, policy));
    let jobs: Vec<_> = (0..worlds.len()).flat_map(jobs).collect();
    if let Some(before) = &plan.before {
        for (at, policy) in &jobs {
            let (world, load) = &worlds[*at];
            let runs = (plan.seeds.len(), seconds(world));
            place(before, (&world.name, *load, policy.map_or(OURS, |policy| policy.name)), runs)?;
        }
    }
    let bounds = spread(&worlds, |(world, _)| Bounds::of(world, &plan.seeds), |_| ())?;
    let one =
        |(at, policy): &(usize, Option<&Baseline>)| row(&worlds[*at], &bounds[*at], *policy, &plan.seeds);
    spread(&jobs, one, tell)
}

/// By how much a scenario's rates are multiplied so that the fluid bound could just serve them.
pub(crate) fn headroom(path: &Path, seconds: u64) -> Result<f64, Error> {
    let whole = cut(File::load(path, 1.0)?, seconds);
    let offered: usize = crate::workload::Source::all(&whole, 1).iter().map(Vec::len).sum();
    let rate = ratio(offered as u64 * 1_000_000, whole.duration.0);
    Ok(oracle::capacity(&whole, 1)? / rate.max(f64::MIN_POSITIVE))
}

/// At most so long, and four times as long where machines take their time to come and go.
pub(crate) fn cut(world: Scenario, seconds: u64) -> Scenario {
    let rented = world.nodes.iter().any(|node| node.rented.is_some());
    let duration = world.duration.min(Micros::from_secs(if rented { 4 * seconds } else { seconds }));
    Scenario { duration, ..world }
}

fn row(
    (world, load): &(Scenario, f64),
    bounds: &Bounds,
    policy: Option<&Baseline>,
    seeds: &[u64],
) -> Result<Row, Error> {
    let name = policy.map_or(OURS, |policy| policy.name);
    let report = |(seed, fluid): (&u64, &Fluid)| -> Result<Report, Error> {
        let outcome = match policy {
            Some(policy) => policy.run(world, *seed)?,
            None => run(&tuning::ours(world.clone(), &tuning::chosen_for(OURS)), *seed)?,
        };
        Ok(Report::new(name, *load, world.duration, *fluid, outcome))
    };
    let (tightest, single_runs) = oracle::in_single_runs(world);
    let reports: Vec<Report> = seeds.iter().zip(&bounds.0).map(report).collect::<Result<_, _>>()?;
    let over =
        |of: &dyn Fn(&Report) -> Option<f64>| figure(&reports.iter().filter_map(of).collect::<Vec<_>>());
    Ok(bounds.told_in(Row {
        scenario: world.name.clone(),
        load: *load,
        policy: name.into(),
        violations: over(&|r| Some(r.outcome.total.violations)),
        fluid: 0.0,
        charged: None,
        sharpest: None,
        least_usd: None,
        goodput: over(&|r| Some(r.goodput)),
        accuracy: over(&|r| (r.outcome.total.in_time() > 0).then_some(r.outcome.total.accuracy)),
        usd_per_million: over(&|r| r.usd_per_million),
        loads: over(&|r| Some(ratio(r.outcome.loads, 1))),
        runs: (seeds.len(), seconds(world)),
        rented: world.nodes.iter().any(|node| node.rented.is_some()),
        tightest,
        single_runs,
    }))
}

/// Two-sided 95 % points of Student's t by degrees of freedom, from 1.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

fn figure(values: &[f64]) -> Figure {
    let n = ratio(values.len() as u64, 1);
    if values.is_empty() {
        return Figure::default();
    }
    let mean = values.iter().sum::<f64>() / n;
    if values.len() == 1 {
        return Figure { mean, half: 0.0 };
    }
    let var = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
    let t = STUDENT.get(values.len() - 2).copied().unwrap_or(1.96);
    Figure { mean, half: t * (var / n).sqrt() }
}

/// Whether a row is beaten by another of the same scenario and load, beyond both intervals: by violations, or by accuracy where those
/// are level.
pub fn beaten(ours: &Row, other: &Row) -> Option<&'static str> {
    if ours.scenario != other.scenario || ours.load.to_bits() != other.load.to_bits() {
        return None;
    }
    let gap = ours.violations.mean - other.violations.mean;
    let unsure = ours.violations.half + other.violations.half;
    if gap > unsure.max(0.001) {
        return Some("fewer violations");
    }
    let level = gap.abs() <= unsure.max(0.001);
    let sharper = other.accuracy.mean - ours.accuracy.mean;
    (level && sharper > (ours.accuracy.half + other.accuracy.half).max(0.001))
        .then_some("more accurate answers")
}

/// These rows, and of those that were there before the ones of other scenarios and loads: so a part of a board can be run again.
pub fn beside(before: Vec<Row>, rows: Vec<Row>) -> Vec<Row> {
    let same = |a: &Row, b: &Row| a.scenario == b.scenario && a.load.to_bits() == b.load.to_bits();
    let again = |old: &Row| rows.iter().any(|row| same(row, old));
    let mut all: Vec<Row> = before.into_iter().filter(|old| !again(old)).collect();
    all.extend(rows);
    all.sort_by(|a, b| a.scenario.cmp(&b.scenario).then(a.load.total_cmp(&b.load)));
    all
}

/// How long a run is, in virtual seconds.
fn seconds(world: &Scenario) -> u64 {
    world.duration.0 / 1_000_000
}

/// Where the row of a scenario, a load and a policy stands, which has to be of as many runs as long as these.
fn place(before: &[Row], what: (&str, f64, &str), runs: (usize, u64)) -> Result<usize, Error> {
    let (scenario, load, policy) = what;
    let same =
        |old: &Row| (&*old.scenario, old.load.to_bits(), &*old.policy) == (scenario, load.to_bits(), policy);
    let why = match before.iter().position(same) {
        Some(at) if before[at].runs == runs => return Ok(at),
        Some(at) => {
            let old = before[at].runs;
            let (there, these) =
                (format!("{} runs of {} s", old.0, old.1), format!("{} of {} s", runs.0, runs.1));
            format!("{there} stand there, not {these}; run all policies of it again")
        }
        None => format!("{policy} was not run on it there yet; run all policies of it"),
    };
    Err(Error::Scenario(format!("{scenario} at {load}: {why}")))
}

/// These rows in the place of those that the same policies had there: what a change of one policy did, beside all others.
pub fn instead(mut before: Vec<Row>, rows: Vec<Row>) -> Result<Vec<Row>, Error> {
    for row in rows {
        let at = place(&before, (&row.scenario, row.load, &row.policy), row.runs)?;
        before[at] = row;
    }
    Ok(before)
}

/// The table as people read it.
pub fn markdown(rows: &[Row], how: &str) -> String {
    let mut out = format!(
        "# Scoreboard\n\nMade by `{how}`; every row in `rows.json`. Whoever decides has the same arrivals, profiles, load times, memory, floors and drop rule (`docs/policies.md`). A load of 1 is what the fluid bound \
         could just serve. Intervals are of 95 % over the seeds. *Bound* is the least that must be violated; where machines come and go, in brackets that of those who ask for them when what comes needs them.\n\nLoad times, memory and prices \
         are assumed where nobody published them: each scenario says which.\n"
    );
    out.push_str(&shown::table(&shown(rows)));
    let ours: Vec<&Row> = rows.iter().filter(|row| row.policy == OURS).collect();
    out.push_str("\n## Where we lose\n\n");
    let mut lost = 0;
    for our in &ours {
        for (other, why) in rows.iter().filter_map(|other| Some((other, beaten(our, other)?))) {
            lost += 1;
            let _ = writeln!(
                out,
                "* {} at {:.2}: {} has {why} ({} and {:.4}; ours {} and {:.4})",
                our.scenario,
                our.load,
                other.policy,
                percent(other.violations),
                other.accuracy.mean,
                percent(our.violations),
                our.accuracy.mean
            );
        }
    }
    if lost == 0 {
        out.push_str("Nowhere beyond the intervals.\n");
    }
    let mut scenarios: Vec<&str> = rows.iter().map(|row| row.scenario.as_str()).collect();
    scenarios.dedup();
    for scenario in scenarios {
        let of = rows.iter().filter(|row| row.scenario == scenario);
        // Loads may have been run apart.
        let runs: BTreeSet<(usize, u64)> = of.map(|row| row.runs).collect();
        let told =
            |(seeds, seconds): &(usize, u64)| format!("{seeds} seeds, {seconds} s of virtual time each");
        let runs = runs.iter().map(told).collect::<Vec<_>>().join("; ");
        let _ = write!(
            out,
            "\n## {scenario}\n\n{runs}.\n\n![violations by load]({scenario}.svg)\n\n| load | policy | violations | bound | goodput | accuracy | \
             USD a million | loads |\n|---:|---|---:|---:|---:|---:|---:|---:|\n"
        );
        for row in rows.iter().filter(|row| row.scenario == scenario) {
            let _ = writeln!(
                out,
                "| {:.2} | {} | {} | {} | {:.0} ± {:.0} | {:.4} ± {:.4} | {:.2} ± {:.2} | {:.0} |",
                row.load,
                row.policy,
                percent(row.violations),
                bound(row),
                row.goodput.mean,
                row.goodput.half,
                row.accuracy.mean,
                row.accuracy.half,
                row.usd_per_million.mean,
                row.usd_per_million.half,
                row.loads.mean,
            );
        }
    }
    out
}

fn bound(row: &Row) -> String {
    let charged =
        row.charged.filter(|_| row.rented).map_or_else(String::new, |v| format!(" ({:.2} %)", 100.0 * v));
    format!("{:.2} %{charged}", 100.0 * row.fluid)
}

fn percent(figure: Figure) -> String {
    format!("{:.2} ± {:.2} %", 100.0 * figure.mean, 100.0 * figure.half)
}

/// Violations by load, a line for each policy.
pub fn picture(rows: &[Row], scenario: &str) -> String {
    let of = |row: &&Row| row.scenario == scenario;
    let mut loads: Vec<f64> = rows.iter().filter(of).map(|row| row.load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    let mut policies: Vec<&str> = rows.iter().filter(of).map(|row| row.policy.as_str()).collect();
    let mut seen = std::collections::BTreeSet::new();
    policies.retain(|policy| seen.insert(*policy));
    let line = |policy: &str| {
        let at = |load: &f64| {
            let mut all = rows.iter().filter(of);
            let row = all.find(|row| row.policy == policy && row.load.to_bits() == load.to_bits());
            row.map(|row| 100.0 * row.violations.mean)
        };
        Line { name: policy.into(), values: loads.iter().map(at).collect() }
    };
    let lines: Vec<Line> = policies.into_iter().map(line).collect();
    let title = format!("{scenario}: violations by load");
    let below = "load, of what the fluid bound could serve";
    svg(&Frame { title: &title, below, beside: "% of what came", at: &loads }, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, violations: f64, half: f64, accuracy: f64) -> Row {
        let figure = |mean: f64, half: f64| Figure { mean, half };
        Row {
            scenario: "s".into(),
            load: 1.0,
            policy: policy.into(),
            violations: figure(violations, half),
            fluid: 0.0,
            charged: None,
            sharpest: None,
            least_usd: None,
            goodput: figure(1.0, 0.0),
            accuracy: figure(accuracy, 0.0),
            usd_per_million: figure(1.0, 0.0),
            loads: figure(1.0, 0.0),
            runs: (2, 1),
            rented: false,
            tightest: 10.0,
            single_runs: 10.0,
        }
    }

    #[test]
    fn an_interval_is_students() {
        // Of 1, 2 and 3: mean 2, deviation 1, 4.303 / sqrt(3).
        let seen = figure(&[1.0, 2.0, 3.0]);
        assert!((seen.mean - 2.0).abs() < 1e-9 && (seen.half - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(figure(&[5.0]), Figure { mean: 5.0, half: 0.0 });
    }

    #[test]
    fn what_is_lost_is_told_and_what_chance_could_have_done_is_not() {
        let ours = row(OURS, 0.05, 0.01, 0.8);
        assert_eq!(beaten(&ours, &row("a", 0.02, 0.01, 0.7)), Some("fewer violations"));
        assert_eq!(beaten(&ours, &row("b", 0.045, 0.01, 0.8)), None);
        assert_eq!(beaten(&ours, &row("c", 0.05, 0.01, 0.81)), Some("more accurate answers"));
        assert_eq!(beaten(&ours, &row("d", 0.2, 0.01, 0.9)), None);
        let rows = [ours, row("a", 0.02, 0.01, 0.7)];
        let text = markdown(&rows, "this");
        assert!(text.contains("2 seeds, 1 s of virtual time each"), "{text}");
        assert!(
            text.contains("* s at 1.00: a has fewer violations") && text.contains("| 1.00 | modelless |"),
            "{text}"
        );
        assert_eq!(picture(&rows, "s").matches("<polyline").count(), 2);
    }

    #[test]
    fn rows_of_one_policy_take_the_place_of_its_own_and_of_nothing_else() {
        let before = || vec![row("a", 0.1, 0.0, 0.7), row("b", 0.1, 0.0, 0.7)];
        let after = instead(before(), vec![row("b", 0.2, 0.0, 0.8)]).expect("it stood there");
        assert_eq!(after, [row("a", 0.1, 0.0, 0.7), row("b", 0.2, 0.0, 0.8)]);
        let longer = Row { runs: (2, 9), ..row("b", 0.2, 0.0, 0.8) };
        let error = instead(before(), vec![longer]).expect_err("other runs").to_string();
        assert!(error.contains("2 runs of 1 s stand there, not 2 of 9 s"), "{error}");
        let error = instead(before(), vec![row("c", 0.2, 0.0, 0.8)]).expect_err("a new one").to_string();
        assert!(error.contains("c was not run on it there yet"), "{error}");
    }

    #[test]
    fn rows_that_could_not_be_put_there_are_refused_before_anything_has_run() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/bursts.toml"));
        let old = Row { scenario: "bursts".into(), load: 0.3, ..row(OURS, 0.1, 0.0, 0.7) };
        let policies = vec![OURS.into()];
        let plan = Plan {
            loads: vec![0.3],
            seeds: vec![1],
            seconds: 2,
            starts: 1.0,
            announce: None,
            policies,
            before: Some(vec![old]),
        };
        let error = board(&[file], &plan, |_| panic!("nothing runs")).expect_err("other runs").to_string();
        assert!(error.contains("2 runs of 1 s stand there, not 1 of 2 s"), "{error}");
    }

    #[test]
    fn what_is_run_again_takes_the_place_of_what_was_there_and_the_rest_stays() {
        let of =
            |scenario: &str, violations| Row { scenario: scenario.into(), ..row("a", violations, 0.0, 0.8) };
        let other = Row { load: 0.5, ..of("b", 0.3) };
        let all = beside(vec![of("b", 0.1), of("a", 0.1), other], vec![of("b", 0.2), of("c", 0.2)]);
        let told: Vec<(&str, f64)> =
            all.iter().map(|row| (row.scenario.as_str(), row.violations.mean)).collect();
        assert_eq!(told, [("a", 0.1), ("b", 0.3), ("b", 0.2), ("c", 0.2)]);
    }
}
