//! From a fresh clone to the first answer: building, installing, starting; and the second start.
//!
//! The clone, the data folder, the engines folder and the build folder are new. Cargo's own store of downloaded
//! sources is used where it has them: the network is not what is measured here.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Server, stats};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome, demo};
use crate::command::{cargo, program, run};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "start",
    what: "release build from nothing, first `up --demo` until ready and answering, second start",
    run: measure,
};

fn measure(context: &Context) -> Result<Outcome> {
    let folder = modelless_testkit::temp_dir("start")?;
    let data = folder.path().join("data");
    let mut build = None;
    let binary = if context.short {
        context.binary()?.to_owned()
    } else {
        let clone = folder.path().join("clone");
        let target = folder.path().join("target");
        say("cloning and building from nothing");
        // What is not committed is not in a fresh clone.
        run(program(&context.root, "git").args(["clone", "--quiet", "--no-hardlinks", "."]).arg(&clone))?;
        let started = Instant::now();
        run(cargo(&clone).args(["build", "--release", "--quiet"]).env("CARGO_TARGET_DIR", &target))?;
        build = Some(started.elapsed());
        target.join("release/modelless")
    };

    let first = up(context, &binary, &data, folder.path())?;
    let first_ready = first.ready_after();
    let phases = phases(&first, folder.path());
    let install = phases.iter().find_map(|phase| installed_after(phase["line"].as_str()?));
    ensure!(context.short || install.is_some(), "the first start installed no library: {phases:?}");
    let asked = Instant::now();
    demo::good_query(&first).context("the first query after the first start")?;
    let first_answer = asked.elapsed();
    first.stop()?;

    let mut repetitions = vec![json!({
        "start": "first",
        "build_s": build.map(|time| time.as_secs_f64()),
        "library_install_s": install,
        "ready_s": first_ready.as_secs_f64(),
        "first_query_ms": ms(first_answer),
        "output": phases,
    })];
    let mut again = Vec::new();
    for _ in 0..context.choose(5, 1) {
        let server = up(context, &binary, &data, folder.path())?;
        again.push(server.ready_after().as_secs_f64());
        let asked = Instant::now();
        demo::good_query(&server).context("the first query after a second start")?;
        repetitions.push(json!({
            "start": "second", "ready_s": server.ready_after().as_secs_f64(), "first_query_ms": ms(asked.elapsed()),
        }));
        server.stop()?;
    }
    let (median, worst) = (stats::median(&again), stats::percentile(&again, 100));
    let (median, worst) = (median.unwrap_or(f64::NAN), worst.unwrap_or(f64::NAN));

    let built = build.map_or_else(String::new, |time| format!("build {:.0} s, ", time.as_secs_f64()));
    let installed =
        install.map_or_else(String::new, |s| format!(" (of which installing ONNX Runtime {s:.1} s)"));
    let mut checks = vec![Check {
        what: "second start, worst",
        value: worst,
        limit: context.choose(3.0, 15.0),
        unit: "s",
    }];
    if let Some(time) = build {
        checks.push(Check { what: "build from nothing", value: time.as_secs_f64(), limit: 480.0, unit: "s" });
    }
    Ok(Outcome {
        seeds: Vec::new(),
        summary: json!({
            "build_s": build.map(|time| time.as_secs_f64()), "library_install_s": install,
            "first_ready_s": first_ready.as_secs_f64(), "first_query_ms": ms(first_answer),
            "second_ready_median_s": median, "second_ready_worst_s": worst,
        }),
        result: format!(
            "{built}first start ready after {:.1} s{installed}, second after {median:.2} s (worst {worst:.2})",
            first_ready.as_secs_f64()
        ),
        repetitions: Value::Array(repetitions),
        checks,
    })
}

fn up(context: &Context, binary: &Path, data: &Path, folder: &Path) -> Result<Server> {
    let mut builder = Server::builder().binary(binary).data(data).arg("--demo");
    if !context.short {
        // Nothing installed before, and nothing out of pip's cache.
        builder = builder.env("MODELLESS_ENGINES", folder.join("engines")).env("PIP_NO_CACHE_DIR", "1");
    }
    builder.start()
}

/// What it said and when, so that installing, measuring and starting can be told apart.
fn phases(server: &Server, folder: &Path) -> Vec<Value> {
    let folder = folder.to_string_lossy();
    let lines = server.timeline().into_iter();
    lines.map(|(at, line)| json!({"at_s": at.as_secs_f64(), "line": line.replace(&*folder, "DIR")})).collect()
}

/// The seconds in `ONNX Runtime installed in 4.2 s`.
fn installed_after(line: &str) -> Option<f64> {
    let (number, unit) = line.strip_prefix("ONNX Runtime installed in ")?.split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    match unit {
        "s" => Some(number),
        "ms" => Some(number / 1e3),
        _ => None,
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_how_long_the_library_took() {
        assert_eq!(installed_after("ONNX Runtime installed in 4.2 s"), Some(4.2));
        assert_eq!(installed_after("ONNX Runtime installed in 500 ms"), Some(0.5));
        assert_eq!(installed_after("ONNX Runtime found in 2 ms"), None);
    }
}
