//! A version that is tried: with how much of its task's queries, how it does, and how that ended.

use super::key::seconds;
use super::versions::{path, time, who};
use super::{Api, Server, list, segment, text};
use crate::exit::usage;
use crate::out;
use crate::table::Table;
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;

#[derive(Args, Debug)]
pub(crate) struct Try {
    /// The model.
    name: String,
    /// Its task. Needed where several tasks have a model of this name.
    #[arg(long)]
    task: Option<String>,
    /// Which of its versions.
    #[arg(long, value_name = "N", required_unless_present = "stop")]
    version: Option<u32>,
    /// How much of what pins nothing it is to answer, such as 5%; half at most.
    #[arg(long, value_name = "SHARE", value_parser = share, required_unless_present_any = ["stop", "shadow"])]
    share: Option<f64>,
    /// Ask it copies of so much instead, in time that nothing else needs: their answers are compared and thrown away.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with_all = ["share", "promote_when_good"])]
    shadow: Option<f64>,
    /// How long; with --promote-when-good for how long at least. Such as 30s, 20m or 12h; 1h if it is not given.
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    lasts: Option<u64>,
    /// Make it the default version once it is known to do no worse.
    #[arg(long)]
    promote_when_good: bool,
    /// Even where no node was measured with it yet, or where it could not be promoted as it is.
    #[arg(long)]
    force: bool,
    /// Stop the trial of the model's task that runs. Nothing else changes.
    #[arg(long, conflicts_with_all = ["version", "share", "shadow", "lasts", "promote_when_good", "force"])]
    stop: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only of this task.
    #[arg(long)]
    task: Option<String>,
    /// How many, newest first.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The model whose task it is.
    name: String,
    /// Its task. Needed where several tasks have a model of this name.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    server: Server,
}

pub(super) fn begin(options: &Try) -> anyhow::Result<()> {
    let api = options.server.api()?;
    let at = at(&api, options.task.as_deref(), &options.name)?;
    let by = who();
    let answer = if options.stop {
        let by = form_urlencoded::Serializer::new(String::new()).append_pair("by", &by).finish();
        api.delete(&format!("{at}?{by}"))?.ok()?.json()?
    } else {
        let mut body = json!({
            "model": options.name, "version": options.version, "share": options.share.or(options.shadow),
            "shadow": options.shadow.is_some(),
            "promote_when_good": options.promote_when_good, "force": options.force, "by": by,
        });
        if let Some(ms) = options.lasts {
            body["for_ms"] = json!(ms);
        }
        api.post_json(&at, &body)?.ok()?.json()?
    };
    if options.server.json {
        return out::json(&answer);
    }
    let mut said = headline(&answer["trial"]);
    for one in list(&answer, "told").iter().filter_map(Value::as_str) {
        let _ = write!(said, "\nnote: {one}");
    }
    out::line(said)
}

pub(super) fn show(options: &Show) -> anyhow::Result<()> {
    let api = options.server.api()?;
    let answer = api.get(&at(&api, options.task.as_deref(), &options.name)?)?.ok()?.json()?;
    if options.server.json { out::json(&answer) } else { out::line(figures(&answer["trial"])) }
}

pub(super) fn all(options: &List) -> anyhow::Result<()> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", &options.limit.to_string());
    if let Some(task) = &options.task {
        query.append_pair("task", task);
    }
    let answer = options.server.api()?.get(&format!("/v1/trials?{}", query.finish()))?.ok()?.json()?;
    if options.server.json { out::json(&answer) } else { out::line(table(&answer)) }
}

/// Where the trial of a model's task is found.
fn at(api: &Api, task: Option<&str>, name: &str) -> anyhow::Result<String> {
    if let Some(task) = task {
        return Ok(format!("/v1/tasks/{}/trial", segment(task)));
    }
    let of_model = path(api, None, name)?;
    let task =
        of_model.split('/').nth(3).ok_or_else(|| usage(format!("there is no task of model {name:?}")))?;
    Ok(format!("/v1/tasks/{task}/trial"))
}

fn percent(share: &Value) -> String {
    format!("{} %", (share.as_f64().unwrap_or(0.0) * 1e6).round() / 1e4)
}

/// What it is, and how it stands.
fn headline(trial: &Value) -> String {
    let (id, name, task) = (text(trial, "id"), text(trial, "model"), text(trial, "task"));
    let mut said = format!(
        "{id}: version {} of {name} against version {} with {}{} of what {task} is asked: {}",
        trial["version"],
        trial["against"],
        if trial["shadow"] == true { "copies of " } else { "" },
        percent(&trial["share"]),
        text(trial, "state").replace('_', " ")
    );
    if let Some(cause) = trial["cause"].as_str() {
        let _ = write!(said, ", since {cause} ({})", text(trial, "ended_by"));
    } else {
        let least =
            if trial["promote_when_good"] == true { " at least, then promoted when it is good" } else { "" };
        let seconds = trial["for_ms"].as_u64().unwrap_or(0) / 1_000;
        let _ = write!(
            said,
            " since {} for {seconds} s{least}",
            time(trial["began_unix_us"].as_u64().unwrap_or(0))
        );
    }
    said
}

