//! Whether what is predicted of 99 in 100 batches holds of 99 in 100 batches: variants under Poisson load, and how many of
//! their live batches took longer than their own predicted 99th percentile, by the server's count.
//!
//! Each model of 2 ms and more by itself and at a high rate by itself, since of what takes some tens of microseconds the
//! operating system decides the slowest hundredth; and all with profiles that took the time they take, those of 2 ms and more with
//! a budget of 30 s, and all with such as were made in a hurry: with the share that a variant has of 30 s for ten, as of 30 s for one nothing has to be left out (which
//! `profile-fit` shows), and small ones with less. A profile that is not coarse then ends the measure, and so does one that was
//! measured again meanwhile; a small variant whose profile is whole all the same, on a quick machine, is left out of the hurried
//! ones.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Rng, Server, wait};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::say;

use super::models::{MANY, Model, made, many, many_stream};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "coverage",
    what: "share of live batches above the predicted 99th percentile under Poisson load, corrected as it goes, with profiles made in \
           full, with 30 s and in 3 s each for models of 2 ms and more, and in 3 s for twelve small ones",
    run: measure,
};

/// Above this the predictions are too low, below the other they are too high, in percent.
const MOST: f64 = 3.0;
const LEAST: f64 = 0.3;
/// Of the demo's variants one of each kind: where single queries come rarely, and where they come so often that batches are made.
const SMALL: [&str; 4] = ["linear_fp32", "mlp_l_int8", "cnn_m_fp32", "cnn_l_int8"];
const RATES: [f64; 2] = [100.0, 1_000.0];
/// Models of 2 ms and more, each at a low rate and at one for which batches are made.
const LARGE: [(&str, [f64; 2]); 2] = [("efficientnet_lite0", [30.0, 140.0]), ("minilm_l6", [60.0, 160.0])];
/// How profiles are made: without a budget, and with one for each model of 2 ms and more, and another for the twelve small variants
/// together: a quarter of a second for each, since the smallest is known well after one.
const WAYS: [(&str, Budgets); 3] = [
    ("full", Budgets { large: "none", small: Some("none"), hurried: false }),
    ("30 s", Budgets { large: "30s", small: None, hurried: false }),
    ("in a hurry", Budgets { large: "3s", small: Some("3s"), hurried: true }),
];

#[derive(Clone, Copy)]
struct Budgets {
    large: &'static str,
    /// For all of them together; of none, they are not looked at.
    small: Option<&'static str>,
    /// Whether it is too little.
    hurried: bool,
}

fn measure(context: &Context) -> Result<Outcome> {
    let mut found = Vec::new();
    for (way, budgets) in &WAYS[..context.choose(3, 1)] {
        found.extend(with_profiles(context, way, *budgets)?);
    }
    let mut checks = Vec::new();
    let mut said = Vec::new();
    let mut summary = serde_json::Map::new();
    let mut tell = |what: String, sum: &Sum, least: bool| {
        if sum.batches == 0 {
            return;
        }
        said.push(format!("{what}: {:.2} % of {} batches", sum.percent(), sum.batches));
        summary.insert(what, sum.json());
        checks.push(Check {
            what: "share above the predicted p99",
            value: sum.percent(),
            limit: context.choose(MOST, 30.0),
            unit: "%",
        });
        if least && !context.short {
            checks.push(Check {
                what: "how many times fewer than the least",
                value: LEAST / sum.percent().max(1e-9),
                limit: 1.0,
                unit: "times",
            });
        }
    };
    for (way, _) in &WAYS[..context.choose(3, 1)] {
        let of = |wanted: &dyn Fn(&Found) -> bool| {
            Sum::of(found.iter().filter(|one| one.way == *way && wanted(one)))
        };
        tell(format!("2 ms and more, {way}"), &of(&|one| one.large), true);
        for (name, rates) in LARGE {
            let own = |one: &Found| one.large && one.model == name;
            tell(format!("{name}, {way}"), &of(&own), true);
            // By itself a rate has too few batches to say that there are too few above.
            let high = |one: &Found| own(one) && one.rate >= rates[1];
            tell(format!("{name} at {} a second, {way}", rates[1]), &of(&high), false);
        }
        tell(format!("small, {way}"), &of(&|one| !one.large), true);
    }
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: found.iter().map(Found::json).collect(),
        summary: Value::Object(summary),
        result: format!("above the predicted p99: {}", said.join("; ")),
        checks,
    })
}

