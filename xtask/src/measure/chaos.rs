//! Runners killed at random under load: no query lost or wrong, and other models hardly feel it.
//!
//! Three models answer at once while every two seconds some runner that serves one gets SIGKILL. Blocks with and without kills
//! alternate. What another model feels is told by the queries that did not come while their own model's runner had just died.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::turns::Side;
use modelless_testkit::{Rng, Server, process, stats};
use serde_json::{Value, json};

use super::models::{many, many_stream};
use super::{Check, Context, Measure, Outcome, demo};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "chaos",
    what: "kill -9 of a random runner every 2 s under load: queries lost or wrong, p99 of the other models",
    run: measure,
};

const SERVED: [&str; 3] = ["cnn_m_fp32", "mlp_l_fp32", "cnn_s_fp32"];
const EVERY: Duration = Duration::from_secs(2);
/// Long enough to wait for a reload rather than be refused, and no longer.
const LATENCY_MS: u32 = 2_000;
/// For so long after its runner's death a model is its own concern.
const RECOVERS_MS: u64 = 1_000;

fn measure(context: &Context) -> Result<Outcome> {
    let (blocks, ms, rate) = context.choose((3, 20_000, 500.0), (1, 5_000, 30.0));
    let server = Server::builder().binary(context.binary()?).start()?;
    demo::register(&server, &many(&context.root))?;
    let streams: Vec<Value> = SERVED.iter().map(|variant| many_stream(variant, LATENCY_MS)).collect();
    let mut load = demo::load(context, &server, &streams)?;
    load.ask(&json!({"do": "learn"}))?;
    let mut rng = Rng::new(context.seed);
    let (mut rows, mut ratios, mut total) = (Vec::new(), Vec::new(), Total::default());
    for block in 0..blocks {
        let question = json!({
            "do": "paced", "per_second": vec![rate; SERVED.len()], "ms": ms, "seed": context.seed + block,
        });
        let kills_first = block % 2 == 1;
        let mut calm = if kills_first { None } else { Some(load.ask(&question)?) };
        let (raw, killed) = under_fire(&mut load, &question, &server, Duration::from_millis(ms), &mut rng)?;
        if calm.is_none() {
            calm = Some(load.ask(&question)?);
        }
        let calm = calm.context("asked before or after; this is a bug")?;
        let deaths = deaths(&server, &raw)?;
        let (of_calm, of_raw) = (p99(&others(&calm, &[])?)?, p99(&others(&raw, &deaths)?)?);
        ratios.push(of_raw / of_calm);
        total.add(&calm, 0)?;
        total.add(&raw, killed)?;
        let deaths: Vec<Value> =
            deaths.iter().map(|(at, model)| json!({"at_ms": at, "stream": model})).collect();
        rows.push(json!({
            "p99_us_calm": of_calm, "p99_us_of_others": of_raw, "killed": killed, "deaths": deaths,
            "calm": demo::bare(calm), "under_fire": demo::bare(raw),
        }));
    }
    drop(load);
    server.stop()?;
    let of = |percent| stats::percentile(&ratios, percent).context("no blocks");
    let (median, worst) = (of(50)?, of(100)?);
    if total.lost > 0 {
        say(format!("lost: {}", total.reasons.join(", ")));
    }
    Ok(Outcome {
        seeds: (0..blocks).map(|block| context.seed + block).collect(),
        repetitions: Value::Array(rows),
        summary: json!({
            "killed": total.killed, "sent": total.sent, "lost": total.lost, "wrong": total.wrong,
            "p99_of_others_ratio_median": median, "p99_of_others_ratio_worst": worst, "reasons": total.reasons,
        }),
        result: format!(
            "{} runners killed, {} of {} queries lost, {} wrong; p99 of the other models {median:.2} times that without kills \
             (worst block {worst:.2})",
            total.killed, total.lost, total.sent, total.wrong
        ),
        checks: vec![
            Check { what: "queries lost", value: count(total.lost)?, limit: 0.0, unit: "" },
            Check { what: "wrong answers", value: count(total.wrong)?, limit: 0.0, unit: "" },
            Check {
                what: "blocks in which nothing was killed",
                value: flag(total.killed == 0),
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "p99 of the other models, with kills over without",
                value: median,
                limit: context.choose(1.5, 50.0),
                unit: "",
            },
        ],
    })
}

