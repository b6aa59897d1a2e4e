//! What a second hop loses: the load that one, two and three executors carry that have the same lanes altogether.
//!
//! Live there are two gateways, real executors and the real wire, but the engine replays latencies that were measured
//! (EfficientNet-Lite0, one thread) instead of computing, since this needs more lanes than most machines have cores. The same is
//! done in the simulator. Without credits gateways send everything at once, and it waits at the node that was chosen; nodes hand
//! queries back only when they drain, so that is no part of it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Postgres, Request, wait};
use serde_json::{Value, json};

use super::{Ended, all_ended, bare, ms};
use crate::command::{output, program};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cluster-goodput",
    what: "goodput at 99 % of 1, 2 and 3 executors with the same lanes, with and without credits: live with a replaying engine, and simulated",
    run: measure,
};

/// Executors and the lanes of each.
const CLUSTERS: [(usize, u16); 3] = [(1, 6), (2, 3), (3, 2)];
/// Lanes altogether over the time of a single query: queries a second if no lane were ever idle.
const CAPACITY: f64 = 6.0 / 0.007_1;
/// Three times the time of a single query.
const BOUND: Duration = Duration::from_millis(21);
const WANTED: f64 = 0.99;
const LOADED_WITHIN: Duration = Duration::from_mins(1);

fn measure(context: &Context) -> Result<Outcome> {
    let (steps, window, share) = context.choose((6_u32, 2_500_u64, WANTED), (2, 800, 0.5));
    let simulated = output(
        program(&context.root, context.bench_program("sim-goodput")?).arg(context.choose("10000", "300")),
    )?;
    let simulated: Value = serde_json::from_str(&simulated).context("sim-goodput wrote no JSON")?;
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    let (ways, clusters) = context.choose((&[true, false][..], &CLUSTERS[..]), (&[true][..], &CLUSTERS[..1]));
    for &credits in ways {
        for &(executors, lanes) in clusters {
            let (goodput, tried) = live(context, executors, lanes, credits, (steps, window, share))?;
            found.push((executors, credits, goodput));
            rows.push(json!({"executors": executors, "lanes": lanes, "credits": credits, "goodput": goodput, "tried": tried}));
        }
    }
    let of = |executors, credits| {
        let row = found.iter().find(|row| (row.0, row.1) == (executors, credits));
        row.map_or(f64::NAN, |row| row.2) // the short form leaves most of them out
    };
    let in_simulator = |nodes: u64, credits: bool| {
        let rows = simulated.as_array().context("sim-goodput tells no rows")?;
        let row =
            rows.iter().find(|row| row["setup"]["nodes"] == nodes && row["setup"]["credits"] == credits);
        row.and_then(|row| row["goodput"].as_f64()).context("sim-goodput tells no goodput")
    };
    let (one, two, three) = (of(1, true), of(2, true), of(3, true));
    let (sim_one, sim_two, sim_three) =
        (in_simulator(1, true)?, in_simulator(2, true)?, in_simulator(3, true)?);
    // The short form has one executor only: there it is what that loses of its lanes' time, and all of it where nothing holds.
    let lost = if context.short { 1.0 - one / CAPACITY } else { lost_of(three, one) };
    let summary = json!({
        "live_per_second": {"1": one, "2": two, "3": three},
        "live_per_second_without_credits": {"1": of(1, false), "2": of(2, false), "3": of(3, false)},
        "simulated_per_second": {"1": sim_one, "2": sim_two, "3": sim_three},
        "simulated_per_second_without_credits": {
            "1": in_simulator(1, false)?, "2": in_simulator(2, false)?, "3": in_simulator(3, false)?,
        },
        "capacity_per_second": CAPACITY, "bound_ms": ms(BOUND),
        "engine": "replays measured latencies (EfficientNet-Lite0, 7.1 ms alone)",
    });
    rows.push(json!({"simulated": simulated}));
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(rows),
        result: format!(
            "1, 2 and 3 executors with 6 lanes altogether carry {one:.0}, {two:.0} and {three:.0} queries a second with 99 % in \
             time ({CAPACITY:.0} were the lanes never idle; the engine replays measured latencies), without credits {:.0}, \
             {:.0} and {:.0}; in the simulator {sim_one:.0}, {sim_two:.0} and {sim_three:.0}, without credits {:.0}, {:.0} and \
             {:.0}",
            of(1, false),
            of(2, false),
            of(3, false),
            in_simulator(1, false)?,
            in_simulator(2, false)?,
            in_simulator(3, false)?,
        ),
        summary,
        checks: vec![
            Check {
                what: context.choose("lost by three executors, live", "lost by one executor, live"),
                value: lost,
                limit: context.choose(0.15, 0.9),
                unit: context.choose("of one's goodput", "of its lanes' time"),
            },
            Check {
                what: "lost by three executors, simulated",
                value: lost_of(sim_three, sim_one),
                limit: context.choose(0.1, 0.5),
                unit: "of one's goodput",
            },
        ],
    })
}

