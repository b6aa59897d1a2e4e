//! Loads in an executor in this process: how long each takes, and what it does to what is served beside it.
//!
//! `executor-cycle SPEC`, where SPEC is JSON: `{"library", "served", "loaded", "seed"}`. `loaded` is registered twice, and there
//! is memory for one of the two beside `served`, so that they drive each other out. Questions:
//!
//! * `{"do": "loads", "count", "gap_ms", "cold"}`: one load after the other, each followed by a query; `gap_ms` between them, so
//!   that a spare process can get ready. With `cold` the kernel has forgotten the file;
//! * `{"do": "serve", "per_second", "ms", "every_ms", "seed"}`: queries to `served` at random times, and a load every so often;
//!   none for 0. Tells apart those that came during a load.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use modelless_bench::node::{How, Node, Spec, runner_if_asked};
use modelless_bench::open::{self, Gaps};
use modelless_bench::sender::Sender;
use modelless_bench::timing::{nanos, percentiles, sleep_precisely};
use modelless_testkit::turns;
use modelless_types::Bytes;
use serde_json::{Value, json};

/// For queries whose lateness does not matter.
const LONG: Duration = Duration::from_secs(30);
/// The two that drive each other out, by their places.
const TWINS: [usize; 2] = [1, 2];

fn main() -> ExitCode {
    if let Some(code) = runner_if_asked() {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("executor-cycle: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let spec: Value = serde_json::from_str(&std::env::args().nth(1).context("usage: executor-cycle SPEC")?)?;
    let text = |name: &str| spec[name].as_str().with_context(|| format!("`{name}`"));
    let seed = spec["seed"].as_u64().unwrap_or(1);
    let node = Node::start(&Spec {
        library: text("library")?.into(),
        packages: vec![text("served")?.into(), text("loaded")?.into(), text("loaded")?.into()],
        max_batch: None,
        batching: None,
        lanes: 1,
        // What is really taken differs a little from what was measured; still less than for both.
        memory: Box::new(|of| Bytes(of[0].0 * 5 / 4 + of[1].0 * 3 / 2)),
        wait_inline: false,
    })?;
    node.pin(&[0, TWINS[0]])?;
    sleep_precisely()?;
    let mut resident = 0;
    turns::serve(|question| {
        let number = |name: &str| question[name].as_f64().with_context(|| format!("`{name}` in {question}"));
        let ms = |name: &str| Ok::<_, anyhow::Error>(Duration::from_secs_f64(number(name)? / 1e3));
        match question["do"].as_str() {
            Some("loads") => {
                let count = question["count"].as_u64().context("`count`")?;
                let cold = question["cold"].as_bool().unwrap_or(false);
                loads(&node, &mut resident, count, ms("gap_ms")?, cold, seed)
            }
            Some("serve") => {
                let gaps =
                    Gaps::new(number("per_second")?, 1.0, question["seed"].as_u64().context("`seed`")?);
                serve(&node, &mut resident, gaps, ms("ms")?, ms("every_ms")?, seed)
            }
            other => bail!("cannot do {other:?}"),
        }
    })?;
    node.stop()
}

fn loads(
    node: &Node,
    resident: &mut usize,
    count: u64,
    gap: Duration,
    cold: bool,
    seed: u64,
) -> Result<Value> {
    let (mut took, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        std::thread::sleep(gap);
        *resident = 1 - *resident;
        let model = TWINS[*resident];
        if cold {
            node.forget_file(model)?;
        }
        let before = node.loads(model)?.len();
        node.pin(&[0, model])?;
        let inputs = node.inputs(model, 1, seed)?;
        let mut sender = Sender::new(node, model, &inputs, LONG)?;
        let asked = Instant::now();
        sender.offer(asked);
        let mut ends = Vec::new();
        node.link.ends(&mut ends, asked + LONG);
        match ends.as_slice() {
            [end] if matches!(end.how, How::Answered { .. }) => answers.push(nanos(end.at - asked)),
            _ => bail!("the loaded model does not answer: {ends:?}"),
        }
        let until = Instant::now() + LONG;
        let load = loop {
            // The history is written a moment later, off the path.
            match node.loads(model)?.get(before) {
                Some(load) => break load.1,
                None if Instant::now() > until => bail!("the history has no word of a load"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        took.push(nanos(load));
    }
    Ok(json!({
        "load": percentiles(&took), "load_ns": took, "first_answer": percentiles(&answers),
    }))
}

fn serve(
    node: &Node,
    resident: &mut usize,
    gaps: Gaps,
    time: Duration,
    every: Duration,
    seed: u64,
) -> Result<Value> {
    let inputs = node.inputs(0, 32, seed)?;
    let (began, since) = (SystemTime::now(), Instant::now());
    let mut next = since + every;
    let seen = open::run(node, &inputs, gaps, time, LONG, |now| {
        if !every.is_zero() && now >= next {
            next += every;
            *resident = 1 - *resident;
            node.ask_for(&[0, TWINS[*resident]]);
        }
    })?;
    // The last load may still be under way.
    node.pin(&[0, TWINS[*resident]])?;
    let mut windows = Vec::new();
    for model in TWINS {
        let of = node.loads(model)?.into_iter().filter_map(|(at, took)| {
            let from = since + at.duration_since(began).ok()?;
            Some((from, from + took))
        });
        windows.extend(of);
    }
    let during = |due: Instant| windows.iter().any(|(from, to)| (*from..*to).contains(&due));
    let (inside, outside): (Vec<_>, Vec<_>) = seen.answered.iter().partition(|(due, _)| during(*due));
    let of = |some: &[&(Instant, Duration)]| {
        percentiles(&some.iter().map(|(_, took)| nanos(*took)).collect::<Vec<_>>())
    };
    let windows: Vec<u64> = windows.iter().map(|(from, to)| nanos(*to - *from)).collect();
    Ok(json!({
        "loads": windows.len(), "load": percentiles(&windows), "during": of(&inside), "otherwise": of(&outside),
        "seen": seen.json(),
    }))
}
