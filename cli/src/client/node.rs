//! `modelless node`: the machines behind a server, what is in their memory, and how that goes.

use super::{Server, bytes, in_memory, list, number, text};
use crate::out;
use crate::table::Table;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// All nodes.
    List(Server),
    /// One node with its hardware, its load and every replica.
    Show(Show),
    /// Every process of the cluster that announces itself, and what is asked of all gateways.
    Members(Server),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The node; without a name, the only one there is.
    name: Option<String>,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    let server = match command {
        Command::List(server) | Command::Members(server) => server,
        Command::Show(options) => &options.server,
    };
    let path = if matches!(command, Command::Members(_)) { "/v1/members" } else { "/v1/nodes" };
    let answer = server.api()?.get(path)?.ok()?.json()?;
    match command {
        Command::List(server) | Command::Members(server) if server.json => out::json(&answer),
        Command::Members(_) => out::line(format!("{}\n{}", members(&answer), demand(&answer))),
        Command::List(_) => out::line(nodes(&answer)),
        Command::Show(options) => {
            let node = find(&answer, options.name.as_deref())?;
            if server.json { out::json(node) } else { out::line(described(node)) }
        }
    }
}

fn find<'a>(answer: &'a Value, name: Option<&str>) -> anyhow::Result<&'a Value> {
    let all = list(answer, "nodes");
    let names = || all.iter().map(|node| text(node, "name")).collect::<Vec<_>>().join(", ");
    match (name, all) {
        (Some(name), _) => {
            let found = all.iter().find(|node| text(node, "name") == name);
            found.with_context(|| format!("there is no node {name:?}; known are: {}", names()))
        }
        (None, [only]) => Ok(only),
        (None, []) => anyhow::bail!("there is no node"),
        (None, _) => anyhow::bail!("there are several nodes; say which: {}", names()),
    }
}

fn state(node: &Value) -> &str {
    match (node["draining"].as_bool(), node["connected"].as_bool()) {
        (Some(true), _) => "draining",
        (_, Some(true)) => "up",
        _ if !node["announced"].is_null() => "unreached",
        // It never said that it ends, and the server that was asked does not reach it.
        _ if text(node, "state") == "up" => "lost",
        _ => text(node, "state"),
    }
}

fn members(answer: &Value) -> Table {
    let columns = [
        "role",
        "name",
        "address",
        ">queries",
        ">waiting",
        ">lanes",
        ">busy",
        ">memory",
        ">resident",
        ">corrected",
    ];
    let mut table = Table::new(&columns);
    for member in list(answer, "members") {
        let load = &member["load"];
        let draining = if member["draining"] == true { " (draining)" } else { "" };
        table.row([
            text(member, "role").to_owned(),
            format!("{}{draining}", text(member, "name")),
            text(member, "address").to_owned(),
            number(&load["queries"], 0),
            number(&load["waiting"], 0),
            number(&load["lanes"], 0),
            number(&load["lanes_busy"], 0),
            bytes(&member["memory"]["used_bytes"]),
            list(member, "resident").len().to_string(),
            list(member, "corrections").len().to_string(),
        ]);
    }
    table
}

fn demand(answer: &Value) -> Table {
    let mut table = Table::new(&["task", ">asked", ">in time", ">waiting", "may be answered by"]);
    for class in list(answer, "demand") {
        let variants: Vec<&str> = list(class, "variants").iter().filter_map(Value::as_str).collect();
        table.row([
            text(class, "task").to_owned(),
            number(&class["arrived"], 0),
            number(&class["in_time"], 0),
            number(&class["waiting"], 0),
            variants.join(" "),
        ]);
    }
    table
}

fn nodes(answer: &Value) -> Table {
    let columns = [
        "node",
        "state",
        "pool",
        "zone",
        "device class",
        ">lanes",
        ">busy",
        ">queued",
        ">memory",
        ">of",
        ">replicas",
    ];
    let mut table = Table::new(&columns);
    for node in list(answer, "nodes") {
        let (load, memory) = (&node["load"], &node["memory"]);
        table.row([
            text(node, "name").to_owned(),
            state(node).to_owned(),
            text(node, "pool").to_owned(),
            text(node, "zone").to_owned(),
            text(node, "device_class").to_owned(),
            number(&node["lanes"], 0),
            number(&load["lanes_busy"], 0),
            number(&load["queued"], 0),
            bytes(&memory["used_bytes"]),
            bytes(&memory["budget_bytes"]),
            number(&node["replicas"], 0),
        ]);
    }
    table
}

