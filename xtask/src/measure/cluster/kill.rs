//! An executor of three killed under load, ten times: nothing stays unanswered, nothing is wrong, others take over.
//!
//! Each time the load runs on for a while; then the executor is started again and waited for. A query that was under way is
//! asked once more elsewhere by its gateway; the client asks once only.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use serde_json::{Value, json};

use super::{Ended, World, all_ended, bare, count, unix_ms, wrong};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cluster-kill",
    what: "kill -9 of an executor of three under load: queries without a word, wrong answers, time until others serve its share",
    run: measure,
};

const LATENCY: Duration = Duration::from_secs(1);
/// Between the load's begin and the kill.
const BEFORE: Duration = Duration::from_millis(1_500);
/// A query that is answered this much later than nearly all were before the kill felt it.
const FELT: Duration = Duration::from_millis(50);

fn measure(context: &Context) -> Result<Outcome> {
    let (rounds, ms, rate) = context.choose((10, 5_000, 200.0), (2, 4_000, 30.0));
    let nodes = ["one", "two", "three"];
    let settings: &[&str] = &["executor.lanes=1"];
    let mut world = World::start(context, &nodes.map(|name| (name, settings)))?;
    let mut load = world.load(context, LATENCY)?;
    let (mut rows, mut elsewhere, mut found) = (Vec::new(), Vec::new(), Found::default());
    for (round, victim) in nodes.iter().cycle().take(rounds).enumerate() {
        let seed = context.seed + round as u64;
        let question = json!({
            "do": "paced", "per_second": [rate], "ms": ms, "seed": seed, "connections": 64,
            "patience_ms": super::ms(LATENCY + super::PAST) + 500,
        });
        let (raw, killed) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| load.ask(&question));
            std::thread::sleep(BEFORE);
            let killed = unix_ms()?;
            world.cluster.kill(victim)?;
            let raw = asked.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))??;
            Ok::<_, anyhow::Error>((raw, killed))
        })?;
        let began = raw["began_unix_ms"].as_u64().context("when did it begin?")?;
        let at = killed.checked_sub(began).context("killed before the load began")?;
        let all = all_ended(&raw)?;
        found.add(&all, wrong(&raw)?);
        let felt = felt_for(&all, at)?;
        elsewhere.push(felt);
        rows.push(json!({
            "killed": victim, "killed_at_ms": at, "felt_for_ms": felt, "served_by": shares(&all, at),
            "load": bare(raw),
        }));
        world.cluster.start_again(victim)?;
        world.loaded()?;
    }
    drop(load);
    let of = |percent| stats::percentile(&elsewhere, percent).context("no rounds");
    let (median, worst) = (of(50)?, of(100)?);
    let refused: Vec<String> = found.named.iter().map(|(why, times)| format!("{times} {why}")).collect();
    Ok(Outcome {
        seeds: (0..rounds as u64).map(|round| context.seed + round).collect(),
        repetitions: Value::Array(rows),
        summary: json!({
            "killed": rounds, "sent": found.sent, "untold": found.untold, "wrong": found.wrong,
            "refused_by_name": found.named, "felt_for_ms_median": median, "felt_for_ms_worst": worst,
        }),
        result: format!(
            "{rounds} executors killed; of {} queries {} had neither answer nor named error by their deadline + 1 s, {} were \
             wrong, {} refused by name{}; the last query that felt it came {median} ms after the kill (worst {worst})",
            found.sent,
            found.untold,
            found.wrong,
            found.named.values().sum::<u64>(),
            if refused.is_empty() { String::new() } else { format!(" ({})", refused.join(", ")) },
        ),
        checks: vec![
            Check { what: "queries without a word", value: count(found.untold)?, limit: 0.0, unit: "" },
            Check { what: "wrong answers", value: count(found.wrong)?, limit: 0.0, unit: "" },
            Check {
                what: "worst time until others serve its share",
                value: count(worst)?,
                limit: context.choose(500.0, 2_500.0),
                unit: "ms",
            },
        ],
    })
}

#[derive(Default)]
struct Found {
    sent: usize,
    untold: usize,
    wrong: u64,
    named: std::collections::BTreeMap<String, u64>,
}

impl Found {
    fn add(&mut self, all: &[Ended], wrong: u64) {
        self.sent += all.len();
        self.wrong += wrong;
        for ended in all {
            if !ended.told(LATENCY) {
                self.untold += 1;
            } else if let Err(why) = &ended.how {
                *self.named.entry(why.clone()).or_default() += 1;
            }
        }
    }
}

/// How long after the kill the last query came that failed or was answered later than nearly all before.
fn felt_for(all: &[Ended], killed_ms: u64) -> Result<u64> {
    let before = all.iter().filter(|ended| ended.came_ms + 100 < killed_ms && ended.how.is_ok());
    let before: Vec<u64> = before.map(|ended| ended.took_us).collect();
    ensure!(!before.is_empty(), "nothing was answered before the kill");
    let usual = stats::percentile(&before, 99).context("checked above; this is a bug")?;
    let limit = usual + u64::try_from(FELT.as_micros())?;
    let felt = all.iter().filter(|ended| ended.how.is_err() || ended.took_us > limit);
    Ok(felt.map(|ended| ended.came_ms.saturating_sub(killed_ms)).max().unwrap_or(0))
}

/// Who answered how many of those that came after the kill.
fn shares(all: &[Ended], killed_ms: u64) -> Value {
    let mut shares = std::collections::BTreeMap::<&str, u64>::new();
    for ended in all.iter().filter(|ended| ended.came_ms > killed_ms) {
        *shares.entry(ended.how.as_deref().unwrap_or("nobody")).or_default() += 1;
    }
    json!(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_felt_until_the_last_late_or_failed_query_came() {
        let of = |came_ms, took_us, ok: bool| Ended {
            came_ms,
            took_us,
            how: if ok { Ok("one".into()) } else { Err("503 node_lost".into()) },
        };
        let calm = [of(100, 900, true), of(300, 1_000, true)];
        assert_eq!(felt_for(&[&calm[..], &[of(501, 1_200, true)]].concat(), 500).unwrap(), 0);
        assert_eq!(felt_for(&[&calm[..], &[of(520, 90_000, true)]].concat(), 500).unwrap(), 20);
        assert_eq!(felt_for(&[&calm[..], &[of(640, 10, false)]].concat(), 500).unwrap(), 140);
        assert!(felt_for(&[of(640, 10, true)], 500).is_err(), "nothing to compare with");
    }

    #[test]
    fn refusals_with_a_name_are_counted_apart_from_silence() {
        let mut found = Found::default();
        let of = |how: &str| Ended { came_ms: 0, took_us: 10, how: Err(how.into()) };
        found.add(&[of("503 node_lost"), of("no answer: closed")], 1);
        assert_eq!((found.sent, found.untold, found.wrong), (2, 1, 1));
        assert_eq!(found.named.get("503 node_lost"), Some(&1));
    }
}
