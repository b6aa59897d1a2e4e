//! A host that changes under a running server: processes that burn its cores begin, and end. How long it takes until what is
//! predicted is within 15 % of what is seen again.
//!
//! One variant is asked alone at a steady pace. What is seen is the mean time of its batches, from being handed over to being
//! answered; what is predicted is the mean of its profile times the correction that the node makes known. A round counts only if what burned made the
//! model slower by a stated factor; whatever runs models is kept on one core, and that is the one that burns. It is tried again a
//! few times, and how often is told.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Request, Rng, Server};
use serde_json::{Value, json};

use super::burn::{Burners, Burning, LONG, WIDTH, keep_on, package, some_core};
use super::models::{Model, made};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "drift",
    what: "seconds until predictions are within 15 % of what is seen again, after other processes begin to burn cores and after they end",
    run: measure,
};

/// Between two queries.
const PACE: Duration = Duration::from_millis(2);
/// Between two looks at what is predicted.
const LOOK: Duration = Duration::from_millis(100);
/// What counts as right. In the short form predictions that stay where they were must still be wrong: by [`SLOWED`] that is 44 %.
const WITHIN: (f64, f64) = (0.15, 0.35);
/// A round in which the model became slower by less does not count.
const SLOWED: (f64, f64) = (1.3, 1.8);
/// Tries for each round that is to count.
const TRIES: usize = 2;
/// For how long predictions have to stay right.
const STAYS: Duration = Duration::from_secs(2);
/// Of a hundred looks after that, so many have to find them right.
const NEARLY_ALL: usize = 90;
/// Where an answer tells the 99th percentile that was predicted of its batch.
const PROMISED: &str = "modelless-predicted-run-ms";

fn measure(context: &Context) -> Result<Outcome> {
    // Shorter than what has a profile marked as stale: measuring it again would be seen too.
    let (calm, burn) = context.choose((8, 14), (5, 10));
    // Without a download there is none that wants so much of a core that it misses what burns.
    let folder = modelless_testkit::temp_dir("drift")?;
    let server = Server::builder().binary(context.binary()?).start()?;
    let asked = if context.short {
        package(folder.path())?;
        demo::register(&server, folder.path())?;
        Asked::of(&server, (LONG, "long-fp32", usize::try_from(WIDTH)?))?
    } else {
        let model = made(&context.root, "efficientnet_lite0")?;
        demo::register(&server, &model.package)?;
        Asked::of(&server, (model.task, model.variant, floats(&model)?))?
    };
    let core = some_core()?;
    let mut found = Vec::new();
    let (within, least) = (context.choose(WITHIN.0, WITHIN.1), context.choose(SLOWED.0, SLOWED.1));
    for &(burners, wanted) in context.choose(&[(1, 3), (3, 3)][..], &[(3, 1)][..]) {
        let mut tried = Found { burners, rounds: Vec::new(), uncounted: Vec::new() };
        while tried.rounds.len() < wanted && tried.tries() < TRIES * wanted {
            let (calm, burn) = (Duration::from_secs(calm), Duration::from_secs(burn));
            let one = round(&server, &asked, (calm, burn), Burning { burners, core }, within)?;
            if one.slowed > least {
                tried.rounds.push(one);
            } else {
                tried.uncounted.push(one.slowed);
            }
        }
        ensure!(
            tried.rounds.len() == wanted,
            "{} of {} rounds with {burners} processes that burn made the model slower by {least} and more ({:?} times in others), so \
             there is nothing to tell",
            tried.rounds.len(),
            tried.tries(),
            tried.uncounted
        );
        found.push(tried);
    }
    server.stop()?;
    let all = || found.iter().flat_map(|found| &found.rounds);
    let worst = |of: fn(&Round) -> f64| all().map(of).fold(0.0, f64::max);
    let (begun, ended, calm_off) = (worst(|r| r.begun), worst(|r| r.ended), worst(|r| r.calm_off));
    let said: Vec<String> =
        found.iter().map(|found| found.said(asked.name, within)).collect::<Result<_>>()?;
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: found
            .iter()
            .flat_map(|found| found.rounds.iter().map(|r| r.json(found.burners)))
            .collect(),
        summary: found.iter().map(|found| found.json(within, least)).collect::<Result<Value>>()?,
        result: said.join("; "),
        checks: vec![
            Check {
                what: "at worst before they began, off",
                value: calm_off * 100.0,
                limit: within * 100.0,
                unit: "%",
            },
            Check { what: "at worst after they began", value: begun, limit: 8.0, unit: "s" },
            // A second less than there is time for: what never becomes right again counts as all of it.
            Check {
                what: "at worst after they ended",
                value: ended,
                limit: context.choose(7.0, 4.0),
                unit: "s",
            },
        ],
    })
}

