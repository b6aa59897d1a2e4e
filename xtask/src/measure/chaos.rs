//! Runners killed at random under load: no query lost or wrong, and other models hardly feel it.
//!
//! Three models answer at once while every two seconds some runner that serves one gets SIGKILL. Blocks with and without kills
//! alternate. What another model feels is told by the queries that did not come while their own model's runner had just died: for each
//! model the p99 of all such queries of all blocks with kills, over that of all its queries of all blocks without.
//!
//! Only a kill that hits a runner with a batch in it can lose anything, so only those count towards how many are asked for: blocks
//! go on until there are as many, within a bound. Which did is told afterwards by the server, that a batch ended with its runner;
//! to hit more often than by chance, it is waited for a moment until the runner seems to be at work. In full it is not held before it is killed: what
//! others wait for a runner that stands still is not what they feel of its death (*hostile* measures that).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::turns::Side;
use modelless_testkit::{Rng, Server, process, stats};
use serde_json::{Value, json};

use super::models::{Model, cnn_m, made, many, many_stream};
use super::{Check, Context, Measure, Outcome, demo};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "chaos",
    what: "kill -9 of a random runner every 2 s under load, until 30 had a batch in them: queries lost or wrong, p99 of the other \
           models",
    run: measure,
};

/// The short form's, which are here without anything being fetched, all of one task.
const SMALL: [&str; 3] = ["cnn_m_fp32", "mlp_l_fp32", "cnn_s_fp32"];
/// How many a second are asked of them, and of cnn_m, EfficientNet-Lite0 and MiniLM-L6: the larger take tens of milliseconds each.
const SMALL_RATE: f64 = 30.0;
const RATES: [f64; 3] = [400.0, 10.0, 20.0];
const EVERY: Duration = Duration::from_secs(2);
/// Long enough to wait for a reload rather than be refused, and no longer.
const LATENCY_MS: u32 = 2_000;
/// For so long after its runner's death a model is its own concern.
const RECOVERS_MS: u64 = 1_000;
/// A batch that ended with its runner is told within so long of the runner's death, before or after.
const TOGETHER_MS: u64 = 500;
/// From so long before it was struck: those in the batch that died came before it was.
const BEFORE_MS: u64 = 100;
/// So long it is waited until a runner seems to be at work.
const PATIENCE: Duration = Duration::from_millis(200);
/// A runner that ran at least so many batches since the last kill is asked for.
const SERVES: u64 = 5;
/// Between two looks at whether it is: a batch takes some hundred microseconds.
const LOOKS: Duration = Duration::from_micros(50);

/// How often and how long.
struct Plan {
    /// For so long a runner is stopped before it is killed: only in the short form, whose runs are too short to hit by chance and whose times tell nothing.
    held: Duration,
    /// At least so many blocks, and at most.
    blocks: (u64, u64),
    ms: u64,
    /// Kills that hit.
    asked: usize,
}

/// Who is asked, and how much.
struct Served {
    /// As the catalogue has them, in the order of streams.
    names: Vec<&'static str>,
    rates: Vec<f64>,
    packages: Vec<PathBuf>,
    streams: Vec<Value>,
}

impl Served {
    fn of(context: &Context) -> Result<Self> {
        if context.short {
            let stream = |variant: &&str| many_stream(context, variant, LATENCY_MS);
            let streams = SMALL.iter().map(stream).collect::<Result<_>>()?;
            let packages = vec![many(&context.root)];
            return Ok(Self { names: SMALL.into(), rates: vec![SMALL_RATE; SMALL.len()], packages, streams });
        }
        let models: [Model; 3] = [
            cnn_m(&context.root),
            made(&context.root, "efficientnet_lite0")?,
            made(&context.root, "minilm_l6")?,
        ];
        Ok(Self {
            names: models.iter().map(|model| model.name).collect(),
            rates: RATES.into(),
            packages: models.iter().map(|model| model.package.clone()).collect(),
            streams: models
                .iter()
                .map(|model| model.checked_stream(context, LATENCY_MS))
                .collect::<Result<_>>()?,
        })
    }
}

