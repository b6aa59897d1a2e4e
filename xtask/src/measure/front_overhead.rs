//! What TLS, tracing and counting cost: the same query over plain HTTP, over HTTPS, and where a collector hears of queries, in turns
//! at four servers; and what a gateway counts of a query, alone in a loop, over the processor's time that a query takes of the server.
//!
//! Two of the servers are alike. No two processes are quite as quick, by some hundredths: what differs between those two is told, and the time
//! of the traced one is compared with the mean of theirs, block by block.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::blocks::{Block, Loop};
use modelless_testkit::{Request, Server, process, stats};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome, demo};
use crate::command::{output, program};

pub(crate) const MEASURE: Measure = Measure {
    name: "front-overhead",
    what: "one tensor query over HTTPS, and with traces, against the same over HTTP, concurrency 1; what counting costs of a query's processor time",
    run: measure,
};

const VARIANT: &str = "cnn_m-fp32";
/// Queries of a round of `count-loop`.
const COUNTED: f64 = 1_000.0;
/// How often a Prometheus asks unless told otherwise.
const SCRAPED_S: f64 = 15.0;

/// A server and who asks it.
struct Side {
    server: Server,
    asks: Loop,
    seen: Vec<Block>,
    /// Of the server in each block, without its runners.
    cpu: Vec<Duration>,
}

impl Side {
    fn new(context: &Context, server: Server, authority: Option<&str>) -> Result<Self> {
        let target = format!("/v1/tasks/{}?variant={VARIANT}", demo::TENSOR_TASK);
        let (address, seed) = (server.address().to_string(), context.seed.to_string());
        let floats = demo::TENSOR_FLOATS.to_string();
        let mut words = vec![address.as_str(), &target, &floats, &seed];
        words.extend(authority);
        let asks = Loop::start(&context.bench_program("http-loop")?, &words)?;
        Ok(Self { server, asks, seen: Vec::new(), cpu: Vec::new() })
    }

    fn block(&mut self, rounds: usize) -> Result<()> {
        let before = process::threads_cpu_time(self.server.pid())?;
        self.seen.push(self.asks.block(rounds, Duration::ZERO)?);
        self.cpu.push(process::threads_cpu_time(self.server.pid())?.saturating_sub(before));
        Ok(())
    }

    fn median_us(block: &Block) -> Result<f64> {
        stats::median(&block.latency_ns).map(us).context("no rounds")
    }

    /// Of the server, for one query.
    fn cpu_us(&self) -> f64 {
        let asked: usize = self.seen.iter().map(|block| block.latency_ns.len()).sum();
        self.cpu.iter().sum::<Duration>().as_secs_f64() * 1e6 / number(asked).max(1.0)
    }

    fn cpu_ns(&self) -> Vec<u64> {
        self.cpu.iter().map(|cpu| u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX)).collect()
    }
}