/// The highest rate of those tried at which enough is in time, and all that were tried.
fn live(
    context: &Context,
    executors: usize,
    lanes: u16,
    credits: bool,
    (steps, window, share): (u32, u64, f64),
) -> Result<(f64, Value)> {
    let replay = context.bench_program("replay-node")?;
    let (folder, postgres) = (modelless_testkit::temp_dir("goodput")?, Postgres::start()?);
    let artefacts = folder.path().join("artefacts");
    output(program(&context.root, &replay).arg("register").arg(postgres.url()).arg(&artefacts))?;
    let mut cluster = Cluster::of(context.binary()?, postgres.url(), &artefacts)?;
    let (lanes, credits) = (format!("executor.lanes={lanes}"), format!("credits={credits}"));
    for number in 0..executors {
        cluster.executor_of(&replay, &format!("node-{number}"), &[&lanes, &credits])?;
    }
    cluster.scheduler("planner", &[])?;
    let gateways = [cluster.gateway("left", &[])?, cluster.gateway("right", &[])?];
    for gateway in gateways {
        loaded(gateway, executors).with_context(|| cluster.output())?;
    }
    let stream = json!([{
        "target": format!("/v1/tasks/replay?latency_ms={}", BOUND.as_millis()),
        "inputs": [{"name": "x", "dtype": "FP32", "shape": [4]}],
    }]);
    let addresses = gateways.map(|gateway| gateway.to_string()).join(",");
    let load = context.bench_program("http-load")?;
    let mut load = Side::start(&load, &[&addresses, &stream.to_string(), &context.seed.to_string()])?;
    let (mut low, mut high, mut tried) = (0.0, CAPACITY, Vec::new());
    // One that is not counted: connections, what executors learn.
    let question = |rate: f64, seed: u64| {
        json!({
            "do": "paced", "per_second": [rate], "ms": window, "seed": seed, "connections": 96, "patience_ms": 2_000,
        })
    };
    load.ask(&question(CAPACITY / 4.0, context.seed))?;
    for step in 0..steps {
        let rate = f64::midpoint(low, high);
        let raw = load.ask(&question(rate, context.seed + u64::from(step)))?;
        let in_time = in_time(&all_ended(&raw)?)?;
        tried.push(json!({"rate": rate, "in_time": in_time, "load": bare(raw)}));
        if in_time >= share { low = rate } else { high = rate }
    }
    Ok((low, Value::Array(tried)))
}

/// What `other` lacks of `base`, as a share of it. Where there is no base, all is lost.
fn lost_of(other: f64, base: f64) -> f64 {
    if base > 0.0 { 1.0 - other / base } else { 1.0 }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn in_time(all: &[Ended]) -> Result<f64> {
    ensure!(!all.is_empty(), "nothing was asked");
    let good = |ended: &&Ended| ended.how.is_ok() && Duration::from_micros(ended.took_us) <= BOUND;
    Ok(all.iter().filter(good).count() as f64 / all.len() as f64)
}

fn loaded(gateway: SocketAddr, executors: usize) -> Result<()> {
    wait::until(LOADED_WITHIN, || {
        let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/replicas"))?.json()?;
        let replicas = answer["replicas"].as_array().context("a list of replicas")?;
        let active = replicas.iter().filter(|replica| replica["state"] == "active").count();
        Ok(if active == executors { Ok(()) } else { Err(answer.to_string()) })
    })
    .context("not all nodes loaded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goodput_of_nothing_has_lost_everything() {
        assert!((lost_of(90.0, 100.0) - 0.1).abs() < 1e-9);
        assert!((lost_of(90.0, 0.0) - 1.0).abs() < 1e-9 && (lost_of(0.0, 0.0) - 1.0).abs() < 1e-9);
        assert!(lost_of(f64::NAN, 1.0).is_nan(), "which no bound holds");
    }

    #[test]
    fn what_is_late_or_refused_is_no_goodput() {
        let of = |took_us, ok: bool| Ended {
            came_ms: 0,
            took_us,
            how: if ok { Ok("a".into()) } else { Err("503 x".into()) },
        };
        let share = in_time(&[of(10, true), of(22_000, true), of(10, false), of(21_000, true)]).unwrap();
        assert!((share - 0.5).abs() < 1e-9);
        assert!(in_time(&[]).is_err());
    }
}
