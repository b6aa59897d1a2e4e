//! Which version of a model answers: promoted, taken back, and who did that.

use super::{Api, Server, list, segment, text};
use crate::exit::usage;
use crate::out;
use crate::table::Table;
use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

#[derive(Args, Debug)]
pub(crate) struct Promote {
    /// The model.
    name: String,
    /// Its task. Needed where several tasks have a model of this name.
    #[arg(long)]
    task: Option<String>,
    /// Which of its versions.
    #[arg(long, value_name = "N")]
    version: u32,
    /// Even where no node was measured with it yet, or where it answers in another output space.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Rollback {
    /// The model.
    name: String,
    /// Its task. Needed where several tasks have a model of this name.
    #[arg(long)]
    task: Option<String>,
    /// Which version is to be taken back; where it is not the default (any more), nothing is done.
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Even where no node was measured with the version before it.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: Server,
}

pub(super) fn promote(options: &Promote) -> anyhow::Result<()> {
    let body = json!({"version": options.version, "force": options.force, "by": who()});
    change((&options.server, options.task.as_deref(), &options.name), "promote", &body)
}

/// The same for what was registered just now, which is told as the default from then on.
pub(super) fn promote_measured(api: &Api, task: &str, model: &mut Value) -> anyhow::Result<()> {
    let (name, version) = (text(model, "name").to_owned(), model["version"].clone());
    let body = json!({"version": version, "force": false, "by": who()});
    let path = format!("{}/promote", path(api, Some(task), &name)?);
    let answer = api.post_json(&path, &body)?.ok();
    answer.with_context(|| {
        format!("{name} version {version} is registered and measured, but not the default")
    })?;
    model["default"] = Value::Bool(true);
    Ok(())
}

pub(super) fn roll_back(options: &Rollback) -> anyhow::Result<()> {
    let body = json!({"version": options.version, "force": options.force, "by": who()});
    change((&options.server, options.task.as_deref(), &options.name), "rollback", &body)
}

fn change(
    (server, task, name): (&Server, Option<&str>, &str),
    how: &str,
    body: &Value,
) -> anyhow::Result<()> {
    let api = server.api()?;
    let path = path(&api, task, name)?;
    let answer = api.post_json(&format!("{path}/{how}"), body)?.ok()?.json()?;
    if server.json { out::json(&answer) } else { out::line(changed(&answer)) }
}

/// Whether queries that pin nothing may be answered by it.
pub(super) fn stands(model: &Value) -> &'static str {
    if model["default"] == true { "yes" } else { "candidate" }
}

/// What was done to versions, newest first.
pub(super) fn history(changes: &[Value]) -> Option<String> {
    let mut table = Table::new(&["when", "what", ">version", ">default then", "who"]);
    for change in changes {
        let after = &change["default_after"];
        table.row([
            time(change["at_unix_us"].as_u64().unwrap_or(0)),
            text(change, "action").replace('_', " "),
            change["version"].to_string(),
            if after.is_null() { "none".to_owned() } else { after.to_string() },
            text(change, "who").to_owned(),
        ]);
    }
    (!changes.is_empty()).then(|| table.to_string())
}

fn changed(answer: &Value) -> String {
    let name = text(answer, "name");
    let mut said = match (&answer["default"], &answer["before"]) {
        (now, before) if now == before => format!("{name} version {now} is the default already"),
        (now, Value::Null) => format!("{name} version {now} is the default now"),
        (now, before) => format!("{name} version {now} is the default now; before it was version {before}"),
    };
    for unknown in list(answer, "unknown").iter().filter_map(Value::as_str) {
        said.push_str("\nnot known: ");
        said.push_str(unknown);
    }
    said
}

/// Where a model is found, whatever its task is called.
pub(super) fn path(api: &Api, task: Option<&str>, name: &str) -> anyhow::Result<String> {
    let of = |task: &str| format!("/v1/models/{}/{}", segment(task), segment(name));
    if let Some(task) = task {
        return Ok(of(task));
    }
    let answer = api.get("/v1/models")?.ok()?.json()?;
    let all = list(&answer, "models").iter().filter(|model| text(model, "name") == name);
    let tasks: BTreeSet<&str> = all.map(|model| text(model, "task")).collect();
    match tasks.iter().collect::<Vec<_>>()[..] {
        [one] => Ok(of(one)),
        [] => Err(usage(format!("there is no model {name:?}; `modelless model list` shows all"))),
        [..] => {
            let tasks: Vec<&str> = tasks.into_iter().collect();
            Err(usage(format!("{} have a model {name:?}; say which with --task", tasks.join(" and "))))
        }
    }
}

/// Who changes something, as far as this machine tells.
pub(super) fn who() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain: String =
        format!("{user}@{}", host.trim()).chars().filter(|c| !c.is_control()).take(100).collect();
    plain.trim_matches(['@', ' ']).to_owned()
}

/// In the calendar of the whole world, to the second.
pub(super) fn time(unix_us: u64) -> String {
    let seconds = unix_us / 1_000_000;
    let (day, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last of its year; 400 of them have 146,097 days.
    let days = day + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, carried) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carried;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_709_251_200, "2024-03-01 00:00:00Z"),
            (1_798_761_599, "2026-12-31 23:59:59Z"),
        ] {
            assert_eq!(time(seconds * 1_000_000), shown);
        }
    }

    #[test]
    fn a_history_tells_who_and_what_answers_since() {
        let changes = [
            json!({"version": 2, "action": "rolled_back", "default_before": 2, "default_after": 1, "who": "ann@a",
                "at_unix_us": 60_000_000}),
            json!({"version": 9, "action": "removed", "default_after": null, "who": "", "at_unix_us": 0}),
        ];
        let shown = history(&changes).unwrap();
        assert!(shown.contains("1970-01-01 00:01:00Z  rolled back") && shown.contains("ann@a"), "{shown}");
        assert!(shown.contains("none"), "{shown}");
        assert_eq!(history(&[]), None);
        let answer =
            |now: Value, before: Value| changed(&json!({"name": "m", "default": now, "before": before}));
        assert!(answer(json!(2), json!(1)).contains("before it was version 1"));
        assert!(answer(json!(2), json!(2)).contains("already"));
        assert_eq!(answer(json!(2), json!(null)), "m version 2 is the default now");
        let unknown = json!({"name": "m", "default": 2, "before": null, "unknown": ["m-int8 on cpu:a: its times are estimated"]});
        assert!(changed(&unknown).ends_with("now\nnot known: m-int8 on cpu:a: its times are estimated"));
    }
}