fn figures(trial: &Value) -> String {
    let mut arms = Table::new(&[
        "queries",
        ">answered",
        ">late",
        ">failed",
        ">not waited for",
        ">median ms",
        ">p99 ms",
        ">right",
        ">wrong",
    ]);
    let ms = |of: &Value| of.as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    for (name, arm) in [("drawn", &trial["candidate"]), ("others", &trial["other"])] {
        let count = |field: &str| arm[field].to_string();
        arms.row([
            name.to_owned(),
            count("answered"),
            count("late"),
            count("failed"),
            count("unanswered"),
            ms(&arm["median_ms"]),
            ms(&arm["p99_ms"]),
            count("right"),
            count("wrong"),
        ]);
    }
    let mut pairs = Table::new(&["compared by", ">worse", ">as well", ">better"]);
    for what in ["failures", "lateness", "latency", "accuracy"] {
        let of = &trial["compared"][what];
        pairs.row([
            what.to_owned(),
            of["worse"].to_string(),
            of["even"].to_string(),
            of["better"].to_string(),
        ]);
    }
    let verdict = match (text(&trial["verdict"], "verdict"), text(&trial["verdict"], "what")) {
        ("worse", what) => format!("it does worse: {what}"),
        ("not_worse", _) => "it is known to do no worse".to_owned(),
        _ => "too few queries were compared yet to tell".to_owned(),
    };
    let agreed = if trial["shadow"] == true {
        format!(
            "\n{} copies were answered as their originals, {} otherwise",
            trial["agreed"], trial["differed"]
        )
    } else {
        String::new()
    };
    format!("{}\n\n{arms}\n{pairs}\n{verdict}{agreed}", headline(trial))
}

fn table(answer: &Value) -> Table {
    let mut table = Table::new(&[
        "trial", "task", "model", ">version", ">against", ">share", "state", "began", "ended", "why",
    ]);
    for trial in list(answer, "trials") {
        table.row([
            text(trial, "id").to_owned(),
            text(trial, "task").to_owned(),
            text(trial, "model").to_owned(),
            trial["version"].to_string(),
            trial["against"].to_string(),
            percent(&trial["share"]),
            text(trial, "state").replace('_', " "),
            time(trial["began_unix_us"].as_u64().unwrap_or(0)),
            trial["ended_unix_us"].as_u64().map(time).unwrap_or_default(),
            text(trial, "cause").to_owned(),
        ]);
    }
    table
}

/// `5%`, or `0.05`.
fn share(given: &str) -> Result<f64, String> {
    let wrong = || format!("{given:?} is no share; expected more than 0 % and at most 50 %, such as 5%");
    let (number, whole) = given.strip_suffix('%').map_or((given, 1.0), |number| (number, 100.0));
    let share: f64 = number.trim().parse().map_err(|_| wrong())?;
    // As a decimal it is what was written.
    let share = (share / whole * 1e6).round() / 1e6;
    if share > 0.0 && share <= 0.5 { Ok(share) } else { Err(wrong()) }
}

/// In milliseconds.
fn span(given: &str) -> Result<u64, String> {
    let seconds = seconds(given).map_err(|error| error.to_string())?;
    seconds.checked_mul(1_000).ok_or_else(|| format!("{given:?} is too long a time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_times_are_read_as_people_write_them() {
        assert_eq!((share("5%"), share("0.05"), share("2.5 %")), (Ok(0.05), Ok(0.05), Ok(0.025)));
        for wrong in ["0", "51%", "-1%", "x", "", "NaN", "%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (span("30s"), span("20m"), span("1h"), span("2d")),
            (Ok(30_000), Ok(1_200_000), Ok(3_600_000), Ok(172_800_000))
        );
        for wrong in ["", "h", "1", "1.5h", "-1s", "1é", "99999999999999999999s", "9999999999999999d"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_trial_tells_what_is_compared_and_why_it_ended() {
        let arm = json!({"answered": 40, "late": 1, "failed": 2, "unanswered": 0, "right": 3, "wrong": 4, "median_ms": 1.25, "p99_ms": null});
        let pairs = json!({"worse": 12, "even": 3, "better": 0});
        let mut trial = json!({
            "id": "trial-3", "task": "fashion", "model": "cnn", "version": 2, "against": 1, "share": 0.025, "for_ms": 60_000,
            "promote_when_good": true, "state": "running", "began_unix_us": 0, "candidate": arm, "other": arm,
            "compared": {"failures": pairs, "lateness": pairs, "latency": pairs, "accuracy": pairs},
            "verdict": {"verdict": "too_few_yet"},
        });
        let shown = figures(&trial);
        assert!(
            shown.starts_with(
                "trial-3: version 2 of cnn against version 1 with 2.5 % of what fashion is asked: running"
            ),
            "{shown}"
        );
        assert!(
            shown.contains("for 60 s at least, then promoted") && shown.contains("too few queries"),
            "{shown}"
        );
        assert!(shown.contains("1.2") && shown.contains("failures"), "{shown}");
        trial["state"] = json!("rolled_back");
        trial["cause"] = json!("it fails more often");
        trial["ended_by"] = json!("scheduler s");
        trial["verdict"] = json!({"verdict": "worse", "what": "failures"});
        let shown = figures(&trial);
        assert!(shown.contains("rolled back, since it fails more often (scheduler s)"), "{shown}");
        assert!(shown.ends_with("it does worse: failures"), "{shown}");
        let all = table(&json!({"trials": [trial]})).to_string();
        assert!(all.contains("trial-3  fashion  cnn") && all.contains("rolled back"), "{all}");
    }
}
