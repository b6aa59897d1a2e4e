//! `modelless task`: what can be asked, and what stands behind it.

use super::feedback::warnings;
use super::{Api, Server, bytes, dollars, forecast, list, number, segment, text};
use crate::exit::usage;
use crate::out;
use crate::plot::{self, Known, Point};
use crate::table::Table;
use anyhow::Context;
use clap::{ArgGroup, Args, Subcommand};
use http::Method;
use modelless_profiler::TaskManifest;
use modelless_store::TaskChange;
use modelless_types::{
    Accuracy, AccuracyRule, Ahead, Batching, CacheFor, CostPer1k, DType, DeclaredRule, Fallback, Goals,
    KeepFor, LiveRule, Micros, Priority, SpaceId, Task, TaskBatching, TaskId, TaskKind, TenantId, TensorSpec,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// All tasks.
    List(Server),
    /// One task with every variant and what was measured of it.
    Show(Show),
    /// What earlier days tell of a task: what is to be expected of it, and on which days it was asked so.
    Forecast(forecast::Options),
    /// Make a task out of a task.toml.
    Create(Create),
    /// Change the rules of a task that is there.
    Set(Set),
    /// Remove a task that has no models.
    Remove(Remove),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The task.
    name: String,
    /// Draw accuracy against latency into this file: SVG, or PNG where its name ends in .png.
    #[arg(long, value_name = "FILE", value_parser = plot::path)]
    plot: Option<PathBuf>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Create {
    /// Its manifest.
    file: PathBuf,
    /// How its queries share batches: deadline, aimd, off or fixed:SIZE:WAIT, such as fixed:16:5ms. Overrides the
    /// manifest.
    #[arg(long, value_name = "MODE")]
    batching: Option<Batching>,
    /// What feedback is good for: shown, or floors, so that what it shows to be less accurate than measured stops counting for
    /// floors that it no longer meets. Overrides the manifest.
    #[arg(long, value_name = "RULE", value_parser = live_rule)]
    live_accuracy: Option<LiveRule>,
    /// What accuracies are good for that nobody measured: unless_measured, so that floors are compared with them while nothing in
    /// the task was measured, or floors, so that they are in any case. Overrides the manifest.
    #[arg(long, value_name = "RULE", value_parser = declared_rule)]
    declared_accuracy: Option<DeclaredRule>,
    /// For how long an answer may be given again to who asks the very same: off, or a time from 1s to 24h, such as 10m. Overrides
    /// the manifest.
    #[arg(long, value_name = "TIME")]
    cache: Option<CacheFor>,
    /// For how long its variants stay in memory after its last query: always, or a time from 5s to 720h, such as 10m. Overrides the
    /// manifest.
    #[arg(long, value_name = "TIME")]
    keep: Option<KeepFor>,
    /// Whether what earlier days tell of it counts before it is asked for (on or off): awake, first where room is short, and with machines
    /// there, before what recurs at a time of day. Overrides the manifest.
    #[arg(long, value_name = "on|off", value_parser = ahead)]
    ahead: Option<Ahead>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("rules").required(true).multiple(true))]
