//! Whether live batches take as long as profiles say: the mean, and how often the 99th percentile is exceeded.
//!
//! Batch sizes were drawn once and stand in `bench/profile-fit-points.json`, committed before anything was fitted. For each an
//! executor is started that makes batches of exactly that size (by deadlines it would make none of a size that does not pay)
//! and kept full, and every batch is compared with what the performance model makes of two profiles that `modelless profile
//! run` made before: one without a budget, and one with.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Map, Value, json};

use super::models::{Model, cnn_m, made};
use super::{Check, Context, Measure, Outcome};
use crate::command::{output, program};

pub(crate) const MEASURE: Measure = Measure {
    name: "profile-fit",
    what: "predicted mean and 99th percentile of batches against live ones, with and without a budget",
    run: measure,
};

const POINTS: &str = "bench/profile-fit-points.json";
/// The profiles that predict: how each is called, and its budget.
const PROFILES: [(&str, Option<&str>); 2] = [("full", None), ("budget 30s", Some("30s"))];

fn measure(context: &Context) -> Result<Outcome> {
    let drawn: Value = serde_json::from_str(&fs::read_to_string(context.root.join(POINTS))?)?;
    let models = if context.short {
        vec![(cnn_m(&context.root), vec![1, 2, 12])]
    } else {
        let names = ["efficientnet_lite0", "minilm_l6"];
        let of = |name| -> Result<(Model, Vec<u64>)> {
            let sizes = drawn["points"][name].as_array().with_context(|| format!("no points of {name}"))?;
            Ok((made(&context.root, name)?, sizes.iter().filter_map(Value::as_u64).collect()))
        };
        names.into_iter().map(of).collect::<Result<Vec<_>>>()?
    };
    let mut fits = PROFILES.map(|(name, _)| Fit { name, ..Fit::default() });
    let mut raw = Vec::new();
    for (model, sizes) in &models {
        let profiles = profiles(context, model)?;
        let mut points = Vec::new();
        for size in sizes {
            let point = live(context, model, *size, &profiles)?;
            for fit in &mut fits {
                fit.add(&point)?;
            }
            points.push(point);
        }
        raw.push(json!({"model": model.name, "profiles": profiles, "points": points}));
    }
    let mut checks = Vec::new();
    for fit in &fits {
        checks.extend(fit.checks(context)?);
    }
    let results = fits.iter().map(Fit::result).collect::<Result<Vec<_>>>()?;
    let summary =
        fits.iter().map(|fit| Ok((fit.name.to_owned(), fit.summary()?))).collect::<Result<Map<_, _>>>()?;
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(raw),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

/// What the command measures of the model's one variant, by how the profile is called.
fn profiles(context: &Context, model: &Model) -> Result<Value> {
    let mut all = Map::new();
    for (name, budget) in PROFILES {
        let package = model.package.to_string_lossy();
        let mut args = vec!["profile", "run", &package, "--json", "--variant", model.variant];
        // Short enough to leave something out, so that the short form sees what a budget does.
        let budget = budget.map(|budget| context.choose(budget, "3s"));
        if let Some(budget) = budget {
            args.extend(["--budget", budget]);
        }
        let told = output(program(&context.root, context.binary()?).args(args))?;
        // The command that measured it names the package, which lies elsewhere on other machines.
        let told = told.replace(&*package, model.name);
        let told: Value = serde_json::from_str(&told).context("`profile run --json` told no JSON")?;
        ensure!(told[0]["profile"].is_object(), "it measured nothing: {told}");
        all.insert(name.to_owned(), told[0]["profile"].clone());
    }
    Ok(Value::Object(all))
}

/// Batches of this size, as they run in an executor.
fn live(context: &Context, model: &Model, size: u64, profiles: &Value) -> Result<Value> {
    let mut spec = exactly(size);
    spec["library"] = context.onnx_library()?.into();
    spec["packages"] = json!([model.package]);
    spec["seed"] = context.seed.into();
    let mut executor = Side::start(&context.bench_program("executor-load")?, &[&spec.to_string()])?;
    let ms = context.choose(6_000, 500);
    executor.ask(&json!({"do": "batches", "warm_ms": ms / 8, "ms": ms, "profiles": profiles}))
}

/// How an executor is started that makes batches of this size and no others.
fn exactly(size: u64) -> Value {
    // The queue is kept full, so none waits that long for others, but for those that are left at the end. It has to be
    // measured to be served; what comes of that is not what is compared.
    json!({"max_batch": size, "batching": format!("fixed:{size}:1000ms"), "budget_ms": 1_000})
}

/// How one profile fits, over all points.
#[derive(Default)]
struct Fit {
    name: &'static str,
    /// Off by so much, in per cent of what was seen, a point each.
    off: Vec<f64>,
    above: f64,
    batches: f64,
}

impl Fit {
    fn add(&mut self, point: &Value) -> Result<()> {
        let runs: Vec<f64> =
            point["run_us"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        ensure!(!runs.is_empty(), "no batch of {} ran", point["batch"]);
        ensure!(
            point["other_sizes"] == 0,
            "{} queries shared batches of other sizes than {}",
            point["other_sizes"],
            point["batch"]
        );
        #[expect(clippy::cast_precision_loss, reason = "counts")]
        let count = runs.len() as f64;
        let seen = runs.iter().sum::<f64>() / count;
        let of = &point["predicted"][self.name];
        let predicted = of["mean_us"].as_f64().context("no prediction")?;
        self.off.push((predicted - seen).abs() / seen * 100.0);
        self.above += of["above"].as_f64().context("no count of those above")?;
        self.batches += count;
        Ok(())
    }

    fn percent(&self, percent: usize) -> Result<f64> {
        stats::percentile(&self.off, percent).context("no points")
    }

    fn above_percent(&self) -> f64 {
        self.above / self.batches.max(1.0) * 100.0
    }

    fn summary(&self) -> Result<Value> {
        Ok(json!({
            "points": self.off.len(), "mean_off_percent_median": self.percent(50)?, "mean_off_percent_p95": self.percent(95)?,
            "above_p99_percent": self.above_percent(), "batches": self.batches,
        }))
    }

    fn result(&self) -> Result<String> {
        Ok(format!(
            "{}: means off by {:.1} % at the median of {} points and {:.1} % at the 95th, {:.2} % of {:.0} batches above the \
             predicted p99",
            self.name,
            self.percent(50)?,
            self.off.len(),
            self.percent(95)?,
            self.above_percent(),
            self.batches
        ))
    }

    fn checks(&self, context: &Context) -> Result<Vec<Check>> {
        let names = match self.name {
            "full" => {
                ["median of means off", "95th of means off", "batches above p99", "p99 too far above batches"]
            }
            _ => [
                "median of means off with a budget",
                "95th of means off with a budget",
                "batches above p99 with a budget",
                "p99 too far above batches with a budget",
            ],
        };
        // What a development build on a busy machine does with a model of 50 us says nothing.
        let limits = context.choose([10.0, 25.0, 3.0, 1.0], [500.0, 2_000.0, 100.0, 1_000.0]);
        // At least 0.3 %: as a bound from above, by how many times fewer than that there are.
        let far = 0.3 / self.above_percent().max(1e-3);
        let values = [self.percent(50)?, self.percent(95)?, self.above_percent(), far];
        let units = ["%", "%", "%", "times fewer than 0.3 %"];
        let each = names.into_iter().zip(values).zip(limits).zip(units);
        Ok(each.map(|(((what, value), limit), unit)| Check { what, value, limit, unit }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_tells_how_far_off_and_how_often_above() {
        let mut fit = Fit { name: "full", ..Fit::default() };
        let point = |predicted: f64, above: u32| {
            let full = json!({"mean_us": predicted, "p99_us": 120, "above": above});
            json!({"batch": 4, "other_sizes": 0, "run_us": [90, 110], "predicted": {"full": full}})
        };
        fit.add(&point(105.0, 1)).unwrap();
        fit.add(&point(80.0, 0)).unwrap();
        assert!((fit.percent(95).unwrap() - 20.0).abs() < 1e-9);
        assert!((fit.above_percent() - 25.0).abs() < 1e-9);
        assert!(fit.add(&json!({"batch": 4, "other_sizes": 0, "run_us": [], "predicted": {}})).is_err());
        let mut mixed = point(100.0, 0);
        mixed["other_sizes"] = json!(3);
        assert!(fit.add(&mixed).unwrap_err().to_string().contains("3 queries"));
    }

    #[test]
    fn batches_are_of_the_drawn_size_whether_that_pays_or_not() {
        for size in [1, 2, 32] {
            let spec = exactly(size);
            assert_eq!(spec["batching"], format!("fixed:{size}:1000ms"));
            assert_eq!(spec["max_batch"], size);
        }
    }

    #[test]
    fn the_points_were_drawn_for_both_models() {
        let path = crate::root().unwrap().join(POINTS);
        let drawn: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        for name in ["efficientnet_lite0", "minilm_l6"] {
            let points = drawn["points"][name].as_array().unwrap();
            assert!(
                points.len() >= 10 && points.iter().all(|size| (1..=32).contains(&size.as_u64().unwrap()))
            );
        }
    }
}
