//! Five hundred nodes at one gateway: what they take of its memory and processor, how long a table takes to make, and how long
//! a query takes to route while tables change.
//!
//! The nodes are simulated by one program, which speaks the real wire over a TCP connection for each, announces them in the
//! real Redis with all that executors tell, and answers every query at once. Their load, corrections and residency move, so tables
//! are made all the while. The gateway is the real one, and is asked over several connections at once. Routing a query is told by
//! the gateway itself (`modelless-queue-ms`, since no node here keeps a query waiting): waiting for the router's lock, the choice
//! of node and variant, which the issue calls `pick`, and handing the query over. `cargo xtask measure pick` tells of the choice alone.
//!
//! The issue states no bounds. Ours: half a MiB for a node, so that a thousand fit into what a gateway's machine has to spare; a
//! table in 20 ms and half a core in all, so that nodes that only tell their statuses leave a gateway free for queries; 200 us for
//! routing one. They say something only if tables were made and all nodes stand in them, which is checked as well.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Postgres, Request, Rng, process, stats, wait};
use serde_json::{Value, json};

use crate::measure::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "cluster-500",
    what: "500 simulated nodes over the real wire at one gateway: memory, table update time, p99 of routing (lock, pick, handover)",
    run: measure,
};

/// Clients that ask at the same time.
const CONNECTIONS: u32 = 8;
const JOIN_WITHIN: Duration = Duration::from_mins(2);

fn measure(context: &Context) -> Result<Outcome> {
    let (sizes, window, queries) = context.choose(
        (vec![10_u64, 100, 500], Duration::from_secs(10), 4_000),
        (vec![10, 60], Duration::from_secs(3), 300),
    );
    let (folder, postgres) = (modelless_testkit::temp_dir("cluster")?, Postgres::start()?);
    let mut cluster = Cluster::of(context.binary()?, postgres.url(), &folder.path().join("artefacts"))?;
    cluster.executor("real", &["demo=true"])?;
    let gateway = cluster.gateway("left", &[])?;
    ensure!(cluster.drain("real")?.success(), "the executor that registered the demo did not end well");
    let pid = cluster.pid("left")?;
    let spec = json!({
        "database": postgres.url(), "redis": cluster.redis.url(), "task": demo::TENSOR_TASK, "seed": context.seed,
    });
    let mut nodes = Side::start(&context.bench_program("many-nodes")?, &[&spec.to_string()])?;
    let empty = process::resident_bytes(pid)?;
    let mut rows = Vec::new();
    for size in &sizes {
        let began = Instant::now();
        nodes.ask(&json!({"do": "join", "count": size}))?;
        wait_for(gateway, *size)?;
        let joined = began.elapsed();
        let row = look(gateway, pid, window, queries, context.seed)?;
        rows.push(json!({
            "nodes": size, "joined_after_ms": super::ms(joined), "seen": row,
            "resident_bytes": process::resident_bytes(pid)?, "resident_bytes_without_nodes": empty,
        }));
    }
    drop(nodes);
    let last = rows.last().context("there are sizes; this is a bug")?;
    let figure = |name: &str| last["seen"][name].as_f64().with_context(|| format!("no {name}"));
    let bytes = |name: &str| last[name].as_f64().with_context(|| format!("no {name}"));
    let size = last["nodes"].as_f64().context("nodes")?;
    let each_kib = (bytes("resident_bytes")? - bytes("resident_bytes_without_nodes")?) / size / 1_024.0;
    let (table, route, share) =
        (figure("table_mean_ms")?, figure("route_p99_us")?, figure("gateway_cpu_share")?);
    Ok(Outcome {
        seeds: vec![context.seed],
        summary: json!({
            "nodes": size, "kib_a_node": each_kib, "table_mean_ms": table,
            "table_p99_at_most_ms": figure("table_p99_at_most_ms")?, "route_p50_us": figure("route_p50_us")?,
            "route_p99_us": route, "gateway_cpu_share": share,
        }),
        result: format!(
            "{size} nodes: {:.0} MiB resident ({each_kib:.0} KiB a node), a table takes {table:.2} ms (mean; p99 at most \
             {:.1} ms), routing a query (lock, pick, handover) {:.0} us (median; p99 {route:.0}) with {CONNECTIONS} connections \
             while {:.0} tables a second are made, {:.0} % of a core while nothing but statuses, reports and {:.0} queries a second come",
            bytes("resident_bytes")? / f64::from(1 << 20),
            figure("table_p99_at_most_ms")?,
            figure("route_p50_us")?,
            figure("tables_per_second")?,
            share * 100.0,
            figure("per_second")?,
        ),
        repetitions: Value::Array(rows),
        checks: vec![
            Check { what: "memory of a node at the gateway", value: each_kib, limit: 512.0, unit: "KiB" },
            Check { what: "making a table", value: table, limit: context.choose(20.0, 50.0), unit: "ms" },
            Check {
                what: "p99 of routing a query (lock, pick, handover)",
                value: route,
                limit: context.choose(200.0, 5_000.0),
                unit: "us",
            },
            Check { what: "share of a core", value: share, limit: context.choose(0.5, 1.0), unit: "" },
        ],
    })
}

