//! What loading a large model does to one that is served beside it.
//!
//! Two copies of MiniLM drive each other out every half second while queries come to another model at random times: to cnn_m, whose
//! runs take a tenth of a millisecond, and to EfficientNet-Lite0 and a third MiniLM, whose runs take some. Runs with and
//! without loads alternate; what is compared is the p99 of the queries that came during a load. A load takes some 50 ms, so it
//! takes many for a percentile that stands for more than two queries.
//!
//! A third kind of run tells what a load costs on this machine whoever does it: a process that only loads the same file, at idle
//! priority from its first instruction on. A fourth, whether it is the load at all: in two rounds a process that only
//! reckons, in the next two one that only moves memory about, at idle priority and for as long as a load takes. What those cost
//! is the machine's part: cores that share a cache, a clock and a way to memory, and a host that lends them.
//!
//! A round counts only if the machine was quiet meanwhile: the generator, which shares it, sent its queries in time in
//! the run without loads, and the host gave next to nothing of it to others. A round that does not is made again, up to a number of tries; all
//! are in the raw file, with why they do not count. What is bound is the worst of those that count. With too few of them nothing was
//! shown, and the check says so.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Value, json};

use std::time::Duration;

use super::host::Load;
use super::models::{Model, cnn_m, made};
use super::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "load-beside",
    what: "p99 of what is served while a 90 MB model is loaded beside it, over that without loads",
    run: measure,
};

/// Queries a second to cnn_m: a few per cent of what one core can take.
const PER_SECOND: f64 = 1_000.0;
const EVERY_MS: u64 = 500;
/// A quiet run: 99 of 100 queries are sent within so long after they should have been, in microseconds. A loaded machine sends
/// late what comes while the generator waits for a core, and that is then in every latency.
const SENT_LATE_US: f64 = 250.0;
/// Or by no more than such a part of what a query takes without loads: what is late by less is no matter to its tail.
const SENT_LATE: f64 = 0.2;
/// And the host takes away at most so much of the time of all cores, in per cent.
const STEAL_PERCENT: f64 = 1.0;
/// So many times as many rounds are made at most as are to count.
const TRIES: u64 = 3;
/// With so many fewer than are wanted the worst still says something.
const MAY_MISS: f64 = 2.0;

/// What is served while what else is loaded.
struct Setup {
    served: Model,
    loaded: Model,
    /// Queries a second: so few that the loads find cores and the tail is theirs.
    rate: f64,
    rounds: u64,
    ms: u64,
    every_ms: u64,
    limit: f64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let setups = if context.short {
        // What is in the repository. It is there in a few milliseconds: often enough that queries come meanwhile.
        let [served, loaded] = [(); 2].map(|()| cnn_m(&context.root));
        vec![Setup { served, loaded, rate: 200.0, rounds: 1, ms: 4_000, every_ms: 150, limit: 100.0 }]
    } else {
        let large = |served, rate, rounds, ms| {
            let loaded = made(&context.root, "minilm_l6")?;
            Ok::<_, anyhow::Error>(Setup { served, loaded, rate, rounds, ms, every_ms: EVERY_MS, limit: 1.3 })
        };
        vec![
            large(cnn_m(&context.root), PER_SECOND, 5, 8_000)?,
            large(made(&context.root, "efficientnet_lite0")?, 40.0, 3, 16_000)?,
            large(made(&context.root, "minilm_l6")?, 40.0, 3, 16_000)?,
        ]
    };
    let (mut rows, mut seeds, mut told, mut checks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut summary = serde_json::Map::new();
    for setup in &setups {
        let mut seen = seen(context, setup)?;
        rows.append(&mut seen.rows);
        seeds.append(&mut seen.seeds);
        told.push(seen.told(setup));
        checks.extend(seen.checks(setup)?);
        summary.insert(setup.served.name.to_owned(), seen.summary(setup));
    }
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: told.join("; "),
        checks,
    })
}

/// What was seen of one that is served.
struct Seen {
    rows: Vec<Value>,
    seeds: Vec<u64>,
    counted: Vec<Ratios>,
    made: usize,
    loads: u64,
}

fn seen(context: &Context, setup: &Setup) -> Result<Seen> {
    let mut side = cycle(context, &setup.served, &setup.loaded)?;
    let mut seen = Seen { rows: Vec::new(), seeds: Vec::new(), counted: Vec::new(), made: 0, loads: 0 };
    for attempt in 0..setup.rounds * TRIES {
        if seen.counted.len() as u64 >= setup.rounds {
            break;
        }
        let seed = context.seed + attempt;
        let control = CONTROLS[usize::try_from(attempt / 2 % 2)?];
        let asked = (setup.rate, setup.ms, setup.every_ms, seed);
        let round = round(&mut side, asked, attempt % 2 == 0, control)?;
        seen.loads += round.beside["loads"].as_u64().unwrap_or(0);
        seen.made += 1;
        seen.seeds.push(seed);
        seen.rows.push(json!({
            "served": setup.served.name, "calm": round.calm, "beside": round.beside, "bare": round.bare,
            "control": {"what": round.control.0, "seen": round.control.1}, "steal_percent": round.steal_percent,
            "noisy": round.noisy,
        }));
        // A development build on a machine that does other things as well is never quiet.
        if context.short || round.noisy.is_empty() {
            seen.counted.push(round.ratios()?);
        }
    }
    Ok(seen)
}

