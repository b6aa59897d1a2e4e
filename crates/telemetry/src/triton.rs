//! The same counts as Triton makes them, under its names: dashboards and tools that know Triton read them.
//!
//! A task is its `model`, a variant's number its `version`. Times are sums in microseconds, as there. A request is counted once, however many
//! queries its rows are, by the variant that its answer names, with the times of the slowest of them that ran there; inferences and batches are
//! counted by query. What failed was answered by no variant, so it stands under version 0. Their type is `unknown` because OpenMetrics would have counters end in `_total`, which
//! Triton's do not.

mod batches;

pub use batches::OfSize;

use self::batches::Batches;
use crate::bounded::OTHERS;
use modelless_types::Micros;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A batch is shared by its queries, each of which counts its share of it, in so many parts.
const PARTS: u64 = 1_000_000;

/// Where the time of an answered query went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Took {
    /// Waiting, at the gateway and at the node.
    pub queue: Micros,
    /// Decoding, and writing the batch.
    pub input: Micros,
    /// On the device.
    pub infer: Micros,
    /// What was left at the node: making the answer.
    pub output: Micros,
    /// Queries in its batch.
    pub batch: u32,
}

/// What one variant did.
#[derive(Debug, Default)]
pub struct Served {
    queries: AtomicU64,
    /// In [`PARTS`] of a batch.
    batches: AtomicU64,
    sizes: Batches,
    last_unix_ms: AtomicU64,
    requests: AtomicU64,
    requests_took: AtomicU64,
    /// Of the requests, those that ran, and where their time went.
    ran: AtomicU64,
    queue: AtomicU64,
    input: AtomicU64,
    infer: AtomicU64,
    output: AtomicU64,
    /// Answers that were given again, and how long that took.
    hits: AtomicU64,
    hits_took: AtomicU64,
    /// Its answers that had been looked for among those given before, and how long looking took.
    misses: AtomicU64,
    misses_took: AtomicU64,
}

/// What one variant did until now. Times in microseconds, all together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Queries that it ran.
    pub queries: u64,
    /// Batches they were in.
    pub batches: u64,
    /// When the last was answered, in milliseconds since 1970.
    pub last_unix_ms: u64,
    /// Requests answered, by what was given before too.
    pub requests: u64,
    /// From arrival to the answer of these.
    pub requests_took: u64,
    /// Of the requests, those of which something ran.
    pub ran: u64,
    /// Of those, waiting.
    pub queue: u64,
    /// Decoding and preparing.
    pub input: u64,
    /// On the device.
    pub infer: u64,
    /// Making answers.
    pub output: u64,
    /// Queries answered by what it had answered before.
    pub hits: u64,
    /// From arrival to the answer of these.
    pub hits_took: u64,
    /// Of `queries`, those that were looked for among answers given before, and not found.
    pub misses: u64,
    /// Looking for these.
    pub misses_took: u64,
}

