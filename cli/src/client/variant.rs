//! `modelless variant`: the ways in which models are run, with what is known of each and from where.

use super::feedback::warnings;
use super::versions::{time, who};
use super::{Api, Server, bytes, dollars, list, number, segment, text};
use crate::exit::usage;
use crate::generate;
use crate::out;
use crate::table::Table;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// All variants, or those of one task.
    List(List),
    /// One variant with everything that is known of it.
    Show(Show),
    /// Take back that a variant is less accurate than measured: verdicts on it are counted anew.
    Unflag(Unflag),
    #[command(flatten)]
    Make(generate::Command),
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only of this task.
    task: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The variant.
    name: String,
    /// Its task. Needed where several tasks have a variant of this name.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Unflag {
    /// The variant.
    name: String,
    /// Its task. Needed where several tasks have a variant of this name.
    #[arg(long)]
    task: Option<String>,
    /// Why, for whoever asks later.
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(options) => {
            let all = fetched(&options.server.api()?, options.task.as_deref())?;
            if options.server.json { out::json(&json!({"variants": all})) } else { out::line(listed(&all)) }
        }
        Command::Show(options) => {
            let api = options.server.api()?;
            let all = fetched(&api, options.task.as_deref())?;
            let mut variant = named(&all, &options.name)?.clone();
            let mut flags = api.get(&path(&variant, "flags"))?.ok()?.json()?;
            variant["flags"] = flags["history"].take();
            if options.server.json { out::json(&variant) } else { out::line(in_full(&variant)) }
        }
        Command::Unflag(options) => {
            let api = options.server.api()?;
            let all = fetched(&api, options.task.as_deref())?;
            let body = json!({"reason": options.reason, "by": who()});
            let path = path(named(&all, &options.name)?, "unflag");
            let answer = api.post_json(&path, &body)?.ok()?.json()?;
            if options.server.json { out::json(&answer) } else { out::line(unflagged(&answer)) }
        }
        Command::Make(command) => generate::run(command),
    }
}

fn fetched(api: &Api, task: Option<&str>) -> anyhow::Result<Vec<Value>> {
    let only = |task| form_urlencoded::Serializer::new("?".to_owned()).append_pair("task", task).finish();
    let query = task.map(only).unwrap_or_default();
    let answer = api.get(&format!("/v1/variants{query}"))?.ok()?.json()?;
    Ok(list(&answer, "variants").to_vec())
}

/// What is asked of one variant.
fn path(variant: &Value, what: &str) -> String {
    format!("/v1/variants/{}/{}/{what}", segment(text(variant, "task")), segment(text(variant, "name")))
}

fn unflagged(answer: &Value) -> String {
    let change = &answer["change"];
    format!(
        "{} is not flagged any more; {} right and {} wrong answers are forgotten, and verdicts count anew",
        text(answer, "variant"),
        change["correct"],
        change["wrong"]
    )
}

/// The one of that name; names are unique in a task only.
fn named<'a>(all: &'a [Value], name: &str) -> anyhow::Result<&'a Value> {
    let found: Vec<&Value> = all.iter().filter(|variant| text(variant, "name") == name).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(usage(format!("there is no variant {name:?}; `modelless variant list` shows all"))),
        [..] => {
            let tasks: Vec<&str> = found.iter().map(|variant| text(variant, "task")).collect();
            Err(usage(format!("{} have a variant {name:?}; say which with --task", tasks.join(" and "))))
        }
    }
}

/// The profile that floors are compared with: of the device class where it is measured lowest.
fn profile(variant: &Value) -> &Value {
    let value = |profile: &&Value| profile["accuracy"]["value"].as_f64().unwrap_or(f64::INFINITY);
    let lowest = list(variant, "profiles").iter().min_by(|a, b| value(a).total_cmp(&value(b)));
    lowest.unwrap_or(&Value::Null)
}

/// With its interval, as in `0.9235 (0.9110-0.9344)`. What was only declared has none.
fn accuracy(measure: &Value) -> String {
    let interval = list(measure, "interval");
    match interval {
        [low, high] if measure["provenance"] != "declared" => {
            format!("{} ({}-{})", number(&measure["value"], 4), number(low, 4), number(high, 4))
        }
        _ => number(&measure["value"], 4),
    }
}