impl Seen {
    fn of(&self, value: fn(&Ratios) -> f64, percent: usize) -> f64 {
        // With none nothing was shown: what is no number is in no bound.
        stats::percentile(&self.counted.iter().map(value).collect::<Vec<_>>(), percent).unwrap_or(f64::NAN)
    }

    fn control(&self, what: &str) -> Option<f64> {
        let of_it = self.counted.iter().filter(|r| r.control.0 == what).map(|r| r.control.1);
        stats::median(&of_it.collect::<Vec<_>>())
    }

    /// What part of what loads add is the machine's.
    fn machine(&self) -> Option<f64> {
        let most = CONTROLS.iter().filter_map(|what| self.control(what)).reduce(f64::max);
        most.map(|most| part(most, self.of(|r| r.beside, 50)))
    }

    fn told(&self, setup: &Setup) -> String {
        let of = |value, percent| self.of(value, percent);
        let [arithmetic, bandwidth] = CONTROLS.map(|what| shown(self.control(what)));
        let machine =
            self.machine().map_or("an unknown part".to_owned(), |part| format!("{:.0} %", part * 100.0));
        format!(
            "{} beside {} loads of {}, in {} quiet rounds of {}: p99 during them {:.2} times that without at worst (median {:.2}); \
             beside a process that only loads, at idle priority: {:.2} (median {:.2}); beside one that only reckons {arithmetic}, that \
             only moves memory {bandwidth}, median: {machine} of what loads add is the machine's",
            setup.served.name,
            self.loads,
            setup.loaded.name,
            self.counted.len(),
            self.made,
            of(|r| r.beside, 100),
            of(|r| r.beside, 50),
            of(|r| r.bare, 100),
            of(|r| r.bare, 50),
        )
    }

    fn summary(&self, setup: &Setup) -> Value {
        let of = |value, percent| self.of(value, percent);
        let [arithmetic, bandwidth] = CONTROLS.map(|what| self.control(what));
        json!({
            "p99_ratio_median": of(|r| r.beside, 50), "p99_ratio_worst": of(|r| r.beside, 100),
            "bare_ratio_median": of(|r| r.bare, 50), "bare_ratio_worst": of(|r| r.bare, 100),
            "over_bare_median": of(|r| r.beside / r.bare, 50), "arithmetic_ratio_median": arithmetic,
            "bandwidth_ratio_median": bandwidth, "part_of_the_machine": self.machine(), "loads": self.loads,
            "loaded": setup.loaded.name, "quiet_rounds": self.counted.len(), "rounds": self.made,
            "per_second": setup.rate,
        })
    }

    fn checks(&self, setup: &Setup) -> Result<[Check; 4]> {
        let missing = usize::try_from(setup.rounds)?.saturating_sub(self.counted.len());
        Ok([
            Check {
                what: match setup.served.name {
                    "cnn_m" => "p99 of cnn_m during a load over without, median",
                    "efficientnet_lite0" => "p99 of efficientnet_lite0 during a load over without, median",
                    _ => "p99 of minilm_l6 during a load over without, median",
                },
                value: self.of(|r| r.beside, 50),
                limit: setup.limit,
                unit: "",
            },
            Check {
                what: "the same in the worst round",
                value: self.of(|r| r.beside, 100),
                limit: setup.limit,
                unit: "",
            },
            Check {
                what: "p99 during a load over that beside a bare one",
                value: self.of(|r| r.beside / r.bare, 50),
                limit: setup.limit,
                unit: "",
            },
            Check {
                what: "quiet rounds missing",
                value: f64::from(u32::try_from(missing)?),
                limit: MAY_MISS,
                unit: "",
            },
        ])
    }
}

/// What runs beside as a control, in turns from round to round.
const CONTROLS: [&str; 2] = ["arithmetic", "bandwidth"];