pub(crate) struct Set {
    /// The task.
    name: String,
    /// What feedback is good for: shown, or floors, so that what it shows to be less accurate than measured stops counting for
    /// floors that it no longer meets.
    #[arg(long, value_name = "RULE", value_parser = live_rule, group = "rules")]
    live_accuracy: Option<LiveRule>,
    /// What accuracies are good for that nobody measured: unless_measured, so that floors are compared with them while nothing in
    /// the task was measured, or floors, so that they are in any case.
    #[arg(long, value_name = "RULE", value_parser = declared_rule, group = "rules")]
    declared_accuracy: Option<DeclaredRule>,
    /// For how long an answer may be given again to who asks the very same: off, or a time from 1s to 24h, such as 10m.
    #[arg(long, value_name = "TIME", group = "rules")]
    cache: Option<CacheFor>,
    /// For how long its variants stay in memory after its last query: always, or a time from 5s to 720h, such as 10m.
    #[arg(long, value_name = "TIME", group = "rules")]
    keep: Option<KeepFor>,
    /// Whether what earlier days tell of it counts before it is asked for (on or off): awake, first where room is short, and with machines
    /// there, before what recurs at a time of day. `task forecast` shows what that is.
    #[arg(long, value_name = "on|off", value_parser = ahead, group = "rules")]
    ahead: Option<Ahead>,
    /// How its queries share batches: deadline, aimd, off or fixed:SIZE:WAIT, such as fixed:16:5ms; or node, as each node is set.
    #[arg(long, value_name = "MODE", group = "rules")]
    batching: Option<TaskBatching>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Remove {
    /// The task.
    name: String,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(server) => {
            let answer = server.api()?.get("/v1/tasks")?.ok()?.json()?;
            if server.json { out::json(&answer) } else { out::line(tasks(&answer)) }
        }
        Command::Show(options) => show(&options),
        Command::Forecast(options) => forecast::run(&options),
        Command::Create(options) => {
            let mut manifest = TaskManifest::read(&options.file)?;
            manifest.batching = options.batching.or(manifest.batching);
            manifest.live_accuracy = options.live_accuracy.or(manifest.live_accuracy);
            manifest.declared_accuracy = options.declared_accuracy.or(manifest.declared_accuracy);
            manifest.cache = options.cache.or(manifest.cache);
            manifest.keep = options.keep.or(manifest.keep);
            manifest.ahead = options.ahead.or(manifest.ahead);
            let made = create(&options.server.api()?, &manifest)?;
            if options.server.json {
                out::json(&made)
            } else {
                out::line(format!("task {} made", manifest.name))
            }
        }
        Command::Set(options) => {
            let Set { name: _, live_accuracy, declared_accuracy, cache, keep, ahead, batching, server: _ } =
                &options;
            let change = TaskChange {
                live_accuracy: *live_accuracy,
                declared_accuracy: *declared_accuracy,
                cache: *cache,
                keep: *keep,
                ahead: *ahead,
                batching: *batching,
            };
            let now = self::change(&options.server.api()?, &options.name, change)?;
            if options.server.json { out::json(&now) } else { out::line(rules(&now)) }
        }
        Command::Remove(options) => {
            let api = options.server.api()?;
            let answer = api.delete(&format!("/v1/tasks/{}", segment(&options.name)))?.ok()?.json()?;
            if options.server.json {
                out::json(&answer)
            } else {
                out::line(format!("task {} removed", options.name))
            }
        }
    }
}

fn live_rule(text: &str) -> Result<LiveRule, String> {
    let names = || LiveRule::NAMES.map(|(name, _)| name).join(" or ");
    LiveRule::parse(text).ok_or_else(|| format!("expected {}", names()))
}

fn declared_rule(text: &str) -> Result<DeclaredRule, String> {
    let names = || DeclaredRule::NAMES.map(|(name, _)| name).join(" or ");
    DeclaredRule::parse(text).ok_or_else(|| format!("expected {}", names()))
}

fn ahead(text: &str) -> Result<Ahead, String> {
    let names = || Ahead::NAMES.map(|(name, _)| name).join(" or ");
    Ahead::parse(text).ok_or_else(|| format!("expected {}", names()))
}

fn tasks(answer: &Value) -> Table {
    let mut table = Table::new(&["task", "kind", ">variants", "accuracy", "kept", "description"]);
    for task in list(answer, "tasks") {
        let (from, to) = (&task["accuracy_from"], &task["accuracy_to"]);
        let range =
            if to.is_null() { "-".to_owned() } else { format!("{} to {}", number(from, 4), number(to, 4)) };
        table.row([
            text(task, "name").to_owned(),
            text(task, "kind").to_owned(),
            task["variants"].to_string(),
            range,
            kept_in_short(task),
            text(task, "description").to_owned(),
        ]);
    }
    table
}

/// For how long a task is kept in memory, and whether it sleeps.
fn kept_in_short(task: &Value) -> String {
    let keep = match text(task, "keep") {
        "" => "always",
        keep => keep,
    };
    if task["asleep"] == true { format!("{keep}, asleep") } else { keep.to_owned() }
}

