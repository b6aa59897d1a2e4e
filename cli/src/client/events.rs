//! `modelless events`: what happened, and what happens.

use super::versions::time;
use super::{Server, list, of_task, text};
use crate::out;
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;

/// One request of one who follows waits so long.
const WAIT_MS: u32 = 20_000;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Go on until interrupted, telling what happens when it does.
    #[arg(long)]
    follow: bool,
    /// Only those after this one.
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// How many of the latest.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let api = options.server.api()?;
    let mut after = options.after;
    let mut wait = 0;
    loop {
        let from = after.map(|after| format!("&after={after}")).unwrap_or_default();
        let path = format!("/v1/events?limit={}&wait_ms={wait}{from}", options.limit);
        let answer = api.get(&path)?.ok()?.json()?;
        for event in list(&answer, "events") {
            // A line each also for programs, which read them while they come.
            if options.server.json { out::line(event)? } else { out::line(shown(event))? }
        }
        if !options.follow {
            return Ok(());
        }
        after = answer["last"].as_u64().or(after);
        wait = WAIT_MS;
    }
}

fn shown(event: &Value) -> String {
    let mut line = format!(
        "{:>6}  {}  {:<7}  {:<11}",
        event["seq"].as_u64().unwrap_or(0),
        time(event["at_unix_us"].as_u64().unwrap_or(0)),
        text(event, "kind"),
        text(event, "what"),
    );
    let mut about = vec![of_task(event), text(event, "node").to_owned()];
    about.retain(|name| !name.is_empty());
    if !about.is_empty() {
        let _ = write!(line, "  {}", about.join(" on "));
    }
    let _ = write!(line, "  {} ({})", text(event, "cause"), text(event, "who"));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_a_line_with_when_what_where_and_why() {
        let event = json!({"seq": 7, "kind": "replica", "what": "failed", "node": "a", "variant": "v", "task": "t", "cause": "it died",
            "who": "executor a", "at_unix_us": 60_000_000});
        let line = shown(&event);
        assert!(
            line.contains("7  1970-01-01 00:01:00") && line.contains("v of t on a  it died (executor a)"),
            "{line}"
        );
        let plan = shown(
            &json!({"kind": "plan", "what": "plan 3", "node": null, "variant": null, "cause": "c", "who": "s"}),
        );
        assert!(plan.ends_with("plan 3       c (s)"), "{plan}");
    }
}
