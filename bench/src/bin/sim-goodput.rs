//! Goodput of 1, 2 and 3 nodes with the same lanes in the simulator, with and without credits and
//! hand-back, as JSON on standard output.
//!
//! `sim-goodput [QUERIES]`

use anyhow::Context;
use modelless_simulator::batching::MODELS;
use modelless_simulator::goodput::{Setup, goodput};
use std::io::Write;

fn main() -> anyhow::Result<()> {
    let queries = std::env::args().nth(1).map_or(Ok(5_000), |text| text.parse());
    let queries = queries.context("QUERIES is a whole number")?;
    let mut rows = Vec::new();
    for (credits, hand_back) in [(true, true), (true, false), (false, true), (false, false)] {
        for (nodes, lanes) in [(1, 6), (2, 3), (3, 2)] {
            let (gateways, bound, share, seeds) = (2, 3.0, 0.99, vec![1, 2, 3]);
            let setup = Setup { nodes, lanes, gateways, credits, hand_back, bound, share, queries, seeds };
            rows.push(goodput(&setup, &MODELS[2])?);
        }
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &rows)?;
    writeln!(out)?;
    Ok(())
}
