//! How long `route::pick` takes and how much worse than the best it chooses.
//!
//! The time is criterion's, the regret that of the program `pick-regret`; both live in `bench/pick`, next to each other
//! so that they look at the same clusters.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome};
use crate::command::{output, run, target_dir};

pub(crate) const MEASURE: Measure = Measure {
    name: "pick",
    what: "`route::pick` among 10 to 10,000 replicas: time, and regret against the exhaustive choice",
    run: measure,
};

fn measure(context: &Context) -> Result<Outcome> {
    let started = SystemTime::now();
    let mut bench = context.cargo();
    bench.args(["bench", "--package", "modelless-bench-pick", "--bench", "pick"]);
    if context.short {
        bench.args(["--", "--quick"]);
    }
    run(&mut bench)?;
    let mut found = BTreeMap::new();
    collect(&target_dir(&context.root)?.join("criterion"), started, &mut found)?;
    ensure!(!found.is_empty(), "criterion wrote no estimates");

    let printed = output(context.cargo().args([
        "run",
        "--quiet",
        "--release",
        "--package",
        "modelless-bench-pick",
        "--bin",
        "pick-regret",
        "--",
        "--json",
    ]))?;
    let regret: Value = serde_json::from_str(&printed).context("pick-regret wrote no JSON")?;
    let regret_of = Regret::read(&regret)?;
    let (hundred, most) = (worst_median_us(&found, "100")?, worst_median_us(&found, "10000")?);
    // CI machines are shared; a regression of the algorithm is still far larger than this.
    let times = context.choose(1.0, 5.0);
    Ok(Outcome {
        seeds: regret["seeds"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect(),
        summary: json!({
            "worst_median_us_of_all_preferences": {"100": hundred, "10000": most},
            "mean_excess_percent": regret_of.mean, "worst_excess_percent": regret_of.worst,
            "compared": regret_of.compared, "different": regret_of.different,
        }),
        result: format!(
            "median {hundred:.2} us at 100 replicas, {most:.2} us at 10,000 (the slowest preference); excess over the \
             exhaustive choice {:.2} % in the mean, {:.2} % at worst, {} choices of {} different",
            regret_of.mean, regret_of.worst, regret_of.different, regret_of.compared
        ),
        repetitions: json!([{"criterion": found, "regret": regret}]),
        checks: vec![
            Check { what: "median at 100", value: hundred, limit: 2.0 * times, unit: "us" },
            Check { what: "median at 10,000", value: most, limit: 10.0 * times, unit: "us" },
            Check { what: "mean excess", value: regret_of.mean, limit: 5.0, unit: "%" },
            Check { what: "worst excess", value: regret_of.worst, limit: 0.01, unit: "%" },
            Check {
                what: "sent or not, or preferred, differently",
                value: regret_of.different,
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

/// What `pick-regret` found, over all sizes and preferences.
struct Regret {
    /// The worst row's mean, in percent.
    mean: f64,
    worst: f64,
    compared: f64,
    /// One sent and the other did not, or `pick` served what is preferred less well.
    different: f64,
}

impl Regret {
    fn read(report: &Value) -> Result<Self> {
        let field = |of: &Value, name: &str| {
            of[name].as_f64().with_context(|| format!("pick-regret tells no {name}"))
        };
        let rows = report["rows"].as_array().context("pick-regret tells no rows")?;
        let (mut compared, mut different) = (0.0, 0.0);
        for row in rows {
            let queries = field(row, "queries")?;
            ensure!(queries > 0.0, "nothing was compared: {row}");
            compared += queries;
            different += field(row, "different")?;
        }
        let (mean, worst) = (field(report, "mean_excess")? * 100.0, field(report, "worst_excess")? * 100.0);
        Ok(Self { mean, worst, compared, different })
    }
}

/// The median of the slowest preference among so many replicas.
fn worst_median_us(found: &BTreeMap<String, Value>, replicas: &str) -> Result<f64> {
    let mut worst: Option<f64> = None;
    for preference in ["accuracy", "cost", "latency"] {
        let id = format!("pick/{preference}/{replicas}");
        let benchmark = found.get(&id).with_context(|| format!("there is no benchmark `{id}`"))?;
        let nanos = benchmark["estimates"]["median"]["point_estimate"].as_f64();
        let micros = nanos.with_context(|| format!("criterion tells no median of `{id}`"))? / 1e3;
        worst = Some(worst.map_or(micros, |known| known.max(micros)));
    }
    worst.context("there are three preferences; this is a bug")
}

/// Every benchmark that was written since we began, by its full name.
fn collect(folder: &Path, since: SystemTime, into: &mut BTreeMap<String, Value>) -> Result<()> {
    let estimates = folder.join("estimates.json");
    if folder.ends_with("new") && estimates.is_file() {
        if fs::metadata(&estimates)?.modified()? >= since {
            let about = read(&folder.join("benchmark.json"))?;
            let id = about["full_id"].as_str().context("criterion names no full_id")?.to_owned();
            let samples = read(&folder.join("sample.json")).unwrap_or_default();
            into.insert(id, json!({"estimates": read(&estimates)?, "samples": samples}));
        }
        return Ok(());
    }
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, since, into)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    serde_json::from_slice(&fs::read(path)?).context("criterion wrote no JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_compared_nothing_is_refused() {
        let report = |queries| json!({"mean_excess": 0.01, "worst_excess": 0.5, "rows": [{"queries": queries, "different": 2}]});
        let read = Regret::read(&report(7)).unwrap();
        assert!((read.mean - 1.0).abs() < 1e-9 && (read.worst - 50.0).abs() < 1e-9);
        assert!((read.compared - 7.0).abs() < 1e-9 && (read.different - 2.0).abs() < 1e-9);
        assert!(Regret::read(&report(0)).is_err());
    }

    #[test]
    fn the_slowest_preference_counts() {
        let of = |nanos: f64| json!({"estimates": {"median": {"point_estimate": nanos}}});
        let mut found = BTreeMap::from([
            ("pick/accuracy/100".to_owned(), of(1_000.0)),
            ("pick/cost/100".to_owned(), of(3_000.0)),
        ]);
        assert!(worst_median_us(&found, "100").is_err(), "one preference is missing");
        found.insert("pick/latency/100".to_owned(), of(2_000.0));
        assert!((worst_median_us(&found, "100").unwrap() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn takes_what_is_new_by_its_full_name() {
        let folder = modelless_testkit::temp_dir("criterion").unwrap();
        let new = folder.path().join("pick/100/new");
        fs::create_dir_all(&new).unwrap();
        fs::write(new.join("benchmark.json"), r#"{"full_id": "pick/100"}"#).unwrap();
        fs::write(new.join("estimates.json"), "{}").unwrap();
        let mut found = BTreeMap::new();
        collect(folder.path(), SystemTime::UNIX_EPOCH, &mut found).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["pick/100"]);
        let later = SystemTime::now() + std::time::Duration::from_mins(1);
        let mut old = BTreeMap::new();
        collect(folder.path(), later, &mut old).unwrap();
        assert!(old.is_empty());
    }
}
