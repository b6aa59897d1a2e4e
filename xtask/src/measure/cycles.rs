//! A thousand loads and unloads over more models than fit: memory comes back, and every answer is right.
//!
//! Twelve models are asked in turn with room for about five, so nearly every query loads one and drives out another. The
//! memory is that of the node: the server's process and all its runners, after every lap, with the same models in memory.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Connection, Rng, Server, process, stats};
use serde_json::{Value, json};

use super::models::{MANY, many, many_variants};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "cycles",
    what: "1,000 loads and unloads over more models than fit: the node's memory after over before, every answer right",
    run: measure,
};

/// The least that `up` takes.
const MEMORY: &str = "64MiB";
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

fn measure(context: &Context) -> Result<Outcome> {
    let (wanted, averaged, settling) =
        context.choose((1_000, 5, SETTLING.div_ceil(many_variants().len())), (24, 1, 2));
    let server = Server::builder().binary(context.binary()?).arg("--memory").arg(MEMORY);
    let server = server.arg("--min-residence").arg(MIN_RESIDENCE).start()?;
    demo::register(&server, &many(&context.root))?;
    let variants = many_variants();
    let mut rng = Rng::new(context.seed);
    let inputs: Vec<Vec<u8>> =
        (0..INPUTS).map(|_| demo::tensor_body(demo::TENSOR_FLOATS, &mut rng)).collect();
    let mut connection = server.connect()?;
    let mut seen = Seen::default();
    let mut laps: Vec<Lap> = Vec::new();
    let mut loads_before = 0;
    while seen.loads < loads_before + wanted || laps.len() < settling + 2 * averaged {
        let before = seen.loads;
        for variant in &variants {
            seen.ask(&mut connection, variant, laps.len() % INPUTS, &inputs)?;
        }
        ensure!(seen.loads > before, "a lap loaded nothing: all models fit, and nothing is measured");
        laps.push(Lap::of(&server, seen.loads)?);
        if laps.len() == settling {
            loads_before = seen.loads;
        }
    }
    server.stop()?;

    let start = &laps[settling..settling + averaged];
    let end = &laps[laps.len() - averaged..];
    let growth = |of: fn(&Lap) -> u64| -> Result<f64> {
        let median =
            |laps: &[Lap]| stats::median(&laps.iter().map(of).collect::<Vec<_>>()).context("no laps");
        Ok((mb(median(end)?) / mb(median(start)?) - 1.0) * 100.0)
    };
    let (node, server) = (growth(|lap| lap.server + lap.runners)?, growth(|lap| lap.server)?);
    let limit = context.choose(5.0, 30.0);
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: laps.iter().map(Lap::json).collect(),
        summary: json!({
            "loads": seen.loads, "queries": seen.queries, "wrong": seen.wrong, "node_growth_percent": node,
            "server_growth_percent": server, "averaged_laps": averaged,
        }),
        result: format!(
            "{} loads in {} queries, {} wrong answers; node {node:+.1} % ({:.0} MB at the end), its server alone \
             {server:+.1} %",
            seen.loads,
            seen.queries,
            seen.wrong,
            laps.last().map_or(0.0, |lap| mb(lap.server + lap.runners)),
        ),
        checks: vec![
            Check { what: "growth of the node", value: node, limit, unit: "%" },
            Check { what: "wrong answers", value: f64::from(seen.wrong), limit: 0.0, unit: "" },
        ],
    })
}

#[derive(Default)]
struct Seen {
    loads: usize,
    queries: usize,
    wrong: u32,
    /// What each variant answered to each input the first time.
    learnt: BTreeMap<(String, usize), Vec<f64>>,
}

impl Seen {
    fn ask(
        &mut self,
        connection: &mut Connection,
        variant: &str,
        at: usize,
        inputs: &[Vec<u8>],
    ) -> Result<()> {
        let target = format!("{MANY}?variant={variant}&latency_ms=60000");
        let response = connection.exchange(&demo::tensor_request(&target, inputs[at].clone()))?;
        let found = demo::numbers(&response)?;
        self.queries += 1;
        self.loads += usize::from(response.header("modelless-reason") == Some("loaded for this query"));
        let by = response.header("modelless-variant").context("the answer names no variant")?;
        ensure!(by == variant, "answered by {by} and not by the pinned {variant}");
        let learnt = self.learnt.entry((variant.to_owned(), at)).or_insert_with(|| found.clone());
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= TOLERANCE * a.abs().max(1.0);
        let right = learnt.len() == found.len() && learnt.iter().zip(&found).all(close);
        self.wrong += u32::from(!right);
        Ok(())
    }
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
