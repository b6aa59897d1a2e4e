//! `modelless explain`: every candidate, and what spoke for or against it; for goals, or for a query that has ended.

use super::versions::time;
use super::{GoalOptions, Server, dollars, list, number, segment, text};
use crate::exit::usage;
use crate::out;
use crate::table::Table;
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The task: what would be decided for a query with these goals that came now.
    #[arg(required_unless_present = "query")]
    task: Option<String>,
    /// Instead, what was decided for a query that has ended: its number, as `modelless-query` of its answer or refusal tells it, or its
    /// `modelless-query-id`. The gateway that was asked keeps the last 1,024.
    #[arg(long, value_name = "NUMBER", conflicts_with = "task")]
    query: Option<String>,
    #[command(flatten)]
    goals: GoalOptions,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let goals = options.goals.query();
    let path = match (&options.query, &options.task) {
        (Some(_), _) if !goals.is_empty() => {
            return Err(usage("a query had its own goals; give `--query` or goals, not both"));
        }
        (Some(query), _) => format!("/v1/queries/{}/explain", segment(query)),
        (None, Some(task)) => format!("/v1/tasks/{}/explain{goals}", segment(task)),
        (None, None) => return Err(usage("say what: a task and goals, or `--query NUMBER`")),
    };
    let explanation = options.server.api()?.get(&path)?.ok()?.json()?;
    match options.query {
        _ if options.server.json => out::json(&explanation),
        Some(_) => out::line(ended(&explanation)),
        None => out::line(shown(&explanation)),
    }
}

fn shown(explanation: &Value) -> String {
    format!("{}\n\n{}", decided(explanation), candidates(explanation))
}

/// A query that has ended: what was asked and came of it, its stages, and each decision on it.
fn ended(query: &Value) -> String {
    let asked = super::decisions::goals(&query["asked"]);
    let mut told = format!(
        "query {} of {}/{}, ended {}\n{}, {}\n{}",
        text(query, "query"),
        text(query, "tenant"),
        text(query, "app"),
        time(query["at_unix_us"].as_u64().unwrap_or(0)),
        text(query, "task"),
        if asked.is_empty() { "no goals".to_owned() } else { asked.join(", ") },
        super::decisions::outcome(query),
    );
    let stages = list(query, "stages");
    if !stages.is_empty() {
        let mut table = Table::new(&["", ">expected ms (p99)", ">took ms"]);
        for stage in stages {
            table.row([
                text(stage, "stage").to_owned(),
                number(&stage["expected_ms"], 3),
                number(&stage["took_ms"], 3),
            ]);
        }
        let _ = write!(told, "\n\n{table}");
    }
    let decisions = list(query, "decisions");
    if decisions.is_empty() {
        told.push_str("\n\nno decision on it is kept: it was answered by what was given before, refused before it was routed, or others came since");
    }
    for decision in decisions {
        let _ = write!(
            told,
            "\n\n{} ms after it came: {}\n{}",
            number(&decision["after_ms"], 3),
            did(&decision["did"]),
            candidates(decision)
        );
        if let Some(share) = decision["share"]["because"].as_str() {
            let _ = write!(told, "\nnot all could be answered in time: {share}");
        }
        if let Some(more) = decision["nodes_left_out"].as_u64().filter(|more| *more > 0) {
            let _ = write!(told, "\n{more} more nodes are not kept");
        }
    }
    told
}

fn did(did: &Value) -> String {
    match text(did, "action") {
        "sent" => format!(
            "sent to node {}{}, expected within {} ms",
            text(did, "node"),
            if did["joined"] == true { " with others of its class, whose batch had not begun" } else { "" },
            number(&did["predicted_ms"], 2)
        ),
        "announced" => format!(
            "announced to {} nodes, of which whichever is first to claim it has it, {} ms at most",
            did["nodes"],
            number(&did["at_most_ms"], 2)
        ),
        "claimed" => format!(
            "claimed by node {}, expected within {} ms",
            text(did, "node"),
            number(&did["predicted_ms"], 2)
        ),
        "waits" => format!("it waits here, {} ms at most", number(&did["at_most_ms"], 2)),
        _ => format!("refused: {}", text(did, "reason")),
    }
}

fn candidates(explanation: &Value) -> String {
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
    let mut shown = table.to_string();
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
    fn a_query_that_has_ended_is_shown_with_its_stages_and_each_decision_on_it() {
        let candidate = json!({"variant": "a", "accuracy": 0.9, "latency_ms": 1.0, "finding": "chosen", "because": "it was taken"});
        let sent = json!({"after_ms": 2.5, "did": {"action": "sent", "node": "n", "predicted_ms": 4.0}, "nodes_left_out": 36,
            "candidates": [candidate]});
        let because = "its application used 41 % of the device time, its share is 25 %";
        let waits = json!({"after_ms": 0.1, "did": {"action": "waits", "at_most_ms": 40.0}, "nodes_left_out": 0, "candidates": [],
            "share": {"used": 0.41, "share": 0.25, "because": because}});
        let query = json!({
            "query": "00000000000000ab", "tenant": "team-a", "app": "shop", "at_unix_us": 60_000_000, "task": "t",
            "asked": {"accuracy": 0.9}, "outcome": "answered", "variant": "a", "node": "n", "batch": 2, "total_ms": 6.0,
            "predicted_ms": 6.5, "in_time": true, "why": "only one that meets the goals",
            "stages": [{"stage": "running the batch", "expected_ms": 1.0, "took_ms": 1.25}], "decisions": [waits, sent],
        });
        let told = ended(&query);
        for part in [
            "query 00000000000000ab of team-a/shop, ended 1970-01-01 00:01:00",
            "t, accuracy >= 0.9000",
            "a on n in 6.00 ms (expected 6.50), batch of 2: only one",
            "running the batch              1.000    1.250",
            "0.100 ms after it came: it waits here, 40.00 ms at most",
            "not all could be answered in time: its application used 41 % of the device time, its share is 25 %",
            "2.500 ms after it came: sent to node n, expected within 4.00 ms",
            "it was taken",
            "36 more nodes are not kept",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let again = ended(&json!({"asked": {}, "outcome": "too_late", "stages": [], "decisions": []}));
        assert!(again.contains("no goals\nrefused: too_late\n\nno decision on it is kept"), "{again}");
    }

    #[test]
    fn a_refusal_is_shown_too() {
        let decision =
            json!({"action": "refuse", "error": "no variant is this fast", "reason": "latency_unreachable"});
        let shown = shown(&json!({"goals": null, "decision": decision, "candidates": []}));
        assert!(shown.starts_with("refused: no variant is this fast (latency_unreachable)"), "{shown}");
    }
}