/// Numbers of one input.
fn floats(model: &Model) -> Result<usize> {
    let axes = |input: &Value| input["shape"].as_array().cloned().unwrap_or_default();
    let floats = |input: &Value| axes(input).iter().filter_map(Value::as_u64).product::<u64>();
    let all: u64 = model.inputs().as_array().context("inputs")?.iter().map(floats).sum();
    Ok(usize::try_from(all)?)
}

/// Rounds with so many burning processes.
struct Found {
    burners: usize,
    rounds: Vec<Round>,
    /// How many times as long it took in those that do not count.
    uncounted: Vec<f64>,
}

impl Found {
    fn tries(&self) -> usize {
        self.rounds.len() + self.uncounted.len()
    }

    fn of(&self, of: fn(&Round) -> f64) -> Result<(f64, f64)> {
        let all: Vec<f64> = self.rounds.iter().map(of).collect();
        let median = modelless_testkit::stats::median(&all).context("no rounds")?;
        Ok((median, all.into_iter().fold(0.0, f64::max)))
    }

    fn said(&self, name: &str, within: f64) -> Result<String> {
        let tried = format!("{} of {} rounds counted", self.rounds.len(), self.tries());
        let (slowed, _) = self.of(|round| round.slowed)?;
        let (begun, ended) = (self.of(|round| round.begun)?, self.of(|round| round.ended)?);
        let (off, above) = (self.of(|round| round.off)?, self.of(|round| round.above)?);
        Ok(format!(
            "{} burning ({tried}): {name} takes {slowed:.2} times as long; predictions within {:.0} % after {:.1} s (at worst {:.1}), and \
             {:.1} s (at worst {:.1}) after the end; settled, the predicted mean is off by {:.1} % and {:.1} % of batches are above \
             the promised p99",
            self.burners,
            within * 100.0,
            begun.0,
            begun.1,
            ended.0,
            ended.1,
            off.0 * 100.0,
            above.0 * 100.0
        ))
    }

    fn json(&self, within: f64, least: f64) -> Result<Value> {
        let told = json!({
            "burners": self.burners, "within": within, "slowed_at_least": least, "rounds": self.rounds.len(),
            "tries": self.tries(), "slowed_in_uncounted": self.uncounted,
        });
        let (begun, ended) = (self.of(|round| round.begun)?, self.of(|round| round.ended)?);
        let figures = json!({
            "slowed": self.of(|round| round.slowed)?.0,
            "seconds_after_begin": begun.0, "seconds_after_begin_at_worst": begun.1,
            "seconds_after_end": ended.0, "seconds_after_end_at_worst": ended.1,
            "calm_off": self.of(|round| round.calm_off)?.0, "settled_off": self.of(|round| round.off)?.0,
            "settled_above_p99": self.of(|round| round.above)?.0,
        });
        let both = [told, figures].into_iter().filter_map(|part| part.as_object().cloned());
        Ok(Value::Object(both.flatten().collect()))
    }
}

/// What is asked, again and again.
struct Asked {
    request: Request,
    task: &'static str,
    name: &'static str,
    variant: Value,
}

/// The number of a task's variant.
fn numbered(server: &Server, task: &str, name: &str) -> Result<Value> {
    let page = server.get_json(&format!("/v1/variants?task={task}"))?;
    let all = page["variants"].as_array().context("variants")?;
    Ok(all.iter().find(|variant| variant["name"] == name).context("its variant")?["id"].clone())
}

impl Asked {
    fn of(server: &Server, (task, name, floats): (&'static str, &'static str, usize)) -> Result<Self> {
        let body = demo::tensor_body(floats, &mut Rng::new(1));
        let request = demo::tensor_request(&format!("{task}?variant={name}&latency_ms=10000"), body);
        Ok(Self { request, task, name, variant: numbered(server, task, name)? })
    }
}

/// When, since the start, and a figure in milliseconds.
type Seen = Vec<(Duration, f64)>;

struct Round {
    begun: f64,
    ended: f64,
    slowed: f64,
    /// How far the predicted mean was off before anything burned, and in the second half of burning.
    calm_off: f64,
    off: f64,
    /// The share of that half's batches above what was promised.
    above: f64,
    runs: Seen,
    predicted: Seen,
    at: [Duration; 3],
}