/// The same in words.
fn kept(task: &Value) -> String {
    let keep = match text(task, "keep") {
        "" | "always" => return "kept in memory always".to_owned(),
        keep => keep,
    };
    let wakes = match task["wake_ms"].as_f64() {
        Some(ms) => format!("; what is loaded quickest answers in about {ms:.0} ms"),
        None => String::new(),
    };
    let now = match task["asleep"].as_bool() {
        Some(true) => format!("asleep now, until the next query{wakes}"),
        Some(false) => match text(task, "rest") {
            "" => "awake now".to_owned(),
            why => format!("awake now: {why}"),
        },
        None => "whether it sleeps now is not known".to_owned(),
    };
    format!("kept in memory for {keep} after its last query; {now}")
}

/// Makes a task on a server.
pub(super) fn create(api: &Api, manifest: &TaskManifest) -> anyhow::Result<Value> {
    let new = manifest.new_task(TenantId::DEFAULT)?;
    let tensors = |specs: &[TensorSpec]| -> Value {
        let shown =
            |spec: &TensorSpec| json!({"name": spec.name, "datatype": spec.dtype, "shape": spec.shape});
        specs.iter().map(shown).collect()
    };
    let Goals { accuracy, latency, max_cost, prefer, priority, fallback, .. } = new.defaults;
    if priority != Priority::default() || fallback != Fallback::default() {
        return Err(usage("a task's goals cannot set `priority` or `fallback`: give them with each query"));
    }
    let body = json!({
        "name": new.name,
        "kind": new.kind,
        "metric": new.metric,
        "accuracy_rule": new.accuracy_rule,
        "live_accuracy": new.live_accuracy,
        "declared_accuracy": new.declared_accuracy,
        "labels": new.labels,
        "inputs": tensors(&new.inputs),
        "outputs": tensors(&new.outputs),
        "space": manifest.space.as_ref().map(|space| json!({"name": space.name, "dimension": space.dimension})),
        "defaults": {
            "accuracy": accuracy.map(Accuracy::as_f64),
            "latency_ms": latency.map(Micros::as_millis_f64),
            "max_cost": max_cost.map(CostPer1k::as_usd),
            "prefer": prefer,
        },
        "batching": new.batching,
        "cache": new.cache,
        "keep": new.keep,
        "ahead": new.ahead,
        "description": new.description,
    });
    api.post_json("/v1/tasks", &body)?.ok()?.json()
}

/// Gives a task of a server other rules, and tells which hold then.
pub(super) fn change(api: &Api, name: &str, change: TaskChange) -> anyhow::Result<Value> {
    let body = serde_json::to_vec(&change)?;
    let path = format!("/v1/tasks/{}", segment(name));
    api.send(Method::PATCH, &path, Some("application/json"), body.into())?.ok()?.json()
}

fn rules(now: &Value) -> String {
    let live = match text(now, "live_accuracy") {
        "floors" => "counts for floors where it flags a variant",
        _ => "is shown and counts for no floor",
    };
    let declared = match text(now, "declared_accuracy") {
        "floors" => "as if they had been measured",
        _ => "while nothing in the task was measured",
    };
    let cache = match text(now, "cache") {
        "" | "off" => "are not given again".to_owned(),
        time => format!("may be given again for {time} to who asks the very same"),
    };
    let keep = match text(now, "keep") {
        "" | "always" => "always".to_owned(),
        keep => format!("for {keep} after its last query"),
    };
    let ahead = match text(now, "ahead") {
        "off" => "does not count before it is asked for",
        _ => "is made ready for",
    };
    let batching = now["batching"].as_str().unwrap_or("as each node is set");
    format!(
        "task {}: live accuracy {live}; declared accuracies count for floors {declared}; answers {cache}; kept in memory {keep}; what \
         recurs at a time of day {ahead}; batching: {batching}",
        text(now, "task")
    )
}