/// What part of what loads add to the p99 is there without any load, by both ratios to that of calm.
fn part(control: f64, loads: f64) -> f64 {
    if loads <= 1.0 { 0.0 } else { ((control - 1.0) / (loads - 1.0)).clamp(0.0, 1.0) }
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "unknown".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Runs without loads, with them, beside a process that only loads, and beside a control.
struct Round {
    calm: Value,
    beside: Value,
    bare: Value,
    control: (&'static str, Value),
    steal_percent: f64,
    /// Why it does not count.
    noisy: Vec<String>,
}

/// Its p99 during loads over that without.
struct Ratios {
    beside: f64,
    bare: f64,
    control: (&'static str, f64),
}

fn round(
    side: &mut Side,
    (rate, ms, every_ms, seed): (f64, u64, u64, u64),
    calm_first: bool,
    control: &'static str,
) -> Result<Round> {
    let before = Load::read()?;
    let mut serve = |every_ms, bare, burn: Value| {
        side.ask(&json!({
            "do": "serve", "per_second": rate, "ms": ms, "every_ms": every_ms, "bare": bare, "burn": burn, "seed": seed,
        }))
    };
    let (calm, beside) = if calm_first {
        let calm = serve(0, false, Value::Null)?;
        (calm, serve(every_ms, false, Value::Null)?)
    } else {
        let beside = serve(every_ms, false, Value::Null)?;
        (serve(0, false, Value::Null)?, beside)
    };
    let bare = serve(every_ms, true, Value::Null)?;
    let load_us = beside["load"]["p50_us"].as_f64().context("nothing was loaded")?;
    let burn = json!({"what": control, "ms": Duration::from_secs_f64(load_us / 1e6).as_millis().max(1)});
    let control = (control, serve(every_ms, false, burn)?);
    let steal_percent =
        before.between(&Load::read()?)["steal_percent"].as_f64().context("no steal was read")?;
    for seen in [&calm, &beside, &bare, &control.1] {
        ensure!(seen["seen"]["sent"] == seen["seen"]["in_time"], "queries were refused: {}", seen["seen"]);
    }
    let sent_late = |of: &Value| of["seen"]["sent_after_due"]["p99_us"].as_f64().context("nothing was sent");
    let takes = calm["otherwise"]["p50_us"].as_f64().context("no query came without loads")?;
    // Where a load makes the generator late, that is in every latency, and no reason to leave the round out.
    let noisy = noise(&[("calm", sent_late(&calm)?)], takes, steal_percent);
    Ok(Round { calm, beside, bare, control, steal_percent, noisy })
}

impl Round {
    fn ratios(&self) -> Result<Ratios> {
        let p99 = |of: &Value, which: &str| {
            of[which]["p99_us"].as_f64().with_context(|| format!("no query came {which} loads"))
        };
        let without = p99(&self.calm, "otherwise")?;
        Ok(Ratios {
            beside: p99(&self.beside, "during")? / without,
            bare: p99(&self.bare, "during")? / without,
            control: (self.control.0, p99(&self.control.1, "during")? / without),
        })
    }
}

/// What was not quiet: runs whose queries were sent late, by their p99 in microseconds, and what the host took away.
fn noise(sent_late: &[(&str, f64)], takes_us: f64, steal_percent: f64) -> Vec<String> {
    let late = sent_late.iter().filter(|(_, us)| *us > SENT_LATE_US.max(takes_us * SENT_LATE));
    let late = late.map(|(run, us)| format!("{run}: 1 of 100 queries was sent over {us:.0} us late"));
    let steal = (steal_percent > STEAL_PERCENT).then(|| format!("the host took {steal_percent} % away"));
    late.chain(steal).collect()
}

/// An executor with a model that is served and one that is loaded over and over.
pub(crate) fn cycle(context: &Context, served: &Model, loaded: &Model) -> Result<Side> {
    let spec = json!({
        "library": context.onnx_library()?, "served": served.package, "loaded": loaded.package, "seed": context.seed,
    });
    Side::start(&context.bench_program("executor-cycle")?, &[&spec.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_control_costs_as_well_is_the_machines_part() {
        assert!((part(1.1, 1.2) - 0.5).abs() < 1e-9);
        assert!((part(1.5, 1.2) - 1.0).abs() < 1e-9, "no more than all of it");
        assert!(
            part(1.1, 0.9) < 1e-9 && part(0.9, 1.2) < 1e-9,
            "nothing was added, or nothing by the control"
        );
    }

    #[test]
    fn a_round_counts_only_if_queries_were_sent_in_time_and_the_host_took_nothing_away() {
        assert_eq!(noise(&[("calm", SENT_LATE_US), ("beside", 3.0)], 300.0, STEAL_PERCENT), [""; 0]);
        // Of what takes 10 ms two more are no matter.
        assert_eq!(noise(&[("calm", 2_000.0), ("beside", 2_000.0)], 10_000.0, 0.0), [""; 0]);
        let late = noise(&[("calm", 3.0), ("beside", SENT_LATE_US + 1.0)], 300.0, 0.0);
        assert!(matches!(&late[..], [why] if why.starts_with("beside")), "{late:?}");
        assert_eq!(noise(&[], 300.0, STEAL_PERCENT + 1.0).len(), 1);
    }
}