fn wait_for(gateway: SocketAddr, size: u64) -> Result<()> {
    wait::until(JOIN_WITHIN, || {
        let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/nodes"))?.json()?;
        let known = answer["nodes"].as_array().context("a list of nodes")?;
        let simulated = |node: &&Value| {
            let named = node["name"].as_str().is_some_and(|name| name.starts_with("simulated-"));
            named && node["connected"] == true
        };
        let there = known.iter().filter(simulated).count() as u64;
        Ok(if there == size { Ok(()) } else { Err(format!("{there} of {size} nodes")) })
    })
}

/// What the gateway does for a while with a query now and then, over several connections.
fn look(gateway: SocketAddr, pid: u32, window: Duration, queries: u32, seed: u64) -> Result<Value> {
    let before = Updates::read(gateway)?;
    let (began, cpu) = (Instant::now(), process::cpu_time(pid)?);
    let gap = window * CONNECTIONS / queries;
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|client| {
            let first = began + gap * client / CONNECTIONS;
            std::thread::spawn(move || {
                ask(gateway, first, gap, queries / CONNECTIONS, seed + u64::from(client))
            })
        })
        .collect();
    let (mut route, mut whole) = (Vec::new(), Vec::new());
    for client in clients {
        let (more_route, more_whole) = client.join().map_err(|_| anyhow!("a client panicked"))??;
        route.extend(more_route);
        whole.extend(more_whole);
    }
    let took = began.elapsed();
    let updates = Updates::read(gateway)?.since(&before);
    let cpu = process::cpu_time(pid)?.saturating_sub(cpu);
    ensure!(
        updates.count > 0.0,
        "no table was made while it was looked at, so there is nothing to tell of them"
    );
    // The router's clock counts microseconds: a query that takes none of them was not timed.
    ensure!(route.iter().any(|us| *us > 0.0), "routing took no time, so it was not measured");
    let of = |percent| stats::percentile(&route, percent).context("no queries");
    Ok(json!({
        "tables": updates.count, "tables_per_second": updates.count / took.as_secs_f64(), "table_mean_ms": updates.mean_ms(), "table_p99_at_most_ms": updates.at_most_ms(0.99),
        "route_p50_us": of(50)?, "route_p99_us": of(99)?, "route_max_us": of(100)?,
        "query_p50_us": stats::percentile(&whole, 50), "query_p99_us": stats::percentile(&whole, 99),
        "per_second": super::count(route.len())? / took.as_secs_f64(),
        "gateway_cpu_share": cpu.as_secs_f64() / took.as_secs_f64(),
    }))
}

