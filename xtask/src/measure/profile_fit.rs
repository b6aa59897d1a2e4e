//! Whether live batches take as long as profiles say: the mean, and how often the 99th percentile is exceeded.
//!
//! Batch sizes were drawn once and stand in `bench/profile-fit-points.json`, committed before anything was fitted. For each an
//! executor is started that makes batches of exactly that size (by deadlines it would make none of a size that does not pay)
//! and kept full, and every batch is compared with what the performance model makes of profiles that `modelless profile
//! run` made before: one without a budget, one with the 30 s that a user might give one variant, and one with the share that a
//! variant has of 30 s for ten. Of the first budget nothing is left out where a variant needs less, so only the last one must be
//! coarse; how many sizes and series each has is told.
//!
//! Every size is served twice, some minutes apart. How far the two differ is what the machine itself changed, and how many
//! batches of one pass are above the 99th percentile of the other is what the best profile could do that is made before:
//! one of the very same batches, in the very same executor.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Map, Value, json};

use super::models::{Model, cnn_m, made};
use super::{Check, Context, Measure, Outcome};
use crate::command::{output, program};

pub(crate) const MEASURE: Measure = Measure {
    name: "profile-fit",
    what: "predicted mean and 99th percentile of batches against live ones, without a budget, with 30 s, and with 30 s for ten variants",
    run: measure,
};

const POINTS: &str = "bench/profile-fit-points.json";
/// The profiles that predict: how each is called, and its budget.
const PROFILES: [(&str, Option<&str>); 3] = [(FULL, None), ("budget 30s", Some("30s")), (SHARE, Some("3s"))];
const FULL: &str = "full";
/// The one that has to leave something out, or nothing is told of budgets.
const SHARE: &str = "budget 3s";

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
    let mut control = Control::default();
    let mut extents = Vec::new();
    let mut raw = Vec::new();
    for (model, sizes) in &models {
        let (profiles, seconds) = profiles(context, model)?;
        for (name, _) in PROFILES {
            extents.push(Extent::of(model.name, name, &profiles, seconds[name].as_f64().unwrap_or(0.0))?);
        }
        let mut pass = || -> Result<Vec<Value>> {
            let mut points = Vec::new();
            for size in sizes {
                let point = live(context, model, *size, &profiles)?;
                for fit in &mut fits {
                    fit.add(&point)?;
                }
                points.push(point);
            }
            Ok(points)
        };
        let (first, second) = (pass()?, pass()?);
        for (earlier, later) in first.iter().zip(&second) {
            control.add(earlier, later)?;
        }
        raw.push(json!({"model": model.name, "profiles": profiles, "seconds": seconds, "points": first, "again": second}));
    }
    let mut checks = Vec::new();
    for fit in &fits {
        checks.extend(fit.checks(context)?);
    }
    let whole = extents.iter().filter(|extent| extent.name == SHARE && !extent.is_less()).count();
    checks.push(Check {
        what: "profiles with a share of 30 s that left nothing out",
        value: f64::from(u32::try_from(whole)?),
        limit: 0.0,
        unit: "",
    });
    let results = fits.iter().map(Fit::result).collect::<Result<Vec<_>>>()?;
    let mut summary =
        fits.iter().map(|fit| Ok((fit.name.to_owned(), fit.summary()?))).collect::<Result<Map<_, _>>>()?;
    summary.insert("extents".to_owned(), extents.iter().map(Extent::json).collect());
    summary.insert("control".to_owned(), control.json()?);
    let extents: Vec<String> = extents.iter().map(Extent::said).collect();
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(raw),
        summary: Value::Object(summary),
        result: format!("{}. {}. Profiles: {}", results.join("; "), control.said()?, extents.join("; ")),
        checks,
    })
}

/// How much was measured for a profile.
struct Extent {
    model: &'static str,
    name: &'static str,
    coarse: bool,
    sizes: usize,
    /// Sizes with fewer series than a middle one is taken of.
    coarse_sizes: usize,
    repetitions: u64,
    /// Repetitions of the one without a budget.
    full: u64,
    seconds: f64,
}

