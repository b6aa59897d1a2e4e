//! Watching a job until it has ended: how far it is, how fast, and for how long about.

use super::patient::Patient;
use super::{at, figure, is_over};
use crate::client::{dollars, text};
use crate::progress::Phase;
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks: at first, as a small job is done soon, and then.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How fast it goes is told by so many looks.
const LOOKS: usize = 30;

/// What a job came to.
pub(super) fn watch(patient: &Patient, phase: &mut Phase, number: u64) -> anyhow::Result<Value> {
    let mut pace = Pace::default();
    let mut pause = LOOK.0;
    loop {
        let job = at(patient, phase, number)?;
        if is_over(&job) {
            return Ok(job);
        }
        let (ended, all) = (figure(&job, "done") + figure(&job, "failed"), figure(&job, "inputs"));
        pace.seen(Instant::now(), ended);
        let step = format!("{} {}", text(&job, "state"), ended.saturating_mul(10) / all.max(1));
        phase.far((ended, all), &step, &words(&job, pace.per_second()));
        patient.pause(pause);
        pause = (pause * 2).min(LOOK.1);
    }
}

/// How many ended when.
#[derive(Debug, Default)]
struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    fn seen(&mut self, now: Instant, ended: u64) {
        if self.0.len() >= LOOKS {
            self.0.pop_front();
        }
        self.0.push_back((now, ended));
    }

    /// Nothing where nobody can tell yet.
    fn per_second(&self) -> Option<f64> {
        let ((since, first), (now, last)) = (self.0.front()?, self.0.back()?);
        let seconds = now.duration_since(*since).as_secs_f64();
        let ended = u32::try_from(last.saturating_sub(*first)).unwrap_or(u32::MAX);
        (seconds >= 0.2).then(|| f64::from(ended) / seconds)
    }
}

fn words(job: &Value, per_second: Option<f64>) -> String {
    let [all, received, done, failed] =
        ["inputs", "received", "done", "failed"].map(|name| figure(job, name));
    if text(job, "state") == "receiving" {
        return format!("{received} of {all} inputs have come; the rest is still to be sent");
    }
    let mut words = format!("{done} of {all} answered");
    if failed > 0 {
        let _ = write!(words, ", {failed} failed");
    }
    let rest = u32::try_from(all.saturating_sub(done + failed)).unwrap_or(u32::MAX);
    match per_second {
        Some(rate) if rate > 0.0 => {
            let _ = write!(words, ", {rate:.0} a second, about {} left", left(f64::from(rest) / rate));
        }
        Some(_) => words.push_str(", waiting until nothing else has to be done"),
        None => {}
    }
    if figure(job, "done") > 0 && job["cost_usd"].is_number() {
        let _ = write!(words, ", {} USD so far", dollars(&job["cost_usd"]));
    }
    if job["late"] == true {
        words.push_str(", late for its deadline");
    }
    words
}

fn left(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn how_far_it_is_says_how_fast_and_for_how_long() {
        let mut job = json!({"state": "running", "inputs": 1000, "received": 1000, "done": 99, "failed": 1, "cost_usd": 0.00125});
        assert_eq!(
            words(&job, Some(10.0)),
            "99 of 1000 answered, 1 failed, 10 a second, about 90 s left, 0.00125 USD so far"
        );
        assert!(words(&job, Some(0.1)).contains("about 2 h left"));
        assert!(words(&job, Some(0.0)).contains("waiting until nothing else"));
        job["late"] = json!(true);
        assert!(words(&job, None).ends_with("late for its deadline"));
        job["state"] = json!("receiving");
        assert!(words(&job, None).contains("1000 of 1000 inputs have come"));
    }

    #[tokio::test(start_paused = true)]
    async fn how_fast_it_goes_is_told_by_the_latest_looks() {
        let mut pace = Pace::default();
        assert_eq!(pace.per_second(), None);
        for look in 0..100_u64 {
            pace.seen(Instant::now(), if look < 60 { look * 1_000 } else { 60_000 + look * 10 });
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(pace.per_second(), Some(10.0));
    }
}
