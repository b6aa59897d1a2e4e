//! What clients ask all the while, and what becomes of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use modelless_testkit::turns::Side;
use serde_json::{Value, json};

use super::world::HOME;
use crate::measure::cluster::{Ended, VARIANT, all_ended, ms};
use crate::measure::{Context, demo};

const LATENCY: Duration = Duration::from_secs(2);
/// What is asked is asked for so long, and then again, until it is to end.
const PART_MS: u64 = 2_000;
const PER_SECOND: f64 = 20.0;

/// What became of all queries.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) sent: u64,
    /// Answers of machines; the others are the home's.
    pub(super) by_machines: u64,
    pub(super) by_home: u64,
    pub(super) wrong: u64,
    /// Neither answer nor a "no" with a name by a second after the deadline.
    pub(super) untold: u64,
    /// After the deadline, or refused, by name.
    pub(super) late: u64,
    pub(super) refused: BTreeMap<String, u64>,
    /// Of everything that was not answered in time: when it came, in milliseconds since 1970, and what was said.
    pub(super) troubles: Vec<(u64, String)>,
}

impl Seen {
    fn add(&mut self, ended: &Ended, began_ms: u64) {
        self.sent += 1;
        let took = Duration::from_micros(ended.took_us);
        if ended.how.as_deref() == Ok(HOME) {
            self.by_home += 1;
        } else if ended.how.is_ok() {
            self.by_machines += 1;
        }
        let what = match &ended.how {
            _ if !ended.told(LATENCY) => {
                self.untold += 1;
                format!("{:?} after {took:?}", ended.how)
            }
            Ok(_) if took <= LATENCY => return,
            Ok(node) => {
                self.late += 1;
                format!("{node} answered after {took:?}")
            }
            Err(why) => {
                *self.refused.entry(why.clone()).or_default() += 1;
                format!("{why} after {took:?}")
            }
        };
        self.troubles.push((began_ms + ended.came_ms, what));
    }

    pub(super) fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Why, for a result's text.
    pub(super) fn reasons(&self) -> String {
        let reasons: Vec<String> = self.refused.iter().map(|(why, times)| format!("{times} {why}")).collect();
        if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) }
    }
}

pub(super) struct Queries {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Seen>>,
}

impl Queries {
    pub(super) fn start(context: &Context, gateway: SocketAddr) -> Result<Self> {
        let target =
            format!("/v1/tasks/{}?variant={VARIANT}&latency_ms={}", demo::TENSOR_TASK, LATENCY.as_millis());
        let stream = json!([{
            "target": target, "inputs": [{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}],
        }]);
        let (program, seed) = (context.bench_program("http-load")?, context.seed);
        let mut load =
            Side::start(&program, &[&gateway.to_string(), &stream.to_string(), &seed.to_string()])?;
        load.ask(&json!({"do": "learn"}))?;
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut seen, mut part) = (Seen::default(), seed);
            while !until.load(Ordering::Relaxed) {
                part += 1;
                let told = load.ask(&json!({
                    "do": "paced", "per_second": [PER_SECOND], "ms": PART_MS, "seed": part, "balanced": true,
                    "connections": 8, "patience_ms": 2 * ms(LATENCY),
                }))?;
                let began = told["began_unix_ms"].as_u64().context("when did it begin?")?;
                for ended in all_ended(&told)? {
                    seen.add(&ended, began);
                }
                seen.wrong += told["streams"][0]["wrong"].as_u64().context("how many were wrong?")?;
            }
            Ok(seen)
        });
        Ok(Self { stop, thread })
    }

    pub(super) fn end(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that asks panicked"))?
    }
}

/// For the raw file.
pub(super) fn json(seen: &Seen) -> Value {
    json!({
        "sent": seen.sent, "answered_by_machines": seen.by_machines, "answered_by_home": seen.by_home, "wrong": seen.wrong,
        "without_a_word": seen.untold, "late": seen.late, "refused_by_name": seen.refused,
        "troubles_unix_ms": seen.troubles,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_lateness_and_a_no_with_a_name_are_told_apart() {
        let mut seen = Seen::default();
        for (took_ms, how) in [
            (5, Ok("home")),
            (6, Ok("cloud-1")),
            (2_500, Ok("home")),
            (10, Err("503 node_lost")),
            (3_100, Err("503 too_late")),
            (10, Err("no answer: closed")),
        ] {
            let how = how.map(ToOwned::to_owned).map_err(ToOwned::to_owned);
            seen.add(&Ended { came_ms: 7, took_us: took_ms * 1_000, how }, 1_000);
        }
        assert_eq!((seen.sent, seen.by_home, seen.by_machines), (6, 2, 1));
        assert_eq!((seen.untold, seen.late, seen.refusals()), (2, 1, 1));
        assert_eq!((seen.troubles.len(), seen.reasons()), (4, " (1 503 node_lost)".to_owned()));
        assert!(seen.troubles.iter().all(|(at, _)| *at == 1_007));
    }
}
