//! A day of ServeGen's m-small in ten minutes, on machines that are processes of a pool, with real models and real pictures.
//!
//! What is compared: the platform as it is, which picks a variant for each query and has machines come and go; every query at the most
//! accurate variant, with all machines all day (static best); and each at the cheapest variant that keeps its floor, with one
//! machine all day (static cheapest). The two static ones pin the variant in the query, so everything else is the same program.
//!
//! Clients of the trace are dealt to four kinds of queries: a low or a high floor, a tight or a loose bound. Floors lie on the ladder's
//! way up, bounds are multiples of what the most accurate variant takes alone, and the mean rate is a part of what one machine
//! does with the cheapest variants that keep the floors, so that the day's peak is more than one machine should carry.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Value, json};

use super::pool::{Pool, Rented, rented};
use super::{Ended, PAST, count, ended_of, ms, unix_ms};
use crate::measure::ladder::{Kind, Ladder, Variant, kinds, variants};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "day",
    what: "a day of ServeGen's m-small in ten minutes, real models on machines that come and go: missed queries, accuracy served and machine-hours, against static best and static cheapest",
    run: measure,
};

const TRACE: &str = "simulator/data/traces/servegen_m-small_day2_top24.csv";
/// Windows of 600 s in a day.
const WINDOWS: f64 = 144.0;
const DAY_HOURS: f64 = 24.0;
const MACHINES: usize = 2;
/// The mean rate, as a part of what one machine does with the cheapest variants that keep the floors. At the peak it is 1.58 times as much.
const LOAD: f64 = 0.45;
const CONNECTIONS: u32 = 24;
/// More a second than this a laptop's load generator should not be asked for.
const MOST_PER_SECOND: f64 = 150.0;

fn measure(context: &Context) -> Result<Outcome> {
    let day = context.choose(Duration::from_mins(10), Duration::from_secs(12));
    let ladder = Ladder::of(context)?;
    let mut pool = Pool::start(context, &lines(context, 1, 1))?;
    pool.settles(1)?;
    pool.register(context, &ladder.package)?;
    pool.loaded(1)?;
    let asked = Asked::of(context, &pool, &ladder)?;
    let mut days = Vec::new();
    for way in [Way::Ours, Way::Best, Way::Cheapest] {
        let (least, most) = way.machines();
        pool.scheduler(&lines(context, least, most))?;
        pool.settles(least)?;
        pool.loaded(least)?;
        days.push(one_day(context, &pool, &asked, way, day)?);
    }
    let [ours, best, cheapest] = &days[..] else { anyhow::bail!("three days") };
    let kinds: Vec<String> = asked
        .kinds
        .iter()
        .map(|kind| format!("{:.4} within {} ms", kind.floor, kind.bound.as_millis()))
        .collect();
    Ok(Outcome {
        seeds: vec![context.seed],
        result: format!(
            "{:.0} queries a second on average over {} s, {} at 1 to {MACHINES} machines, floors and bounds {}: {}; static best ({}): {}; static \
             cheapest: {}",
            asked.per_second,
            day.as_secs(),
            ladder.task,
            kinds.join(", "),
            ours.said(),
            asked.best.name,
            best.said(),
            cheapest.said(),
        ),
        summary: json!({
            "task": ladder.task, "per_second": asked.per_second, "day_s": day.as_secs(), "kinds": kinds,
            "ours": ours.summary(), "static_best": best.summary(), "static_cheapest": cheapest.summary(),
        }),
        repetitions: days.iter().map(Day::json).collect(),
        checks: vec![
            Check {
                what: "answers below their floor",
                value: count(days.iter().map(|day| day.below).sum::<usize>())?,
                limit: 0.0,
                unit: "",
            },
            Check { what: "missed", value: ours.missed * 100.0, limit: context.choose(2.0, 60.0), unit: "%" },
            Check {
                what: "missed, beyond what static best misses",
                value: (ours.missed - best.missed) * 100.0,
                limit: context.choose(0.0, 60.0),
                unit: "points",
            },
            Check {
                what: "accuracy that static cheapest serves, beyond ours",
                value: (cheapest.accuracy - ours.accuracy) * 100.0,
                limit: context.choose(0.0, 5.0),
                unit: "points",
            },
            Check {
                what: "machine-hours over those of static best",
                value: ours.hours / best.hours,
                limit: context.choose(0.9, 1.1),
                unit: "times",
            },
        ],
    })
}

/// The pool's lines: it remembers for as long as two windows last, as a real one would for a while of its day.
fn lines(context: &Context, least: usize, most: usize) -> String {
    let remembered = context.choose(20, 10);
    format!(
        "remembered-s = {remembered}\ninterval-ms = 250\n---\nleast = {least}\nmost = {most}\nprice = 0.1\n"
    )
}

/// How a day is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Ours,
    Best,
    Cheapest,
}

