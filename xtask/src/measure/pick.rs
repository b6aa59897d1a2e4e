//! How long `route::pick` takes and how much worse than the best it chooses.
//!
//! The time is criterion's, the regret that of the program `pick-regret`; both live in `bench/`, next to each other
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
    bench.args(["bench", "--package", "modelless-bench", "--bench", "pick"]);
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
        "modelless-bench",
        "--bin",
        "pick-regret",
        "--",
        "--json",
    ]))?;
    let regret: Value = serde_json::from_str(&printed).context("pick-regret wrote no JSON")?;
    let worst_regret = regret["mean_regret"].as_f64().context("pick-regret tells no mean_regret")? * 100.0;

    let median_us = |replicas: &str| {
        let id = found.keys().find(|id| id.rsplit('/').next() == Some(replicas));
        let id = id.with_context(|| format!("no benchmark of {replicas} replicas"))?;
        let nanos = found[id]["estimates"]["median"]["point_estimate"].as_f64();
        nanos.map(|nanos| nanos / 1e3).context("criterion tells no median")
    };
    let (hundred, most) = (median_us("100")?, median_us("10000")?);
    // CI machines are shared; a regression of the algorithm is still far larger than this.
    let times = context.choose(1.0, 5.0);
    Ok(Outcome {
        seeds: regret["seeds"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect(),
        summary: json!({"median_us": {"100": hundred, "10000": most}, "mean_regret_percent": worst_regret}),
        result: format!(
            "median {hundred:.2} us at 100 replicas, {most:.2} us at 10,000; regret {worst_regret:.2} %"
        ),
        repetitions: json!([{"criterion": found, "regret": regret}]),
        checks: vec![
            Check { what: "median at 100", value: hundred, limit: 2.0 * times, unit: "us" },
            Check { what: "median at 10,000", value: most, limit: 10.0 * times, unit: "us" },
            Check { what: "mean regret", value: worst_regret, limit: 5.0, unit: "%" },
        ],
    })
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
