//! How many queries come late when they come at random at 70 % of what the executor can take, and how many must.
//!
//! *Late* is what is answered after its bound; *refused* is what was not answered because it would have been; *missed* is both, for
//! whoever refuses everything is never late. Each is told. Beside them stands the least that any policy could have missed:
//! found for the very same arrivals by somebody who knows them all, and to whom a batch takes what its profile says and nothing
//! else takes any time. Twice: of the arrivals as they were planned, which the simulator has as well, and of each run's as they
//! were really sent, by a generator that may have fallen behind. And the same arrivals, with the same profile, in the simulator.
//! All of it stands beside each other for each round and over all that was sent.
//!
//! And beside them a loop in one process, in the same turns: the same model, rate and bound, batches of what has come by then, and nobody who sends anything or
//! waits for anybody. What it is late with, the machine is.
//!
//! Both late and missed are held to 0.5 %. Where even the least misses more than that, it is what is missed beyond the least that
//! is held to 0.5 points; and where the loop is late with more, what is late beyond it is held to that as well: see `docs/adr/0138-late-and-missed.md`.
//!
//! The bound is five times what one query takes that is alone, asked through the same executor just before. Latency counts
//! from when a query should have come, so a generator that falls behind makes the figure worse and not better; how far it
//! fell behind is told beside it. The rates are those of `throughput`, found again here in the same minutes.
//!
//! Where not even the least is at most 0.5 % at 70 % of the peak, the peak is not what can be kept in this bound. Then it is
//! measured once more at 70 % of the highest rate of which at least 99.5 % could be answered in time, and this is called `kept`.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Map, Value, json};

use super::models::{Model, cnn_m, made};
use super::throughput::{direct, executor, rate};
use super::{Check, Context, Measure, Outcome};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "lateness",
    what: "share of queries later than 5x a lone one, at 70 % of the peak, Poisson and bursty (CV 4), by way of batching, \
           beside the least that any policy must miss",
    run: measure,
};

const LOAD: f64 = 0.7;
const TIMES_SINGLE: f64 = 5.0;
/// What of a rate may be missed that can be kept.
const KEPT: f64 = 0.005;
/// How queries come: name, coefficient of variation. The first is the one that is bound.
const SHAPES: [(&str, f64); 2] = [("poisson", 1.0), ("bursty", 4.0)];
/// The first is the default, and the one that is bound; the others are there to compare.
const MODES: [&str; 4] = ["deadline", "aimd", "fixed", "off"];
/// A fixed batch is half the largest and waits for as long as one query takes, as the simulator's is.
const FIXED: u32 = 16;