impl Served {
    /// An answer of its was given again.
    pub fn given_again(&self, took: Micros) {
        self.hits_took.fetch_add(took.0, Ordering::Relaxed);
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// It answered what was looked for among answers given before, and not found.
    pub fn missed(&self, looked: Micros) {
        self.misses_took.fetch_add(looked.0, Ordering::Relaxed);
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// It ran a query.
    pub fn ran(&self, took: &Took) {
        self.sizes.count(took);
        self.batches.fetch_add(PARTS / u64::from(took.batch.max(1)), Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        self.last_unix_ms.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.queries.fetch_add(1, Ordering::Relaxed);
    }

    /// It answered a request, `total` after that arrived. `slowest` is of the queries that it ran for it; none if it ran none.
    pub fn answered(&self, total: Micros, slowest: Option<&Took>) {
        self.requests_took.fetch_add(total.0, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let Some(Took { queue, input, infer, output, batch: _ }) = slowest else { return };
        for (sum, time) in
            [(&self.queue, queue), (&self.input, input), (&self.infer, infer), (&self.output, output)]
        {
            sum.fetch_add(time.0, Ordering::Relaxed);
        }
        self.ran.fetch_add(1, Ordering::Relaxed);
    }

    /// What its batches took by their size, the smallest first. Bounded: a variant whose batches have more sizes tells of the first.
    pub fn sizes(&self) -> Vec<OfSize> {
        self.sizes.told()
    }

    /// Until now.
    pub fn totals(&self) -> Totals {
        let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        Totals {
            queries: of(&self.queries),
            batches: (of(&self.batches) + PARTS / 2) / PARTS,
            last_unix_ms: of(&self.last_unix_ms),
            requests: of(&self.requests),
            requests_took: of(&self.requests_took),
            ran: of(&self.ran),
            queue: of(&self.queue),
            input: of(&self.input),
            infer: of(&self.infer),
            output: of(&self.output),
            hits: of(&self.hits),
            hits_took: of(&self.hits_took),
            misses: of(&self.misses),
            misses_took: of(&self.misses_took),
        }
    }
}

/// Triton's reasons of a failure.
const REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// Requests to one task that were not answered, by those reasons.
#[derive(Debug, Default)]
pub(crate) struct Failed {
    counts: [AtomicU64; 4],
    took: AtomicU64,
}

impl Failed {
    /// By the reason's own name.
    pub(crate) fn count(&self, reason: &str, took: Micros) {
        let at = match reason {
            "too_late" | "queue_full" | "bytes_full" | "over_quota" | "loading" | "draining" => 0,
            "cancelled" => 1,
            "model_error" | "input_crashed" | "variant_failed" | "out_of_memory" | "node_lost" => 2,
            _ => 3,
        };
        self.took.fetch_add(took.0, Ordering::Relaxed);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
    }

    /// How many, and how long from their arrivals to their ends.
    pub(crate) fn all(&self) -> (u64, Micros) {
        let count = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        (count, Micros(self.took.load(Ordering::Relaxed)))
    }
}

/// Variants that have lines of their own, and tasks.
const SERVED_MOST: usize = 2_000;
const FAILED_MOST: usize = 500;

/// With whether it has lines of its own: those that came first do.
type Shown<T> = (Arc<T>, bool);

/// All tasks and variants.
#[derive(Debug, Default)]
pub(crate) struct Triton {
    served: Mutex<BTreeMap<(String, u32), Shown<Served>>>,
    failed: Mutex<BTreeMap<String, Shown<Failed>>>,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        let Self { queries, batches, last_unix_ms, requests, requests_took, ran, .. } = other;
        let Self { queue, input, infer, output, hits, hits_took, misses, misses_took, .. } = other;
        self.queries += queries;
        self.batches += batches;
        self.last_unix_ms = self.last_unix_ms.max(last_unix_ms);
        self.requests += requests;
        self.requests_took += requests_took;
        self.ran += ran;
        self.queue += queue;
        self.input += input;
        self.infer += infer;
        self.output += output;
        self.hits += hits;
        self.hits_took += hits_took;
        self.misses += misses;
        self.misses_took += misses_took;
    }
}

type Figure = fn(&Totals) -> u64;

impl Triton {
    pub(crate) fn served(&self, task: &str, version: u32) -> Arc<Served> {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let own = served.len() < SERVED_MOST;
        Arc::clone(&served.entry((task.to_owned(), version)).or_insert_with(|| (Arc::default(), own)).0)
    }

    pub(crate) fn failed(&self, task: &str) -> Arc<Failed> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let own = failed.len() < FAILED_MOST;
        Arc::clone(&failed.entry(task.to_owned()).or_insert_with(|| (Arc::default(), own)).0)
    }

    pub(crate) fn encode(&self, out: &mut String) {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals: Vec<(&str, u32, Totals)> = Vec::new();
        let mut rest: Option<Totals> = None;
        for ((task, version), (served, own)) in served.iter() {
            if *own {
                totals.push((task, *version, served.totals()));
            } else {
                *rest.get_or_insert_default() += served.totals();
            }
        }
        totals.extend(rest.map(|rest| (OTHERS, 0, rest)));
        let figures: [(&str, &str, Figure); 12] = [
            ("nv_inference_request_success", "Requests answered", |totals| totals.requests),
            ("nv_inference_count", "Queries answered by a run, as Triton counts inferences", |totals| {
                totals.queries
            }),
            ("nv_inference_exec_count", "Batches they were in", |totals| totals.batches),
            ("nv_inference_request_duration_us", "From arrival to the answer", |totals| totals.requests_took),
            ("nv_inference_queue_duration_us", "Waiting", |totals| totals.queue),
            ("nv_inference_compute_input_duration_us", "Decoding and preparing", |totals| totals.input),
            ("nv_inference_compute_infer_duration_us", "On the device", |totals| totals.infer),
            ("nv_inference_compute_output_duration_us", "Making answers", |totals| totals.output),
            ("nv_cache_num_hits_per_model", "Answers given again", |totals| totals.hits),
            ("nv_cache_hit_duration_per_model", "From arrival to these", |totals| totals.hits_took),
            (
                "nv_cache_num_misses_per_model",
                "Answers looked for among those given before, in vain",
                |totals| totals.misses,
            ),
            ("nv_cache_miss_duration_per_model", "Looking for these", |totals| totals.misses_took),
        ];
        for (name, help, figure) in figures {
            head(out, name, help);
            for (task, version, totals) in &totals {
                let value = figure(totals);
                let _ = writeln!(out, "{name}{{model=\"{}\",version=\"{version}\"}} {value}", escaped(task));
            }
        }
        let name = "nv_inference_request_failure";
        head(out, name, "Requests that were not answered");
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts: Vec<(&str, [u64; 4])> = Vec::new();
        let mut rest: Option<[u64; 4]> = None;
        for (task, (failed, own)) in failed.iter() {
            let now = failed.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            if *own {
                counts.push((task, now));
            } else {
                let rest = rest.get_or_insert_default();
                rest.iter_mut().zip(now).for_each(|(all, more)| *all += more);
            }
        }
        counts.extend(rest.map(|rest| (OTHERS, rest)));
        for (task, counts) in counts {
            for (reason, count) in REASONS.iter().zip(counts) {
                let task = escaped(task);
                let _ = writeln!(out, "{name}{{model=\"{task}\",version=\"0\",reason=\"{reason}\"}} {count}");
            }
        }
    }
}

fn head(out: &mut String, name: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}.\n# TYPE {name} unknown");
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_once_and_queries_share_their_batches() {
        let triton = Triton::default();
        let served = triton.served("t", 7);
        let ms = Micros::from_millis;
        let took = Took { queue: ms(1), input: ms(2), infer: ms(3), output: ms(1), batch: 3 };
        for _ in 0..6 {
            triton.served("t", 7).ran(&took);
        }
        // Four rows, two, and one that was given again.
        served.answered(ms(20), Some(&took));
        served.answered(ms(9), Some(&took));
        served.answered(ms(1), None);
        served.given_again(ms(1));
        served.missed(ms(2));
        let totals = served.totals();
        assert_eq!((totals.queries, totals.batches, totals.requests, totals.ran), (6, 2, 3, 2));
        assert_eq!((totals.requests_took, totals.infer, totals.hits), (30_000, 6_000, 1));
        assert!(totals.last_unix_ms > 1_600_000_000_000);
        assert_eq!(served.sizes().iter().map(|of| (of.size, of.batches)).collect::<Vec<_>>(), [(3, 2)]);
        triton.failed("t").count("too_late", ms(5));
        triton.failed("t").count("something", ms(2));
        assert_eq!(triton.failed("t").all(), (2, ms(7)));
        let mut text = String::new();
        triton.encode(&mut text);
        for line in [
            r#"nv_inference_request_success{model="t",version="7"} 3"#,
            r#"nv_inference_count{model="t",version="7"} 6"#,
            r#"nv_cache_num_hits_per_model{model="t",version="7"} 1"#,
            r#"nv_cache_hit_duration_per_model{model="t",version="7"} 1000"#,
            r#"nv_cache_num_misses_per_model{model="t",version="7"} 1"#,
            r#"nv_cache_miss_duration_per_model{model="t",version="7"} 2000"#,
            r#"nv_inference_exec_count{model="t",version="7"} 2"#,
            r#"nv_inference_request_duration_us{model="t",version="7"} 30000"#,
            r#"nv_inference_compute_infer_duration_us{model="t",version="7"} 6000"#,
            r#"nv_inference_request_failure{model="t",version="0",reason="REJECTED"} 1"#,
            r#"nv_inference_request_failure{model="t",version="0",reason="OTHER"} 1"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
    }
}
