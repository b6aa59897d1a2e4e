//! Somebody else's processes on one core of the only node there is: what fewer lanes side by side are worth, and what it is worth to
//! keep a lane off that core.
//!
//! The node has two lanes and may use all cores; nothing is kept anywhere but the processes that burn, on the last core. The same
//! queries are asked of a node that runs fewer lanes then, of one that does not (`executor.narrow`), of one that has one lane only, and
//! of one that has one lane whose runner is kept off the core that burns: what the kernel's own balancing leaves of that is the difference of
//! the last two.

use std::time::Duration;

use anyhow::{Context as _, Result};
use modelless_testkit::stats;
use serde_json::{Value, json};

use super::interference::{BURNERS, HOGGED, Phase, Round, TOLD_WITHIN, World};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "interference-alone",
    what: "processes of others burn one core of the only node: missed and the 99th percentile before, meanwhile and after, with fewer lanes then, with two, with one, and with one that is kept off that core",
    run: measure,
};

/// Of what one lane carries alone.
const LOAD: f64 = 0.5;
/// Every query's bound, over what one takes alone.
const BOUND: f64 = 4.0;
/// Where nothing burns.
const OFF: u32 = 0;

/// A node that is tried.
struct Way {
    name: &'static str,
    settings: &'static [&'static str],
    kept_off: bool,
}

const NARROWS: &str = "fewer lanes";
const STAYS: &str = "two lanes";
const WAYS: &[Way] = &[
    Way { name: NARROWS, settings: &["executor.lanes=2"], kept_off: false },
    Way { name: STAYS, settings: &["executor.lanes=2", "executor.narrow=false"], kept_off: false },
    Way { name: "one lane", settings: &["executor.lanes=1"], kept_off: false },
    Way { name: "one lane, kept off", settings: &["executor.lanes=1"], kept_off: true },
];

/// What was seen of one way.
struct Found {
    name: &'static str,
    said: String,
    rounds: Vec<Round>,
}

fn measure(context: &Context) -> Result<Outcome> {
    let seconds = Duration::from_secs;
    let phases =
        context.choose([seconds(10), seconds(25), seconds(15)], [seconds(4), seconds(9), seconds(8)]);
    let rounds: u64 = context.choose(3, 1);
    let ways = context.choose(WAYS, &WAYS[..2]);
    let seeds: Vec<u64> = (0..rounds).map(|round| context.seed + 1 + round).collect();
    let found = ways.iter().map(|way| tried(context, way, &seeds, phases)).collect::<Result<Vec<_>>>()?;
    let rest = |name: &str, of: fn(&Phase) -> f64| -> Result<f64> {
        let one = found.iter().find(|found| found.name == name).context("a way")?;
        one.median(2, of)
    };
    let missed = |phase: &Phase| phase.missed;
    let (narrow, wide) = (rest(NARROWS, missed)?, rest(STAYS, missed)?);
    let said: Vec<String> = found.iter().map(Found::told).collect::<Result<_>>()?;
    let changes = found.iter().filter(|found| found.name == NARROWS).flat_map(|found| &found.rounds);
    let changes: Vec<usize> = changes.map(|round| narrowings(&round.events)).collect();
    let most = changes.iter().copied().max().unwrap_or(0);
    Ok(Outcome {
        result: format!(
            "1 node, {}, {BURNERS} processes burn one core of it; missed, and p99, before, in the first {} s, after that, and when it is over: {}; \
             lanes were closed or opened {changes:?} times a round",
            found.first().map(|found| found.said.as_str()).unwrap_or_default(),
            TOLD_WITHIN.as_secs(),
            said.join("; "),
        ),
        summary: json!({
            "ways": found.iter().map(Found::json).collect::<Result<Vec<_>>>()?, "changes": changes, "burners": BURNERS,
            "phases": ["before", "until it has to be told", "the rest of burning", "after"],
        }),
        repetitions: found
            .iter()
            .flat_map(|found| {
                found.rounds.iter().map(|round| json!({"way": found.name, "round": round.json()}))
            })
            .collect(),
        seeds,
        checks: vec![
            Check {
                what: "missed in the rest of burning beyond what two lanes miss, median",
                value: (narrow - wide) * 100.0,
                limit: context.choose(0.0, 30.0),
                unit: "%",
            },
            Check {
                what: "lanes closed or opened in a round, at worst",
                value: super::count(most)?,
                limit: context.choose(4.0, 8.0),
                unit: "times",
            },
        ],
    })
}

fn tried(context: &Context, way: &Way, seeds: &[u64], phases: [Duration; 3]) -> Result<Found> {
    let mut world = World::start(context, &[(HOGGED, way.settings)], LOAD, BOUND)?;
    if way.kept_off {
        world.keep(HOGGED, OFF)?;
    }
    world.settle(context.seed)?;
    let rounds = seeds.iter().map(|seed| world.round(*seed, phases)).collect::<Result<Vec<_>>>()?;
    let said = format!(
        "{:.0} a second of {} ({:.1} ms alone, bound {} ms; {:.0} % of what one lane carries)",
        world.rate,
        world.name,
        world.single_ms,
        world.bound.as_millis(),
        LOAD * 100.0
    );
    Ok(Found { name: way.name, said, rounds })
}

/// How often lanes were closed or opened.
fn narrowings(events: &Value) -> usize {
    let told = events["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    told.iter()
        .filter(|event| {
            event["kind"] == "node" && (event["what"] == "narrowed" || event["what"] == "full width")
        })
        .count()
}

impl Found {
    fn median(&self, phase: usize, of: fn(&Phase) -> f64) -> Result<f64> {
        let all: Vec<f64> = self.rounds.iter().map(|round| of(&round.phases[phase])).collect();
        stats::median(&all).context("no rounds")
    }

    fn all(&self, of: fn(&Phase) -> f64) -> Result<Vec<f64>> {
        (0..4).map(|phase| self.median(phase, of)).collect()
    }

    fn told(&self) -> Result<String> {
        let missed = self.all(|phase| phase.missed * 100.0)?;
        let p99 = self.all(|phase| phase.p99_ms)?;
        let each = missed.iter().zip(&p99).map(|(missed, p99)| format!("{missed:.2} % ({p99:.0} ms)"));
        Ok(format!("{}: {}", self.name, each.collect::<Vec<_>>().join(", ")))
    }

    fn json(&self) -> Result<Value> {
        Ok(
            json!({"way": self.name, "missed": self.all(|phase| phase.missed)?, "p99_ms": self.all(|phase| phase.p99_ms)?}),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_closes_or_opens_lanes_is_counted() {
        let event = |kind: &str, what: &str| json!({"kind": kind, "what": what});
        let events = json!({"events": [
            event("node", "up"), event("node", "narrowed"), event("replica", "narrowed"), event("node", "full width"),
        ]});
        assert_eq!(narrowings(&events), 2);
        assert_eq!(narrowings(&json!({})), 0);
    }
}
