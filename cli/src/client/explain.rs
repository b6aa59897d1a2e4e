//! `modelless explain`: every candidate, and what spoke for or against it.

use super::{GoalOptions, Server, dollars, list, number, segment, text};
use crate::out;
use crate::table::Table;
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The task.
    task: String,
    #[command(flatten)]
    goals: GoalOptions,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let path = format!("/v1/tasks/{}/explain{}", segment(&options.task), options.goals.query());
    let explanation = options.server.api()?.get(&path)?.ok()?.json()?;
    if options.server.json { out::json(&explanation) } else { out::line(shown(&explanation)) }
}

fn shown(explanation: &Value) -> String {
    let mut table = Table::new(&[
        "",
        "variant",
        ">accuracy",
        ">p99 ms",
        ">wait ms",
        ">usd/1000 alone",
        ">usd/hour",
        "why",
    ]);
    let mut notes: Vec<&str> = Vec::new();
    for candidate in list(explanation, "candidates") {
        let chosen = text(candidate, "finding") == "chosen";
        let mut why = text(candidate, "because").to_owned();
        if let Some(ms) = candidate["ready_in_ms"].as_f64() {
            let _ = write!(why, " ({ms:.0} ms)");
        }
        for note in list(candidate, "notes").iter().filter_map(Value::as_str) {
            let known = notes.iter().position(|known| *known == note);
            let _ = write!(why, " [{}]", known.unwrap_or(notes.len()) + 1);
            if known.is_none() {
                notes.push(note);
            }
        }
        table.row([
            if chosen { "->" } else { "" }.to_owned(),
            text(candidate, "variant").to_owned(),
            number(&candidate["accuracy"], 4),
            number(&candidate["latency_ms"], 2),
            number(&candidate["wait_ms"], 2),
            dollars(&candidate["cost"]),
            number(&candidate["price_usd_per_hour"], 4),
            why,
        ]);
    }
    let mut shown = format!("{}\n\n{table}", decided(explanation));
    for (at, note) in notes.iter().enumerate() {
        let _ = write!(shown, "\n[{}] {note}", at + 1);
    }
    shown
}

fn decided(explanation: &Value) -> String {
    let (goals, decision) = (&explanation["goals"], &explanation["decision"]);
    let mut said = match text(decision, "action") {
        "send" => format!(
            "{} on node {}, expected within {} ms",
            text(decision, "variant"),
            text(decision, "node"),
            number(&decision["predicted_ms"], 2)
        ),
        "load" => format!(
            "{} on node {}, which has to load it first ({} ms){}",
            text(decision, "variant"),
            text(decision, "node"),
            number(&decision["ready_in_ms"], 0),
            match decision["nearest"]["latency_ms"].as_f64() {
                Some(bound) => format!("; the query is refused, and a bound of {bound:.0} ms would do"),
                None => String::new(),
            }
        ),
        "refuse" => format!("refused: {} ({})", text(decision, "error"), text(decision, "reason")),
        _ => text(decision, "note").to_owned(),
    };
    if let Some(meaning) = goals["meaning"].as_str() {
        let _ = write!(
            said,
            "\nprefers {meaning}; within {} ms; {} variants may answer",
            number(&goals["latency_ms"], 2),
            goals["variants_that_may_answer"]
        );
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_candidate_is_shown_with_its_reason_and_the_chosen_one_marked() {
        let explanation = json!({
            "task": "fashion",
            "goals": {"latency_ms": 5.0, "meaning": "the cheapest variant", "variants_that_may_answer": 2},
            "decision": {"action": "send", "node": "local", "variant": "a", "predicted_ms": 1.234},
            "candidates": [
                {"variant": "a", "accuracy": 0.9, "latency_ms": 1.0, "wait_ms": 0.0, "cost": 1e-6,
                 "finding": "chosen", "because": "it would be taken", "ready_in_ms": null, "notes": ["coarse"]},
                {"variant": "b", "accuracy": 0.95, "latency_ms": null, "wait_ms": null, "cost": null,
                 "finding": "would_load", "because": "it would have to be loaded first", "ready_in_ms": 40.2,
                 "notes": ["flagged", "coarse"]},
            ],
        });
        let shown = shown(&explanation);
        assert!(
            shown.starts_with("a on node local, expected within 1.23 ms\nprefers the cheapest"),
            "{shown}"
        );
        assert!(shown.contains("->  a") && shown.contains("it would be taken [1]"), "{shown}");
        assert!(
            shown.ends_with("loaded first (40 ms) [2] [1]\n[1] coarse\n[2] flagged"),
            "each once: {shown}"
        );
    }

    #[test]
    fn a_refusal_is_shown_too() {
        let decision =
            json!({"action": "refuse", "error": "no variant is this fast", "reason": "latency_unreachable"});
        let shown = shown(&json!({"goals": null, "decision": decision, "candidates": []}));
        assert!(shown.starts_with("refused: no variant is this fast (latency_unreachable)"), "{shown}");
    }
}