/// One client: what the gateway told of routing its queries, and what they took, in microseconds.
fn ask(
    gateway: SocketAddr,
    first: Instant,
    gap: Duration,
    queries: u32,
    seed: u64,
) -> Result<(Vec<f64>, Vec<u64>)> {
    let mut connection = Connection::open(gateway)?;
    let body = demo::tensor_body(demo::TENSOR_FLOATS, &mut Rng::new(seed));
    let request = demo::tensor_request(demo::TENSOR_TASK, body).to_bytes();
    let (mut route, mut whole) = (Vec::new(), Vec::new());
    for number in 0..queries {
        std::thread::sleep((first + gap * number).saturating_duration_since(Instant::now()));
        let asked = Instant::now();
        let response = connection.exchange_bytes(&request, false)?;
        ensure!(response.status == 200, "{response}");
        whole.push(u64::try_from(asked.elapsed().as_micros())?);
        let told = response.header("modelless-queue-ms").context("no modelless-queue-ms")?;
        route.push(told.parse::<f64>()? * 1_000.0);
    }
    Ok((route, whole))
}

/// The histogram of table updates so far.
#[derive(Clone, PartialEq, Debug, Default)]
struct Updates {
    count: f64,
    sum: f64,
    /// Upper bounds in seconds with how many were no longer.
    buckets: Vec<(f64, f64)>,
}

impl Updates {
    fn read(gateway: SocketAddr) -> Result<Self> {
        let answer = Connection::open(gateway)?.exchange(&Request::get("/metrics"))?;
        Self::parse(&answer.text())
    }

    fn parse(text: &str) -> Result<Self> {
        const NAME: &str = "modelless_table_update_seconds_";
        let mut found = Self::default();
        for line in text.lines().filter_map(|line| line.strip_prefix(NAME)) {
            let (name, value) = line.rsplit_once(' ').context("a metric without a value")?;
            let value: f64 = value.parse()?;
            match name.strip_prefix("bucket{le=\"").and_then(|rest| rest.strip_suffix("\"}")) {
                Some("+Inf") => found.buckets.push((f64::INFINITY, value)),
                Some(bound) => found.buckets.push((bound.parse()?, value)),
                None if name == "sum" => found.sum = value,
                None => found.count = value,
            }
        }
        ensure!(!found.buckets.is_empty(), "the gateway tells nothing of its tables");
        Ok(found)
    }

    fn since(mut self, before: &Self) -> Self {
        self.count -= before.count;
        self.sum -= before.sum;
        for ((_, now), (_, then)) in self.buckets.iter_mut().zip(&before.buckets) {
            *now -= then;
        }
        self
    }

    fn mean_ms(&self) -> f64 {
        self.sum / self.count.max(1.0) * 1e3
    }

    /// The bound of the bucket that this share of them did not exceed.
    fn at_most_ms(&self, share: f64) -> f64 {
        let wanted = self.count * share;
        let bucket = self.buckets.iter().find(|(_, count)| *count >= wanted);
        bucket.map_or(f64::INFINITY, |(bound, _)| bound * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read_and_told_for_the_time_since_the_last_look() {
        let text = |few: u32, all: u32, sum: f64| {
            format!(
                "modelless_table_update_seconds_sum {sum}\nmodelless_table_update_seconds_count {all}\n\
                 modelless_table_update_seconds_bucket{{le=\"0.001\"}} {few}\n\
                 modelless_table_update_seconds_bucket{{le=\"+Inf\"}} {all}\nother 7\n"
            )
        };
        let before = Updates::parse(&text(5, 6, 0.5)).unwrap();
        let since = Updates::parse(&text(104, 106, 0.7)).unwrap().since(&before);
        assert!((since.mean_ms() - 2.0).abs() < 1e-9);
        assert!((since.at_most_ms(0.99) - 1.0).abs() < 1e-9);
        assert!(since.at_most_ms(1.0).is_infinite());
        assert!(Updates::parse("other 7").is_err());
    }
}
