//! `modelless plan`: what is to be where and why, what changed, and what would change now.

use super::versions::time;
use super::{Server, list, number, of_task, text};
use crate::exit::usage;
use crate::out;
use crate::roles::machines;
use crate::table::Table;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// What would change if it were planned now, and why. Nothing is changed.
    #[arg(long)]
    dry_run: bool,
    /// With `--dry-run`: as if this node, or the machine of this name, were not there.
    #[arg(long, value_name = "NODE", requires = "dry_run")]
    without: Option<String>,
    /// With `--dry-run`: as if so much were asked of a task, `TASK=50` queries a second, or `TASK=x10` for ten times as much as in the
    /// last seconds. May be given for several tasks.
    #[arg(long, value_name = "TASK=QPS", requires = "dry_run")]
    demand: Vec<String>,
    /// With `--dry-run`: as if the scheduler had been given this file of pools.
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    pools: Option<PathBuf>,
    #[command(flatten)]
    server: Server,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// A plan, with the reason for each variant on each node, and the figures that decided.
    Show(Show),
    /// Plans, newest first, and what each changed.
    History(History),
}

#[derive(Args, Debug)]
struct Show {
    /// Its number; without one, the newest.
    plan: Option<u64>,
    /// Only what it says of this variant.
    #[arg(long)]
    variant: Option<String>,
    /// Only what it says of this node.
    #[arg(long)]
    node: Option<String>,
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
            let answer =
                options.server.api()?.post_json("/v1/plans/next", &supposed(options)?)?.ok()?.json()?;
            return if options.server.json { out::json(&answer) } else { out::line(dry(&answer)) };
        }
        None => return Err(usage("say what: `plan show`, `plan history` or `plan --dry-run`")),
    };
    let mut answer = server.api()?.get(&path)?.ok()?.json()?;
    match &options.command {
        Some(Command::Show(one)) => {
            only(&mut answer, one)?;
            if server.json { out::json(&answer) } else { out::line(shown(&answer)) }
        }
        _ if server.json => out::json(&answer),
        Some(Command::History(_)) | None => out::line(history(&answer)),
    }
}

/// As if: what is to be planned with in place of what is.
fn supposed(options: &Options) -> anyhow::Result<Value> {
    let mut demand = serde_json::Map::new();
    for one in &options.demand {
        let Some((task, rate)) = one.rsplit_once('=') else {
            return Err(usage(format!("`--demand` is {one:?}; expected TASK=50 or TASK=x10")));
        };
        if demand.insert(task.to_owned(), json!(rate)).is_some() {
            return Err(usage(format!("`--demand` is given twice for task {task:?}")));
        }
    }
    let pools = options.pools.as_deref().map(machines::read).transpose()?;
    let pools =
        pools.map(|pools| json!({"budget": pools.budget(), "busy": pools.busy, "pools": pools.settings()}));
    Ok(json!({"without": options.without, "demand": demand, "pools": pools}))
}

/// Leaves of its steps those that were asked for.
fn only(plan: &mut Value, wanted: &Show) -> anyhow::Result<()> {
    let is = |step: &Value, name: &str, wanted: &Option<String>| {
        wanted.as_ref().is_none_or(|wanted| text(step, name) == wanted)
    };
    let Some(steps) = plan["steps"].as_array_mut() else { return Ok(()) };
    steps.retain(|step| is(step, "variant", &wanted.variant) && is(step, "node", &wanted.node));
    if steps.is_empty() && (wanted.variant.is_some() || wanted.node.is_some()) {
        anyhow::bail!(
            "this plan says nothing of that; `modelless plan show` shows all that it says. Only what a node could run, and was \
             measured for, is planned there"
        );
    }
    Ok(())
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
    let mut told = lines.join("\n");
    if answer["machines"].is_object() {
        let _ = write!(told, "\n\n{}", of_machines(&answer["machines"]));
    }
    format!("{told}\n\n{}", steps(answer))
}

/// Which machines would come or go, and how many of each pool there should be.
fn of_machines(machines: &Value) -> String {
    if let Some(unknown) = super::machine::by_other_rules(machines) {
        return unknown;
    }
    let steps = list(machines, "steps");
    let (now, then) = (&machines["usd_per_hour"]["now"], &machines["usd_per_hour"]["then"]);
    let mut told = if steps.is_empty() {
        format!("no machine would come or go; they cost {} USD an hour", number(now, 4))
    } else {
        format!("machines would cost {} USD an hour; now they cost {}", number(then, 4), number(now, 4))
    };
    for step in steps {
        let which = match text(step, "step") {
            "start" => format!("+ one of pool {}", text(step, "pool")),
            what => format!("- {} ({what})", text(step, "machine")),
        };
        let _ = write!(told, "\n{which}: {}", text(step, "why"));
    }
    let mut table =
        Table::new(&["pool", ">least", ">most", ">wanted", ">there", ">USD/h each", "no more because"]);
    for pool in list(machines, "pools") {
        table.row([
            text(pool, "pool").to_owned(),
            number(&pool["least"], 0),
            number(&pool["most"], 0),
            super::machine::wanted(pool),
            number(&pool["there"], 0),
            number(&pool["price_usd_per_hour"], 4),
            text(pool, "blocked").to_owned(),
        ]);
    }
    let _ = write!(
        told,
        "\n\n{table}\nfor {} queries a second, none busier than {} %, times {} for what was late",
        number(&machines["demand_per_s"], 1),
        number(&json!(machines["busy"].as_f64().unwrap_or_default() * 100.0), 0),
        number(&machines["strain"], 2),
    );
    if machines["watched"] == false {
        told.push_str("; demand is not watched for long enough to let anybody go");
    }
    told
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
        assert!(!text.contains("machine"), "there are no pools: {text}");
        let none = dry(&json!({"parent": null, "changes": [], "steps": []}));
        assert!(none.starts_with("nothing would change in plan -"), "{none}");
    }

    #[test]
    fn a_dry_run_says_which_machines_would_come_or_go_and_what_that_costs() {
        let pool = json!({"pool": "p", "least": 1, "most": 4, "wanted_least": 3, "wanted_most": 3, "there": 2, "price_usd_per_hour": 0.1,
            "blocked": "its maximum is 4"});
        let steps = json!([
            {"step": "start", "pool": "p", "machine": null, "why": "3 are wanted, 2 there or on their way"},
            {"step": "drain", "pool": "q", "machine": "q-7", "why": "0 are enough, 1 are there"},
        ]);
        let machines = json!({"pools": [pool], "steps": steps, "usd_per_hour": {"now": 0.3, "then": 0.4}, "demand_per_s": 500.0,
            "busy": 0.7, "strain": 1.3, "watched": false});
        let text = dry(&json!({"parent": 4, "changes": [], "steps": [], "machines": machines}));
        for part in [
            "machines would cost 0.4000 USD an hour; now they cost 0.3000",
            "+ one of pool p: 3 are wanted",
            "- q-7 (drain): 0 are enough",
            "its maximum is 4",
            "for 500.0 queries a second, none busier than 70 %, times 1.30",
            "not watched for long enough",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let machines =
            json!({"rules": "infaas", "pools": [], "steps": [], "usd_per_hour": {"now": 0.3, "then": null}});
        let text = dry(&json!({"parent": 4, "changes": [], "steps": [], "machines": machines}));
        assert!(text.contains("rules of infaas") && !text.contains("no machine would"), "{text}");
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