fn described(node: &Value) -> String {
    let (hardware, load, memory) = (&node["hardware"], &node["load"], &node["memory"]);
    let mut shown = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(shown, "{name:<13}{value}");
    };
    line("node", format!("{} ({})", text(node, "name"), state(node)));
    let source = text(node, "zone_source");
    let source = if source.is_empty() { String::new() } else { format!(" ({source})") };
    line("pool, zone", format!("{}, {}{source}", text(node, "pool"), text(node, "zone")));
    line("device class", text(node, "device_class").to_owned());
    // What is gone tells no more than that.
    if node["connected"] == true {
        let words =
            |name| list(hardware, name).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        line(
            "processor",
            format!("{} ({}), {} cores", text(hardware, "cpu"), text(hardware, "arch"), hardware["cores"]),
        );
        line("knows", words("isa"));
        line("memory", bytes(&hardware["memory_bytes"]));
        line("GPUs", gpus(hardware));
        let source = node["price_source"].as_str().map(|source| format!(", {source}")).unwrap_or_default();
        let price = number(&node["price_usd_per_hour"], 4);
        line("price", format!("{price} USD an hour and lane ({}{source})", text(node, "price_provenance")));
        line("up for", uptime(node["uptime_s"].as_u64().unwrap_or_default()));
        line("lanes", format!("{} of {} busy", load["lanes_busy"], node["lanes"]));
        if let Some(way) = node["way_ms"].as_f64().filter(|way| *way > 0.0) {
            line("way", format!("{way:.2} ms there and back, as the gateway sees it"));
        }
        let few = &node["narrowed"];
        if few.is_object() {
            let told = format!(
                "{} of {} lanes run side by side for now: {}",
                few["lanes"],
                few["of"],
                text(few, "cause")
            );
            line("narrowed", told);
        }
        let caution = node["caution"].as_f64().unwrap_or(1.0);
        if caution > 1.0 {
            let told = format!(
                "batches are taken to last {caution:.1} times as long where variants are compared, as queries were late here lately"
            );
            line("cautious", told);
        }
        line(
            "queries",
            format!(
                "{} running, {} queued; {} run in {} batches; {} given back",
                load["running"], load["queued"], load["queries"], load["batches"], load["handed_back"]
            ),
        );
        line(
            "runners",
            format!(
                "{} ended unasked, {} replicas came back after that",
                load["runner_crashes"], load["replica_restarts"]
            ),
        );
        line("models use", format!("{} of {}", bytes(&memory["used_bytes"]), bytes(&memory["budget_bytes"])));
    }
    for warning in list(node, "warnings").iter().filter_map(Value::as_str) {
        line("warning", warning.to_owned());
    }
    if !list(node, "replica_states").is_empty() {
        let _ = write!(shown, "\n{}", replicas(node));
    }
    shown.truncate(shown.trim_end().len());
    shown
}

fn gpus(hardware: &Value) -> String {
    let all = list(hardware, "gpus");
    if all.is_empty() {
        return "none".to_owned();
    }
    let shown = all.iter().map(|gpu| format!("{} {}", text(gpu, "name"), bytes(&gpu["memory_bytes"])));
    shown.collect::<Vec<_>>().join(", ")
}

fn replicas(node: &Value) -> Table {
    let columns =
        ["task", "variant", "state", ">memory", ">loads", ">cold ms", ">warm ms", ">slowdown", "because"];
    let mut table = Table::new(&columns);
    for replica in list(node, "replica_states") {
        let loads = &replica["loads"];
        table.row([
            text(replica, "task").to_owned(),
            text(replica, "variant").to_owned(),
            text(replica, "state").to_owned(),
            in_memory(replica),
            number(&loads["count"], 0),
            number(&loads["cold_ms"], 1),
            number(&loads["warm_ms"], 1),
            number(&replica["slowdown"]["ratio"], 2),
            text(replica, "cause").to_owned(),
        ]);
    }
    table
}