fn measure(context: &Context) -> Result<Outcome> {
    let (blocks, rounds) = context.choose((40, 1_500), (2, 60));
    let folder = modelless_testkit::temp_dir("front-overhead")?;
    output(
        program(&context.root, context.bench_program("certificates")?).arg(folder.path()).arg("127.0.0.1"),
    )?;
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (plain, alike) = (demo::start(context)?, demo::start(context)?);
    let server = Server::builder().binary(context.binary()?).arg("--demo");
    let server =
        server.arg("--tls-cert").arg(file("127.0.0.1.pem")).arg("--tls-key").arg(file("127.0.0.1.key"));
    let tls = server.start()?;
    let (collector, heard) = collector()?;
    let traced =
        Server::builder().binary(context.binary()?).arg("--demo").arg("--otlp").arg(collector).start()?;
    // All servers are there before anybody connects: who connects and does not ask is cut off.
    let plain = Side::new(context, plain, None)?;
    let tls = Side::new(context, tls, Some(&file("ca.pem")))?;
    let traced = Side::new(context, traced, None)?;
    let alike = Side::new(context, alike, None)?;
    let mut sides = [plain, tls, traced, alike];
    for side in &mut sides {
        // Not counted: caches, the connection and the replica's own load.
        side.asks.block(rounds / 3, Duration::ZERO)?;
    }
    for block in 0..blocks {
        for turn in 0..sides.len() {
            sides[(block + turn) % 4].block(rounds)?;
        }
    }
    let [plain, tls, traced, alike] = sides;
    let mut added = Vec::new();
    for ((plain, tls), traced) in plain.seen.iter().zip(&tls.seen).zip(&traced.seen) {
        added.push([Side::median_us(plain)?, Side::median_us(tls)?, Side::median_us(traced)?]);
    }
    let median = |which: fn(&[f64; 3]) -> f64| {
        let values: Vec<f64> = added.iter().map(which).collect();
        stats::median(&values).context("no blocks")
    };
    let (of_plain, of_tls, ratio) = (median(|of| of[0])?, median(|of| of[1])?, median(|of| of[1] / of[0])?);
    let worst = added.iter().map(|of| of[1] / of[0]).fold(0.0, f64::max);
    let (of_traced, traced_ratio) = (median(|of| of[2])?, median(|of| of[2] / of[0])?);
    let traced_worst = added.iter().map(|of| of[2] / of[0]).fold(0.0, f64::max);
    let (cpu_plain, cpu_tls, cpu_traced) = (plain.cpu_us(), tls.cpu_us(), traced.cpu_us());

    let mut counts = Loop::start(&context.bench_program("count-loop")?, &[])?;
    counts.block(100, Duration::ZERO)?;
    let counted: Vec<f64> = (0..blocks.min(10))
        .map(
            |_| Ok(Side::median_us(&counts.block(context.choose(500, 50), Duration::ZERO)?)? * 1e3 / COUNTED),
        )
        .collect::<Result<_>>()?;
    let count_ns = stats::median(&counted).context("no counts")?;
    let scrape_ms = scraped(&plain.server)?;
    // Of tracing what a whole server spends on it, also on those that it traces beside the others: they are too few to move a median.
    let more = more_percent(&traced, &[&plain, &alike])?;
    let differs = more_percent(&alike, &[&plain])?;
    let (tracing, differ) =
        (stats::median(&more).context("no blocks")?, stats::median(&differs).context("no blocks")?);
    let counting = count_ns / 1e3 / cpu_plain * 100.0 + scrape_ms / 1e3 / SCRAPED_S * 100.0;
    let share = counting + tracing.max(0.0);
    let rows = added.iter();
    let rows = rows.map(|[plain, tls, traced]| json!({"plain_median_us": plain, "tls_median_us": tls, "traced_median_us": traced}));
    let rows = json!({
        "blocks": rows.collect::<Vec<Value>>(), "count_ns": counted,
        "plain_cpu_ns": plain.cpu_ns(), "tls_cpu_ns": tls.cpu_ns(), "traced_cpu_ns": traced.cpu_ns(),
        "alike_cpu_ns": alike.cpu_ns(), "queries_a_block": rounds,
    });
    plain.server.stop()?;
    tls.server.stop()?;
    traced.server.stop()?;
    alike.server.stop()?;
    let heard = heard.load(Ordering::Relaxed);
    ensure!(heard > 0, "the collector heard nothing, so nothing was traced");
    ensure!(cpu_plain > 0.0, "the server took no processor time, which cannot be");
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: rows,
        summary: json!({
            "plain_median_us": of_plain, "tls_median_us": of_tls, "tls_over_plain": ratio, "tls_over_plain_worst_block": worst,
            "plain_cpu_us_a_query": cpu_plain, "tls_cpu_us_a_query": cpu_tls,
            "traced_median_us": of_traced, "traced_over_plain": traced_ratio, "traced_over_plain_worst_block": traced_worst,
            "traced_cpu_us_a_query": cpu_traced, "trace_messages": heard,
            "count_ns_a_query": count_ns, "scrape_ms": scrape_ms, "counting_percent_of_cpu": counting,
            "tracing_percent_of_cpu": tracing, "alike_percent_of_cpu": differ, "telemetry_percent_of_cpu": share,
        }),
        result: format!(
            "HTTPS {ratio:.3} times HTTP (worst block {worst:.3}; {of_plain:.0} us and {of_tls:.0} us), processor {cpu_plain:.0} us and \
             {cpu_tls:.0} us a query; with 50 queries a second traced {traced_ratio:.3} times without (worst block {traced_worst:.3}), \
             processor {cpu_traced:.0} us a query ({tracing:.2} % more in the median of blocks; two servers that are alike differ by \
             {differ:.2} %); counting {count_ns:.0} ns a query and a scrape of {scrape_ms:.1} ms \
             each {SCRAPED_S} s: {counting:.2} % of a query's processor time and a core, {share:.2} % with what tracing takes"
        ),
        checks: vec![
            Check {
                what: "telemetry of processor time",
                value: share,
                limit: context.choose(3.0, 300.0),
                unit: "%",
            },
            Check {
                what: "a traced query, over plain",
                value: traced_ratio,
                limit: context.choose(1.03, 3.0),
                unit: "times",
            },
            Check {
                what: "a query by TLS, over plain",
                value: ratio,
                limit: context.choose(1.25, 3.0),
                unit: "times",
            },
        ],
    })
}

/// By how much more processor time one took than others in the mean, block by block, in percent.
fn more_percent(one: &Side, others: &[&Side]) -> Result<Vec<f64>> {
    let of = |side: &Side, block: usize| side.cpu[block].as_secs_f64();
    let block = |block: usize| {
        let mean = others.iter().map(|other| of(other, block)).sum::<f64>() / number(others.len());
        ensure!(mean > 0.0, "a server took no processor time, which cannot be");
        Ok((of(one, block) / mean - 1.0) * 100.0)
    };
    (0..one.cpu.len()).map(block).collect()
}

/// A collector that takes everything and reads nothing of it; where it is, and how many messages came.
fn collector() -> Result<(String, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, heard) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if taken(stream).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    Ok((format!("http://{address}"), heard))
}

/// One request, with its length in its head.
fn taken(stream: TcpStream) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        ensure!(reader.read_line(&mut line)? > 0, "it ended within its head");
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink())?;
    Ok(reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?)
}

/// How long the server is at telling its metrics, in the median.
fn scraped(server: &Server) -> Result<f64> {
    let mut connection = server.connect()?;
    let mut times = Vec::new();
    for _ in 0..11 {
        let begin = Instant::now();
        let told = connection.exchange(&Request::get("/metrics"))?;
        ensure!(told.status == 200, "{told}");
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    stats::median(&times).context("no scrapes")
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 ns")]
fn us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "a count of queries")]
fn number(count: usize) -> f64 {
    count as f64
}
