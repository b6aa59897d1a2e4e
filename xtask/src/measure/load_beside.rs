//! What loading a large model does to one that is served beside it.
//!
//! Two copies of MiniLM drive each other out every half second while queries come to cnn_m at random times. Runs with and
//! without loads alternate; what is compared is the p99 of the queries that came during a load. A load takes some 50 ms, so it
//! takes many for a percentile that stands for more than two queries.
//!
//! A third kind of run tells what a load costs on this machine whoever does it: a process that only loads the same file, at idle
//! priority from its first instruction on.
//!
//! A round counts only if the machine was quiet meanwhile: the generator, which shares it, sent its queries in time in
//! the runs that are compared, and the host gave next to nothing of it to others. A round that does not is made again, up to a number of tries; all
//! are in the raw file, with why they do not count. What is bound is the worst of those that count. With too few of them nothing was
//! shown, and the check says so.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Value, json};

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
        let round = round(&mut side, (rate, ms, every_ms, seed), attempt % 2 == 0)?;
        loads += round.beside["loads"].as_u64().unwrap_or(0);
        seeds.push(seed);
        rows.push(json!({
            "calm": round.calm, "beside": round.beside, "bare": round.bare, "steal_percent": round.steal_percent,
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
    let (quiet, made) = (counted.len(), rows.len());
    let missing = u32::try_from(usize::try_from(rounds)?.saturating_sub(quiet))?;
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: json!({
            "p99_ratio_median": median, "p99_ratio_worst": worst,
            "bare_ratio_median": least_median, "bare_ratio_worst": least_worst, "over_bare_median": over_least,
            "loads": loads, "loaded": loaded.name, "quiet_rounds": quiet, "rounds": made,
            "per_second": rate,
        }),
        result: format!(
            "{loads} loads of {}, in {quiet} quiet rounds of {made}: p99 during them {worst:.2} times that without at worst (median \
             {median:.2}); beside a process that only loads, at idle priority: {least_worst:.2} (median {least_median:.2})",
            loaded.name
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

/// Runs without loads, with them, and beside a process that only loads.
struct Round {
    calm: Value,
    beside: Value,
    bare: Value,
    steal_percent: f64,
    /// Why it does not count.
    noisy: Vec<String>,
}

/// Its p99 during loads over that without.
struct Ratios {
    beside: f64,
    bare: f64,
}

fn round(
    side: &mut Side,
    (rate, ms, every_ms, seed): (f64, u64, u64, u64),
    calm_first: bool,
) -> Result<Round> {
    let before = Load::read()?;
    let mut serve = |every_ms, bare| {
        side.ask(&json!({
            "do": "serve", "per_second": rate, "ms": ms, "every_ms": every_ms, "bare": bare, "seed": seed,
        }))
    };
    let (calm, beside) = if calm_first {
        let calm = serve(0, false)?;
        (calm, serve(every_ms, false)?)
    } else {
        let beside = serve(every_ms, false)?;
        (serve(0, false)?, beside)
    };
    let bare = serve(every_ms, true)?;
    let steal_percent =
        before.between(&Load::read()?)["steal_percent"].as_f64().context("no steal was read")?;
    for seen in [&calm, &beside, &bare] {
        ensure!(seen["seen"]["sent"] == seen["seen"]["in_time"], "queries were refused: {}", seen["seen"]);
    }
    let sent_late = |of: &Value| of["seen"]["sent_after_due"]["p99_us"].as_f64().context("nothing was sent");
    let noisy = noise(&[("calm", sent_late(&calm)?), ("beside", sent_late(&beside)?)], steal_percent);
    Ok(Round { calm, beside, bare, steal_percent, noisy })
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
    fn a_round_counts_only_if_queries_were_sent_in_time_and_the_host_took_nothing_away() {
        assert_eq!(noise(&[("calm", SENT_LATE_US), ("beside", 3.0)], STEAL_PERCENT), [""; 0]);
        let late = noise(&[("calm", 3.0), ("beside", SENT_LATE_US + 1.0)], 0.0);
        assert!(matches!(&late[..], [why] if why.starts_with("beside")), "{late:?}");
        assert_eq!(noise(&[], STEAL_PERCENT + 1.0).len(), 1);
    }
}
