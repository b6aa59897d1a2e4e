//! `modelless plan`: what is to be where and why, what changed, and what would change now.

use super::versions::time;
use super::{Server, list, number, of_task, segment, text};
use crate::exit::usage;
use crate::out;
use crate::table::Table;
use clap::{Args, Subcommand};
use serde_json::Value;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// What would change if it were planned now, and why. Nothing is changed.
    #[arg(long)]
    dry_run: bool,
    /// With `--dry-run`: as if this node were not there.
    #[arg(long, value_name = "NODE", requires = "dry_run")]
    without: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// A plan, with the reason for each variant on each node.
    Show(Show),
    /// Plans, newest first, and what each changed.
    History(History),
}

#[derive(Args, Debug)]
struct Show {
    /// Its number; without one, the newest.
    plan: Option<u64>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
struct History {
    /// How many at most.
    #[arg(long, default_value_t = 20)]
    limit: u32,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (server, path) = match &options.command {
        Some(Command::Show(one)) => {
            let which = one.plan.map_or_else(|| "current".to_owned(), |number| number.to_string());
            (&one.server, format!("/v1/plans/{which}"))
        }
        Some(Command::History(some)) => (&some.server, format!("/v1/plans?limit={}", some.limit)),
        None if options.dry_run => {
            let without = options.without.as_deref().map(|node| format!("?without={}", segment(node)));
            (&options.server, format!("/v1/plans/next{}", without.unwrap_or_default()))
        }
        None => return Err(usage("say what: `plan show`, `plan history` or `plan --dry-run`")),
    };
    let answer = server.api()?.get(&path)?.ok()?.json()?;
    match &options.command {
        _ if server.json => out::json(&answer),
        Some(Command::Show(_)) => out::line(shown(&answer)),
        Some(Command::History(_)) => out::line(history(&answer)),
        None => out::line(dry(&answer)),
    }
}

fn shown(plan: &Value) -> String {
    let at = time(plan["at_unix_us"].as_u64().unwrap_or(0));
    format!("plan {} of {at}, {} pinned\n\n{}", plan["id"], plan["pins"], steps(plan))
}

fn steps(plan: &Value) -> Table {
    let mut table = Table::new(&["", "task", "variant", "node", "why"]);
    for step in list(plan, "steps") {
        let better = step["beaten_by"].as_str().map(|name| format!(" (by {name})")).unwrap_or_default();
        table.row([
            if step["pinned"] == true { "*" } else { "" }.to_owned(),
            text(step, "task").to_owned(),
            text(step, "variant").to_owned(),
            text(step, "node").to_owned(),
            format!("{}{better}", text(step, "why")),
        ]);
    }
    table
}

fn history(answer: &Value) -> Table {
    let mut table = Table::new(&[">plan", "when", ">pins", "changes"]);
    for plan in list(answer, "plans") {
        let changes: Vec<String> = list(plan, "changes").iter().map(in_short).collect();
        let changes = match changes.len() {
            0 if plan["changes"].is_null() => "its parent is forgotten".to_owned(),
            0..=4 => changes.join(", "),
            more => format!("{}, and {} more", changes[..4].join(", "), more - 4),
        };
        table.row([
            number(&plan["id"], 0),
            time(plan["at_unix_us"].as_u64().unwrap_or(0)),
            number(&plan["pins"], 0),
            changes,
        ]);
    }
    table
}

fn in_short(change: &Value) -> String {
    let sign = if text(change, "change") == "pin" { '+' } else { '-' };
    format!("{sign} {} on {}", of_task(change), text(change, "node"))
}

fn dry(answer: &Value) -> String {
    let changes = list(answer, "changes");
    let parent = number(&answer["parent"], 0);
    let mut lines = vec![if changes.is_empty() {
        format!("nothing would change in plan {parent}")
    } else {
        format!("plan {parent} would be followed by one with {} changes", changes.len())
    }];
    lines.extend(changes.iter().map(|change| format!("{}: {}", in_short(change), text(change, "why"))));
    format!("{}\n\n{}", lines.join("\n"), steps(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_dry_run_says_what_would_change_and_why_or_that_nothing_would() {
        let step =
            json!({"variant": "a", "task": "t", "node": "n", "pinned": true, "why": "pinned as the fastest"});
        let beaten =
            json!({"variant": "b", "node": "n", "pinned": false, "why": "not pinned", "beaten_by": "a"});
        let change = json!({"variant": "a", "task": "t", "node": "n", "change": "pin", "why": "pinned as the fastest"});
        let answer = json!({"parent": 4, "changes": [change], "steps": [step, beaten]});
        let text = dry(&answer);
        assert!(
            text.contains("plan 4 would be followed")
                && text.contains("+ a of t on n: pinned as the fastest"),
            "{text}"
        );
        assert!(text.contains("*  t     a        n     pinned") && text.contains("(by a)"), "{text}");
        let none = dry(&json!({"parent": null, "changes": [], "steps": []}));
        assert!(none.starts_with("nothing would change in plan -"), "{none}");
    }

    #[test]
    fn the_history_names_what_each_plan_changed_up_to_a_bound() {
        let change = |n: u32| json!({"variant": format!("v{n}"), "node": "n", "change": "unpin", "why": ""});
        let many: Vec<Value> = (0..6).map(change).collect();
        let answer = json!({"plans": [
            {"id": 2, "at_unix_us": 0, "pins": 3, "changes": many},
            {"id": 1, "at_unix_us": 0, "pins": 9, "changes": null},
        ]});
        let shown = history(&answer).to_string();
        assert!(shown.contains("- v3 on n, and 2 more") && shown.contains("forgotten"), "{shown}");
    }
}
