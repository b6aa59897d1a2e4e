//! A thousand loads and unloads over more models than fit: memory comes back, and every answer is right.
//!
//! Twelve small models are asked in turn with room for about five, so nearly every query loads one and drives out another; and then cnn_m,
//! EfficientNet-Lite0 and MiniLM-L6 with room for one of the larger and cnn_m, which is so small that it stays beside either. The memory is that of the node: the server's process and all its
//! runners, after every lap, with the same models in memory.
//!
//! What is right is what ONNX Runtime answers that is called by a loop, before the server starts: held against its own first answers a
//! server would pass that is always wrong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use modelless_testkit::cost::Cost;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Rng, Server, TempDir, process, stats};
use serde_json::{Map, Value, json};

use super::models::{MANY, Model, cnn_m, made, many, many_file, many_variants};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "cycles",
    what: "1,000 loads and unloads over more models than fit, of twelve small ones and of cnn_m, EfficientNet-Lite0 and MiniLM-L6: the \
           node's memory after over before, every answer right",
    run: measure,
};

/// The least that `up` takes.
const LEAST_MEMORY: &str = "64MiB";
/// Beside what the largest and the smallest model take there is so much room.
const BESIDE: u64 = 16 << 20;
/// How long a model stays before it may make room, in milliseconds: with what a server does by default five models that
/// fit would be exchanged five times in two seconds at most, and the measure would wait most of its time.
const MIN_RESIDENCE: &str = "0";
/// Queries before the first lap that counts: pools of threads and of memory reach their size, and so does what is kept for those who ask why a query
/// was answered as it was (the last 2,048 decisions, some kilobytes each).
const SETTLING: usize = 2_100;
/// Different inputs, a lap each in turn.
const INPUTS: usize = 4;
/// Batches of other sizes are computed in another order, so the last digits differ.
const TOLERANCE: f64 = 1e-3;

/// Models that do not fit together.
struct Crowd {
    name: &'static str,
    memory: String,
    packages: Vec<PathBuf>,
    /// Where they are registered already.
    known: Option<TempDir>,
    asked: Vec<Asked>,
    /// Laps before the first that counts.
    settling: usize,
    /// What its two checks are called.
    words: [&'static str; 2],
}

/// One of them, and what it is asked.
struct Asked {
    task: String,
    variant: String,
    inputs: Vec<Vec<u8>>,
    /// What ONNX Runtime answers to each.
    expected: Vec<Vec<f64>>,
}

fn measure(context: &Context) -> Result<Outcome> {
    let (wanted, averaged) = context.choose((1_000, 5), (24, 1));
    let mut crowds = vec![ladder(context)?];
    if !context.short {
        crowds.push(named(context)?);
    }
    let (mut rows, mut results, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    let mut summary = Map::new();
    for crowd in &crowds {
        let ran = ran(context, crowd, (wanted, averaged))?;
        let (node, server) =
            (ran.growth(averaged, |lap| lap.server + lap.runners)?, ran.growth(averaged, |lap| lap.server)?);
        let Ran { seen, laps, generator, percent, .. } = &ran;
        results.push(format!(
            "{}: {} loads in {} queries, {} answers other than ONNX Runtime's in a loop; node {node:+.1} % ({:.0} MB at the end), its \
             server alone {server:+.1} %; the generator took {percent:.1} % of a core",
            crowd.name,
            seen.loads,
            seen.queries,
            seen.wrong,
            laps.last().map_or(0.0, |lap| mb(lap.server + lap.runners)),
        ));
        let [growth, wrong] = crowd.words;
        checks.push(Check { what: growth, value: node, limit: context.choose(5.0, 30.0), unit: "%" });
        checks.push(Check { what: wrong, value: f64::from(seen.wrong), limit: 0.0, unit: "" });
        summary.insert(
            crowd.name.into(),
            json!({
                "loads": seen.loads, "loads_of": seen.of, "queries": seen.queries, "wrong": seen.wrong, "node_growth_percent": node,
                "server_growth_percent": server, "averaged_laps": averaged, "generator": generator,
            }),
        );
        rows.push(json!({"crowd": crowd.name, "laps": laps.iter().map(Lap::json).collect::<Vec<_>>()}));
    }
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

/// The demo's ladder, every file a model.
fn ladder(context: &Context) -> Result<Crowd> {
    let variants = many_variants();
    let mut rng = Rng::new(context.seed);
    let inputs: Vec<Vec<u8>> =
        (0..INPUTS).map(|_| demo::tensor_body(demo::TENSOR_FLOATS, &mut rng)).collect();
    let numbers: Vec<Vec<f64>> = inputs.iter().map(|body| floats(body)).collect();
    let asked = |variant: &String| -> Result<Asked> {
        let expected = expected(context, &many_file(&context.root, variant)?, &numbers)?;
        Ok(Asked { task: MANY.into(), variant: variant.clone(), inputs: inputs.clone(), expected })
    };
    Ok(Crowd {
        name: "twelve small models",
        memory: LEAST_MEMORY.into(),
        packages: vec![many(&context.root)],
        known: None,
        asked: variants.iter().map(asked).collect::<Result<_>>()?,
        settling: context.choose(SETTLING.div_ceil(variants.len()), 2),
        words: ["growth of the node, twelve small models", "wrong answers, twelve small models"],
    })
}

fn floats(body: &[u8]) -> Vec<f64> {
    body.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four))).collect()
}