/// Whether queries that pin nothing may be answered by it.
fn serves(variant: &Value) -> &'static str {
    match variant["default"].as_bool() {
        Some(true) => "yes",
        Some(false) => "candidate",
        None => "-",
    }
}

/// Whether another is as good on every axis: accuracy, latency, price, device time, memory.
fn dominated(variant: &Value) -> &'static str {
    match variant["on_frontier"].as_bool() {
        Some(true) => "no",
        Some(false) => "yes",
        None => "-",
    }
}

/// How well its times are known, of the device class where they are known worst.
fn times(variant: &Value) -> String {
    let known = |profile: &Value| {
        let estimated = profile["latency"]["provenance"] == "estimated";
        let coarse = profile["coarse"] == true;
        match (estimated, coarse, profile["unsteady"].is_object()) {
            (true, _, _) => "estimated",
            (_, true, true) => "coarse, unsteady",
            (_, true, false) => "coarse",
            (_, false, true) => "unsteady",
            (_, false, false) => "measured",
        }
    };
    let order = ["estimated", "coarse, unsteady", "coarse", "unsteady", "measured"];
    let all: Vec<&str> = list(variant, "profiles").iter().map(known).collect();
    order.into_iter().find(|word| all.contains(word)).unwrap_or("-").to_owned()
}

/// What the table's estimates are.
const EXPECTED: &str = "p99 ms expected: of a query alone, on the node that is expected to be the quickest with it; what was measured is told by \
                        `modelless profile show`";

/// Why times of a profile may be another minute's.
fn unsteady(profile: &Value) -> Option<&str> {
    profile["unsteady"]["why"].as_str()
}

/// The table, and below it what its marks mean.
fn listed(all: &[Value]) -> String {
    let mut shown = table(all).to_string();
    if all.iter().any(|variant| list(variant, "profiles").iter().any(|profile| unsteady(profile).is_some())) {
        shown += "\nunsteady: measured while something else was going on there; `modelless variant show` tells what, and whether it is \
                  measured again";
    }
    shown + "\n" + EXPECTED
}

fn resident(variant: &Value) -> String {
    let nodes: Vec<&str> =
        list(&variant["estimate"], "resident_on").iter().filter_map(Value::as_str).collect();
    if nodes.is_empty() { "-".to_owned() } else { nodes.join(", ") }
}

fn table(all: &[Value]) -> Table {
    let mut table = Table::new(&[
        "task",
        "variant",
        "model",
        ">version",
        "default",
        "accuracy (95 %)",
        "source",
        ">p99 ms expected",
        "times",
        ">memory",
        ">usd/1000",
        "dominated",
        "resident on",
    ]);
    for variant in all {
        let profile = profile(variant);
        let source = text(&profile["accuracy"], "provenance");
        let source = match (source, &variant["counts_for_floors"]) {
            ("", _) => "unmeasured",
            ("declared", Value::Bool(false)) => "declared (no floor)",
            (source, _) => source,
        };
        table.row([
            text(variant, "task").to_owned(),
            text(variant, "name").to_owned(),
            text(variant, "model").to_owned(),
            variant["model_version"].to_string(),
            serves(variant).to_owned(),
            accuracy(&profile["accuracy"]),
            source.to_owned(),
            number(&variant["estimate"]["latency_p99_ms"], 2),
            times(variant),
            bytes(&profile["memory"]["bytes"]),
            dollars(&variant["estimate"]["cost_usd_per_1000"]),
            dominated(variant).to_owned(),
            resident(variant),
        ]);
    }
    table
}

