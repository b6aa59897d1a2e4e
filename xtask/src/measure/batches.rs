//! What the batches of a recorded worker took, beside what had been expected of them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Of batches together.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Took {
    batches: u32,
    queries: u64,
    expected_us: f64,
    us: f64,
}

impl Took {
    /// How much longer they took than was expected.
    pub(crate) fn ratio(&self) -> f64 {
        self.us / self.expected_us
    }

    fn json(&self) -> Value {
        json!({
            "batches": self.batches, "queries": self.queries, "expected_s": self.expected_us / 1e6, "took_s": self.us / 1e6,
            "ratio": self.ratio(),
        })
    }
}

/// What a recording of a worker with one lane tells: all batches, and by variant and size.
pub(crate) struct Batches {
    pub(crate) all: Took,
    of: BTreeMap<(u64, usize), Took>,
}

impl Batches {
    /// A batch's time begins when it is handed over or the one before it ended, whichever is later.
    pub(crate) fn recorded(text: &str) -> Result<Self> {
        let (mut bound, mut begun) = (BTreeMap::<u64, (u64, usize, f64)>::new(), BTreeMap::<u64, u64>::new());
        let (mut all, mut of) = (Took::default(), BTreeMap::<_, Took>::new());
        let mut ended = 0;
        for line in text.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            let Some(now) = line["now"].as_u64() else { continue };
            if let Some(done) = line["event"].get("Done").filter(|done| done["outcome"] == "Ran") {
                let id = done["batch"].as_u64().context("a batch")?;
                if let (Some((variant, size, expected)), Some(start)) = (bound.remove(&id), begun.remove(&id))
                {
                    let took = micros(now.saturating_sub(start.max(ended)))?;
                    for sum in [&mut all, of.entry((variant, size)).or_default()] {
                        sum.batches += 1;
                        sum.queries += u64::try_from(size)?;
                        sum.expected_us += expected;
                        sum.us += took;
                    }
                }
                ended = now;
            }
            for action in line["actions"].as_array().into_iter().flatten() {
                if let Some(prepare) = action.get("Prepare") {
                    let queries = prepare["queries"].as_array().context("queries")?.len();
                    let variant = prepare["variant"].as_u64().context("a variant")?;
                    let expected = prepare["expected"]["mean"].as_f64().context("what was expected")?;
                    bound.insert(prepare["batch"].as_u64().context("a batch")?, (variant, queries, expected));
                } else if let Some(start) = action.get("Start") {
                    begun.insert(start["batch"].as_u64().context("a batch")?, now);
                }
            }
        }
        ensure!(all.batches > 0, "no batch was recorded");
        Ok(Self { all, of })
    }

    /// All of them, and those of each variant and size that took most time.
    pub(crate) fn json(&self) -> Value {
        let mut of: Vec<_> = self.of.iter().collect();
        of.sort_by(|a, b| b.1.us.total_cmp(&a.1.us));
        let one = |((variant, size), took): &(&(u64, usize), &Took)| {
            let mut told = took.json();
            (told["variant"], told["size"]) = (json!(variant), json!(size));
            told
        };
        json!({"all": self.all.json(), "by_variant_and_size": of.iter().take(MOST).map(one).collect::<Vec<_>>()})
    }
}

const MOST: usize = 24;

fn micros(us: u64) -> Result<f64> {
    Ok(f64::from(u32::try_from(us).context("a batch of more than an hour")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_was_handed_over_behind_another_begins_when_that_ends() {
        let prepare = |batch: u64, queries: &[u64], mean: f64| json!({"Prepare": {"batch": batch, "variant": 7, "queries": queries, "expected": {"mean": mean, "var": 0.0}}});
        let done = |batch: u64, outcome: &str| json!({"Done": {"batch": batch, "outcome": outcome}});
        let lines = [
            json!({"now": 10, "actions": [prepare(1, &[1, 2], 100.0), {"Start": {"batch": 1}}]}),
            json!({"now": 60, "actions": [prepare(2, &[3], 50.0), {"Start": {"batch": 2}}]}),
            json!({"now": 160, "event": done(1, "Ran"), "actions": []}),
            json!({"now": 200, "event": done(2, "Ran"), "actions": [prepare(3, &[4], 50.0), {"Start": {"batch": 3}}]}),
            json!({"now": 210, "event": done(3, "Revoked"), "actions": []}),
        ];
        let text = lines.map(|line| line.to_string()).join("\n");
        let batches = Batches::recorded(&text).expect("a recording");
        let all = Took { batches: 2, queries: 3, expected_us: 150.0, us: 150.0 + 40.0 };
        assert_eq!(batches.all, all);
        let told = batches.json();
        assert_eq!(told["by_variant_and_size"][0]["size"], 2);
        assert!((told["by_variant_and_size"][1]["ratio"].as_f64().expect("a ratio") - 0.8).abs() < 1e-9);
    }
}