/// The three that an executor is held to, with room for the largest and the smallest.
fn named(context: &Context) -> Result<Crowd> {
    let models: [Model; 3] =
        [cnn_m(&context.root), made(&context.root, "efficientnet_lite0")?, made(&context.root, "minilm_l6")?];
    let mut rng = Rng::new(context.seed);
    let mut asked = Vec::new();
    for model in &models {
        let inputs: Vec<Vec<u8>> = (0..INPUTS).map(|_| model.body(&mut rng)).collect();
        let numbers: Vec<Vec<f64>> = inputs.iter().map(|body| model.numbers(body)).collect();
        let expected = expected(context, &model.onnx, &numbers)?;
        let (task, variant) = (model.task.to_owned(), model.variant.to_owned());
        asked.push(Asked { task, variant, inputs, expected });
    }
    let known = modelless_testkit::temp_dir("cycles")?;
    let server = Server::builder().binary(context.binary()?).data(known.path()).start()?;
    for model in &models {
        demo::register(&server, &model.package)?;
    }
    let room = room_for_one(&server.get_json("/v1/variants")?)?;
    server.stop()?;
    Ok(Crowd {
        name: "cnn_m, EfficientNet-Lite0, MiniLM-L6",
        memory: format!("{}MiB", room.div_ceil(1 << 20)),
        packages: Vec::new(),
        known: Some(known),
        asked,
        settling: 10,
        words: ["growth of the node, the three named models", "wrong answers, the three named models"],
    })
}

/// What the largest and the smallest take as they were measured, and a little; it must not do for two of the larger.
fn room_for_one(variants: &Value) -> Result<u64> {
    let memory = |variant: &Value| variant["profiles"][0]["memory"]["bytes"].as_u64();
    let mut sizes: Vec<u64> =
        variants["variants"].as_array().into_iter().flatten().filter_map(memory).collect();
    sizes.sort_unstable();
    let [least, .., second, most] = sizes[..] else {
        bail!("profiles tell what {} models take; three are needed", sizes.len())
    };
    let room = least + most + BESIDE;
    ensure!(room < second + most, "with room for {least} and {most} bytes there is also room for {second}");
    Ok(room)
}

/// What a file answers to each input, given as its numbers, from a process that has none of the server's code but the library.
fn expected(context: &Context, file: &Path, items: &[Vec<f64>]) -> Result<Vec<Vec<f64>>> {
    let (program, library) = (context.bench_program("ort-batch")?, context.onnx_library()?);
    let mut bare = Side::start(&program, &[library, &file.to_string_lossy(), "1", "0"])?;
    let told = bare.ask(&json!({"answer": items}))?;
    let answers: Vec<Vec<f64>> = serde_json::from_value(told["answers"].clone())
        .with_context(|| format!("what {} answers in a loop", file.display()))?;
    ensure!(answers.len() == items.len(), "{} answers of {} in a loop", answers.len(), file.display());
    Ok(answers)
}

/// What became of a crowd.
struct Ran {
    seen: Seen,
    laps: Vec<Lap>,
    settling: usize,
    generator: Value,
    percent: f64,
}

impl Ran {
    /// The last laps over the first that count, in per cent.
    fn growth(&self, averaged: usize, of: fn(&Lap) -> u64) -> Result<f64> {
        let median =
            |laps: &[Lap]| stats::median(&laps.iter().map(of).collect::<Vec<_>>()).context("no laps");
        let (start, end) =
            (&self.laps[self.settling..self.settling + averaged], &self.laps[self.laps.len() - averaged..]);
        Ok((mb(median(end)?) / mb(median(start)?) - 1.0) * 100.0)
    }
}