fn in_full(variant: &Value) -> String {
    let mut lines = vec![
        format!("{} of task {}", text(variant, "name"), text(variant, "task")),
        format!(
            "model {} version {} (default: {})",
            text(variant, "model"),
            variant["model_version"],
            serves(variant)
        ),
        format!(
            "engine {}, {}, {} threads, batches up to {}, optimisation {}, on {}",
            text(variant, "engine"),
            text(variant, "precision"),
            variant["threads"],
            variant["max_batch"],
            text(variant, "optimisation"),
            text(variant, "processor"),
        ),
        format!(
            "artefact {} ({})",
            text(&variant["artefact"], "sha256"),
            bytes(&variant["artefact"]["bytes"])
        ),
        format!("dominated: {}; resident on: {}", dominated(variant), resident(variant)),
    ];
    if let Some(why) = variant["unavailable"].as_str() {
        lines.push(why.to_owned());
    }
    if list(variant, "profiles").is_empty() {
        lines.push("\nnothing is measured of it yet; `modelless model show` tells who is at it".to_owned());
    }
    for profile in list(variant, "profiles") {
        lines.push(format!("\non {}", text(profile, "device_class")));
        lines.extend(of_accuracy("accuracy", &profile["accuracy"]));
        for also in list(profile, "also") {
            lines.extend(of_accuracy("also", also));
        }
        lines.push(format!(
            "  memory {}, at its peak {} ({}); loads in {} ms ({})",
            bytes(&profile["memory"]["bytes"]),
            bytes(&profile["memory"]["peak_bytes"]),
            text(&profile["memory"], "provenance"),
            number(&profile["load"]["ms"], 1),
            text(&profile["load"], "provenance"),
        ));
        let mut latency = Table::new(&[">batch", ">mean ms", ">deviation ms", ">p99 ms", ">samples"]);
        for point in list(&profile["latency"], "by_batch") {
            latency.row([
                point["batch"].to_string(),
                number(&point["mean_ms"], 3),
                number(&point["deviation_ms"], 3),
                number(&point["p99_ms"], 3),
                point["samples"].to_string(),
            ]);
        }
        lines.push(format!("  latency ({})\n{latency}", text(&profile["latency"], "provenance")));
        lines.extend(unsteady(profile).map(|why| format!("  {why}")));
    }
    if variant["counts_for_floors"] == false {
        let rule = "beside variants that were measured it counts for no floor (`modelless task set --declared-accuracy`)";
        lines.push(format!("\n{rule}"));
    }
    let said = warnings(variant, false);
    lines.extend(said.into_iter().map(|said| format!("\n{said}")));
    lines.extend(flags(list(variant, "flags")));
    lines.join("\n")
}

/// What was said of its live accuracy, newest first.
fn flags(history: &[Value]) -> Option<String> {
    let mut table = Table::new(&["when", "what", "why", "who"]);
    for change in history {
        table.row([
            change["at_unix_us"].as_u64().map_or_else(|| "-".to_owned(), time),
            text(change, "action").to_owned(),
            text(change, "reason").to_owned(),
            text(change, "who").to_owned(),
        ]);
    }
    (!history.is_empty()).then(|| format!("\nwhat feedback came to\n{table}"))
}