impl Round {
    fn json(&self, burners: usize) -> Value {
        let points = |seen: &Seen| -> Value {
            seen.iter().map(|(at, value)| json!([at.as_millis(), (value * 1e4).round() / 1e4])).collect()
        };
        json!({
            "burners": burners, "seconds_after_begin": self.begun, "seconds_after_end": self.ended, "slowed": self.slowed,
            "calm_off": self.calm_off, "settled_off": self.off, "settled_above_p99": self.above,
            "began_ms": self.at[0].as_millis(), "ended_ms": self.at[1].as_millis(),
            // A mean of each tenth of a second: single queries would make the file large.
            "run_ms": points(&tenths(&self.runs)), "predicted_ms": points(&self.predicted),
        })
    }
}

fn round(
    server: &Server,
    asked: &Asked,
    (calm, burn): (Duration, Duration),
    burning: Burning,
    within: f64,
) -> Result<Round> {
    let (stop, seen) = (AtomicBool::new(false), Mutex::new((Seen::new(), Seen::new())));
    let alone = alone_ms(server, asked)?;
    // In memory, so that there is a process to keep somewhere.
    let warm = server.connect()?.exchange(&asked.request)?;
    ensure!(warm.status == 200, "{warm}");
    keep_on(burning.core, server.pid())?;
    let started = Instant::now();
    let (predicted, at) = thread::scope(|scope| {
        let asking = scope.spawn(|| ask(server, asked, started, &stop, &seen));
        let watched = (|| {
            let mut predicted = Seen::new();
            let mut watch = |until: Duration| -> Result<()> {
                while started.elapsed() < until && !asking.is_finished() {
                    predicted.push((started.elapsed(), alone * slowdown(server, asked)?));
                    thread::sleep(LOOK);
                }
                Ok(())
            };
            watch(calm)?;
            let burning = Burners::start(burning)?;
            let began = started.elapsed();
            watch(began + burn)?;
            drop(burning);
            let ended = started.elapsed();
            watch(ended + calm)?;
            Ok::<_, anyhow::Error>((predicted, [began, ended, started.elapsed()]))
        })();
        stop.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| anyhow::anyhow!("asking panicked"))??;
        watched
    })?;
    let now = alone_ms(server, asked)?;
    ensure!((now - alone).abs() < f64::EPSILON, "{} was measured again meanwhile", asked.name);
    let (runs, over) = seen.into_inner().context("whoever asked panicked")?;
    let [began, ended, end] = at;
    // The second half of each part, when it has settled.
    let settled =
        |seen: &Seen, from: Duration, to: Duration| mean(seen, from + to.saturating_sub(from) / 2, to);
    let of = |from: Duration, to: Duration| -> Result<(f64, f64)> {
        let seen = settled(&runs, from, to)?;
        Ok((seen, (settled(&predicted, from, to)? / seen - 1.0).abs()))
    };
    let (before, calm_off) = of(Duration::ZERO, began)?;
    let (burning, off) = of(began, ended)?;
    let (after, _) = of(ended, end)?;
    let right = |from, to, wanted: f64| right_within(&predicted, (from, to), wanted, within);
    Ok(Round {
        begun: right(began, ended, burning),
        ended: right(ended, end, after),
        slowed: burning / before,
        calm_off,
        off,
        above: settled(&over, began, ended)?,
        runs,
        predicted,
        at,
    })
}

fn ask(
    server: &Server,
    asked: &Asked,
    started: Instant,
    stop: &AtomicBool,
    seen: &Mutex<(Seen, Seen)>,
) -> Result<()> {
    let mut connection = server.connect()?;
    while !stop.load(Ordering::Relaxed) {
        let response = connection.exchange(&asked.request)?;
        ensure!(response.status == 200, "{response}");
        let ms = |name: &str| -> Result<f64> {
            Ok(response.header(name).with_context(|| format!("no {name}"))?.parse()?)
        };
        // Not what the model's process says of itself: that it waits for its core before it begins is felt, and learnt.
        let before = ms("modelless-queue-ms")? + ms("modelless-decode-ms")? + ms("modelless-prepare-ms")?;
        let (run, promised) = (ms("modelless-total-ms")? - before, ms(PROMISED)?);
        let mut seen = seen.lock().map_err(|_| anyhow::anyhow!("the other thread panicked"))?;
        seen.0.push((started.elapsed(), run));
        seen.1.push((started.elapsed(), f64::from(u8::from(run > promised))));
        drop(seen);
        thread::sleep(PACE);
    }
    Ok(())
}

