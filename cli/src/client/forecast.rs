//! `modelless task forecast`: what earlier days tell of a task.

use super::versions::time;
use super::{Server, list, number, segment, text};
use crate::out;
use crate::table::Table;
use clap::Args;
use serde_json::Value;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The task.
    name: String,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let path = format!("/v1/tasks/{}/forecast", segment(&options.name));
    let answer = options.server.api()?.get(&path)?.ok()?.json()?;
    if options.server.json { out::json(&answer) } else { out::line(shown(&answer)) }
}

fn shown(answer: &Value) -> String {
    let known = &answer["known"];
    let since = known["since_unix_us"].as_u64();
    let known = since.map_or_else(
        || "nothing is known of earlier days yet".to_owned(),
        |since| {
            let hours = known["seconds"].as_u64().unwrap_or(0) / 3_600;
            format!(
                "known are {hours} hours since {}, and it was asked in {} slots",
                time(since),
                known["slots"]
            )
        },
    );
    let seconds = |name: &str| answer[name].as_f64().unwrap_or(0.0) / 1e3;
    let counts = match text(answer, "ahead") {
        "off" => "it does not count before it is asked for (`task set --ahead on`)".to_owned(),
        _ => format!(
            "its loads take {:.1} s, and are begun {:.0} s before they are needed",
            seconds("loads_ms"),
            seconds("begun_before_ms")
        ),
    };
    let now = match (&answer["soon"]["why"], &answer["held"]["why"]) {
        (Value::String(why), _) => format!("\nnow: it was {why}"),
        (_, Value::String(why)) => format!("\nnow: what is ready stays so, since it was {why}"),
        _ => String::new(),
    };
    let head = format!("{}: {known}; {counts}{now}", text(answer, "task"));
    let expected = list(answer, "expected");
    if expected.is_empty() {
        return format!("{head}\nnothing recurs in the next 24 hours");
    }
    let mut table = Table::new(&["expected", ">peak a second", ">queries", "since it was"]);
    for peak in expected {
        table.row([
            text(peak, "time").to_owned(),
            number(&peak["per_s"], 1),
            number(&peak["queries"], 0),
            text(peak, "why").to_owned(),
        ]);
    }
    format!("{head}\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_expected_is_told_with_the_days_that_it_comes_from() {
        let nothing = json!({"task": "t", "ahead": "off", "known": {"since_unix_us": null}, "expected": []});
        let told = shown(&nothing);
        assert!(told.contains("nothing is known of earlier days yet; it does not count"), "{told}");
        assert!(told.ends_with("nothing recurs in the next 24 hours"), "{told}");
        let peak = json!({"time": "09:00 UTC", "per_s": 40.0, "queries": 12_000,
            "why": "asked 40/s at 09:00 UTC on 2 of the last 3 days"});
        let some = json!({"task": "t", "ahead": "on", "loads_ms": 4_100.0, "begun_before_ms": 66_150.0, "soon": null, "held": peak,
            "known": {"since_unix_us": 0, "seconds": 259_200, "slots": 12}, "expected": [peak]});
        let told = shown(&some);
        assert!(told.contains("known are 72 hours since 1970-01-01"), "{told}");
        assert!(told.contains("its loads take 4.1 s, and are begun 66 s before"), "{told}");
        assert!(
            told.contains("stays so, since it was asked 40/s at 09:00 UTC on 2 of the last 3 days"),
            "{told}"
        );
        assert!(told.contains("09:00 UTC           40.0    12000  asked 40/s"), "{told}");
    }
}