impl Way {
    fn machines(self) -> (usize, usize) {
        match self {
            Self::Ours => (1, MACHINES),
            Self::Best => (MACHINES, MACHINES),
            Self::Cheapest => (1, 1),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Best => "static best",
            Self::Cheapest => "static cheapest",
        }
    }
}

struct Asked {
    task: &'static str,
    pictures: Vec<PathBuf>,
    all: Vec<Variant>,
    best: Variant,
    kinds: Vec<Kind>,
    per_second: f64,
    trace: PathBuf,
}

impl Asked {
    fn of(context: &Context, pool: &Pool, ladder: &Ladder) -> Result<Self> {
        let all = variants(
            &pool.get(&format!("/v1/profiles?task={}", ladder.task))?,
            &pool.get(&format!("/v1/variants?task={}", ladder.task))?,
        )?;
        let (best, kinds) = kinds(&all)?;
        let singles: Vec<f64> = kinds.iter().map(|kind| kind.cheapest.single_ms).collect();
        let mean = singles.iter().sum::<f64>() / count(singles.len())?;
        let per_second = (LOAD * 1e3 / mean).min(MOST_PER_SECOND);
        let (task, pictures, trace) = (ladder.task, ladder.pictures.clone(), context.root.join(TRACE));
        Ok(Self { task, pictures, all, best, kinds, per_second, trace })
    }

    fn streams(&self, way: Way) -> Value {
        let of = |kind: &Kind| {
            let pinned = match way {
                Way::Ours => String::new(),
                Way::Best => format!("&variant={}", self.best.name),
                Way::Cheapest => format!("&variant={}", kind.cheapest.name),
            };
            let (task, floor, bound) = (self.task, kind.floor, ms(kind.bound));
            json!({
                "target": format!("/v1/tasks/{task}?accuracy={floor:.4}&latency_ms={bound}{pinned}"), "files": self.pictures,
                "content_type": "image/png", "by": "modelless-variant",
            })
        };
        self.kinds.iter().map(of).collect()
    }

    fn accuracy(&self, name: &str) -> Result<f64> {
        let known = self.all.iter().find(|variant| variant.name == name);
        Ok(known.with_context(|| format!("{name} answered, which nobody registered"))?.accuracy)
    }
}

/// A day as it was served.
struct Day {
    way: Way,
    sent: usize,
    missed: f64,
    late: usize,
    /// Failures, by name.
    why: BTreeMap<String, usize>,
    /// Of those answered in time: the mean of their variants' measured accuracy.
    accuracy: f64,
    below: usize,
    by: BTreeMap<String, usize>,
    hours: f64,
    machines: Rented,
    /// For each window: how many came, were missed, and the mean accuracy.
    windows: Vec<Value>,
    p99_ms: f64,
}

fn one_day(context: &Context, pool: &Pool, asked: &Asked, way: Way, day: Duration) -> Result<Day> {
    let program = context.bench_program("http-load")?;
    let streams = asked.streams(way).to_string();
    let seed = context.seed.to_string();
    let mut load = Side::start(&program, &[&pool.gateway.to_string(), &streams, &seed])?;
    let longest = asked.kinds.iter().map(|kind| kind.bound).max().unwrap_or_default();
    let from = unix_ms()?;
    let raw = load.ask(&json!({
        "do": "day", "servegen": asked.trace, "window_s": day.as_secs_f64() / WINDOWS, "per_second": asked.per_second,
        "ms": ms(day), "seed": context.seed, "connections": CONNECTIONS, "patience_ms": ms(longest + PAST) + 500,
    }))?;
    let to = unix_ms()?;
    let machines = rented(&pool.get("/v1/machines?ended=1000&changes=0")?, (from, to))?;
    read(&raw, asked, (way, day), machines)
}

fn read(raw: &Value, asked: &Asked, (way, day): (Way, Duration), machines: Rented) -> Result<Day> {
    let streams = raw["streams"].as_array().context("streams")?;
    ensure!(streams.len() == asked.kinds.len(), "a stream for each kind");
    let mut all: Vec<(Ended, &Kind)> = Vec::new();
    for (stream, kind) in streams.iter().zip(&asked.kinds) {
        all.extend(ended_of(stream)?.into_iter().map(|ended| (ended, kind)));
    }
    all.sort_by_key(|(ended, _)| ended.came_ms);
    ensure!(!all.is_empty(), "nothing was asked");
    let (mut why, mut by) = (BTreeMap::new(), BTreeMap::new());
    let (mut late, mut below) = (0, 0);
    let mut good: Vec<(u64, f64)> = Vec::new();
    let mut took = Vec::new();
    for (ended, kind) in &all {
        let name = match &ended.how {
            Ok(name) => name,
            Err(failed) => {
                *why.entry(failed.clone()).or_default() += 1;
                continue;
            }
        };
        let accuracy = asked.accuracy(name)?;
        below += usize::from(accuracy < kind.floor);
        *by.entry(name.clone()).or_default() += 1;
        took.push(ended.took_us);
        if Duration::from_micros(ended.took_us) > kind.bound {
            late += 1;
        } else {
            good.push((ended.came_ms, accuracy));
        }
    }
    let mean = |of: &[(u64, f64)]| -> Result<f64> {
        Ok(of.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / count(of.len().max(1))?)
    };
    let mut windows = Vec::new();
    let window = (ms(day) / 48).max(1); // half an hour of the day
    for from in (0..ms(day)).step_by(usize::try_from(window)?) {
        let then = from..from + window;
        let came = all.iter().filter(|(ended, _)| then.contains(&ended.came_ms)).count();
        let kept: Vec<(u64, f64)> = good.iter().filter(|(at, _)| then.contains(at)).copied().collect();
        windows.push(json!([came, came - kept.len(), (mean(&kept)? * 1e4).round() / 1e4]));
    }
    Ok(Day {
        way,
        sent: all.len(),
        missed: 1.0 - count(good.len())? / count(all.len())?,
        late,
        why,
        accuracy: mean(&good)?,
        below,
        by,
        hours: machines.seconds / day.as_secs_f64() * DAY_HOURS,
        machines,
        windows,
        p99_ms: count(stats::percentile(&took, 99).unwrap_or_default())? / 1e3,
    })
}