fn measure(context: &Context) -> Result<Outcome> {
    let mut models = vec![cnn_m(&context.root)];
    if !context.short {
        models.push(made(&context.root, "efficientnet_lite0")?);
        models.push(made(&context.root, "minilm_l6")?);
    }
    let (mut rows, mut results, mut checks, mut summary) = (Vec::new(), Vec::new(), Vec::new(), Map::new());
    let (mut seeds, mut missing) = (Vec::new(), 0);
    for model in &models {
        let found = late(context, model)?;
        let mut told = Map::new();
        for load in &found.loads {
            let least = middle(&load.least)?;
            let (bare_late, bare_missed) = (middle(&load.bare_late)?, middle(&load.bare_missed)?);
            let mut ways = Vec::new();
            for share in &load.shares {
                let (late, missed) = (middle(&share.late)?, middle(&share.missed)?);
                let (sim_late, sim) = (middle(&share.simulated_late)?, middle(&share.simulated)?);
                let refused = middle(&share.refused())?;
                ways.push(format!(
                    "{} {missed:.2} missed ({late:.2} late, {refused:.2} refused; simulated {sim:.2})",
                    share.mode
                ));
                let worst = |values: &[f64]| stats::percentile(values, 100).context("no rounds");
                told.insert(
                    format!("{} {}", share.mode, load.shape),
                    json!({
                        "late_percent_median": late, "late_percent_worst": worst(&share.late)?,
                        "refused_percent_median": refused, "refused_percent_worst": worst(&share.refused())?,
                        "missed_percent_median": missed, "missed_percent_worst": worst(&share.missed)?,
                        "simulated_late_percent_median": sim_late, "simulated_missed_percent_median": sim,
                        "least_percent_median": least, "per_second": load.per_second,
                        "least_as_sent_percent_median": middle(&share.least_sent)?, "over_all_sent": share.over_all(),
                        "bare_late_percent_median": bare_late, "bare_missed_percent_median": bare_missed,
                    }),
                );
            }
            let bound = load.shares.first().context("nobody was asked")?;
            let (sent, as_sent) = (bound.sent.iter().sum::<f64>(), middle(&bound.least_sent)?);
            let at =
                format!("{} {} {:.0} a second ({sent:.0} sent)", model.name, load.shape, load.per_second);
            results.push(format!(
                "{at}, in per cent: least {least:.2} ({as_sent:.2} as it was sent), a loop in one process {bare_missed:.2} missed ({bare_late:.2} late), {}",
                ways.join(", ")
            ));
            if load.shape != SHAPES[1].0 {
                check(context, model, load, &mut checks)?;
            }
        }
        told.insert("single_us".into(), json!(found.single_us));
        told.insert("bound_us".into(), json!(found.bound_us));
        summary.insert(model.name.into(), Value::Object(told));
        missing = missing.max(found.missing);
        seeds.extend(found.seeds);
        rows.push(json!({"model": model.name, "rounds": found.raw}));
    }
    let limit = context.choose(0.0, 2.0);
    checks.push(Check { what: "ways of batching missing", value: f64::from(missing), limit, unit: "" });
    seeds.sort_unstable();
    seeds.dedup();
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

fn middle(values: &[f64]) -> Result<f64> {
    stats::median(values).context("no rounds")
}

/// What is bound of the default way of batching: how much is late, and beyond what the machine is; how much is missed, or how much more than must be; and how
/// much more than by the better of the usual ways.
fn check(context: &Context, model: &Model, load: &Load, checks: &mut Vec<Check>) -> Result<()> {
    let [late, over_loop, over_least, over_others] = whats(model, load.shape);
    let of = |mode: &str| load.shares.iter().find(|share| share.mode == mode);
    let bound = of(MODES[0]).context("the default way of batching was not asked")?;
    let limit = context.choose(0.5, 60.0);
    let pairs = |of: &[f64], others: &[f64]| -> Result<f64> {
        middle(&of.iter().zip(others).map(|(of, other)| of - other).collect::<Vec<_>>())
    };
    checks.push(Check { what: late, value: middle(&bound.late)?, limit, unit: "%" });
    // What the machine is late with nobody can help.
    let value = beyond(middle(&bound.late)?, pairs(&bound.late, &load.bare_late)?, middle(&load.bare_late)?);
    checks.push(Check { what: over_loop, value, limit, unit: "%" });
    let over = |others: &[f64]| pairs(&bound.missed, others);
    let limit = context.choose(MISSED, 100.0);
    let value = beyond(middle(&bound.missed)?, over(&load.least)?, middle(&load.least)?);
    checks.push(Check { what: over_least, value, limit, unit: "%" });
    let others = ["aimd", "fixed"].into_iter().filter_map(of).map(|share| over(&share.missed));
    for value in others.collect::<Result<Vec<_>>>()? {
        checks.push(Check {
            what: over_others,
            value,
            limit: context.choose(OVER_OTHERS, 100.0),
            unit: "points",
        });
    }
    Ok(())
}

/// So much may be missed, in per cent, or more than must be.
const MISSED: f64 = 0.5;

/// What is held to that: what is missed; where even who knows all arrivals misses more than that, what is missed beyond him.
fn beyond(missed: f64, over_least: f64, least: f64) -> f64 {
    if least > MISSED { over_least } else { missed }
}

/// So much more may be missed than by another way of batching: what differs between two runs of the same.
const OVER_OTHERS: f64 = 0.25;

/// What is checked of a model, each in its own words.
macro_rules! whats {
    ($model:literal, $shape:literal) => {
        [
            concat!("late of ", $model, ", ", $shape),
            concat!("late of ", $model, ", beyond a loop where that is over 0.5, ", $shape),
            concat!("missed of ", $model, ", beyond the least where that is over 0.5, ", $shape),
            concat!("missed of ", $model, " over aimd or fixed, ", $shape),
        ]
    };
}

fn whats(model: &Model, shape: &str) -> [&'static str; 4] {
    match (model.name, shape == KEPT_SHAPE) {
        ("cnn_m", false) => whats!("cnn_m", "Poisson"),
        ("cnn_m", true) => whats!("cnn_m", "at the rate that can be kept"),
        ("efficientnet_lite0", false) => whats!("efficientnet_lite0", "Poisson"),
        ("efficientnet_lite0", true) => whats!("efficientnet_lite0", "at the rate that can be kept"),
        (_, false) => whats!("minilm_l6", "Poisson"),
        (_, true) => whats!("minilm_l6", "at the rate that can be kept"),
    }
}

const KEPT_SHAPE: &str = "kept";

/// One kind of load. All lists have a value for each round, in per cent.
struct Load {
    shape: &'static str,
    cv: f64,
    per_second: f64,
    least: Vec<f64>,
    /// What the loop in one process was late with and missed.
    bare_late: Vec<f64>,
    bare_missed: Vec<f64>,
    shares: Vec<Share>,
}

impl Load {
    fn new(shape: &'static str, cv: f64, per_second: f64) -> Self {
        let (least, bare_late, bare_missed, shares) = Default::default();
        Self { shape, cv, per_second, least, bare_late, bare_missed, shares }
    }
}

/// Of one way of batching under it.
struct Share {
    mode: &'static str,
    late: Vec<f64>,
    missed: Vec<f64>,
    simulated_late: Vec<f64>,
    simulated: Vec<f64>,
    /// The least of the arrivals as they were planned, and as they were sent.
    least: Vec<f64>,
    least_sent: Vec<f64>,
    /// How many were sent.
    sent: Vec<f64>,
}

impl Share {
    fn new(mode: &'static str) -> Self {
        Self {
            mode,
            late: Vec::new(),
            missed: Vec::new(),
            simulated_late: Vec::new(),
            simulated: Vec::new(),
            least: Vec::new(),
            least_sent: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Of all that was sent in all rounds, in per cent: ours beside the least, live and simulated.
    fn over_all(&self) -> Value {
        let sent: f64 = self.sent.iter().sum();
        let share = |each: &[f64]| {
            each.iter().zip(&self.sent).map(|(percent, sent)| percent * sent).sum::<f64>() / sent.max(1.0)
        };
        json!({
            "sent": sent, "late_percent": share(&self.late), "missed_percent": share(&self.missed),
            "least_percent": share(&self.least), "least_as_sent_percent": share(&self.least_sent),
            "simulated_late_percent": share(&self.simulated_late),
            "simulated_missed_percent": share(&self.simulated),
        })
    }

    /// What was not answered at all, in each round.
    fn refused(&self) -> Vec<f64> {
        self.missed.iter().zip(&self.late).map(|(missed, late)| missed - late).collect()
    }
}

struct Found {
    loads: Vec<Load>,
    single_us: f64,
    bound_us: f64,
    seeds: Vec<u64>,
    /// Ways of batching that could not be asked.
    missing: u32,
    raw: Vec<Value>,
}

fn late(context: &Context, model: &Model) -> Result<Found> {
    let short_batches = model.name == "cnn_m";
    let (rounds, count) = context.choose((3_u64, 300), (1, 50));
    // A model that answers a hundred times as many needs no longer for a figure as steady.
    let ms = context.choose(if short_batches { 2_000 } else { 4_000 }, 1_000);
    // Both are properties of the machine and the model: asked of the way of batching that is bound.
    let mut bound = executor(context, model, None)?;
    let single = bound.ask(&json!({"do": "single", "count": count, "gap_us": 1_000}))?;
    let single_us = single["latency"]["p50_us"].as_f64().context("no latency was told")?;
    let peaks = (0..3).map(|_| bound.ask(&json!({"do": "closed", "warm_ms": ms / 10, "ms": ms / 3})));
    let peaks = peaks.collect::<Result<Vec<_>>>()?;
    let peak = middle(&peaks.iter().map(rate).collect::<Result<Vec<_>>>()?)?;
    // A development build on a shared machine would be late at any load and bound worth the name.
    let per_second = peak * context.choose(LOAD, 0.1);
    let bound_us = single_us * context.choose(TIMES_SINGLE, 200.0);
    let (mut sides, missing) = others(context, model, bound, single_us)?;
    let told = sides.iter_mut().map(|side| side.executor.ask(&json!({"do": "variant"})));
    let told = told.collect::<Result<Vec<_>>>()?;
    let profile = profile(&told)?;
    let alone = profile[0]["mean_us"].as_f64().context("no mean")?;
    let mut simulator = Simulator {
        side: Side::start(&context.bench_program("sim-lateness")?, &[])?,
        // What one query takes that is alone, besides the run itself, is mostly handing over and back.
        given: json!({
            "model": model.name, "latency": profile, "max_batch": told[0]["max_batch"], "bound_us": bound_us,
            "handover_us": (single_us - alone).max(0.0), "ms": ms,
        }),
    };
    let load = |(shape, cv), per_second| Load::new(shape, cv, per_second);
    let mut bare = direct(context, model)?;
    let mut loads: Vec<Load> = SHAPES.map(|shape| load(shape, per_second)).into();
    if !context.short
        && let Some(kept) = simulator.kept(per_second, context.seed)?
    {
        loads.push(load((KEPT_SHAPE, SHAPES[0].1), kept * LOAD));
    }
    let mut raw = vec![json!({"single": single, "peaks": peaks, "variants": told, "given": simulator.given})];
    let mut seeds = Vec::new();
    for round in 0..rounds {
        let seed = context.seed.wrapping_add(round);
        seeds.push(seed);
        for load in &mut loads {
            // At the rate that can be kept only the ways that are bound or compared with are asked.
            let asked = if load.shape == KEPT_SHAPE { 3 } else { sides.len() };
            let ways = sides[..asked.min(sides.len())].iter().map(|side| side.batching.clone());
            let row = simulator.ask(load.per_second, load.cv, seed, &ways.collect::<Vec<_>>())?;
            load.least.push(share_of(&row, "least")?);
            let alone = bare.ask(&json!({
                "open": true, "per_second": load.per_second, "cv": load.cv, "ms": ms, "seed": seed, "bound_us": bound_us,
            }))?;
            load.bare_late.push(part_of(&alone, "late")?);
            load.bare_missed.push(part_of(&alone, "missed")?);
            raw.push(json!({"mode": "bare", "arrivals": load.shape, "seed": seed, "per_second": load.per_second, "seen": alone}));
            for (at, side) in sides.iter_mut().take(asked).enumerate() {
                let mut answer = side.executor.ask(&json!({
                    "do": "open", "per_second": load.per_second, "cv": load.cv, "ms": ms, "seed": seed,
                    "bound_us": bound_us,
                }))?;
                let as_sent = simulator.as_sent(&mut answer, &row)?;
                note(load, side.mode, &answer, &row["rows"][at], [&row, &as_sent])?;
                raw.push(json!({
                    "mode": side.mode, "batching": side.batching, "arrivals": load.shape, "seed": seed,
                    "per_second": load.per_second, "cv": load.cv, "ms": ms, "bound_us": bound_us,
                    "least": row["least"], "least_as_sent": as_sent["least"], "simulated": row["rows"][at],
                    "seen": answer,
                }));
            }
        }
    }
    Ok(Found { loads, single_us, bound_us, seeds, missing, raw })
}

/// An executor that batches in one way.
struct Asked {
    mode: &'static str,
    batching: String,
    executor: Side,
}

/// The executor that is bound and one for each other way; how many ways it does not know.
fn others(context: &Context, model: &Model, bound: Side, single_us: f64) -> Result<(Vec<Asked>, u32)> {
    let mut sides = vec![Asked { mode: MODES[0], batching: MODES[0].into(), executor: bound }];
    let mut missing = 0;
    for mode in &MODES[1..] {
        let batching = match *mode {
            "fixed" => format!("fixed:{FIXED}:{single_us:.0}us"),
            other => other.to_owned(),
        };
        let mut executor = executor(context, model, Some(&batching))?;
        // Not counted, and shows whether this way is known.
        match executor.ask(&json!({"do": "single", "count": 20, "gap_us": 1_000})) {
            Ok(_) => sides.push(Asked { mode, batching, executor }),
            Err(error) => {
                say(format!("{batching}: {error:#}"));
                missing += 1;
            }
        }
    }
    Ok((sides, missing))
}

/// Device times by batch. Every executor measured them when it started; for each batch size the middle one is taken. Which
/// sizes each measured depends a little on what it saw: those of the first count.
fn profile(told: &[Value]) -> Result<Vec<Value>> {
    let points = |variant: &Value| variant["profile"]["latency"].as_array().cloned();
    let all: Vec<Vec<Value>> = told.iter().filter_map(points).collect();
    let sizes: Vec<&Value> = all.first().into_iter().flatten().map(|point| &point["batch"]).collect();
    let mean = |point: &Value| point["mean_us"].as_f64().unwrap_or(f64::INFINITY);
    let middle = sizes.into_iter().filter_map(|size| {
        let of_executor = |points: &'_ Vec<Value>| points.iter().position(|point| point["batch"] == *size);
        let mut of_size: Vec<&Value> =
            all.iter().filter_map(|points| points.get(of_executor(points)?)).collect();
        of_size.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        of_size.get((of_size.len() - 1) / 2).map(|point| (*point).clone())
    });
    let middle: Vec<Value> = middle.collect();
    (!middle.is_empty()).then_some(middle).context("no device times were told")
}

/// The program that knows arrivals beforehand, with what is the same in all its questions.
struct Simulator {
    side: Side,
    given: Value,
}

impl Simulator {
    fn ask(&mut self, per_second: f64, cv: f64, seed: u64, ways: &[String]) -> Result<Value> {
        let mut question = self.given.clone();
        let fields = question.as_object_mut().context("an object; this is a bug")?;
        let arrivals = if cv > 1.0 { "bursty" } else { "poisson" };
        let more = [
            ("arrivals", json!(arrivals)),
            ("per_second", json!(per_second)),
            ("cv", json!(cv)),
            ("seed", json!(seed)),
            ("batching", json!(ways)),
        ];
        fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
        self.side.ask(&question)
    }

    /// The least of what was really sent, which leaves the answer. It was what was planned, and nothing else.
    fn as_sent(&mut self, answer: &mut Value, planned: &Value) -> Result<Value> {
        let sent = answer.as_object_mut().and_then(|answer| answer.remove("arrivals"));
        let mut question = self.given.clone();
        let fields = question.as_object_mut().context("an object; this is a bug")?;
        fields.insert("arrivals".to_owned(), json!("as sent"));
        fields.insert("sent".to_owned(), sent.context("it was not told when queries were sent")?);
        let found = self.side.ask(&question)?;
        let counts = [&found["queries"], &planned["queries"], &answer["seen"]["sent"]];
        ensure!(
            counts.iter().all(|count| count.is_u64() && *count == counts[0]),
            "of what was sent, planned and seen the numbers differ: {counts:?}"
        );
        Ok(found)
    }

    /// The highest rate below `per_second` of which hardly anything must be missed; `None` if that can be kept itself.
    fn kept(&mut self, per_second: f64, seed: u64) -> Result<Option<f64>> {
        let mut can = |rate: f64| -> Result<bool> {
            // Of three seeds, so that one burst does not decide.
            let mut least = 0.0;
            for seed in seed..seed + 3 {
                least +=
                    self.ask(rate, 1.0, seed, &[])?["least"].as_f64().context("no least was told")? / 3.0;
            }
            Ok(least <= KEPT)
        };
        if can(per_second)? {
            return Ok(None);
        }
        let (mut low, mut high) = (0.0, per_second);
        for _ in 0..10 {
            let rate = f64::midpoint(low, high);
            *(if can(rate)? { &mut low } else { &mut high }) = rate;
        }
        Ok(Some(low))
    }
}

fn share_of(row: &Value, which: &str) -> Result<f64> {
    Ok(row[which].as_f64().with_context(|| format!("no {which} was told"))? * 100.0)
}

fn percent(answer: &Value, which: &str) -> Result<f64> {
    part_of(&answer["seen"], which)
}

fn part_of(seen: &Value, which: &str) -> Result<f64> {
    let count = |name: &str| seen[name].as_f64().with_context(|| format!("no {name} was told"));
    Ok(count(which)? * 100.0 / count("sent")?.max(1.0))
}

fn note(
    load: &mut Load,
    mode: &'static str,
    answer: &Value,
    simulated: &Value,
    [planned, as_sent]: [&Value; 2],
) -> Result<()> {
    let at = load.shares.iter().position(|share| share.mode == mode).unwrap_or_else(|| {
        load.shares.push(Share::new(mode));
        load.shares.len() - 1
    });
    let share = &mut load.shares[at];
    share.late.push(percent(answer, "late")?);
    share.missed.push(percent(answer, "missed")?);
    share.simulated_late.push(share_of(simulated, "late")?);
    share.simulated.push(share_of(simulated, "missed")?);
    share.least.push(share_of(planned, "least")?);
    share.least_sent.push(share_of(as_sent, "least")?);
    share.sent.push(answer["seen"]["sent"].as_f64().context("how many were sent?")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_missed_and_not_late() {
        let answer = json!({"seen": {"sent": 200, "late": 1, "missed": 5}});
        assert!((percent(&answer, "late").unwrap() - 0.5).abs() < 1e-9);
        assert!((percent(&answer, "missed").unwrap() - 2.5).abs() < 1e-9);
        assert!(percent(&answer, "lost").is_err());
    }

    #[test]
    fn what_is_missed_is_bound_itself_unless_nobody_could_keep_that() {
        assert!((beyond(0.9, 0.7, 0.2) - 0.9).abs() < 1e-9, "the least could be kept");
        assert!((beyond(1.6, 0.7, 0.9) - 0.7).abs() < 1e-9, "the least could not");
        let share = Share { late: vec![0.25], missed: vec![1.0], ..Share::new(MODES[0]) };
        assert_eq!(share.refused(), [0.75]);
    }

    #[test]
    fn over_all_that_was_sent_each_query_counts_as_much_as_another() {
        let mut load = Load::new("poisson", 1.0, 1.0);
        for (sent, missed, least, as_sent) in [(100, 1, 0.0, 0.01), (300, 12, 0.02, 0.03)] {
            let answer = json!({"seen": {"sent": sent, "late": 0, "missed": missed}});
            let simulated = json!({"late": 0.0, "missed": 0.08});
            let least = [&json!({"least": least}), &json!({"least": as_sent})];
            note(&mut load, MODES[0], &answer, &simulated, least).unwrap();
        }
        let told = load.shares[0].over_all();
        let percent = |which: &str| told[which].as_f64().unwrap();
        assert!((percent("sent") - 400.0).abs() < 1e-9);
        assert!((percent("missed_percent") - 3.25).abs() < 1e-9, "{told}");
        assert!((percent("least_percent") - 1.5).abs() < 1e-9, "{told}");
        assert!((percent("least_as_sent_percent") - 2.5).abs() < 1e-9, "{told}");
        assert!((percent("simulated_missed_percent") - 8.0).abs() < 1e-9, "{told}");
    }

    #[test]
    fn of_several_profiles_the_middle_is_taken_for_each_batch_size() {
        let told = |one: f64, two: f64| json!({"profile": {"latency": [{"batch": 1, "mean_us": one}, {"batch": 2, "mean_us": two}]}});
        let points = profile(&[told(9.0, 10.0), told(5.0, 30.0), told(7.0, 11.0)]).unwrap();
        let means: Vec<f64> = points.iter().filter_map(|point| point["mean_us"].as_f64()).collect();
        assert_eq!(means, [7.0, 11.0]);
        assert!(profile(&[]).is_err());
    }
}