impl Extent {
    fn of(model: &'static str, name: &'static str, profiles: &Value, seconds: f64) -> Result<Self> {
        let repetitions = |name: &str| -> u64 {
            let latency = profiles[name]["latency"].as_array().into_iter().flatten();
            latency.filter_map(|point| point["samples"].as_u64()).sum()
        };
        let detail = &profiles[name]["detail"];
        let sizes = detail["points"].as_array().context("a profile without details")?;
        Ok(Self {
            model,
            name,
            coarse: detail["coarse"].as_bool().context("whether it is coarse")?,
            sizes: sizes.len(),
            coarse_sizes: sizes.iter().filter(|size| size["rounds"].as_u64() < Some(SERIES)).count(),
            repetitions: repetitions(name),
            full: repetitions(FULL),
            seconds,
        })
    }

    /// Whether the budget was felt.
    fn is_less(&self) -> bool {
        self.coarse && self.repetitions < self.full
    }

    fn said(&self) -> String {
        let coarse = if self.coarse { ", coarse" } else { "" };
        format!(
            "{} {}: {} sizes ({} of them in fewer than {SERIES} series), {} repetitions in {:.0} s{coarse}",
            self.model, self.name, self.sizes, self.coarse_sizes, self.repetitions, self.seconds
        )
    }

    fn json(&self) -> Value {
        json!({
            "model": self.model, "profile": self.name, "coarse": self.coarse, "sizes": self.sizes,
            "sizes_in_fewer_series": self.coarse_sizes, "repetitions": self.repetitions, "seconds": self.seconds,
        })
    }
}

/// Series that the middle one is taken of where there is time.
const SERIES: u64 = 3;

/// What the command measures of the model's one variant, by how the profile is called, and how long each took.
fn profiles(context: &Context, model: &Model) -> Result<(Value, Value)> {
    let (mut all, mut seconds) = (Map::new(), Map::new());
    context.binary()?; // built before the clock runs
    for (name, budget) in PROFILES {
        let package = model.package.to_string_lossy();
        let mut args = vec!["profile", "run", &package, "--json", "--variant", model.variant];
        // Short enough to leave something out of a model this small.
        let budget =
            budget.map(|budget| if name == SHARE { context.choose(budget, "300ms") } else { budget });
        let begin = Instant::now();
        if let Some(budget) = budget {
            args.extend(["--budget", budget]);
        }
        let told = output(program(&context.root, context.binary()?).args(args))?;
        seconds.insert(name.to_owned(), json!(begin.elapsed().as_secs_f64()));
        // The command that measured it names the package, which lies elsewhere on other machines.
        let told = told.replace(&*package, model.name);
        let told: Value = serde_json::from_str(&told).context("`profile run --json` told no JSON")?;
        ensure!(told[0]["profile"].is_object(), "it measured nothing: {told}");
        all.insert(name.to_owned(), told[0]["profile"].clone());
    }
    Ok((Value::Object(all), Value::Object(seconds)))
}

/// Batches of this size, as they run in an executor.
fn live(context: &Context, model: &Model, size: u64, profiles: &Value) -> Result<Value> {
    let mut spec = exactly(size);
    spec["library"] = context.onnx_library()?.into();
    spec["packages"] = json!([model.package]);
    spec["seed"] = context.seed.into();
    let mut executor = Side::start(&context.bench_program("executor-load")?, &[&spec.to_string()])?;
    let ms = context.choose(2_000, 500);
    executor.ask(&json!({"do": "batches", "warm_ms": ms / 8, "ms": ms, "profiles": profiles}))
}

/// How an executor is started that makes batches of this size and no others.
fn exactly(size: u64) -> Value {
    // The queue is kept full, so none waits that long for others, but for those that are left at the end. It has to be
    // measured to be served; what comes of that is not what is compared.
    json!({"max_batch": size, "batching": format!("fixed:{size}:1000ms"), "budget_ms": 200})
}

