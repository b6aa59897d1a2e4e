//! What a job is expected to cost, what it came to, and all jobs in a table.

use super::figure;
use super::folder::Folder;
use super::writing::{FAILURES, OUTPUTS, Written};
use crate::client::versions::time;
use crate::client::{dollars, list, number, text};
use crate::exit::Partly;
use crate::table::Table;
use serde_json::Value;
use std::fmt::Write as _;

/// Reasons that are told one by one; all of them are in the file.
const REASONS: usize = 3;

/// What the server expects.
pub(super) fn estimate(answer: &Value, inputs: u32) -> String {
    let estimate = &answer["estimate"];
    if !estimate["usd"].is_number() {
        return format!(
            "{inputs} inputs; what they will cost is not known yet, as nothing was measured to reckon with"
        );
    }
    let by = estimate["variant"].as_str().map(|name| format!(", reckoned with {name}")).unwrap_or_default();
    let usd = dollars(&estimate["usd"]);
    format!("{inputs} inputs, about {usd} USD and {} s of devices{by}", number(&estimate["device_s"], 1))
}

/// A job in full, or what it came to.
pub(super) fn job(job: &Value) -> String {
    let mut shown = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(shown, "{name:<10}{value}");
    };
    let name = job["name"].as_str().filter(|name| !name.is_empty());
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    let why = job["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    line("job", format!("{}{name}, {}{why}", job["job"], text(job, "state")));
    let all = figure(job, "inputs");
    let come = figure(job, "received");
    let to_come = if come < all { format!(", {} still to come", all - come) } else { String::new() };
    let (done, failed) = (figure(job, "done"), figure(job, "failed"));
    line("inputs", format!("{all} of {}: {done} answered, {failed} failed{to_come}", text(job, "task")));
    if job["goals"].as_object().is_some_and(|goals| !goals.is_empty()) {
        line("goals", job["goals"].to_string());
    }
    let expected = if job["estimate_usd"].is_number() {
        format!(", {} were expected", dollars(&job["estimate_usd"]))
    } else {
        String::new()
    };
    line("cost", format!("{} USD{expected}", dollars(&job["cost_usd"])));
    line("devices", format!("{} s", number(&job["device_s"], 2)));
    line("made", shown_time(&job["made_unix_us"]));
    let (started, ended) = (job["started_unix_us"].as_u64(), job["ended_unix_us"].as_u64());
    if started.is_some() {
        line("started", shown_time(&job["started_unix_us"]));
    }
    if let Some(ended) = ended {
        let took = started.map(|started| Value::from(micros(ended.saturating_sub(started))));
        let took = took.map(|took| format!(", {} s after its start", number(&took, 1))).unwrap_or_default();
        line("ended", format!("{}{took}", shown_time(&job["ended_unix_us"])));
    }
    if job["deadline_unix_us"].is_number() {
        let late = if job["late"] == true { ", which is missed or will be" } else { "" };
        line("deadline", format!("{}{late}", shown_time(&job["deadline_unix_us"])));
    }
    shown.truncate(shown.trim_end().len());
    shown
}

fn micros(micros: u64) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64()
}

fn shown_time(unix_us: &Value) -> String {
    unix_us.as_u64().map_or_else(|| "-".to_owned(), time)
}

/// What was written, and what failed and why.
pub(super) fn written(written: &Written, folder: &Folder) -> String {
    let lines = folder.state.as_ref().is_some_and(|state| state.lines);
    let path = folder.path();
    let place = if lines { path.join(OUTPUTS) } else { path.to_owned() };
    let there =
        if written.there > 0 { format!(", {} of them were there", written.there) } else { String::new() };
    let mut shown = format!("{:<10}{}{there}", "outputs", place.display());
    if !written.failures.is_empty() {
        let _ = write!(shown, "\n{:<10}{}", "failures", path.join(FAILURES).display());
        let mut reasons: Vec<_> = written.failures.iter().collect();
        reasons.sort_by_key(|(reason, (count, _))| (std::cmp::Reverse(*count), *reason));
        for (reason, (count, example)) in reasons.iter().take(REASONS) {
            let _ = write!(shown, "\n  {count} {reason}, such as: {example}");
        }
        if reasons.len() > REASONS {
            let _ = write!(shown, "\n  and others");
        }
    }
    shown
}

/// The end of a command that waited: well where all of it has an answer.
pub(super) fn end(job: &Value) -> anyhow::Result<()> {
    let (all, done, state) = (figure(job, "inputs"), figure(job, "done"), text(job, "state"));
    if state == "done" && done == all {
        return Ok(());
    }
    let why = job["why"].as_str().map(|why| format!(" ({why})")).unwrap_or_default();
    let missing = all.saturating_sub(done);
    Err(Partly(format!(
        "job {} is {state}{why}, and {missing} of its {all} inputs have no answer",
        job["job"]
    ))
    .into())
}

/// One a line.
pub(super) fn table(answer: &Value) -> Table {
    let columns = [
        "job",
        "name",
        "task",
        "state",
        ">inputs",
        ">answered",
        ">failed",
        ">USD",
        ">expected",
        "made",
        "deadline",
    ];
    let mut table = Table::new(&columns);
    for job in list(answer, "jobs") {
        let late = if job["late"] == true { " late" } else { "" };
        table.row([
            job["job"].to_string(),
            text(job, "name").to_owned(),
            text(job, "task").to_owned(),
            text(job, "state").to_owned(),
            number(&job["inputs"], 0),
            number(&job["done"], 0),
            number(&job["failed"], 0),
            dollars(&job["cost_usd"]),
            dollars(&job["estimate_usd"]),
            shown_time(&job["made_unix_us"]),
            format!("{}{late}", shown_time(&job["deadline_unix_us"])),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ended() -> Value {
        json!({"job": 7, "name": "boots", "task": "fashion", "goals": {"accuracy": 0.8}, "state": "done", "why": null,
            "inputs": 10, "received": 10, "done": 9, "failed": 1, "estimate_usd": 0.0123, "cost_usd": 0.0111, "device_s": 1.03,
            "late": false, "made_unix_us": 0, "started_unix_us": 1_000_000, "ended_unix_us": 3_500_000, "deadline_unix_us": 9_000_000})
    }

    #[test]
    fn a_bill_tells_what_was_expected_and_what_it_came_to() {
        let shown = job(&ended());
        for line in [
            "job       7 (boots), done",
            "inputs    10 of fashion: 9 answered, 1 failed",
            "goals     {\"accuracy\":0.8}",
            "cost      0.0111 USD, 0.0123 were expected",
            "ended     1970-01-01 00:00:03Z, 2.5 s after its start",
            "deadline  1970-01-01 00:00:09Z",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
        }
        assert!(table(&json!({"jobs": [ended()]})).to_string().contains("  0.0111    0.0123  1970-"));
    }

    #[test]
    fn only_where_all_is_answered_it_ends_well() {
        let mut job = ended();
        assert!(end(&job).unwrap_err().is::<Partly>());
        job["done"] = json!(10);
        assert!(end(&job).is_ok());
        job["state"] = json!("cancelled");
        assert!(end(&job).is_err());
    }

    #[test]
    fn what_is_not_known_beforehand_is_said() {
        let known = json!({"estimate": {"usd": 0.0123, "device_s": 12.34, "variant": "cnn_m"}});
        assert_eq!(
            estimate(&known, 10),
            "10 inputs, about 0.0123 USD and 12.3 s of devices, reckoned with cnn_m"
        );
        let not = json!({"estimate": {"usd": null, "device_s": null, "variant": null}});
        assert!(estimate(&not, 10).contains("not known yet"));
    }
}
