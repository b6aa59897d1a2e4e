//! Commands that ask a running server, over HTTP like everybody else.

pub(crate) mod audit;
pub(crate) mod decisions;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod feedback;
mod forecast;
mod goals;
mod http;
pub(crate) mod job;
pub(crate) mod key;
pub(crate) mod machine;
mod measuring;
pub(crate) mod model;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod profile;
pub(crate) mod query;
pub(crate) mod replica;
mod sharing;
pub(crate) mod task;
pub(crate) mod tenant;
mod tls;
mod trials;
mod under_way;
pub(crate) mod variant;
mod versions;

pub(crate) use goals::{GoalOptions, JobGoalOptions};
pub(crate) use http::{Api, Away, Reply, presented, segment};
pub(crate) use tls::TlsOptions;

use clap::Args;
use serde_json::Value;
use std::path::PathBuf;

/// Which server, and how to show what it says.
#[derive(Args, Clone, Debug)]
pub(crate) struct Server {
    /// The server to ask.
    #[arg(
        long = "server",
        value_name = "URL",
        env = "MODELLESS_SERVER",
        default_value = "http://127.0.0.1:8080"
    )]
    url: String,
    /// A file with the key to present; otherwise MODELLESS_KEY, if that is set. Never on the command line, which others can read.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsOptions,
    /// For programs.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Server {
    pub(crate) fn api(&self) -> anyhow::Result<Api> {
        Api::new(&self.url, presented(self.key_file.as_deref())?, &self.tls)
    }
}

/// A string of an answer; what is not there is empty.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// A variant with its task, where the answer says it: names are unique in a task only.
fn of_task(value: &Value) -> String {
    let variant = text(value, "variant");
    value["task"].as_str().map_or_else(|| variant.to_owned(), |task| format!("{variant} of {task}"))
}

/// What a replica takes of memory; a dash where it is not there.
fn in_memory(replica: &Value) -> String {
    let there = !matches!(text(replica, "state"), "inactive" | "failed");
    if there { bytes(&replica["memory_bytes"]) } else { "-".to_owned() }
}

/// A list of an answer; what is not there is empty.
fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// A number with so many digits behind the point; what is not there is a dash.
fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
}

/// Dollars, which may be very few: three figures that say something, whatever their size.
fn dollars(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(usd) if usd <= 0.0 => "0".to_owned(),
        Some(usd) => {
            let digits = (0..12).find(|digits| usd * 10_f64.powi(*digits) >= 1.0).unwrap_or(12);
            format!("{usd:.0$}", usize::try_from(digits + 2).unwrap_or(2))
        }
    }
}

/// Bytes for people.
fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |bytes| modelless_types::Bytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_missing_is_a_dash() {
        let answer = json!({"ms": 1.25, "usd": 0.000_001_25, "name": "x", "none": null, "bytes": 2048});
        assert_eq!(
            (number(&answer["ms"], 1), number(&answer["none"], 1)),
            ("1.2".to_owned(), "-".to_owned())
        );
        assert_eq!(
            (dollars(&answer["usd"]), dollars(&answer["no"])),
            ("0.00000125".to_owned(), "-".to_owned())
        );
        assert_eq!((dollars(&json!(0.05)), dollars(&json!(12.5))), ("0.0500".to_owned(), "12.50".to_owned()));
        assert_eq!((text(&answer, "name"), text(&answer, "ms"), list(&answer, "name").len()), ("x", "", 0));
        assert_eq!(bytes(&answer["bytes"]), "2.0 KiB");
    }
}
