//! Goodput of 1, 2 and 3 nodes with the same lanes in the simulator, with and without credits and hand-back, as JSON on standard
//! output: where nothing disturbs; as on a machine that others share; there with a long bound, under which deep queues are no reason to
//! be late; and with nodes that fall behind under many gateways, each of which knows little of the others.
//!
//! `sim-goodput [QUERIES]`

use anyhow::Context;
use modelless_simulator::batching::MODELS;
use modelless_simulator::goodput::{Noise, Setup, goodput};
use std::io::Write;

/// Three times the time of a single query, as live.
const BOUND: f64 = 3.0;
/// Behind a node that takes four times as long nobody is in time within that, wherever one waits.
const DOUBLE_BOUND: f64 = 6.0;
const LONG_BOUND: f64 = 15.0;
/// Of the capacity.
const LOADS: [f64; 3] = [0.5, 0.65, 0.8];

/// What disturbs, the bound, gateways, and the share that must be in time.
const WORLDS: [(Noise, f64, u32, f64); 4] = [
    (Noise::QUIET, BOUND, 2, 0.99),
    (Noise::SHARED, BOUND, 2, 0.99),
    (Noise::SHARED, LONG_BOUND, 2, 0.99),
    (Noise::BEHIND, DOUBLE_BOUND, 8, 0.95),
];

fn main() -> anyhow::Result<()> {
    let queries = std::env::args().nth(1).map_or(Ok(5_000), |text| text.parse());
    let queries = queries.context("QUERIES is a whole number")?;
    let mut rows = Vec::new();
    for (noise, bound, gateways, share) in WORLDS {
        for (credits, hand_back) in [(true, true), (true, false), (false, true), (false, false)] {
            for (nodes, lanes) in [(1, 6), (2, 3), (3, 2)] {
                let (seeds, loads) = (vec![1, 2, 3], LOADS.to_vec());
                let setup = Setup {
                    nodes,
                    lanes,
                    gateways,
                    credits,
                    hand_back,
                    noise,
                    bound,
                    share,
                    queries,
                    seeds,
                    loads,
                };
                rows.push(goodput(&setup, &MODELS[2])?);
            }
        }
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &rows)?;
    writeln!(out)?;
    Ok(())
}
