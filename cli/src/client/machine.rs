//! `modelless pool` and `modelless machine`: machines that are rented, how many there should be and why.

use super::versions::time;
use super::{Server, list, number, segment, text};
use crate::out;
use crate::table::Table;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Subcommand, Debug)]
pub(crate) enum Pool {
    /// All pools: how many machines there are, may be and should be.
    List(Server),
    /// One pool, with the numbers behind that and its machines.
    Show(Named),
}

#[derive(Subcommand, Debug)]
pub(crate) enum Machine {
    /// Machines that are there or on their way, and those that ended lately.
    List(Server),
    /// One machine: what became of it and why, the numbers behind its pool, and what would be done if it were not there.
    Show(Named),
    /// What became of machines lately, and why, newest first.
    Events(Server),
}

#[derive(Args, Debug)]
pub(crate) struct Named {
    name: String,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn pools(command: &Pool) -> anyhow::Result<()> {
    match command {
        Pool::List(server) => {
            let answer = server.api()?.get("/v1/pools")?.ok()?.json()?;
            if server.json { out::json(&answer) } else { out::line(pool_table(&answer)) }
        }
        Pool::Show(Named { name, server }) => {
            let answer = server.api()?.get("/v1/pools")?.ok()?.json()?;
            let all = list(&answer, "pools");
            let names = || all.iter().map(|pool| text(pool, "name")).collect::<Vec<_>>().join(", ");
            let pool = all.iter().find(|pool| text(pool, "name") == name);
            let pool = pool.with_context(|| format!("there is no pool {name:?}; known are: {}", names()))?;
            if server.json { out::json(pool) } else { out::line(pool_in_full(pool)) }
        }
    }
}

pub(crate) fn machines(command: &Machine) -> anyhow::Result<()> {
    let (server, path) = match command {
        Machine::List(server) | Machine::Events(server) => (server, "/v1/machines".to_owned()),
        Machine::Show(Named { name, server }) => (server, format!("/v1/machines?name={}", segment(name))),
    };
    let api = server.api()?;
    let mut answer = api.get(&path)?.ok()?.json()?;
    if let Machine::Show(Named { name, .. }) = command {
        let machine = &answer["machines"][0];
        let (pool, ended) =
            (text(machine, "pool").to_owned(), matches!(text(machine, "state"), "gone" | "failed"));
        let pools = api.get("/v1/pools")?.ok()?.json()?;
        let pool = list(&pools, "pools").iter().find(|known| text(known, "name") == pool);
        answer["pool"] = pool.cloned().unwrap_or_default();
        if !ended {
            // What it is there for shows in what would be done without it, by the calls that decide.
            let next = api.get(&format!("/v1/plans/next?without={}", segment(name)))?.ok()?.json()?;
            answer["without_it"] = next["machines"].clone();
        }
    }
    match command {
        _ if server.json => out::json(&answer),
        Machine::List(_) => out::line(machine_table(&answer)),
        Machine::Events(_) => out::line(changes(&answer)),
        Machine::Show(_) => out::line(machine_in_full(&answer)),
    }
}

fn pool_table(answer: &Value) -> Table {
    let columns = [
        "pool",
        ">least",
        ">most",
        ">wanted",
        ">there",
        ">paid",
        ">USD/h each",
        ">start-up s",
        "no more because",
    ];
    let mut table = Table::new(&columns);
    for pool in list(answer, "pools") {
        table.row([
            text(pool, "name").to_owned(),
            number(&pool["least"], 0),
            number(&pool["most"], 0),
            wanted(pool),
            number(&pool["there"], 0),
            number(&pool["paid"], 0),
            number(&pool["price_usd_per_hour"], 4),
            number(&pool["start_up"]["median_s"], 1),
            text(pool, "blocked").to_owned(),
        ]);
    }
    table
}

/// Said in place of what would become of machines, where that is not known here.
pub(super) fn by_other_rules(machines: &Value) -> Option<String> {
    let rules = machines["rules"].as_str().filter(|rules| *rules != "modelless")?;
    Some(format!(
        "not known: machines come and go by the rules of {rules}; only the scheduler sees what these decide by"
    ))
}

/// One number where least and most are the same.
pub(super) fn wanted(pool: &Value) -> String {
    let (least, most) = (number(&pool["wanted_least"], 0), number(&pool["wanted_most"], 0));
    if least == most { least } else { format!("{least} to {most}") }
}

fn pool_in_full(pool: &Value) -> String {
    let mut shown = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(shown, "{name:<15}{value}");
    };
    line("pool", text(pool, "name").to_owned());
    line("machines", format!("{} there, {} paid, {} wanted", pool["there"], pool["paid"], wanted(pool)));
    line("limits", format!("{} to {}", pool["least"], pool["most"]));
    let source = pool["price_source"].as_str().map(|source| format!(" ({source})")).unwrap_or_default();
    line("price", format!("{} USD an hour for one{source}", number(&pool["price_usd_per_hour"], 4)));
    if pool["budget_usd_per_hour"].is_number() {
        line("budget", format!("{} USD an hour for all pools", number(&pool["budget_usd_per_hour"], 4)));
    }
    let start = &pool["start_up"];
    line(
        "start-up",
        format!(
            "{} s in the middle, {} s to either side, of {} starts; given up after {} s",
            number(&start["median_s"], 1),
            number(&start["spread_s"], 1),
            start["samples"],
            number(&pool["joins_within_s"], 0)
        ),
    );
    let class = if pool["device_class"].is_string() { text(pool, "device_class") } else { "not known yet" };
    line("hardware", format!("{class}, lanes: {}", pool["lanes"]));
    if pool["rules"] == "infaas" {
        line("rules", "INFaaS', as a baseline: what is said of demand below decides nothing".to_owned());
    }
    line(
        "demand",
        format!(
            "{} queries a second; none busier than {} %, times {} for what was late",
            number(&pool["demand_per_s"], 1),
            number(&Value::from(pool["busy"].as_f64().unwrap_or_default() * 100.0), 0),
            number(&pool["strain"], 2)
        ),
    );
    if let Some(why) = pool["foreseen"]["why"].as_str() {
        let more = |name: &str| number(&pool["foreseen"][name], 0);
        let (least, most) = (more("more_least"), more("more_most"));
        line("expected", format!("{least} more wanted and {most} more kept than by that: {why}"));
    }
    if pool["watched"] == false {
        line("", "demand is not watched for long enough to let anybody go".to_owned());
    }
    if pool["blocked"].is_string() {
        line("no more because", text(pool, "blocked").to_owned());
    }
    let at = time(pool["at_unix_us"].as_u64().unwrap_or_default());
    line("as of", format!("{at}, by scheduler {}", text(pool, "scheduler")));
    shown.truncate(shown.trim_end().len());
    shown
}

