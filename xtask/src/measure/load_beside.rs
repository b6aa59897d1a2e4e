//! What loading a large model does to one that is served beside it.
//!
//! Two copies of MiniLM drive each other out every half second while queries come to cnn_m at random times. Runs with and
//! without loads alternate; what is compared is the p99 of the queries that came during a load. A load takes some 50 ms, so it
//! takes many for a percentile that stands for more than two queries.
//!
//! A third kind of run tells what a load costs on this machine whoever does it: a process that only loads the same file, at idle
//! priority from its first instruction on. A fourth, whether it is the load at all: in two rounds a process that only
//! reckons, in the next two one that only moves memory about, at idle priority and for as long as a load takes. What those cost
//! is the machine's part: cores that share a cache, a clock and a way to memory, and a host that lends them.
//!
//! A round counts only if the machine was quiet meanwhile: the generator, which shares it, sent its queries in time in
//! the runs that are compared, and the host gave next to nothing of it to others. A round that does not is made again, up to a number of tries; all
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
    what: "p99 of cnn_m while a 90 MB model is loaded beside it, over that without loads",
    run: measure,
};

/// Queries a second: a few per cent of what one core can take, so that the loads find cores and the tail is theirs.
const PER_SECOND: f64 = 1_000.0;
const EVERY_MS: u64 = 500;
/// A quiet run: 99 of 100 queries are sent within so long after they should have been, in microseconds. A loaded machine sends
/// late what comes while the generator waits for a core, and that is then in every latency.
const SENT_LATE_US: f64 = 250.0;
/// And the host takes away at most so much of the time of all cores, in per cent.
const STEAL_PERCENT: f64 = 1.0;
/// So many times as many rounds are made at most as are to count.
const TRIES: u64 = 3;
/// With so many fewer than are wanted the worst still says something.
const MAY_MISS: f64 = 2.0;

fn measure(context: &Context) -> Result<Outcome> {
    let (rounds, ms, rate) = context.choose((5, 8_000, PER_SECOND), (1, 4_000, 200.0));
    // A small model is there in a few milliseconds: often enough that queries come meanwhile.
    let every_ms = context.choose(EVERY_MS, 150);
    let served = cnn_m(&context.root);
    // The short form has to do with what is in the repository.
    let loaded = if context.short { cnn_m(&context.root) } else { made(&context.root, "minilm_l6")? };
    let mut side = cycle(context, &served, &loaded)?;
    let (mut rows, mut seeds, mut counted) = (Vec::new(), Vec::new(), Vec::new());
    let mut loads = 0;
    for attempt in 0..rounds * TRIES {
        if counted.len() as u64 >= rounds {
            break;
        }
        let seed = context.seed + attempt;
        let control = CONTROLS[usize::try_from(attempt / 2 % 2)?];
        let round = round(&mut side, (rate, ms, every_ms, seed), attempt % 2 == 0, control)?;
        loads += round.beside["loads"].as_u64().unwrap_or(0);
        seeds.push(seed);
        rows.push(json!({
            "calm": round.calm, "beside": round.beside, "bare": round.bare,
            "control": {"what": round.control.0, "seen": round.control.1}, "steal_percent": round.steal_percent,
            "noisy": round.noisy,
        }));
        // A development build on a machine that does other things as well is never quiet.
        if context.short || round.noisy.is_empty() {
            counted.push(round.ratios()?);
        }
    }
    let of = |value: fn(&Ratios) -> f64, percent| {
        // With none nothing was shown: what is no number is in no bound.
        stats::percentile(&counted.iter().map(value).collect::<Vec<_>>(), percent).unwrap_or(f64::NAN)
    };
    let (median, worst) = (of(|r| r.beside, 50), of(|r| r.beside, 100));
    let (least_median, least_worst) = (of(|r| r.bare, 50), of(|r| r.bare, 100));
    let over_least = of(|r| r.beside / r.bare, 50);
    let control = |what| {
        let of_it = counted.iter().filter(|r| r.control.0 == what).map(|r| r.control.1);
        stats::median(&of_it.collect::<Vec<_>>())
    };
    let [arithmetic, bandwidth] = CONTROLS.map(control);
    let machine = arithmetic.into_iter().chain(bandwidth).reduce(f64::max).map(|most| part(most, median));
    let (quiet, made) = (counted.len(), rows.len());
    let missing = u32::try_from(usize::try_from(rounds)?.saturating_sub(quiet))?;
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: json!({
            "p99_ratio_median": median, "p99_ratio_worst": worst,
            "bare_ratio_median": least_median, "bare_ratio_worst": least_worst, "over_bare_median": over_least,
            "arithmetic_ratio_median": arithmetic, "bandwidth_ratio_median": bandwidth, "part_of_the_machine": machine,
            "loads": loads, "loaded": loaded.name, "quiet_rounds": quiet, "rounds": made,
            "per_second": rate,
        }),
        result: format!(
            "{loads} loads of {}, in {quiet} quiet rounds of {made}: p99 during them {worst:.2} times that without at worst (median \
             {median:.2}); beside a process that only loads, at idle priority: {least_worst:.2} (median {least_median:.2}); beside \
             one that only reckons {}, that only moves memory {}, median: {} of what loads add is the machine's",
            loaded.name,
            shown(arithmetic),
            shown(bandwidth),
            machine.map_or_else(|| "an unknown part".to_owned(), |part| format!("{:.0} %", part * 100.0)),
        ),
        checks: vec![
            Check {
                what: "p99 during a load over without, worst",
                value: worst,
                limit: context.choose(1.3, 100.0),
                unit: "",
            },
            Check {
                what: "p99 during a load over that beside a bare one",
                value: over_least,
                limit: context.choose(1.3, 100.0),
                unit: "",
            },
            Check { what: "quiet rounds missing", value: f64::from(missing), limit: MAY_MISS, unit: "" },
        ],
    })
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
    let noisy = noise(&[("calm", sent_late(&calm)?), ("beside", sent_late(&beside)?)], steal_percent);
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
fn noise(sent_late: &[(&str, f64)], steal_percent: f64) -> Vec<String> {
    let late = sent_late.iter().filter(|(_, us)| *us > SENT_LATE_US);
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
        assert_eq!(noise(&[("calm", SENT_LATE_US), ("beside", 3.0)], STEAL_PERCENT), [""; 0]);
        let late = noise(&[("calm", 3.0), ("beside", SENT_LATE_US + 1.0)], 0.0);
        assert!(matches!(&late[..], [why] if why.starts_with("beside")), "{late:?}");
        assert_eq!(noise(&[], STEAL_PERCENT + 1.0).len(), 1);
    }
}