/// A task of a server, as far as labelled data need it.
pub(super) fn known(answer: &Value) -> anyhow::Result<Task> {
    let tensors = |name: &str| -> Option<Vec<TensorSpec>> {
        let spec = |value: &Value| {
            let shape = list(value, "shape").iter().map(|axis| u32::try_from(axis.as_u64()?).ok());
            let (name, dtype) = (text(value, "name").to_owned(), DType::parse(text(value, "datatype"))?);
            Some(TensorSpec { name, dtype, shape: shape.collect::<Option<_>>()? })
        };
        list(answer, name).iter().map(spec).collect()
    };
    let labels = list(answer, "labels").iter().map(|label| label.as_str().unwrap_or_default().to_owned());
    let task = || {
        Some(Task {
            id: TaskId(0),
            name: text(answer, "name").to_owned(),
            tenant: TenantId::DEFAULT,
            kind: TaskKind::parse(text(answer, "kind"))?,
            metric: text(answer, "metric").to_owned(),
            accuracy_rule: AccuracyRule::parse(text(answer, "accuracy_rule")).unwrap_or_default(),
            live_accuracy: LiveRule::parse(text(answer, "live_accuracy")).unwrap_or_default(),
            declared_accuracy: DeclaredRule::parse(text(answer, "declared_accuracy")).unwrap_or_default(),
            labels: labels.collect(),
            inputs: tensors("inputs")?,
            outputs: tensors("outputs")?,
            default_space: SpaceId(0),
            defaults: Goals::default(),
            batching: None,
            cache: CacheFor::OFF,
            keep: KeepFor::ALWAYS,
            ahead: modelless_types::Ahead::default(),
            description: String::new(),
        })
    };
    task().context("the server told of a task that this program does not understand; use one of its version")
}

fn show(options: &Show) -> anyhow::Result<()> {
    let api = options.server.api()?;
    let task = api.get(&format!("/v1/tasks/{}", segment(&options.name)))?.ok()?.json()?;
    if let Some(path) = &options.plot {
        draw(&task, path)?;
    }
    if options.server.json { out::json(&task) } else { out::line(shown(&task)) }
}

/// The profile that a row tells of: that of the first device class.
fn profile(variant: &Value) -> &Value {
    &variant["profiles"][0]
}

fn draw(task: &Value, path: &Path) -> anyhow::Result<()> {
    let point = |variant: &Value| {
        let profile = profile(variant);
        let known = match (profile["latency"]["provenance"] == "estimated", profile["coarse"] == true) {
            (true, _) => Known::Estimated,
            (false, true) => Known::Coarsely,
            (false, false) => Known::Well,
        };
        Some(Point {
            name: text(variant, "name").to_owned(),
            accuracy: profile["accuracy"]["value"].as_f64()?,
            latency_ms: profile["latency"]["by_batch"][0]["mean_ms"].as_f64()?,
            known,
        })
    };
    let points: Vec<Point> = list(task, "variants").iter().filter_map(point).collect();
    let title = format!("{}: accuracy and latency of its variants", text(task, "name"));
    let notes: BTreeSet<String> = list(task, "variants").iter().map(|v| provenance(profile(v))).collect();
    let note = notes.into_iter().collect::<Vec<_>>().join("; ");
    plot::write(path, &title, &note, &points)
}

/// Where the figures of a profile come from.
fn provenance(profile: &Value) -> String {
    let accuracy = &profile["accuracy"];
    match text(accuracy, "provenance") {
        "measured" => format!(
            "accuracy measured on {} ({} items), {}",
            text(accuracy, "set"),
            accuracy["samples"],
            text(accuracy, "device_class")
        ),
        other => format!("accuracy {other}"),
    }
}

/// What the accuracies that [`floor`] marks are.
const AT_LEAST: &str = "\n>= the lower end of the interval, which floors are compared with: the task wants it so, or only a part of its set \
                        is compared yet";

/// Whether floors are compared with the lower end of what was measured.
fn is_least(variant: &Value, measured: &Value) -> bool {
    let (floor, value, low) = (&variant["accuracy"], &measured["value"], &measured["interval"][0]);
    floor.is_number() && floor == low && floor != value
}

/// What floors are compared with, marked where that is less than was measured.
fn floor(variant: &Value, measured: &Value) -> String {
    let floor = number(&variant["accuracy"], 4);
    if is_least(variant, measured) { format!(">= {floor}") } else { floor }
}