/// All variants, with profiles that are made in one way.
fn with_profiles(context: &Context, way: &'static str, budgets: Budgets) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    if context.short {
        let server = demo::start(context)?;
        for name in variants(&server, demo::TENSOR_TASK)? {
            for rate in RATES {
                let target = format!("/v1/tasks/{}?variant={name}&latency_ms=1000", demo::TENSOR_TASK);
                let inputs = json!([{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}]);
                let stream = json!({"target": target, "inputs": inputs});
                let (task, name) = (demo::TENSOR_TASK, name.as_str());
                let asked = Asked { way, task, name, model: "", rate, stream };
                found.push(one(context, &server, &asked, 1_500)?);
            }
        }
        server.stop()?;
        return Ok(found);
    }
    let server = Server::builder().binary(context.binary()?).start()?;
    let Budgets { large, small, hurried } = budgets;
    for (name, rates) in LARGE {
        let model: Model = made(&context.root, name)?;
        demo::register_with(&server, &model.package, &["--budget", large])?;
        for rate in rates {
            let stream = model.stream(1_000);
            let asked = Asked { way, task: model.task, name: model.variant, model: name, rate, stream };
            let seen = unchanged(&server, hurried, &asked, || one(context, &server, &asked, 15_000))?;
            found.push(seen.with_context(|| format!("the profile of {} is whole in a hurry", asked.name))?);
        }
    }
    let Some(small) = small else {
        server.stop()?;
        return Ok(found);
    };
    demo::register_with(&server, &many(&context.root), &["--budget", small])?;
    let kept = Company::of(&server)?;
    let mut left_out = Vec::new();
    for name in SMALL {
        for rate in RATES {
            let stream = many_stream(context, name, 1_000)?;
            let asked = Asked { way, task: MANY, name, model: "", rate, stream };
            match unchanged(&server, hurried, &asked, || one(context, &server, &asked, 3_000))? {
                Some(seen) => found.push(seen),
                None => left_out.push(name),
            }
        }
    }
    drop(kept);
    if !left_out.is_empty() {
        say(format!("whole in a hurry, and left out: {}", left_out.join(", ")));
    }
    ensure!(found.iter().any(|one| !one.large), "every small profile was whole in a hurry");
    server.stop()?;
    Ok(found)
}

/// A query now and then for a variant that nothing is told of, so that the node is never idle: it would measure small models anew
/// between two loads.
struct Company {
    stop: Arc<AtomicBool>,
    asking: Option<JoinHandle<()>>,
}

impl Company {
    fn of(server: &Server) -> Result<Self> {
        let mut connection = server.connect()?;
        let target = format!("{MANY}?variant=mlp_s_fp32&latency_ms=1000");
        let body = demo::tensor_body(demo::TENSOR_FLOATS, &mut Rng::new(1));
        let request = demo::tensor_request(&target, body);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let asking = thread::spawn(move || {
            // Where it is not answered the profile changes, which is seen.
            while !stopped.load(Ordering::Relaxed) && connection.exchange(&request).is_ok() {
                thread::sleep(BETWEEN);
            }
        });
        Ok(Self { stop, asking: Some(asking) })
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(asking) = self.asking.take() {
            let _ = asking.join();
        }
    }
}

/// A node is idle after about a second.
const BETWEEN: Duration = Duration::from_millis(200);

/// What is seen while the variant's profile is the one that was made for it: a server measures a coarse one again when it has
/// nothing to do. Nothing where it was made in a hurry and is whole all the same.
fn unchanged(
    server: &Server,
    hurried: bool,
    asked: &Asked<'_>,
    see: impl FnOnce() -> Result<Found>,
) -> Result<Option<Found>> {
    let before = profile(server, asked)?;
    let coarse = before["detail"]["coarse"].as_bool().context("whether a profile is coarse")?;
    ensure!(
        hurried || !coarse || asked.way != WAYS[0].0,
        "the profile of {} is coarse, without any hurry",
        asked.name
    );
    if hurried && !coarse {
        return Ok(None);
    }
    let mut found = see()?;
    ensure!(profile(server, asked)? == before, "{} was measured again meanwhile", asked.name);
    let samples = before["latency"].as_array().into_iter().flatten();
    found.repetitions = samples.filter_map(|point| point["samples"].as_u64()).sum();
    Ok(Some(found))
}