fn measure(context: &Context) -> Result<Outcome> {
    let Plan { held, blocks: (least, most), ms, asked } = context.choose(
        Plan { held: Duration::ZERO, blocks: (3, 12), ms: 20_000, asked: 30 },
        Plan { held: Duration::from_millis(20), blocks: (1, 3), ms: 5_000, asked: 1 },
    );
    let served = Served::of(context)?;
    let server = Server::builder().binary(context.binary()?).start()?;
    for package in &served.packages {
        demo::register(&server, package)?;
    }
    let mut load = demo::load(context, &server, &served.streams)?;
    load.ask(&json!({"do": "learn"}))?;
    let mut rng = Rng::new(context.seed);
    let (mut rows, mut total) = (Vec::new(), Total::default());
    let mut felt: Vec<Felt> = served.names.iter().map(|_| Felt::default()).collect();
    let (mut costs, mut block) = (Vec::new(), 0);
    while block < least || (total.hit < asked && block < most) {
        let question =
            json!({"do": "paced", "per_second": served.rates, "ms": ms, "seed": context.seed + block});
        let kills_first = block % 2 == 1;
        let mut calm = if kills_first { None } else { Some(load.ask(&question)?) };
        let (raw, struck) =
            under_fire(&mut load, &question, &server, (Duration::from_millis(ms), held), &mut rng)?;
        if calm.is_none() {
            calm = Some(load.ask(&question)?);
        }
        let calm = calm.context("asked before or after; this is a bug")?;
        let died = once(told_of(&server, &served.names, &raw, "a runner died")?);
        let hits = hits(&died, &told_of(&server, &served.names, &raw, "a batch ended with its runner")?);
        let began = raw["began_unix_ms"].as_u64().context("when did it begin?")?;
        let moments: Vec<u64> = struck.iter().map(|at| at.saturating_sub(began)).collect();
        let deaths: Vec<Death> = died
            .into_iter()
            .zip(hits)
            .map(|((at, of), hit)| Death { at, since: felt_from(at, &moments), of, hit })
            .collect();
        for ((felt, calm), fire) in felt.iter_mut().zip(others(&calm, &[])?).zip(others(&raw, &deaths)?) {
            felt.add(calm, fire);
        }
        total.add(&calm, 0)?;
        let killed = struck.len();
        total.add(&raw, killed)?;
        costs.extend([demo::percent_of_a_core(&calm, ms), demo::percent_of_a_core(&raw, ms)]);
        let hit = deaths.iter().filter(|death| death.hit).count();
        total.hit += hit;
        let deaths: Vec<Value> =
            deaths.iter().map(|d| json!({"at_ms": d.at, "stream": d.of, "had_work": d.hit})).collect();
        rows.push(json!({
            "killed": killed, "killed_with_work": hit, "deaths": deaths, "calm": demo::bare(calm), "under_fire": demo::bare(raw),
        }));
        block += 1;
    }
    let missed = total.killed.saturating_sub(total.hit);
    drop(load);
    server.stop()?;
    if total.lost > 0 {
        say(format!("lost: {}", total.reasons.join(", ")));
    }
    let (mut ratios, mut told, mut of_models) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for (name, felt) in served.names.iter().zip(&felt) {
        let (calm, fire, ratio) = (p99(&felt.calm)?, p99(&felt.fire)?, felt.ratio()?);
        let worst = stats::percentile(&felt.blocks, 100).context("no blocks")?;
        told.push(format!("{name} {ratio:.2} (worst block {worst:.2})"));
        ratios.push(ratio);
        of_models.insert(
            (*name).into(),
            json!({"p99_us_calm": calm, "p99_us_with_kills": fire, "ratio": ratio, "ratio_blocks": felt.blocks}),
        );
    }
    let worst = stats::percentile(&ratios, 100).context("no models")?;
    Ok(Outcome {
        seeds: (0..block).map(|block| context.seed + block).collect(),
        repetitions: Value::Array(rows),
        summary: json!({
            "killed": total.killed, "killed_with_work": total.hit, "killed_without_work": missed,
            "asked_with_work": asked, "sent": total.sent, "lost": total.lost, "wrong": total.wrong,
            "models": of_models, "generator_percent": costs, "reasons": total.reasons,
        }),
        result: format!(
            "{} runners killed with a batch in them and {missed} without, {} of {} queries lost, {} wrong; p99 beside others' kills over \
             that without kills: {}; the generator took {:.1} % of a core",
            total.hit,
            total.lost,
            total.sent,
            total.wrong,
            told.join(", "),
            stats::median(&costs).context("no blocks")?
        ),
        checks: vec![
            Check { what: "queries lost", value: count(total.lost)?, limit: 0.0, unit: "" },
            Check { what: "wrong answers", value: count(total.wrong)?, limit: 0.0, unit: "" },
            Check {
                what: "kills of a runner with a batch in it, fewer than asked for",
                value: count(u64::try_from(asked.saturating_sub(total.hit))?)?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "p99 of the other models, with kills over without, of the model that feels most",
                value: worst,
                limit: context.choose(1.5, 50.0),
                unit: "",
            },
        ],
    })
}