fn runs(point: &Value) -> Result<Vec<f64>> {
    let runs: Vec<f64> = point["run_us"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    ensure!(!runs.is_empty(), "no batch of {} ran", point["batch"]);
    Ok(runs)
}

#[expect(clippy::cast_precision_loss, reason = "counts")]
fn mean(runs: &[f64]) -> f64 {
    runs.iter().sum::<f64>() / runs.len() as f64
}

/// What the same batches did in two passes, whatever was predicted of them.
#[derive(Default)]
struct Control {
    /// How far the means of a size lie apart, in per cent.
    apart: Vec<f64>,
    /// Batches of the second pass above the 99th percentile of the first.
    above: usize,
    batches: usize,
}

impl Control {
    fn add(&mut self, earlier: &Value, later: &Value) -> Result<()> {
        let (earlier, later) = (runs(earlier)?, runs(later)?);
        self.apart.push((mean(&later) / mean(&earlier) - 1.0).abs() * 100.0);
        let bound = stats::percentile(&earlier, 99).context("no runs")?;
        self.above += later.iter().filter(|run| **run > bound).count();
        self.batches += later.len();
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "counts")]
    fn above_percent(&self) -> f64 {
        self.above as f64 / self.batches.max(1) as f64 * 100.0
    }

    fn apart(&self, percent: usize) -> Result<f64> {
        stats::percentile(&self.apart, percent).context("no points")
    }

    fn json(&self) -> Result<Value> {
        Ok(json!({
            "apart_percent_median": self.apart(50)?, "apart_percent_p95": self.apart(95)?,
            "above_p99_of_the_other_pass_percent": self.above_percent(), "batches": self.batches,
        }))
    }

    fn said(&self) -> Result<String> {
        Ok(format!(
            "The same batches served again some minutes later: means apart by {:.1} % at the median and {:.1} % at the 95th, {:.2} % of \
             {} above the 99th percentile of the first time",
            self.apart(50)?,
            self.apart(95)?,
            self.above_percent(),
            self.batches
        ))
    }
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
        let runs = runs(point)?;
        ensure!(
            point["other_sizes"] == 0,
            "{} queries shared batches of other sizes than {}",
            point["other_sizes"],
            point["batch"]
        );
        #[expect(clippy::cast_precision_loss, reason = "counts")]
        let count = runs.len() as f64;
        let seen = mean(&runs);
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
            FULL => {
                ["median of means off", "95th of means off", "batches above p99", "p99 too far above batches"]
            }
            SHARE => [
                "median of means off with a share of a budget",
                "95th of means off with a share of a budget",
                "batches above p99 with a share of a budget",
                "p99 too far above batches with a share of a budget",
            ],
            _ => [
                "median of means off with a budget",
                "95th of means off with a budget",
                "batches above p99 with a budget",
                "p99 too far above batches with a budget",
            ],
        };
        // What a development build on a busy machine does with a model of 50 us says little, and its few batches not that there are too few
        // above.
        let limits = context.choose(&[10.0, 25.0, 3.0, 1.0][..], &[500.0, 2_000.0, 90.0]);
        // At least 0.3 %: as a bound from above, by how many times fewer than that there are.
        let far = 0.3 / self.above_percent().max(1e-3);
        let values = [self.percent(50)?, self.percent(95)?, self.above_percent(), far];
        let units = ["%", "%", "%", "times fewer than 0.3 %"];
        let each = names.into_iter().zip(values).zip(limits).zip(units);
        Ok(each.map(|(((what, value), limit), unit)| Check { what, value, limit: *limit, unit }).collect())
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
    fn what_the_machine_changed_between_two_passes_is_told() {
        let mut control = Control::default();
        let point = |runs: &[u32]| json!({"run_us": runs});
        control.add(&point(&[100, 100]), &point(&[120, 100])).unwrap();
        assert!((control.apart(50).unwrap() - 10.0).abs() < 1e-9);
        assert!((control.above_percent() - 50.0).abs() < 1e-9);
        assert!(control.add(&point(&[]), &point(&[1])).is_err());
    }

    #[test]
    fn a_budget_that_left_nothing_out_is_seen() {
        let profile = |coarse: bool, samples: u64, rounds: u64| {
            json!({"latency": [{"samples": samples}, {"samples": 4}],
                   "detail": {"coarse": coarse, "points": [{"rounds": rounds}, {"rounds": 3}]}})
        };
        let less = |coarse, samples| {
            let profiles = json!({FULL: profile(false, 16, 3), SHARE: profile(coarse, samples, 1)});
            let extent = Extent::of("m", SHARE, &profiles, 1.0).unwrap();
            assert_eq!((extent.sizes, extent.coarse_sizes, extent.full), (2, 1, 20));
            extent.is_less()
        };
        assert!(less(true, 8) && !less(true, 16) && !less(false, 8));
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
