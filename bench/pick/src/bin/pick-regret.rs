//! How much later the node that `pick` takes would answer than the one that an exhaustive choice takes: the mean
//! relative excess of the estimated completion. The exhaustive choice is written here, from the table and the
//! nodes' reports, and shares nothing with `pick` but the estimate of a single run.

use anyhow::{Context, bail};
use modelless_bench_pick::{Fleet, NOW, REPORTED, SIZES};
use modelless_decision::route::{Ready, Verdict, pick};
use modelless_decision::{Moments, Query};
use modelless_types::Prefer;
use serde::Serialize;
use std::io::Write;

const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];
const QUERIES: usize = 1_000;
const Z99: f64 = 2.326_347_9;

#[derive(Serialize)]
struct Row {
    replicas: usize,
    prefer: Prefer,
    /// Compared: both sent the query somewhere.
    queries: u64,
    /// Neither could send it.
    waiting: u64,
    /// One sent it and the other did not, or `pick` served what is preferred less well.
    different: u64,
    mean_excess: f64,
    worst_excess: f64,
}

#[derive(Serialize)]
struct Report {
    name: &'static str,
    seeds: Vec<u64>,
    queries_per_seed: usize,
    mean_excess: f64,
    worst_excess: f64,
    rows: Vec<Row>,
}

fn p99(m: Moments) -> f64 {
    m.mean + Z99 * m.var.sqrt()
}

/// What the query prefers, the less the better.
fn wish(prefer: Prefer, accuracy_ppm: u32, cost: u64) -> u64 {
    match prefer {
        Prefer::Accuracy => u64::from(1_000_000 - accuracy_ppm),
        Prefer::Cost => cost,
        Prefer::Latency => 0,
    }
}

fn waiting_time(fleet: &Fleet, node: usize, query: &Query) -> Option<Moments> {
    let told = &fleet.told[node];
    let report = told.report.as_ref()?;
    if told.sent.len() >= report.limit.queries as usize {
        return None; // no credit
    }
    let own = report.waits.iter().find(|(class, _)| *class == query.class).map(|(_, wait)| *wait);
    let wait = own.unwrap_or(report.wait);
    let passed = Moments::exactly(NOW - REPORTED).mean;
    let mut left =
        if wait.mean > passed { Moments { mean: wait.mean - passed, var: wait.var } } else { Moments::ZERO };
    for work in &told.sent {
        left = Moments { mean: left.mean + work.mean, var: left.var + work.var };
    }
    Some(left)
}

/// Every replica of every node, one by one: what is preferred first, then the earliest completion.
fn exhaustive(fleet: &Fleet, query: &Query) -> Option<(u64, f64)> {
    let table = fleet.snapshot.table();
    let task = &table.tasks[0];
    let slack = Moments::exactly(query.expires - NOW).mean;
    let mut best: Option<(u64, f64)> = None;
    for (at, node) in table.nodes.iter().enumerate() {
        let Some(wait) = waiting_time(fleet, at, query) else { continue };
        for offer in &node.offers {
            if offer.ready != Ready::Resident || !query.class.admits.contains(offer.ordinal) {
                continue;
            }
            let service = node.rtt + offer.run.service();
            let completion = p99(Moments { mean: wait.mean + service.mean, var: wait.var + service.var });
            let Some(variant) = task.variant(offer.ordinal).filter(|_| completion <= slack) else { continue };
            let mine =
                (wish(query.prefer, variant.accuracy.ppm(), offer.run.cost(1, node.price).0), completion);
            if best.is_none_or(|known| mine.0 < known.0 || (mine.0 == known.0 && mine.1 < known.1)) {
                best = Some(mine);
            }
        }
    }
    best
}

/// What `pick` took, in the same terms.
fn picked(fleet: &Fleet, at: usize, seed: u64) -> anyhow::Result<Option<(u64, f64)>> {
    let (class, query) = &fleet.queries[at];
    let Verdict::Send(choice) = pick(&fleet.snapshot, &fleet.load, *class, query, NOW, seed ^ at as u64)
    else {
        return Ok(None);
    };
    let node = fleet.snapshot.node(choice.node).context("pick named a node that is not there")?;
    let offer = node.offers.iter().find(|o| o.ordinal == choice.ordinal);
    let offer = offer.context("pick named a variant that its node does not offer")?;
    let variant = fleet.snapshot.table().tasks[0].variant(choice.ordinal).context("no such variant")?;
    let wait = waiting_time(fleet, choice.node.0 as usize, query).context("pick sent where no credit is")?;
    let service = node.rtt + offer.run.service();
    let completion = p99(Moments { mean: wait.mean + service.mean, var: wait.var + service.var });
    Ok(Some((wish(query.prefer, variant.accuracy.ppm(), offer.run.cost(1, node.price).0), completion)))
}

fn measure(replicas: usize, prefer: Prefer) -> anyhow::Result<Row> {
    let mut row =
        Row { replicas, prefer, queries: 0, waiting: 0, different: 0, mean_excess: 0.0, worst_excess: 0.0 };
    let mut sum = 0.0;
    let mut compared = 0.0;
    for seed in SEEDS {
        let fleet = Fleet::new(replicas, QUERIES, prefer, seed);
        for at in 0..fleet.queries.len() {
            match (picked(&fleet, at, seed)?, exhaustive(&fleet, &fleet.queries[at].1)) {
                (Some(mine), Some(best)) => {
                    let excess = (mine.1 - best.1) / best.1.max(1.0);
                    row.queries += 1;
                    row.different += u64::from(mine.0 != best.0);
                    compared += 1.0;
                    sum += excess;
                    row.worst_excess = row.worst_excess.max(excess);
                }
                (None, None) => row.waiting += 1,
                (Some(_), None) | (None, Some(_)) => row.different += 1,
            }
        }
    }
    row.mean_excess = if row.queries == 0 { 0.0 } else { sum / compared };
    Ok(row)
}

fn main() -> anyhow::Result<()> {
    let json = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--json") => true,
        Some(other) => bail!("`{other}` is not known here: give --json for a report, nothing for a table"),
    };
    let mut rows = Vec::new();
    for replicas in SIZES {
        for (_, prefer) in Prefer::NAMES {
            rows.push(measure(replicas, prefer)?);
        }
    }
    let worst = |figure: fn(&Row) -> f64| rows.iter().map(figure).fold(0.0, f64::max);
    let (mean_excess, worst_excess) = (worst(|row| row.mean_excess), worst(|row| row.worst_excess));
    let report = Report {
        name: "pick-regret",
        seeds: SEEDS.to_vec(),
        queries_per_seed: QUERIES,
        mean_excess,
        worst_excess,
        rows,
    };
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    writeln!(
        out,
        "{:>8} {:>9} {:>8} {:>8} {:>10} {:>12} {:>12}",
        "replicas", "prefer", "compared", "waiting", "different", "mean excess", "worst"
    )?;
    for row in &report.rows {
        let (mean, worst) = (100.0 * row.mean_excess, 100.0 * row.worst_excess);
        let prefer = row.prefer.to_string();
        writeln!(
            out,
            "{:>8} {prefer:>9} {:>8} {:>8} {:>10} {mean:>10.4} % {worst:>10.4} %",
            row.replicas, row.queries, row.waiting, row.different
        )?;
    }
    Ok(())
}