/// What its profile says that one alone takes.
fn alone_ms(server: &Server, asked: &Asked) -> Result<f64> {
    let file = server.get_json(&format!("/v1/profiles?task={}&variant={}", asked.task, asked.name))?;
    let first = &file["profiles"][0]["profile"]["latency"][0];
    ensure!(first["batch"] == 1, "a profile without a batch of 1: {first}");
    Ok(first["mean_us"].as_f64().context("what it takes")? / 1e3)
}

/// How much slower than its profile the node says that the variant is.
fn slowdown(server: &Server, asked: &Asked) -> Result<f64> {
    let nodes = server.get_json("/v1/replicas")?;
    let all = nodes["replicas"].as_array().context("replicas")?;
    let replica = all.iter().find(|replica| replica["variant_id"] == asked.variant);
    Ok(replica.and_then(|replica| replica["slowdown"]["ratio"].as_f64()).unwrap_or(1.0))
}

fn mean(seen: &Seen, from: Duration, to: Duration) -> Result<f64> {
    let inside: Vec<f64> = seen.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, v)| *v).collect();
    ensure!(!inside.is_empty(), "nothing was seen between {from:?} and {to:?}");
    let count = u32::try_from(inside.len()).map_or(f64::MAX, f64::from);
    Ok(inside.iter().sum::<f64>() / count)
}

fn tenths(seen: &Seen) -> Seen {
    let mut all = Seen::new();
    for chunk in seen.chunks(10) {
        let count = u32::try_from(chunk.len()).map_or(f64::MAX, f64::from);
        let sum: f64 = chunk.iter().map(|(_, value)| value).sum();
        all.push((chunk[0].0, sum / count));
    }
    all
}

/// Seconds until what is predicted is `within` so much of what is `wanted`, stays so for [`STAYS`], and is so in nearly all looks
/// from then on; all of the time, if it never does.
fn right_within(predicted: &Seen, (from, to): (Duration, Duration), wanted: f64, within: f64) -> f64 {
    let looks: Vec<(Duration, bool)> = predicted
        .iter()
        .filter(|(at, _)| (from..to).contains(at))
        .map(|(at, value)| (*at, (value / wanted - 1.0).abs() <= within))
        .collect();
    let settled = |rest: &[(Duration, bool)]| {
        let begin = rest[0].0;
        let stays =
            rest.iter().take_while(|(at, _)| at.saturating_sub(begin) <= STAYS).all(|(_, right)| *right);
        let right = rest.iter().filter(|(_, right)| *right).count();
        // Not only at the very end, where there is nothing left to be wrong.
        stays && to.saturating_sub(begin) >= STAYS && right * 100 >= rest.len() * NEARLY_ALL
    };
    let since = (0..looks.len()).find(|&at| settled(&looks[at..])).map_or(to, |at| looks[at].0);
    since.saturating_sub(from).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_for_a_moment_only_does_not_count() {
        let seconds = Duration::from_secs_f64;
        let seen: Seen = [(0.0, 1.0), (1.0, 2.0), (1.5, 1.2), (2.0, 1.9), (3.0, 2.1), (4.0, 2.0), (5.0, 2.0)]
            .map(|(at, value)| (seconds(at), value))
            .to_vec();
        let part = (seconds(0.5), seconds(6.0));
        assert!((right_within(&seen, part, 2.0, WITHIN.0) - 1.5).abs() < 1e-9);
        assert!((right_within(&seen, part, 5.0, WITHIN.0) - 5.5).abs() < 1e-9);
        assert!((mean(&seen, seconds(3.0), seconds(6.0)).unwrap() - 6.1 / 3.0).abs() < 1e-9);
        assert!(mean(&seen, seconds(7.0), seconds(8.0)).is_err());
    }

    #[test]
    fn predictions_that_stay_where_they_were_are_wrong_in_either_form() {
        let seen: Seen = (0..100).map(|at| (Duration::from_millis(100 * at), 1.0)).collect();
        let part = (Duration::ZERO, Duration::from_secs(10));
        for (within, slowed) in [(WITHIN.0, SLOWED.0), (WITHIN.1, SLOWED.1)] {
            assert!((right_within(&seen, part, slowed, within) - 10.0).abs() < 1e-9, "{slowed}");
        }
    }
}