/// Asks while runners are killed. How many were.
fn under_fire(
    load: &mut Side,
    question: &Value,
    server: &Server,
    time: Duration,
    rng: &mut Rng,
) -> Result<(Value, usize)> {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| load.ask(question));
        let (mut killed, rounds) = (0, time.as_millis() / EVERY.as_millis());
        for _ in 0..rounds {
            std::thread::sleep(EVERY);
            let mut runners = process::children(server.pid())?;
            // Not the spare, and not what is kept for poison: those have no lane yet.
            runners.retain(|(pid, _)| has_lane(*pid));
            if !runners.is_empty() && !asked.is_finished() {
                killed += usize::from(process::kill(rng.pick(&runners).0));
            }
        }
        let answer = asked.join().map_err(|_| anyhow::anyhow!("the load generator's thread panicked"))??;
        Ok((answer, killed))
    })
}

/// Whether a runner has a thread that runs batches.
fn has_lane(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
        .any(|name| name.starts_with("lane-"))
}

/// When runners died during a load, in milliseconds since it began, and of which stream, as the server's log tells.
fn deaths(server: &Server, load: &Value) -> Result<Vec<(u64, usize)>> {
    let began = load["began_unix_ms"].as_u64().context("when did it begin?")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let started = u64::try_from(now.saturating_sub(server.up_for()).as_millis())?;
    let list = server.get_json("/v1/models")?;
    let models = list["models"].as_array().context("no list of models")?;
    let stream_of = |id: u64| {
        let named = models.iter().find(|model| model["id"] == id)?["name"].as_str()?;
        SERVED.iter().position(|served| *served == named)
    };
    let mut found = Vec::new();
    for (at, line) in server.timeline() {
        let Some(id) = line.split_once("a runner died model=model-").map(|(_, rest)| rest) else { continue };
        let id: String = id.chars().take_while(char::is_ascii_digit).collect();
        let at = (started + u64::try_from(at.as_millis())?).checked_sub(began);
        found.extend(at.zip(id.parse().ok().and_then(stream_of)));
    }
    found.dedup();
    Ok(found)
}

/// Latencies of queries that did not come while their own model's runner had just died.
fn others(load: &Value, deaths: &[(u64, usize)]) -> Result<Vec<u64>> {
    let mut kept = Vec::new();
    for (number, stream) in load["streams"].as_array().context("no streams")?.iter().enumerate() {
        for pair in stream["answers"].as_array().context("no answers")? {
            let (at, took) = (pair[0].as_u64().context("when?")?, pair[1].as_u64().context("how long?")?);
            // From a little before: those in the batch that died came before it did.
            let own = |(died, of): &(u64, usize)| {
                *of == number && (died.saturating_sub(100)..died + RECOVERS_MS).contains(&at)
            };
            if !deaths.iter().any(own) {
                kept.push(took);
            }
        }
    }
    ensure!(!kept.is_empty(), "nothing was answered");
    Ok(kept)
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 us")]
fn p99(latencies: &[u64]) -> Result<f64> {
    Ok(stats::percentile(latencies, 99).context("no answers")?.max(1) as f64)
}

#[derive(Default)]
struct Total {
    killed: usize,
    sent: u64,
    lost: u64,
    wrong: u64,
    reasons: Vec<String>,
}

impl Total {
    fn add(&mut self, load: &Value, killed: usize) -> Result<()> {
        self.killed += killed;
        for stream in load["streams"].as_array().context("no streams")? {
            self.sent += stream["sent"].as_u64().context("how many?")?;
            self.wrong += stream["wrong"].as_u64().context("how many wrong?")?;
            for (reason, count) in stream["lost"].as_object().context("what was lost?")? {
                self.lost += count.as_u64().unwrap_or(0);
                self.reasons.push(format!("{count} {reason}"));
            }
        }
        Ok(())
    }
}

fn count(of: u64) -> Result<f64> {
    Ok(f64::from(u32::try_from(of)?))
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_feels_of_its_own_death_is_not_what_others_feel() {
        let load = json!({"streams": [{"answers": [[500, 9], [1_000, 900], [1_500, 800]]}, {"answers": [[1_000, 7]]}]});
        assert_eq!(others(&load, &[]).unwrap(), [9, 900, 800, 7]);
        assert_eq!(others(&load, &[(1_050, 0)]).unwrap(), [9, 7]);
        assert!(others(&json!({"streams": []}), &[]).is_err());
    }
}
