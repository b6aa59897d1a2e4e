//! Load on an executor in this process: as much as it takes, one at a time, or at set times.
//!
//! `executor-load SPEC`, where SPEC is JSON: `{"library", "packages": [FOLDER], "max_batch", "batching", "seed", "budget_ms"}`;
//! then questions
//!
//! * `{"do": "closed", "ms", "warm_ms"}`: the queue is kept full, within the credit that the executor gives;
//! * `{"do": "batches", "ms", "warm_ms", "profiles": {NAME: PROFILE}}`: the same, and what the full batches took beside what the
//!   performance model makes of each profile, and how many queries shared others;
//! * `{"do": "profile"}` and `{"do": "variant"}`: what was measured of the model when the node started, and its largest batch;
//! * `{"do": "single", "count", "gap_us"}`: one query at a time;
//! * `{"do": "open", "per_second", "cv", "ms", "bound_us", "seed"}`: at times drawn beforehand. Latency counts from when a
//!   query should have come, and how late it really came is told as well, for each of them (`arrivals`).
//!
//! `cost` is what this process took of the machine meanwhile. The executor's own intake runs on the thread that sends, as it would on a
//! gateway's.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use modelless_bench::node::{End, How, Node, Spec, runner_if_asked};
use modelless_bench::open::{self, Gaps};
use modelless_bench::sender::Sender;
use modelless_bench::timing::{nanos, percentiles, sleep_precisely};
use modelless_decision::RunModel;
use modelless_testkit::cost::Cost;
use modelless_testkit::turns;
use modelless_types::Profile;
use serde_json::{Value, json};

