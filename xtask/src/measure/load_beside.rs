//! What loading a large model does to one that is served beside it.
//!
//! Two copies of MiniLM drive each other out every half second while queries come to cnn_m at random times. Runs with and
//! without loads alternate; what is compared is the p99 of the queries that came during a load. A load takes some 50 ms, so it
//! takes many for a percentile that stands for more than two queries.
//!
//! A third kind of run tells what a load costs on this machine whoever does it: a process that only loads the same file, at idle
//! priority from its first instruction on.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Value, json};

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

fn measure(context: &Context) -> Result<Outcome> {
    let (rounds, ms, rate) = context.choose((5, 8_000, PER_SECOND), (1, 4_000, 200.0));
    // A small model is there in a few milliseconds: often enough that queries come meanwhile.
    let every_ms = context.choose(EVERY_MS, 150);
    let served = cnn_m(&context.root);
    // The short form has to do with what is in the repository.
    let loaded = if context.short { cnn_m(&context.root) } else { made(&context.root, "minilm_l6")? };
    let mut side = cycle(context, &served, &loaded)?;
    let mut rows = Vec::new();
    let (mut ratios, mut least, mut over) = (Vec::new(), Vec::new(), Vec::new());
    let mut loads = 0;
    for round in 0..rounds {
        let mut serve = |every_ms, bare| {
            let seed = context.seed + round;
            side.ask(&json!({
                "do": "serve", "per_second": rate, "ms": ms, "every_ms": every_ms, "bare": bare, "seed": seed,
            }))
        };
        let (calm, beside) = if round % 2 == 0 {
            let calm = serve(0, false)?;
            (calm, serve(every_ms, false)?)
        } else {
            let beside = serve(every_ms, false)?;
            (serve(0, false)?, beside)
        };
        let bare = serve(every_ms, true)?;
        for seen in [&calm, &beside, &bare] {
            ensure!(
                seen["seen"]["sent"] == seen["seen"]["in_time"],
                "queries were refused: {}",
                seen["seen"]
            );
        }
        loads += beside["loads"].as_u64().unwrap_or(0);
        let p99 =
            |of: &Value, which: &str| of[which]["p99_us"].as_f64().context("no query came during a load");
        let without = p99(&calm, "otherwise")?;
        ratios.push(p99(&beside, "during")? / without);
        let bare_p99 = p99(&bare, "during")?;
        least.push(bare_p99 / without);
        over.push(p99(&beside, "during")? / bare_p99);
        rows.push(json!({"calm": calm, "beside": beside, "bare": bare}));
    }
    let of = |ratios, percent| stats::percentile(ratios, percent).context("no rounds");
    let (median, worst) = (of(&ratios, 50)?, of(&ratios, 100)?);
    let (least_median, least_worst) = (of(&least, 50)?, of(&least, 100)?);
    let over_least = of(&over, 50)?;
    Ok(Outcome {
        seeds: (0..rounds).map(|round| context.seed + round).collect(),
        repetitions: Value::Array(rows),
        summary: json!({
            "p99_ratio_median": median, "p99_ratio_worst": worst,
            "bare_ratio_median": least_median, "bare_ratio_worst": least_worst, "over_bare_median": over_least,
            "loads": loads, "loaded": loaded.name,
            "per_second": rate,
        }),
        result: format!(
            "{loads} loads of {}: p99 during them {median:.2} times that without (worst {worst:.2}); beside a process that only \
             loads, at idle priority: {least_median:.2} (worst {least_worst:.2})",
            loaded.name
        ),
        checks: vec![
            Check {
                what: "p99 during a load over without",
                value: median,
                limit: context.choose(1.3, 100.0),
                unit: "",
            },
            Check {
                what: "p99 during a load over that beside a bare one",
                value: over_least,
                limit: context.choose(1.3, 100.0),
                unit: "",
            },
        ],
    })
}

/// An executor with a model that is served and one that is loaded over and over.
pub(crate) fn cycle(context: &Context, served: &Model, loaded: &Model) -> Result<Side> {
    let spec = json!({
        "library": context.onnx_library()?, "served": served.package, "loaded": loaded.package, "seed": context.seed,
    });
    Side::start(&context.bench_program("executor-cycle")?, &[&spec.to_string()])
}