fn uptime(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer() -> Value {
        json!({"nodes": [
            {"name": "old", "state": "gone", "connected": false, "pool": "p", "zone": "z", "device_class": "cpu:x:2"},
            {"name": "local", "connected": true, "draining": false, "pool": "default", "zone": "local",
             "device_class": "cpu:x:4", "lanes": 3, "narrowed": {"lanes": 2, "of": 3, "cause": "others leave 2.0 cores"}, "caution": 1.7, "way_ms": 2.5, "replicas": 1, "uptime_s": 65, "price_usd_per_hour": 0.05,
             "price_provenance": "default", "price_source": null, "warnings": ["models run unconfined"],
             "hardware": {"cpu": "X", "arch": "x86_64", "isa": ["avx2"], "cores": 4, "memory_bytes": 1024, "gpus": []},
             "load": {"lanes_busy": 1, "queued": 2, "running": 3, "batches": 4, "queries": 5, "runner_crashes": 6,
                      "replica_restarts": 7, "handed_back": 8},
             "memory": {"used_bytes": 1024, "budget_bytes": 2048},
             "replica_states": [{"variant": "a-fp32", "task": "t", "state": "active", "memory_bytes": 1024, "cause": "loaded",
                                 "loads": {"count": 2, "cold_ms": null, "warm_ms": 12.5}, "slowdown": {"ratio": 1.5}}]},
        ]})
    }

    #[test]
    fn a_node_is_described_with_what_it_does_and_what_is_weak() {
        let shown = described(find(&answer(), Some("local")).unwrap());
        for part in [
            "local (up)",
            "4 cores",
            "1 of 3 busy",
            "2 of 3 lanes run side by side for now: others leave 2.0 cores",
            "2.50 ms there and back",
            "batches are taken to last 1.7 times as long",
            "2 queued",
            "8 given back",
            "models run unconfined",
            "1 min",
            "6 ended",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        let replica = shown.lines().last().unwrap();
        assert!(
            replica.starts_with("t     a-fp32") && replica.contains("12.5") && replica.contains("1.50"),
            "{replica}"
        );
        let gone = described(find(&answer(), Some("old")).unwrap());
        assert!(gone.contains("old (gone)") && !gone.contains("lanes"), "{gone}");
    }

    #[test]
    fn members_are_listed_and_a_node_that_lives_but_is_not_reached_is_told_so() {
        let answer = json!({
            "members": [{"role": "node", "name": "far", "address": "h:1", "draining": true, "load": {"queries": 3, "waiting": 2,
                         "lanes_busy": 1, "lanes": 4}, "memory": {"used_bytes": 1024}, "resident": [{}], "corrections": []}],
            "demand": [{"task": "fashion", "variants": ["a", "b"], "arrived": 9, "in_time": 8, "waiting": 0}],
        });
        let shown = format!("{}\n{}", members(&answer), demand(&answer));
        for part in ["far (draining)", "h:1", "fashion", "a b"] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        let node = json!({"name": "far", "state": "up", "connected": false, "announced": {"name": "far"}});
        assert_eq!(state(&node), "unreached");
    }

    #[test]
    fn a_node_that_ended_without_a_word_is_lost_and_not_up() {
        let of = |state: &str, connected: bool| json!({"name": "n", "state": state, "connected": connected});
        assert_eq!(state(&of("up", false)), "lost");
        assert_eq!(state(&of("gone", false)), "gone");
        assert_eq!(state(&of("up", true)), "up");
    }

    #[test]
    fn a_node_is_found_by_name_or_because_it_is_the_only_one() {
        assert!(find(&answer(), Some("none")).unwrap_err().to_string().contains("old, local"));
        assert!(find(&answer(), None).unwrap_err().to_string().contains("several"));
        assert!(find(&json!({"nodes": [{"name": "x"}]}), None).is_ok());
        let table = nodes(&answer()).to_string();
        assert!(table.contains("gone") && table.lines().count() == 3, "{table}");
    }
}