/// Latencies of one model's queries: without kills, and with kills of others.
#[derive(Default)]
struct Felt {
    calm: Vec<u64>,
    fire: Vec<u64>,
    /// How much longer the p99 was in each block.
    blocks: Vec<f64>,
}

impl Felt {
    fn add(&mut self, calm: Vec<u64>, fire: Vec<u64>) {
        if let (Ok(calm), Ok(fire)) = (p99(&calm), p99(&fire)) {
            self.blocks.push(fire / calm);
        }
        self.calm.extend(calm);
        self.fire.extend(fire);
    }

    fn ratio(&self) -> Result<f64> {
        Ok(p99(&self.fire)? / p99(&self.calm)?)
    }
}

/// Asks while runners are killed. When those were struck that were.
fn under_fire(
    load: &mut Side,
    question: &Value,
    server: &Server,
    (time, held): (Duration, Duration),
    rng: &mut Rng,
) -> Result<(Value, Vec<u64>)> {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| load.ask(question));
        let (mut struck, rounds) = (Vec::new(), time.as_millis() / EVERY.as_millis());
        for _ in 0..rounds {
            let before: BTreeMap<u32, u64> =
                process::children(server.pid())?.into_iter().map(|(pid, _)| (pid, turns(pid))).collect();
            std::thread::sleep(EVERY);
            let mut runners = process::children(server.pid())?;
            // Not the spare, not what is kept for poison, and not what is in memory though nobody asks for it.
            runners.retain(|(pid, _)| turns(*pid) >= before.get(pid).copied().unwrap_or(0) + SERVES);
            if !runners.is_empty() && !asked.is_finished() {
                struck.extend(strike(rng.pick(&runners).0, held));
            }
        }
        let answer = asked.join().map_err(|_| anyhow::anyhow!("the load generator's thread panicked"))??;
        Ok((answer, struck))
    })
}

/// How often the threads of a runner that run batches have gone to sleep: about once a batch.
fn turns(pid: u32) -> u64 {
    let slept = |lane: PathBuf| {
        let status = fs::read_to_string(lane.join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    };
    lanes(pid).into_iter().filter_map(slept).sum()
}

/// Where the kernel tells of the threads of a runner that run batches.
fn lanes(pid: u32) -> Vec<PathBuf> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_lane = |thread: &PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("lane-"))
    };
    threads.map(|thread| thread.path()).filter(is_lane).collect()
}

/// Kills a runner, with a batch in it where one is seen. When, in milliseconds of Unix time, if it was there.
fn strike(pid: u32, held: Duration) -> Option<u64> {
    wait_for_work(pid);
    let victim = process::Other::open(pid).ok()?;
    let struck = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    if !held.is_zero() && victim.freeze().is_ok() {
        std::thread::sleep(held);
    }
    process::kill(pid).then(|| u64::try_from(struck.as_millis()).ok()).flatten()
}

/// From when on the model of a runner that died may have felt it. The death is told only when the last thread has ended, which takes a
/// while on a busy machine, so it counts from when the runner was struck.
fn felt_from(died: u64, struck: &[u64]) -> u64 {
    let last = struck.iter().copied().filter(|at| *at <= died).max();
    last.unwrap_or(died).saturating_sub(BEFORE_MS)
}

/// Until one of its lanes is at work, or for a while.
fn wait_for_work(pid: u32) {
    let until = Instant::now() + PATIENCE;
    let lanes = lanes(pid);
    let runs = |lane: &PathBuf| fs::read_to_string(lane.join("stat")).is_ok_and(|stat| is_running(&stat));
    while Instant::now() < until && !lanes.iter().any(runs) {
        std::thread::sleep(LOOKS);
    }
}

/// What the kernel says of a thread: its number, its name in brackets, its state.
fn is_running(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('R'))
}

/// A runner that died, when, of which stream, and whether a batch ended with it.
struct Death {
    at: u64,
    /// From when on its own model may have felt it: a little before it was struck.
    since: u64,
    of: usize,
    hit: bool,
}

/// Each death is told twice: by who keeps the runner and by who is served by it.
fn once(told: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
    let mut deaths: Vec<(u64, usize)> = Vec::new();
    for (at, of) in told {
        if !deaths.iter().any(|(when, whose)| *whose == of && when.abs_diff(at) <= TOGETHER_MS) {
            deaths.push((at, of));
        }
    }
    deaths
}

