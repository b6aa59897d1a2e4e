//! `modelless decisions`: what queries come to, as they end.

use super::http::segment;
use super::versions::time;
use super::{Server, text};
use crate::out;
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only those of this task.
    #[arg(long)]
    task: Option<String>,
    /// How many are shown in a second at most; how many are not is told with the next.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    per_second: u32,
    /// End after so many.
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let api = options.server.api()?;
    let mut path = format!("/v1/decisions?per_second={}", options.per_second);
    if let Some(task) = &options.task {
        let _ = write!(path, "&task={}", segment(task));
    }
    let mut left = options.count.unwrap_or(u64::MAX);
    while left > 0 {
        // The server ends an answer now and then; this one goes on until it is interrupted.
        let ended = api.told(&path, &mut |decision| {
            if options.server.json {
                out::line(decision)?;
            } else {
                out::line(shown(decision))?;
            }
            left -= 1;
            if left == 0 { Err(Enough.into()) } else { Ok(()) }
        });
        match ended {
            Err(error) if error.is::<Enough>() => return Ok(()),
            ended => ended?,
        }
        // As it asks of those who come back.
        if left > 0 {
            api.pause(Duration::from_secs(1));
        }
    }
    Ok(())
}

/// Not an error, but the end.
#[derive(Debug, Clone, Copy)]
struct Enough;

impl std::fmt::Display for Enough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("as many as were asked for")
    }
}

impl std::error::Error for Enough {}

fn figure(value: &Value, digits: usize) -> Option<String> {
    value.as_f64().map(|value| format!("{value:.digits$}"))
}

/// What was asked for, goal by goal.
pub(super) fn goals(asked: &Value) -> Vec<String> {
    let mut goals = Vec::new();
    if let Some(floor) = figure(&asked["accuracy"], 4) {
        goals.push(format!("accuracy >= {floor}"));
    }
    if let Some(bound) = figure(&asked["latency_ms"], 1) {
        goals.push(format!("within {bound} ms"));
    }
    if let Some(most) = figure(&asked["max_cost"], 6) {
        goals.push(format!("for <= {most}"));
    }
    for name in ["prefer", "fallback", "model", "variant"] {
        goals.extend(asked[name].as_str().map(|value| format!("{name} {value}")));
    }
    goals
}

/// What it came to.
pub(super) fn outcome(decision: &Value) -> String {
    let outcome = text(decision, "outcome");
    if outcome != "answered" {
        return format!("refused: {outcome}");
    }
    format!(
        "{} on {} in {} ms (expected {}), batch of {}{}: {}",
        text(decision, "variant"),
        text(decision, "node"),
        figure(&decision["total_ms"], 2).unwrap_or_default(),
        figure(&decision["predicted_ms"], 2).unwrap_or_default(),
        decision["batch"],
        if decision["in_time"] == false { ", LATE" } else { "" },
        text(decision, "why"),
    )
}

fn shown(decision: &Value) -> String {
    let goals = goals(&decision["asked"]);
    let mut line = format!(
        "{}  {:<16}  {:<24}  {:<16}  {:<34}  {}",
        time(decision["at_unix_us"].as_u64().unwrap_or(0)),
        text(decision, "query"),
        format!("{}/{}", text(decision, "tenant"), text(decision, "app")),
        text(decision, "task"),
        if goals.is_empty() { "no goals".to_owned() } else { goals.join(", ") },
        outcome(decision),
    );
    if let Some(skipped) = decision["skipped"].as_u64().filter(|skipped| *skipped > 0) {
        let _ = write!(line, "  ({skipped} more before)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decision_is_a_line_with_goals_outcome_and_why() {
        let decision = json!({"at_unix_us": 60_000_000, "task": "t", "outcome": "answered", "variant": "v", "node": "n",
            "batch": 4, "why": "because", "total_ms": 7.5, "predicted_ms": 6.0, "in_time": false, "skipped": 3,
            "query": "00000000000000ab", "tenant": "team-a", "app": "shop",
            "asked": {"accuracy": 0.9, "latency_ms": 5.0, "max_cost": null, "prefer": "cost", "model": "m@2"}});
        let line = shown(&decision);
        for part in [
            "1970-01-01 00:01:00",
            "00000000000000ab  team-a/shop ",
            "accuracy >= 0.9000, within 5.0 ms, prefer cost, model m@2",
            "v on n in 7.50 ms (expected 6.00)",
            "LATE: because",
            "(3 more before)",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let refused = shown(&json!({"task": "t", "outcome": "too_late", "asked": {}, "skipped": 0}));
        assert!(refused.contains("no goals") && refused.ends_with("refused: too_late"), "{refused}");
    }
}