/// Different inputs that are sent in turn.
const INPUTS: usize = 32;
/// For queries whose lateness does not matter.
const LONG: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    if let Some(code) = runner_if_asked() {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("executor-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let spec: Value = serde_json::from_str(&std::env::args().nth(1).context("usage: executor-load SPEC")?)?;
    let text = |name: &str| spec[name].as_str().with_context(|| format!("`{name}`"));
    let packages = spec["packages"].as_array().context("`packages`")?;
    let node = Node::start(&Spec {
        library: text("library")?.into(),
        packages: packages.iter().filter_map(Value::as_str).map(Into::into).collect(),
        max_batch: spec["max_batch"].as_u64().and_then(|n| u32::try_from(n).ok()),
        batching: spec["batching"].as_str().map(ToOwned::to_owned),
        budget: spec["budget_ms"].as_u64().map(Duration::from_millis),
        lanes: 1,
        memory: Box::new(|_| modelless_types::Bytes::from_mib(4_096)),
        wait_inline: false,
    })?;
    node.pin(&[0])?;
    let inputs = node.inputs(0, INPUTS, spec["seed"].as_u64().unwrap_or(1))?;
    sleep_precisely()?;
    turns::serve(|question| {
        let number = |name: &str| question[name].as_f64().with_context(|| format!("`{name}` in {question}"));
        let ms = |name: &str| Ok::<_, anyhow::Error>(Duration::from_secs_f64(number(name)? / 1e3));
        match question["do"].as_str() {
            Some("profile") => Ok(serde_json::to_value(node.profile(0)?)?),
            Some("variant") => {
                Ok(json!({"profile": node.profile(0)?, "max_batch": node.served[0].1.settings.max_batch}))
            }
            Some("closed") => closed(&node, &inputs, ms("warm_ms")?, ms("ms")?),
            Some("batches") => batches(&node, &inputs, (ms("warm_ms")?, ms("ms")?), &question["profiles"]),
            Some("single") => {
                let gap = Duration::from_secs_f64(number("gap_us")? / 1e6);
                single(&node, &inputs, question["count"].as_u64().context("`count`")?, gap)
            }
            Some("open") => {
                let bound = Duration::from_secs_f64(number("bound_us")? / 1e6);
                let seed = question["seed"].as_u64().context("`seed`")?;
                let gaps = Gaps::new(number("per_second")?, number("cv")?, seed);
                open(&node, &inputs, gaps, ms("ms")?, bound)
            }
            other => bail!("cannot do {other:?}"),
        }
    })?;
    node.stop()
}

fn closed(node: &Node, inputs: &[Bytes], warm: Duration, time: Duration) -> Result<Value> {
    let mut sender = Sender::new(node, 0, inputs, LONG)?;
    let (mut ends, mut sizes) = (Vec::new(), BTreeMap::<u32, u64>::new());
    let (mut answered, mut runs) = (0_u64, Vec::new());
    let begin = Instant::now() + warm;
    let mut cost = Cost::start();
    let mut warming = true;
    loop {
        let now = Instant::now();
        if warming && now >= begin {
            (warming, cost) = (false, Cost::start());
            (answered, sizes, runs) = (0, BTreeMap::new(), Vec::new());
        }
        if now >= begin + time {
            break;
        }
        while sender.has_credit() {
            sender.offer(Instant::now());
        }
        node.link.ends(&mut ends, now + Duration::from_millis(100));
        for End { key, how, .. } in ends.drain(..) {
            let How::Answered { batch, run, .. } = how else {
                bail!("query {key} was not answered: {how:?}")
            };
            answered += 1;
            *sizes.entry(batch).or_default() += 1;
            runs.push(run.0 / u64::from(batch) * 1_000);
            sender.ended(key);
        }
    }
    let cost = cost.json();
    open::finish(node, &mut sender, |_| Ok(()))?;
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let rate = answered as f64 * 1e9 / cost["wall_ns"].as_u64().unwrap_or(1) as f64;
    Ok(json!({
        "answered": answered, "per_second": rate, "cost": cost, "queries_by_batch": sizes,
        "device_time_a_query": percentiles(&runs),
    }))
}

/// Batches as large as they may be, one after the other: what each took, and what each profile says of it.
fn batches(
    node: &Node,
    inputs: &[Bytes],
    (warm, time): (Duration, Duration),
    profiles: &Value,
) -> Result<Value> {
    let full = node.served[0].1.settings.max_batch;
    let mut sender = Sender::new(node, 0, inputs, LONG)?;
    let (mut ends, mut runs, mut others) = (Vec::new(), Vec::new(), 0_u64);
    let begin = Instant::now() + warm;
    loop {
        let now = Instant::now();
        if now >= begin + time {
            break;
        }
        while sender.has_credit() {
            sender.offer(Instant::now());
        }
        node.link.ends(&mut ends, now + Duration::from_millis(100));
        for End { key, at, how } in ends.drain(..) {
            let How::Answered { batch, run, .. } = how else {
                bail!("query {key} was not answered: {how:?}")
            };
            match batch == full {
                true if at >= begin => runs.push(run.0),
                false if at >= begin => others += 1,
                _ => {}
            }
            sender.ended(key);
        }
    }
    open::finish(node, &mut sender, |_| Ok(()))?;
    // Every query of a batch tells of it.
    runs.sort_unstable();
    let runs: Vec<u64> = runs.into_iter().step_by(usize::try_from(full)?).collect();
    let predicted = profiles.as_object().context("`profiles`")?.iter().map(|(name, profile)| {
        let profile: Profile = serde_json::from_value(profile.clone())?;
        let run = RunModel::from_profile(&profile).context("a profile without points")?;
        let time = run.uncorrected(full);
        let p99_us = time.p99().0;
        let above = runs.iter().filter(|took| **took > p99_us).count();
        Ok((name.clone(), json!({"mean_us": time.mean, "p99_us": p99_us, "above": above})))
    });
    let predicted = predicted.collect::<Result<serde_json::Map<_, _>>>()?;
    Ok(json!({
        "batch": full, "batches": runs.len(), "other_sizes": others, "run_us": runs, "predicted": predicted,
    }))
}

fn single(node: &Node, inputs: &[Bytes], count: u64, gap: Duration) -> Result<Value> {
    let mut sender = Sender::new(node, 0, inputs, LONG)?;
    let (mut ends, mut latencies) = (Vec::new(), Vec::new());
    let cost = Cost::start();
    for _ in 0..count {
        std::thread::sleep(gap);
        let asked = Instant::now();
        sender.offer(asked);
        node.link.ends(&mut ends, asked + LONG);
        let [End { key, at, how: How::Answered { .. } }] = ends.as_slice() else {
            bail!("no answer: {ends:?}")
        };
        latencies.push(nanos(at.saturating_duration_since(asked)));
        sender.ended(*key);
        ends.clear();
    }
    Ok(json!({"latency": percentiles(&latencies), "latency_ns": latencies, "cost": cost.json()}))
}

fn open(node: &Node, inputs: &[Bytes], gaps: Gaps, time: Duration, bound: Duration) -> Result<Value> {
    let cost = Cost::start();
    let seen = open::run(node, inputs, gaps, time, bound, |_| ())?;
    Ok(json!({"cost": cost.json(), "seen": seen.json(), "arrivals": seen.arrivals()}))
}