fn shown(task: &Value) -> String {
    let variants = list(task, "variants");
    let mut table = Table::new(&[
        "",
        "variant",
        ">accuracy",
        "95 % interval",
        ">also",
        ">ms mean at 1",
        ">p99 ms expected",
        ">usd/1000 at best",
        ">memory",
        "resident on",
    ]);
    let mut notes = BTreeSet::new();
    let least = variants.iter().any(|variant| is_least(variant, &profile(variant)["accuracy"]));
    for variant in variants {
        let profile = profile(variant);
        let accuracy = &profile["accuracy"];
        let also = &profile["also"][0];
        if !accuracy.is_null() {
            notes.insert(provenance(profile));
        }
        if !also.is_null() {
            let (set, class) = (text(also, "set"), text(also, "device_class"));
            notes.insert(format!(
                "also: {} on {set} ({} items), {class}",
                text(also, "provenance"),
                also["samples"]
            ));
        }
        let interval = &accuracy["interval"];
        let estimate = &variant["estimate"];
        let resident: Vec<&str> = list(estimate, "resident_on").iter().filter_map(Value::as_str).collect();
        table.row([
            if variant["on_frontier"] == true { "*" } else { "" }.to_owned(),
            text(variant, "name").to_owned(),
            floor(variant, accuracy),
            if accuracy["provenance"] == "declared" {
                "declared".to_owned()
            } else {
                format!("{} to {}", number(&interval[0], 4), number(&interval[1], 4))
            },
            number(&also["value"], 4),
            number(&profile["latency"]["by_batch"][0]["mean_ms"], 3),
            number(&estimate["latency_p99_ms"], 2),
            dollars(&estimate["cost_usd_per_1000"]),
            bytes(&profile["memory"]["bytes"]),
            resident.join(", "),
        ]);
    }
    let batching = task["batching"].as_str().unwrap_or("as each node is set");
    let cache = match text(task, "cache") {
        "" | "off" => String::new(),
        time => format!("\nanswers may be given again for {time}"),
    };
    let about = format!(
        "{} ({}, {}): {}\nbatching: {batching}{cache}\n{}",
        text(task, "name"),
        text(task, "kind"),
        text(task, "metric"),
        text(task, "description"),
        kept(task),
    );
    let counts = text(task, "live_accuracy") == LiveRule::Floors.name();
    let warnings = variants.iter().flat_map(|variant| warnings(variant, counts));
    let no_floor = variants.iter().filter(|variant| variant["counts_for_floors"] == false);
    let warnings = warnings.chain(no_floor.map(|variant| {
        let name = text(variant, "name");
        format!("{name}: its accuracy was declared and never measured; beside those that were it counts for no floor")
    }));
    let notes: Vec<String> = notes.into_iter().chain(warnings).map(|note| format!("\n{note}")).collect();
    format!(
        "{about}\n\n{table}\n\n* no other variant is as good in accuracy, latency and cost; `p99 ms expected` (of a \
         query alone, on the node that is expected to be the quickest with it) and the price are estimates, the rest was measured{}{}",
        if least { AT_LEAST } else { "" },
        notes.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Value {
        json!({
            "name": "fashion", "kind": "tensor", "metric": "top-1", "description": "what it is",
            "labels": ["a", "b"],
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 28, 28]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [10]}],
            "variants": [{
                "name": "cnn_m-int8", "accuracy": 0.916, "on_frontier": true,
                "estimate": {"latency_p99_ms": 0.4, "cost_usd_per_1000": 1e-6, "resident_on": ["local"]},
                "profiles": [{
                    "accuracy": {"value": 0.916, "interval": [0.903, 0.9274], "samples": 2000, "set": "a sample",
                                 "provenance": "measured", "device_class": "cpu:x:2"},
                    "also": [{"value": 0.9161, "samples": 10000, "set": "all", "provenance": "measured",
                              "device_class": "cpu:x:2"}],
                    "latency": {"by_batch": [{"batch": 1, "mean_ms": 0.061}]},
                    "memory": {"bytes": 1_048_576},
                }],
            }],
        })
    }

    #[test]
    fn a_variant_is_shown_with_where_its_figures_come_from() {
        let shown = shown(&task());
        assert!(shown.contains("*  cnn_m-int8    0.9160  0.9030 to 0.9274  0.9161"), "{shown}");
        assert!(shown.contains("measured on a sample (2000 items), cpu:x:2"), "{shown}");
        assert!(shown.contains("also: measured on all (10000 items), cpu:x:2"), "{shown}");
    }

    #[test]
    fn the_lower_end_of_an_interval_is_marked_where_floors_are_compared_with_it() {
        let mut task = task();
        assert!(!shown(&task).contains(">="));
        task["variants"][0]["accuracy"] = json!(0.903);
        let shown = shown(&task);
        assert!(shown.contains("*  cnn_m-int8  >= 0.9030  0.9030 to 0.9274"), "{shown}");
        assert!(shown.contains("\n>= the lower end"), "{shown}");
    }

    #[test]
    fn what_was_only_declared_is_shown_as_such() {
        let mut task = task();
        let variant = &mut task["variants"][0];
        (variant["accuracy"], variant["counts_for_floors"]) = (json!(0.0), json!(false));
        let accuracy = &mut variant["profiles"][0]["accuracy"];
        (accuracy["provenance"], accuracy["interval"]) = (json!("declared"), json!([0.9, 0.9]));
        let shown = shown(&task);
        assert!(shown.contains("0.0000  declared"), "{shown}");
        assert!(shown.contains("accuracy declared") && shown.contains("counts for no floor"), "{shown}");
    }

    #[test]
    fn a_rule_that_is_not_given_is_not_sent() {
        let change = TaskChange { ahead: Some(Ahead::Off), ..TaskChange::default() };
        let sent = serde_json::to_value(change).unwrap();
        assert_eq!(sent, json!({"ahead": "off"}));
    }

    #[test]
    fn the_rules_that_hold_are_told() {
        let now = |live, declared| {
            rules(&json!({"task": "fashion", "live_accuracy": live, "declared_accuracy": declared}))
        };
        let told = now("floors", "floors");
        assert!(told.ends_with("; batching: as each node is set"), "{told}");
        let fixed = rules(&json!({"task": "fashion", "batching": "fixed:16:5ms"}));
        assert!(fixed.ends_with("; batching: fixed:16:5ms"), "{fixed}");
        let rested =
            |asleep: bool| json!({"keep": "10m", "asleep": asleep, "wake_ms": asleep.then_some(44.6)});
        assert!(
            kept(&rested(true))
                .contains("asleep now, until the next query; what is loaded quickest answers in about 45 ms")
        );
        assert!(kept(&rested(false)).ends_with("after its last query; awake now"));
        let expected =
            json!({"keep": "10m", "asleep": false, "rest": "its task was asked 40/s at 09:00 UTC"});
        assert!(kept(&expected).ends_with("awake now: its task was asked 40/s at 09:00 UTC"));
        assert!(kept(&json!({"keep": "10m", "asleep": null})).contains("not known"));
        assert_eq!(kept_in_short(&rested(true)), "10m, asleep");
        assert_eq!(
            [json!({}), json!({"keep": "always", "asleep": false})].map(|task| kept_in_short(&task)),
            ["always"; 2]
        );
        assert!(told.contains("counts for floors where it flags") && told.contains("as if they"), "{told}");
        let told = now("shown", "unless_measured");
        assert!(told.contains("counts for no floor") && told.contains("while nothing"), "{told}");
    }

    #[test]
    fn a_plot_is_drawn_from_what_the_server_tells() {
        let folder = modelless_testkit::temp_dir("plot").unwrap();
        let path = folder.path().join("f.svg");
        draw(&task(), &path).unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        assert!(picture.contains("cnn_m-int8") && picture.contains("2000 items"));
    }

    #[test]
    fn a_task_of_a_server_is_understood() {
        let known = known(&task()).unwrap();
        assert_eq!((known.kind, known.labels.len()), (TaskKind::Tensor, 2));
        assert_eq!(known.inputs[0].elements(), Some(784));
        assert!(super::known(&json!({"kind": "telepathy"})).is_err());
    }
}
