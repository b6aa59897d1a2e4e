//! The ways of batching side by side in the simulator, as JSON on standard output.
//!
//! `sim-batching [LANES [QUERIES [JITTER_CHANCE JITTER_US]]]`

use anyhow::Context;
use modelless_simulator::Jitter;
use modelless_simulator::batching::{Row, Setup, compare};
use modelless_types::Micros;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Report {
    name: &'static str,
    setup: Setup,
    rows: Vec<Row>,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut setup = Setup::default();
    if let Some(lanes) = arguments.first() {
        setup.lanes = lanes.parse().context("LANES is a whole number")?;
    }
    if let Some(queries) = arguments.get(1) {
        setup.queries = queries.parse().context("QUERIES is a whole number")?;
    }
    if let [_, _, chance, mean] = &arguments[..] {
        let chance = chance.parse().context("JITTER_CHANCE is a number from 0 to 1")?;
        let mean = Micros(mean.parse().context("JITTER_US is in whole microseconds")?);
        setup.jitter = Some(Jitter { chance, mean });
    }
    let rows = compare(&setup)?;
    let report = Report { name: "sim-batching", setup, rows };
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &report)?;
    writeln!(out)?;
    Ok(())
}