/// Laps until so many loads came after what settles.
fn ran(context: &Context, crowd: &Crowd, (wanted, averaged): (usize, usize)) -> Result<Ran> {
    let mut seen = Seen::default();
    let mut server = Server::builder().binary(context.binary()?).arg("--memory").arg(&crowd.memory);
    if let Some(known) = &crowd.known {
        server = server.data(known.path());
    }
    let server = server.arg("--min-residence").arg(MIN_RESIDENCE).start()?;
    for package in &crowd.packages {
        demo::register(&server, package)?;
    }
    let mut connection = server.connect()?;
    // What is kept of queries is full before anything counts, whoever was asked.
    let quickest = crowd.asked.first().context("nobody is asked")?;
    for _ in 0..context.choose(SETTLING, 2) {
        seen.ask(&mut connection, quickest, 0)?;
    }
    let cost = Cost::start();
    let mut laps: Vec<Lap> = Vec::new();
    let mut loads_before = 0;
    while seen.loads < loads_before + wanted || laps.len() < crowd.settling + 2 * averaged {
        let before = seen.loads;
        for asked in &crowd.asked {
            seen.ask(&mut connection, asked, laps.len() % INPUTS)?;
        }
        ensure!(seen.loads > before, "a lap loaded nothing: all models fit, and nothing is measured");
        laps.push(Lap::of(&server, seen.loads)?);
        if laps.len() == crowd.settling {
            loads_before = seen.loads;
        }
    }
    let (generator, percent) = (cost.json(), cost.percent());
    server.stop()?;
    Ok(Ran { seen, laps, settling: crowd.settling, generator, percent })
}

#[derive(Default)]
struct Seen {
    loads: usize,
    /// Which were loaded how often.
    of: BTreeMap<String, usize>,
    queries: usize,
    wrong: u32,
}

impl Seen {
    fn ask(&mut self, connection: &mut Connection, asked: &Asked, at: usize) -> Result<()> {
        let Asked { task, variant, inputs, expected } = asked;
        let target = format!("{task}?variant={variant}&latency_ms=60000");
        let response = connection.exchange(&demo::tensor_request(&target, inputs[at].clone()))?;
        let found = demo::numbers(&response)?;
        self.queries += 1;
        if response.header("modelless-reason") == Some("loaded for this query") {
            self.loads += 1;
            *self.of.entry(variant.clone()).or_default() += 1;
        }
        let by = response.header("modelless-variant").context("the answer names no variant")?;
        ensure!(by == variant, "answered by {by} and not by the pinned {variant}");
        self.wrong += u32::from(!is_right(&expected[at], &found));
        Ok(())
    }
}

fn is_right(expected: &[f64], found: &[f64]) -> bool {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= TOLERANCE * a.abs().max(1.0);
    expected.len() == found.len() && expected.iter().zip(found).all(close)
}

/// Resident memory after a lap, in bytes.
struct Lap {
    loads: usize,
    server: u64,
    runners: u64,
    processes: usize,
}

impl Lap {
    fn of(server: &Server, loads: usize) -> Result<Self> {
        let children = process::children(server.pid())?;
        // One that ends while we look holds nothing any more.
        let runners = children.iter().map(|(pid, _)| process::resident_bytes(*pid).unwrap_or(0)).sum();
        Ok(Self { loads, server: server.resident_bytes()?, runners, processes: children.len() })
    }

    fn json(&self) -> Value {
        json!({
            "loads": self.loads, "server_bytes": self.server, "runners_bytes": self.runners,
            "processes": self.processes,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of one machine are far below 2^52")]
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_wrong_that_is_not_what_was_expected() {
        assert!(is_right(&[1.0, -2.0], &[1.0005, -2.001]), "the last digits may differ");
        // As a server would answer that mixes up two models, too few, and no number.
        for found in [&[1.0, 20.0][..], &[1.0], &[f64::NAN, -2.0]] {
            assert!(!is_right(&[1.0, -2.0], found), "{found:?}");
        }
    }

    #[test]
    fn there_is_room_for_the_largest_and_the_smallest_and_not_for_two_large_ones() {
        let of = |sizes: &[u64]| -> Value {
            let of = |mib: &u64| json!({"profiles": [{"memory": {"bytes": mib << 20}}]});
            json!({"variants": sizes.iter().map(of).collect::<Vec<_>>()})
        };
        assert_eq!(room_for_one(&of(&[60, 5, 150])).unwrap(), 171 << 20);
        assert!(room_for_one(&of(&[20, 5, 150])).is_err(), "all of them would fit");
        assert!(room_for_one(&of(&[60, 150])).is_err());
    }

    #[test]
    fn every_variant_has_its_file() {
        let root = crate::root().unwrap();
        for variant in many_variants() {
            assert!(many_file(&root, &variant).unwrap().is_file(), "{variant}");
        }
    }
}