fn of_accuracy(what: &str, measure: &Value) -> Option<String> {
    if measure["provenance"] == "declared" {
        return Some(format!("  {what} {} declared by its owner, measured by nobody", accuracy(measure)));
    }
    measure.is_object().then(|| {
        format!(
            "  {what} {} {} on {:?} with {} samples, on {} by `{}`",
            accuracy(measure),
            text(measure, "provenance"),
            text(measure, "set"),
            measure["samples"],
            text(measure, "device_class"),
            text(measure, "command"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(task: &str) -> Value {
        let accuracy = |value: f64| {
            json!({"value": value, "interval": [value - 0.01, value + 0.01], "samples": 2000, "set": "s",
                "provenance": "measured", "device_class": "cpu:a:1", "command": "modelless up"})
        };
        let profile = |value| {
            json!({"device_class": "cpu:a:1", "accuracy": accuracy(value), "memory": {"bytes": 2048},
                "latency": {"provenance": "measured", "by_batch": [{"batch": 1, "mean_ms": 1.5}]}})
        };
        json!({"task": task, "name": "m-fp32", "model": "m", "model_version": 2, "default": false, "threads": 1,
            "on_frontier": true, "profiles": [profile(0.92), profile(0.9)],
            "estimate": {"latency_p99_ms": 1.75, "cost_usd_per_1000": 0.0004, "resident_on": ["a", "b"]}})
    }

    #[test]
    fn a_variant_is_listed_by_its_lowest_accuracy_and_says_that_it_is_a_candidate() {
        let row = table(&[variant("t")]).to_string();
        for part in ["0.9000 (0.8900-0.9100)", "measured", "candidate", "1.75", "2.0 KiB", "0.000400", "a, b"]
        {
            assert!(row.contains(part), "{part}: {row}");
        }
        let unmeasured = json!({"task": "t", "name": "n", "profiles": [], "on_frontier": null});
        let row = table(std::slice::from_ref(&unmeasured)).to_string();
        assert!(row.contains("unmeasured"), "{row}");
        assert!(in_full(&unmeasured).contains("nothing is measured"));
    }

    #[test]
    fn how_well_times_are_known_is_listed_and_what_an_unsteady_minute_was_is_told_in_words() {
        let mut of = variant("t");
        assert!(!listed(std::slice::from_ref(&of)).contains("unsteady"));
        of["profiles"][1]["unsteady"] = json!({"why": "measured in an unsteady minute: the host", "left": 1});
        let shown = listed(std::slice::from_ref(&of));
        assert!(shown.contains(" unsteady ") && shown.contains("unsteady: measured while"), "{shown}");
        let twice = listed(&[of.clone(), of.clone()]);
        assert_eq!(twice.matches("unsteady:").count(), 1, "{twice}");
        assert!(in_full(&of).contains("unsteady minute: the host"));
        of["profiles"][0]["coarse"] = json!(true);
        assert_eq!(times(&of), "coarse");
        of["profiles"][0]["latency"]["provenance"] = json!("estimated");
        assert_eq!((times(&of), times(&json!({}))), ("estimated".to_owned(), "-".to_owned()));
    }

    #[test]
    fn a_name_that_two_tasks_have_is_asked_about() {
        let both = [variant("t"), variant("u")];
        assert!(named(&both, "m-fp32").unwrap_err().to_string().contains("t and u"));
        assert!(named(&both[..1], "m-fp32").is_ok());
        assert!(named(&both, "x").unwrap_err().to_string().contains("variant list"));
        let shown = in_full(&both[0]);
        assert!(shown.contains("on cpu:a:1") && shown.contains("2000 samples"), "{shown}");
    }

    #[test]
    fn what_was_only_declared_is_told_as_such_and_has_no_interval() {
        let mut variant = variant("t");
        let declared = json!({"value": 0.7, "interval": [0.7, 0.7], "samples": 0, "set": "", "provenance": "declared",
            "device_class": "cpu:a:1", "command": ""});
        variant["profiles"] = json!([{"device_class": "cpu:a:1", "accuracy": declared}]);
        let row = table(std::slice::from_ref(&variant)).to_string();
        assert!(row.contains("0.7000           declared  "), "{row}");
        variant["counts_for_floors"] = json!(false);
        let row = table(std::slice::from_ref(&variant)).to_string();
        assert!(row.contains("declared (no floor)"), "{row}");
        let shown = in_full(&variant);
        assert!(
            shown.contains("accuracy 0.7000 declared by its owner") && shown.contains("no floor"),
            "{shown}"
        );
        assert!(!shown.contains("0 samples"), "{shown}");
    }

    #[test]
    fn what_feedback_came_to_is_told_with_who_took_it_back_and_why() {
        let mut variant = variant("t");
        assert!(!in_full(&variant).contains("feedback"));
        variant["flags"] = json!([
            {"action": "cleared", "reason": "wrong labels", "who": "ann@a", "at_unix_us": 60_000_000},
            {"action": "remeasured", "reason": "0.91", "who": "", "at_unix_us": null},
        ]);
        let shown = in_full(&variant);
        assert!(shown.contains("1970-01-01 00:01:00Z  cleared     wrong labels  ann@a"), "{shown}");
        assert!(shown.contains("-                     remeasured  0.91"), "{shown}");
        assert_eq!(path(&variant, "unflag"), "/v1/variants/t/m-fp32/unflag");
        let told = unflagged(&json!({"variant": "m-fp32", "change": {"correct": 3, "wrong": 37}}));
        assert!(told.contains("3 right and 37 wrong"), "{told}");
    }
}
