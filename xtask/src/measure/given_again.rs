//! A query whose answer is given again against one that is asked anew where a task allows it, and one where it does not: what is
//! gained, and what looking and keeping take where nothing is found.
//!
//! One server and one connection, asked in turns, so that a slow minute of the host falls on all three. Part of `overhead`, whose
//! server is there already.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Connection, Request, Rng, Server, stats};
use serde_json::{Value, json};

use super::{Check, Context, demo};

const VARIANT: &str = "cnn_m-fp32";

/// What is asked in a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The task gives nothing again.
    Off,
    /// It does; every input is another one.
    Miss,
    /// It does; every input is the same.
    Hit,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Off, Self::Miss, Self::Hit];

    /// What each answer must say, so that no block measures something else.
    const fn told(self) -> Option<&'static [u8]> {
        match self {
            Self::Off => None,
            Self::Miss => Some(b"modelless-cache: miss"),
            Self::Hit => Some(b"modelless-cache: hit"),
        }
    }
}

/// What was found.
pub(super) struct GivenAgain {
    pub(super) repetitions: Vec<Value>,
    pub(super) summary: Value,
    pub(super) result: String,
    pub(super) checks: [Check; 2],
}

pub(super) fn measure(context: &Context, server: &Server) -> Result<GivenAgain> {
    let (blocks, rounds) = context.choose((15, 500), (3, 60));
    let mut rng = Rng::new(context.seed);
    let same = request(&mut rng);
    let mut connection = Connection::open(server.address())?;
    let mut run = |kind: Kind, rounds: usize| {
        let requests: Vec<Vec<u8>> = match kind {
            Kind::Off | Kind::Miss => (0..rounds).map(|_| request(&mut rng)).collect(),
            Kind::Hit => vec![same.clone(); rounds],
        };
        requests.iter().map(|request| ask(&mut connection, request, kind)).collect::<Result<Vec<u64>>>()
    };
    allow(server, "1h")?;
    Connection::open(server.address())?.exchange_whole(&same)?;
    let mut seen: [Vec<Vec<u64>>; 3] = Default::default();
    for block in 0..blocks {
        // Each begins in turn, so that none is always the one after another.
        for turn in 0..3 {
            let at = (block + turn) % 3;
            let kind = Kind::ALL[at];
            allow(server, if kind == Kind::Off { "off" } else { "1h" })?;
            // Not counted: after a change, and after hits, for which no model ran.
            run(kind, rounds / 5)?;
            seen[at].push(run(kind, rounds)?);
        }
    }
    allow(server, "off")?;
    let [off, miss, hit] = &seen;
    let figures = Figures::of(off, miss, hit)?;
    let repetition = |block: usize| json!({"mode": "given_again", "off_ns": off[block], "miss_ns": miss[block], "hit_ns": hit[block]});
    let limit = context.choose(50.0, 2_000.0);
    Ok(GivenAgain {
        repetitions: (0..blocks).map(repetition).collect(),
        summary: figures.json(),
        result: figures.line(),
        checks: [
            Check {
                what: "given again over asked anew",
                value: figures.hit / figures.miss,
                limit: 1.0,
                unit: "times",
            },
            Check {
                what: "added where nothing is found to give again",
                value: figures.added,
                limit,
                unit: "us",
            },
        ],
    })
}

/// For how long the task's answers may be given again; the next query sees it.
fn allow(server: &Server, time: &str) -> Result<()> {
    let change = Request::new("PATCH", &format!("/v1/tasks/{}", demo::TENSOR_TASK));
    let changed = server.send(&change.json(&json!({"cache": time})))?;
    ensure!(changed.status == 200, "{changed}");
    Ok(())
}

fn request(rng: &mut Rng) -> Vec<u8> {
    let body = demo::tensor_body(demo::TENSOR_FLOATS, rng);
    demo::tensor_request(&format!("{}?variant={VARIANT}", demo::TENSOR_TASK), body).to_bytes()
}

#[expect(clippy::disallowed_methods, reason = "a measure times real work")]
fn ask(connection: &mut Connection, request: &[u8], kind: Kind) -> Result<u64> {
    let began = Instant::now();
    let answer = connection.exchange_whole(request)?;
    let took = began.elapsed();
    let has = |words: &[u8]| answer.windows(words.len()).any(|part| part == words);
    let as_meant = kind.told().map_or_else(|| !has(b"modelless-cache"), has);
    ensure!(answer.starts_with(b"HTTP/1.1 200 ") && as_meant, "{}", String::from_utf8_lossy(answer));
    u64::try_from(took.as_nanos()).context("a query of centuries")
}

/// Medians in microseconds.
struct Figures {
    off: f64,
    miss: f64,
    hit: f64,
    /// Of blocks' medians: what a miss takes more than a query of a task that gives nothing again, and in the worst block.
    added: f64,
    worst_added: f64,
    /// The slowest hundredth of hits.
    hit_p99: f64,
}

impl Figures {
    fn of(off: &[Vec<u64>], miss: &[Vec<u64>], hit: &[Vec<u64>]) -> Result<Self> {
        let median = |values: &[u64]| stats::median(values).map(us).context("no rounds");
        let added = miss.iter().zip(off).map(|(miss, off)| Ok(median(miss)? - median(off)?));
        let added = added.collect::<Result<Vec<f64>>>()?;
        Ok(Self {
            off: median(&off.concat())?,
            miss: median(&miss.concat())?,
            hit: median(&hit.concat())?,
            added: stats::median(&added).context("no blocks")?,
            worst_added: stats::percentile(&added, 100).context("no blocks")?,
            hit_p99: stats::percentile(&hit.concat(), 99).map(us).context("no rounds")?,
        })
    }

    fn line(&self) -> String {
        let Self { off, miss, hit, added, worst_added, hit_p99 } = self;
        format!(
            "given again: {hit:.0} us (p99 {hit_p99:.0}), {:.2} times one asked anew ({miss:.0} us), which takes {added:+.0} us (worst \
             block {worst_added:+.0}) more than where nothing is given again ({off:.0} us)",
            hit / miss
        )
    }

    fn json(&self) -> Value {
        json!({
            "hit_median_us": self.hit, "hit_p99_us": self.hit_p99, "miss_median_us": self.miss, "off_median_us": self.off,
            "added_by_a_miss_median_of_blocks_us": self.added, "added_by_a_miss_worst_block_us": self.worst_added,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 ns")]
fn us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_miss_adds_is_compared_block_by_block() {
        let off = [vec![100_000, 100_000, 900_000], vec![400_000; 3]];
        let miss = [vec![110_000, 110_000, 110_000], vec![430_000; 3]];
        let hit = [vec![20_000; 3], vec![30_000, 20_000, 90_000]];
        let figures = Figures::of(&off, &miss, &hit).unwrap();
        assert_eq!((figures.added, figures.worst_added), (10.0, 30.0));
        assert_eq!((figures.hit, figures.hit_p99, figures.off), (20.0, 90.0, 400.0));
        assert!(Figures::of(&[], &[], &[]).is_err());
    }
}
