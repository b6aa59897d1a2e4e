//! Queries that come at set times, whatever has become of those before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use modelless_decision::Moments;
use modelless_simulator::Rng;
use modelless_testkit::stats;
use serde_json::{Value, json};

use crate::node::{End, How, Node};
use crate::sender::Sender;
use crate::timing::{nanos, percentiles};

/// Times between arrivals of a given rate and coefficient of variation, gamma-distributed as the simulator draws them too;
/// with a coefficient of 1 that is a Poisson process.
#[derive(Debug)]
pub struct Gaps {
    rng: Rng,
    /// In nanoseconds.
    gap: Moments,
}

impl Gaps {
    /// So many a second.
    pub fn new(per_second: f64, cv: f64, seed: u64) -> Self {
        let mean = 1e9 / per_second;
        Self { rng: Rng::new(seed, "arrivals"), gap: Moments { mean, var: mean * mean * cv * cv } }
    }

    fn draw(&mut self) -> Duration {
        // The generator gives a whole number of whatever unit the moments are in.
        Duration::from_nanos(self.rng.duration(self.gap).0)
    }

    /// When queries come within a time from its start.
    pub fn until(mut self, time: Duration) -> impl Iterator<Item = Duration> {
        let mut due = Duration::ZERO;
        std::iter::from_fn(move || {
            due += self.draw();
            (due < time).then_some(due)
        })
    }
}

/// What came of an open load.
#[derive(Debug, Default)]
pub struct Seen {
    /// Queries sent.
    pub sent: usize,
    /// Answered within the bound.
    pub in_time: usize,
    /// Those that were answered: when each should have come, and how long from then to its answer.
    pub answered: Vec<(Instant, Duration)>,
    refused: BTreeMap<&'static str, usize>,
    sizes: BTreeMap<u32, u64>,
    /// Time on the device of each batch's queries, in microseconds, by the batch's size.
    runs: BTreeMap<u32, Vec<u64>>,
    /// When each should have been sent, since the start, and how much later it was.
    planned: Vec<u64>,
    lags: Vec<u64>,
}

impl Seen {
    fn note(&mut self, came: &[Instant], bound: Duration, end: &End) -> Result<()> {
        let came = came.get(usize::try_from(end.key)?).context("an end of a query that was never sent")?;
        match &end.how {
            How::Answered { batch, run, .. } => {
                let took = end.at.saturating_duration_since(*came);
                self.in_time += usize::from(took <= bound);
                self.answered.push((*came, took));
                *self.sizes.entry(*batch).or_default() += 1;
                self.runs.entry(*batch).or_default().push(run.0);
            }
            How::Not(name, _) => *self.refused.entry(name).or_default() += 1,
        }
        Ok(())
    }

    /// When each query should have been sent and when it was, in nanoseconds since the start: what anybody could have made of
    /// these very arrivals is worked out from them.
    pub fn arrivals(&self) -> Value {
        let sent: Vec<u64> =
            self.planned.iter().zip(&self.lags).map(|(planned, lag)| planned + lag).collect();
        json!({"planned_ns": self.planned, "sent_ns": sent})
    }

    /// For the raw file. How far the sending itself fell behind is part of every latency, and told.
    pub fn json(&self) -> Value {
        let runs = self.runs.iter().map(|(batch, runs)| (batch, stats::median(runs)));
        let runs: BTreeMap<_, _> = runs.collect();
        let latencies: Vec<u64> = self.answered.iter().map(|(_, took)| nanos(*took)).collect();
        json!({
            "sent": self.sent, "in_time": self.in_time, "late": self.answered.len() - self.in_time,
            "missed": self.sent - self.in_time, "refused": self.refused,
            "latency": percentiles(&latencies), "sent_after_due": percentiles(&self.lags),
            "queries_by_batch": self.sizes, "run_us_median_by_batch": runs,
        })
    }
}

/// Sends queries to the first model of a node. `tick` is called between them, at least every 20 ms.
pub fn run(
    node: &Node,
    inputs: &[Bytes],
    gaps: Gaps,
    time: Duration,
    bound: Duration,
    mut tick: impl FnMut(Instant),
) -> Result<Seen> {
    const TICK: Duration = Duration::from_millis(20);
    let mut sender = Sender::new(node, 0, inputs, bound)?;
    let (mut came, mut seen, mut ends) = (Vec::new(), Seen::default(), Vec::new());
    let start = Instant::now() + TICK;
    let mut coming = gaps.until(time).map(|after| start + after).peekable();
    while let Some(&due) = coming.peek() {
        let now = Instant::now();
        tick(now);
        if now >= due {
            seen.planned.push(nanos(due - start));
            seen.lags.push(nanos(now - due));
            came.push(due);
            sender.offer(due);
            coming.next();
        } else {
            node.link.ends(&mut ends, due.min(now + TICK));
        }
        for end in ends.drain(..) {
            sender.ended(end.key);
            seen.note(&came, bound, &end)?;
        }
    }
    finish(node, &mut sender, |end| seen.note(&came, bound, end))?;
    let lapsed = sender.lapsed().len();
    *seen.refused.entry("no_credit_in_time").or_default() += lapsed;
    seen.sent = came.len();
    let ended = seen.answered.len() + seen.refused.values().sum::<usize>();
    ensure!(ended == seen.sent, "{ended} of {} queries ended", seen.sent);
    Ok(seen)
}

/// Waits for what is under way.
pub fn finish(node: &Node, sender: &mut Sender<'_>, mut each: impl FnMut(&End) -> Result<()>) -> Result<()> {
    let until = Instant::now() + Duration::from_mins(1);
    let mut ends = Vec::new();
    while sender.outstanding() > 0 {
        ensure!(Instant::now() < until, "{} queries never ended", sender.outstanding());
        node.link.ends(&mut ends, until);
        for end in ends.drain(..) {
            sender.ended(end.key);
            each(&end)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_and_the_variation_that_were_asked_for() {
        for cv in [1.0, 4.0] {
            let mut gaps = Gaps::new(1_000.0, cv, 7);
            let all: Vec<f64> = (0..400_000).map(|_| gaps.draw().as_secs_f64()).collect();
            let mean = all.iter().sum::<f64>() / 400_000.0;
            let var = all.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 400_000.0;
            assert!((mean * 1_000.0 - 1.0).abs() < 0.05, "{mean}");
            assert!((var.sqrt() / mean / cv - 1.0).abs() < 0.1, "{} for {cv}", var.sqrt() / mean);
        }
    }
}