fn machine_in_full(answer: &Value) -> String {
    let mut shown = format!("{}\n{}", machine_table(answer), changes(answer));
    if answer["pool"].is_object() {
        let _ = write!(shown, "\n\n{}", pool_in_full(&answer["pool"]));
    }
    if answer["without_it"].is_object() {
        let steps = list(&answer["without_it"], "steps");
        let without: Vec<String> = steps
            .iter()
            .map(|step| match text(step, "machine") {
                "" => format!("one of pool {} would be started: {}", text(step, "pool"), text(step, "why")),
                other => format!("{other} would go ({}): {}", text(step, "step"), text(step, "why")),
            })
            .collect();
        let without =
            if without.is_empty() { "nothing would take its place".to_owned() } else { without.join("; ") };
        let without = by_other_rules(&answer["without_it"]).unwrap_or(without);
        let _ = write!(shown, "\nwithout it     {without}");
    }
    shown
}

fn machine_table(answer: &Value) -> Table {
    let mut table =
        Table::new(&["machine", "pool", "state", "since", ">start-up s", ">USD/h", "its provider calls it"]);
    for machine in list(answer, "machines") {
        let took = machine["start_up_ms"].as_f64().map(|ms| Value::from(ms / 1e3)).unwrap_or_default();
        table.row([
            text(machine, "name").to_owned(),
            text(machine, "pool").to_owned(),
            text(machine, "state").to_owned(),
            time(machine["since_unix_us"].as_u64().unwrap_or_default()),
            number(&took, 1),
            number(&machine["price_usd_per_hour"], 4),
            text(machine, "instance").to_owned(),
        ]);
    }
    table
}

fn changes(answer: &Value) -> Table {
    let mut table = Table::new(&["when", "machine", "from", "to", "why"]);
    for change in list(answer, "changes") {
        table.row([
            time(change["at_unix_us"].as_u64().unwrap_or_default()),
            text(change, "machine").to_owned(),
            text(change, "from").to_owned(),
            text(change, "to").to_owned(),
            text(change, "why").to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machine_is_shown_with_the_numbers_behind_its_pool_and_what_would_be_done_without_it() {
        let machine = json!({"name": "p-1", "pool": "p", "state": "joined", "since_unix_us": 0, "price_usd_per_hour": 0.1});
        let change = json!({"at_unix_us": 0, "machine": "p-1", "from": null, "to": "asked", "why": "2 are wanted, 1 there or on their way"});
        let pool = json!({"name": "p", "there": 2, "paid": 2, "wanted_least": 2, "wanted_most": 2, "least": 1, "most": 4, "demand_per_s": 70.0,
            "busy": 0.7, "strain": 1.0});
        let step = json!({"step": "start", "pool": "p", "machine": null, "why": "2 are wanted, 1 there or on their way"});
        let mut answer = json!({"machines": [machine], "changes": [change], "pool": pool, "without_it": {"steps": [step]}});
        let shown = machine_in_full(&answer);
        for part in [
            "p-1",
            "70.0 queries a second; none busier than 70 %",
            "without it     one of pool p would be started: 2 are wanted",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        answer["without_it"]["steps"] = json!([]);
        assert!(machine_in_full(&answer).ends_with("nothing would take its place"));
        answer["without_it"]["rules"] = json!("infaas");
        let shown = machine_in_full(&answer);
        assert!(shown.contains("without it     not known") && !shown.contains("take its place"), "{shown}");
    }
}