/// What the server goes by.
fn profile(server: &Server, asked: &Asked<'_>) -> Result<Value> {
    let file = server.get_json(&format!("/v1/profiles?task={}&variant={}", asked.task, asked.name))?;
    Ok(file["profiles"][0]["profile"].clone())
}

/// What is asked, and how often.
struct Asked<'a> {
    way: &'static str,
    task: &'a str,
    name: &'a str,
    /// Of those of 2 ms and more; empty for others.
    model: &'static str,
    rate: f64,
    stream: Value,
}

/// Of several variants.
#[derive(Default)]
struct Sum {
    batches: u64,
    above: u64,
    lowest: f64,
    highest: f64,
}

impl Sum {
    fn of<'a>(all: impl Iterator<Item = &'a Found>) -> Self {
        let mut sum = Self { lowest: 100.0, ..Self::default() };
        for one in all {
            sum.batches += one.batches;
            sum.above += one.above;
            sum.lowest = sum.lowest.min(one.percent());
            sum.highest = sum.highest.max(one.percent());
        }
        sum
    }

    fn percent(&self) -> f64 {
        percent(self.above, self.batches)
    }

    fn json(&self) -> Value {
        json!({
            "batches": self.batches, "above": self.above, "percent": self.percent(), "lowest_percent": self.lowest,
            "highest_percent": self.highest,
        })
    }
}

struct Found {
    way: &'static str,
    large: bool,
    model: &'static str,
    /// Behind its profile.
    repetitions: u64,
    variant: String,
    rate: f64,
    batches: u64,
    above: u64,
    load: Value,
}

impl Found {
    fn percent(&self) -> f64 {
        percent(self.above, self.batches)
    }

    fn json(&self) -> Value {
        json!({
            "profiles": self.way, "repetitions": self.repetitions, "variant": self.variant, "per_second": self.rate, "batches": self.batches, "above": self.above,
            "percent": self.percent(), "load": self.load,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of batches")]
fn percent(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 }
}

fn variants(server: &Server, task: &str) -> Result<Vec<String>> {
    let page = server.get_json(&format!("/v1/variants?task={task}"))?;
    let names = page["variants"].as_array().context("a list of variants")?;
    Ok(names.iter().filter_map(|variant| variant["name"].as_str().map(str::to_owned)).collect())
}

fn one(context: &Context, server: &Server, asked: &Asked<'_>, ms: u64) -> Result<Found> {
    let &Asked { way, task, name, model, rate, ref stream } = asked;
    let mut load = demo::load(context, server, std::slice::from_ref(stream))?;
    // It is in memory, and what was learnt of it is settled.
    let paced = |ms: u64| json!({"do": "paced", "per_second": [rate], "ms": ms, "seed": context.seed});
    load.ask(&json!({"do": "learn"}))?;
    load.ask(&paced(ms / 5))?;
    let (before, queries) = (counted(server, task, name)?, served(server)?);
    let seen = load.ask(&paced(ms))?;
    let answered = seen["streams"][0]["answered"].as_u64().context("how many were answered")?;
    // The figures are told together, about once a second.
    wait::until(Duration::from_secs(10), || {
        let told = served(server)? - queries;
        Ok(if told >= answered { Ok(()) } else { Err(format!("{told} of {answered} queries")) })
    })?;
    let after = counted(server, task, name)?;
    ensure!(after.0 > before.0, "no batch of {name} ran: {seen}");
    Ok(Found {
        way,
        large: !model.is_empty(),
        model,
        repetitions: 0,
        variant: name.to_owned(),
        rate,
        batches: after.0 - before.0,
        above: after.1 - before.1,
        load: demo::bare(seen),
    })
}

/// Queries so far, of the node.
fn served(server: &Server) -> Result<u64> {
    let page = server.get_json("/v1/nodes")?;
    page["nodes"][0]["load"]["queries"].as_u64().context("how many queries a node served")
}

/// Batches so far, and those above.
fn counted(server: &Server, task: &str, name: &str) -> Result<(u64, u64)> {
    let page = server.get_json(&format!("/v1/variants?task={task}"))?;
    let all = page["variants"].as_array().context("a list of variants")?;
    let coverage = all.iter().find(|variant| variant["name"] == name).map(|variant| &variant["coverage"]);
    let count = |field: &str| coverage.and_then(|coverage| coverage[field].as_u64()).unwrap_or(0);
    Ok((count("batches"), count("above_p99")))
}