/// Of each death whether a batch of the same model ended at about the same time.
fn hits(deaths: &[(u64, usize)], ended: &[(u64, usize)]) -> Vec<bool> {
    let with = |(at, of): &(u64, usize)| {
        ended.iter().any(|(when, whose)| whose == of && when.abs_diff(*at) <= TOGETHER_MS)
    };
    deaths.iter().map(with).collect()
}

/// When the server said something of a model during a load, in milliseconds since it began, and of which stream.
fn told_of(server: &Server, names: &[&str], load: &Value, what: &str) -> Result<Vec<(u64, usize)>> {
    let words = format!("{what} model=model-");
    let began = load["began_unix_ms"].as_u64().context("when did it begin?")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let started = u64::try_from(now.saturating_sub(server.up_for()).as_millis())?;
    let list = server.get_json("/v1/models")?;
    let models = list["models"].as_array().context("no list of models")?;
    let stream_of = |id: u64| {
        let named = models.iter().find(|model| model["id"] == id)?["name"].as_str()?;
        names.iter().position(|served| *served == named)
    };
    let mut found = Vec::new();
    for (at, line) in server.timeline() {
        let Some(id) = line.split_once(&words).map(|(_, rest)| rest) else { continue };
        let id: String = id.chars().take_while(char::is_ascii_digit).collect();
        let at = (started + u64::try_from(at.as_millis())?).checked_sub(began);
        found.extend(at.zip(id.parse().ok().and_then(stream_of)));
    }
    Ok(found)
}

/// For each stream the latencies of queries that did not come while their own model's runner had just died.
fn others(load: &Value, deaths: &[Death]) -> Result<Vec<Vec<u64>>> {
    let mut all = Vec::new();
    for (number, stream) in load["streams"].as_array().context("no streams")?.iter().enumerate() {
        let mut kept = Vec::new();
        for pair in stream["answers"].as_array().context("no answers")? {
            let (at, took) = (pair[0].as_u64().context("when?")?, pair[1].as_u64().context("how long?")?);
            let own = |death: &Death| {
                let felt = death.since..death.at + RECOVERS_MS;
                death.of == number && felt.contains(&at)
            };
            if !deaths.iter().any(own) {
                kept.push(took);
            }
        }
        all.push(kept);
    }
    ensure!(all.iter().any(|kept| !kept.is_empty()), "nothing was answered");
    Ok(all)
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 us")]
fn p99(latencies: &[u64]) -> Result<f64> {
    Ok(stats::percentile(latencies, 99).context("no answers")?.max(1) as f64)
}

#[derive(Default)]
struct Total {
    killed: usize,
    /// Those of them that had a batch.
    hit: usize,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_feels_of_its_own_death_is_not_what_others_feel() {
        let load = json!({"streams": [{"answers": [[500, 9], [1_000, 900], [1_500, 800]]}, {"answers": [[1_000, 7]]}]});
        assert_eq!(others(&load, &[]).unwrap(), [vec![9, 900, 800], vec![7]]);
        let death = Death { at: 1_050, since: 950, of: 0, hit: true };
        assert_eq!(others(&load, &[death]).unwrap(), [vec![9], vec![7]]);
        assert!(others(&json!({"streams": []}), &[]).is_err());
    }

    #[test]
    fn a_death_that_is_told_late_was_felt_from_when_the_runner_was_struck() {
        assert_eq!(felt_from(2_800, &[2_000, 4_000]), 1_900);
        assert_eq!(felt_from(4_010, &[2_000, 4_000]), 3_900);
        assert_eq!(felt_from(50, &[]), 0);
    }

    #[test]
    fn a_kill_hits_where_a_batch_of_the_same_model_ended_with_its_runner() {
        let deaths = once(vec![(2_000, 0), (2_001, 0), (4_000, 1), (6_000, 0)]);
        // One of another model at the same time, and one of the same model at another.
        let ended = [(1_990, 0), (4_010, 2), (9_000, 0)];
        assert_eq!(hits(&deaths, &ended), [true, false, false]);
    }

    #[test]
    fn a_thread_is_at_work_when_the_kernel_says_that_it_runs() {
        assert!(is_running("17 (lane-0) R 1 1 0"));
        assert!(!is_running("17 (lane-0) S 1 1 0"));
        assert!(is_running("17 (odd) name) R 1"), "a name may hold a bracket");
        assert!(!is_running(""));
    }
}
