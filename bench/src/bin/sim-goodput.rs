//! Goodput of 1, 2 and 3 nodes with the same lanes in the simulator, with and without credits and hand-back, as JSON on standard
//! output: where nothing disturbs, and as on a machine that others share; there with a long bound as well, under which deep queues are
//! no reason to be late.
//!
//! `sim-goodput [QUERIES]`

use anyhow::Context;
use modelless_simulator::batching::MODELS;
use modelless_simulator::goodput::{Noise, Setup, goodput};
use std::io::Write;

/// Three times the time of a single query, as live.
const BOUND: f64 = 3.0;
const LONG_BOUND: f64 = 15.0;

fn main() -> anyhow::Result<()> {
    let queries = std::env::args().nth(1).map_or(Ok(5_000), |text| text.parse());
    let queries = queries.context("QUERIES is a whole number")?;
    let mut rows = Vec::new();
    for (noise, bound) in [(Noise::QUIET, BOUND), (Noise::SHARED, BOUND), (Noise::SHARED, LONG_BOUND)] {
        for (credits, hand_back) in [(true, true), (true, false), (false, true), (false, false)] {
            for (nodes, lanes) in [(1, 6), (2, 3), (3, 2)] {
                let (gateways, share, seeds) = (2, 0.99, vec![1, 2, 3]);
                let setup =
                    Setup { nodes, lanes, gateways, credits, hand_back, noise, bound, share, queries, seeds };
                rows.push(goodput(&setup, &MODELS[2])?);
            }
        }
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &rows)?;
    writeln!(out)?;
    Ok(())
}
