//! `modelless audit`: what was asked for that changes something, by whom, and what came of it.

use super::versions::time;
use super::{Server, list, text};
use crate::out;
use crate::table::Table;
use clap::Args;
use serde_json::Value;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// So many at most, newest first.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
    /// Only those before this number.
    #[arg(long, value_name = "SEQ")]
    before: Option<u32>,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let before = options.before.map(|before| format!("&before={before}")).unwrap_or_default();
    let path = format!("/v1/audit?limit={}{before}", options.limit);
    let answer = options.server.api()?.get(&path)?.ok()?.json()?;
    if options.server.json { out::json(&answer) } else { out::line(listed(&answer)) }
}

fn listed(answer: &Value) -> String {
    let mut table = Table::new(&[">seq", "when", "tenant", "who", "what", ">status"]);
    for entry in list(answer, "entries") {
        let method = text(entry, "action").split(' ').next().unwrap_or_default();
        table.row([
            entry["seq"].to_string(),
            time(entry["at_unix_us"].as_u64().unwrap_or(0)),
            entry["tenant"].as_str().unwrap_or("(none)").to_owned(),
            text(entry, "who").to_owned(),
            format!("{method} {}", text(entry, "target")),
            entry["status"].to_string(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_entry_says_who_did_what_with_which_end() {
        let answer = json!({"entries": [{"seq": 4, "at_unix_us": 0, "tenant": "default", "who": "mlk_01234567 (ann)",
            "action": "POST /v1/tenants", "target": "/v1/tenants: tenant team-a", "status": 201},
            {"seq": 3, "at_unix_us": 0, "tenant": null, "who": "unknown_key; 7 more before that are not listed",
            "action": "GET /v1/keys", "target": "/v1/keys", "status": 401}]});
        let shown = listed(&answer);
        for part in [
            "(none)",
            "unknown_key; 7 more",
            "mlk_01234567 (ann)",
            "POST /v1/tenants: tenant team-a",
            "201",
            "1970-01-01",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
