//! `modelless replica`: what is in memory where, what its state rests on, and how it came to be so.

use super::versions::time;
use super::{Server, in_memory, list, number, of_task, segment, text};
use crate::out;
use crate::table::Table;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// All replicas of the nodes that the server reaches.
    List(Server),
    /// One replica: its state, why, and what happened to it.
    Show(Show),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The node.
    node: String,
    /// The variant.
    variant: String,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    let (server, path) = match command {
        Command::List(server) => (server, "/v1/replicas?transitions=0".to_owned()),
        Command::Show(one) => {
            (&one.server, format!("/v1/replicas/{}/{}", segment(&one.node), segment(&one.variant)))
        }
    };
    let answer = server.api()?.get(&path)?.ok()?.json()?;
    match command {
        _ if server.json => out::json(&answer),
        Command::List(_) => out::line(listed(&answer)),
        Command::Show(_) => {
            let shown: Vec<String> = list(&answer, "replicas").iter().map(described).collect();
            out::line(shown.join("\n\n"))
        }
    }
}

fn listed(answer: &Value) -> Table {
    let columns = ["node", "task", "variant", "state", ">memory", ">slowdown", "because"];
    let mut table = Table::new(&columns);
    for replica in list(answer, "replicas") {
        table.row([
            text(replica, "node").to_owned(),
            text(replica, "task").to_owned(),
            text(replica, "variant").to_owned(),
            text(replica, "state").to_owned(),
            in_memory(replica),
            number(&replica["slowdown"]["ratio"], 2),
            text(replica, "cause").to_owned(),
        ]);
    }
    table
}

fn described(replica: &Value) -> String {
    let mut shown = format!("{} on {}: {}", of_task(replica), text(replica, "node"), text(replica, "state"));
    let _ = write!(shown, "\n  {}", text(replica, "cause"));
    for line in list(replica, "because").iter().filter_map(Value::as_str) {
        let _ = write!(shown, "\n  {line}");
    }
    let mut table = Table::new(&["when", "from", "to", "cause", "who"]);
    for one in list(replica, "transitions") {
        table.row([
            time(one["at_unix_us"].as_u64().unwrap_or(0)),
            text(one, "from").to_owned(),
            text(one, "to").to_owned(),
            text(one, "cause").to_owned(),
            text(one, "who").to_owned(),
        ]);
    }
    format!("{shown}\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_replica_is_shown_with_what_its_state_rests_on_and_how_it_came_to_it() {
        let replica = json!({
            "node": "local", "variant": "cnn_l", "task": "fashion", "state": "interfered", "cause": "slower than its profile",
            "memory_bytes": 2048, "slowdown": {"ratio": 1.876}, "because": ["speed: 1.88 times", "load: 12 %"],
            "transitions": [{"from": "active", "to": "interfered", "cause": "slow", "who": "executor local", "at_unix_us": 60_000_000}],
        });
        let shown = described(&replica);
        assert!(shown.starts_with("cnn_l of fashion on local: interfered\n  slower"), "{shown}");
        assert!(shown.contains("load: 12 %") && shown.contains("1970-01-01 00:01:00"), "{shown}");
        let mut gone = replica.clone();
        gone["state"] = json!("inactive");
        let all = listed(&json!({"replicas": [replica, gone]})).to_string();
        assert!(
            all.contains("1.88") && all.contains("local  fashion  cnn_l    interfered  2.0 KiB"),
            "{all}"
        );
        assert_eq!(all.matches("KiB").count(), 1, "what is not in memory takes none: {all}");
    }
}