impl Day {
    fn said(&self) -> String {
        let most = self.why.iter().max_by_key(|(_, many)| **many);
        let why = most.map_or(String::new(), |(name, many)| format!(", {many} of them {name}"));
        format!(
            "{:.2} % of {} missed ({} late{why}), accuracy {:.4}, {:.1} machine-hours ({} started, {} ended)",
            self.missed * 100.0,
            self.sent,
            self.late,
            self.accuracy,
            self.hours,
            self.machines.started,
            self.machines.ended
        )
    }

    fn summary(&self) -> Value {
        json!({
            "missed": self.missed, "accuracy": self.accuracy, "machine_hours": self.hours, "sent": self.sent,
            "below_floor": self.below, "started": self.machines.started, "ended": self.machines.ended,
        })
    }

    fn json(&self) -> Value {
        json!({
            "way": self.way.name(), "sent": self.sent, "missed": self.missed, "late": self.late, "failed": self.why,
            "accuracy": self.accuracy, "answered_by": self.by, "machine_hours": self.hours, "p99_ms": self.p99_ms,
            "most_machines": self.machines.most, "half_hours": self.windows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(name: &str, accuracy: f64, single_ms: f64) -> Variant {
        Variant { name: name.to_owned(), accuracy, single_ms, p99_ms: single_ms * 1.2 }
    }

    fn asked() -> Asked {
        let (small, large) = (variant("small", 0.8, 2.0), variant("large", 0.9, 8.0));
        let kind = |floor, cheapest: &Variant| Kind {
            floor,
            bound: Duration::from_millis(100),
            cheapest: cheapest.clone(),
        };
        Asked {
            task: "t",
            pictures: vec![PathBuf::from("a.png")],
            kinds: vec![kind(0.7, &small), kind(0.85, &large)],
            best: large.clone(),
            all: vec![small, large],
            per_second: 1.0,
            trace: PathBuf::new(),
        }
    }

    #[test]
    fn what_is_late_or_refused_is_missed_and_only_what_is_in_time_counts_for_accuracy() {
        let stream = |answers: Value, failures: Value| json!({"nodes": ["small", "large"], "answers": answers, "failures": failures});
        let raw = json!({"streams": [
            stream(json!([[0, 5_000, 0], [10, 200_000, 1]]), json!([[20, 9_000, "503 too_late"]])),
            stream(json!([[5, 5_000, 1], [6, 5_000, 0]]), json!([])),
        ]});
        let machines = || Rented { seconds: 5.0, started: 1, ended: 0, most: 1 };
        let day = read(&raw, &asked(), (Way::Ours, Duration::from_secs(10)), machines()).unwrap();
        assert_eq!((day.sent, day.late, day.below, day.why["503 too_late"]), (5, 1, 1, 1));
        assert!((day.missed - 0.4).abs() < 1e-9 && (day.hours - 12.0).abs() < 1e-9);
        assert!((day.accuracy - (0.8 + 0.9 + 0.8) / 3.0).abs() < 1e-9);
        let unknown = json!({"streams": [stream(json!([]), json!([])), {"nodes": ["x"], "answers": [[0, 1, 0]], "failures": []}]});
        assert!(read(&unknown, &asked(), (Way::Ours, Duration::from_secs(10)), machines()).is_err());
    }

    #[test]
    fn static_ways_pin_their_variant_and_ours_none() {
        let target = |way, at: usize| asked().streams(way)[at]["target"].as_str().unwrap().to_owned();
        assert!(!target(Way::Ours, 0).contains("variant"));
        assert!(target(Way::Best, 0).ends_with("&variant=large"));
        assert!(target(Way::Cheapest, 0).ends_with("&variant=small"));
        assert!(
            target(Way::Cheapest, 1).contains("accuracy=0.8500")
                && target(Way::Cheapest, 1).ends_with("large")
        );
    }
}
