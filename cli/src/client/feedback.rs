//! `modelless feedback`: whether an answer was right, and what all that was said so comes to.

use super::{Server, list, number, segment, text};
use crate::out;
use clap::{ArgGroup, Args};
use serde_json::{Value, json};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true))]
pub(crate) struct Options {
    /// The query, as named in the answer's `modelless-query-id`.
    query: String,
    /// The right label.
    #[arg(long, group = "what")]
    label: Option<String>,
    /// The answer was right.
    #[arg(long, group = "what")]
    correct: bool,
    /// The answer was wrong.
    #[arg(long, group = "what")]
    wrong: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let body = match &options.label {
        Some(label) => json!({ "label": label }),
        None => json!({"verdict": if options.correct { "correct" } else { "wrong" }}),
    };
    let path = format!("/v1/queries/{}/feedback", segment(&options.query));
    let answer = options.server.api()?.post_json(&path, &body)?.ok()?.json()?;
    if options.server.json { out::json(&answer) } else { out::line(shown(&answer)) }
}

fn shown(answer: &Value) -> String {
    let stored = match text(answer, "stored") {
        "changed" => ", in place of what was said before",
        "said before" => ", as was said before",
        _ => "",
    };
    let variant = text(answer, "variant");
    format!("{}{stored}\n{variant}: {}", text(answer, "verdict"), accuracy(&answer["live_accuracy"]))
}

fn accuracy(live: &Value) -> String {
    let verdicts = live["correct"].as_u64().unwrap_or(0) + live["wrong"].as_u64().unwrap_or(0);
    let (low, high) = (&live["interval"][0], &live["interval"][1]);
    let mut shown = format!(
        "live accuracy {} ({} to {}) by {verdicts} verdicts, measured {}",
        number(&live["value"], 4),
        number(low, 4),
        number(high, 4),
        number(&live["measured"], 4)
    );
    if live["flagged"] == true {
        shown.push_str("; it is less accurate than measured");
    }
    shown
}

/// What live traffic says of a variant that is not as was measured, for people; empty while all is well.
pub(super) fn warnings(variant: &Value, counts: bool) -> Vec<String> {
    let name = text(variant, "name");
    let stale = list(variant, "stale").iter().map(|stale| {
        format!(
            "{name} takes {} times what was measured of it on {} (node {}); it is measured again once a node of that class has \
             nothing else to do",
            number(&stale["slowdown"], 2),
            text(stale, "device_class"),
            text(stale, "node"),
        )
    });
    let live = &variant["live_accuracy"];
    let worse = (live["flagged"] == true).then(|| {
        let floors = if counts {
            format!("; floors are compared with {}", number(&variant["accuracy"], 4))
        } else {
            String::new()
        };
        format!("{name}: {}{floors}", accuracy(live))
    });
    stale.chain(worse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_and_what_it_comes_to_are_shown() {
        let live = json!({"value": 0.8137, "interval": [0.73, 0.88], "correct": 82, "wrong": 18, "measured": 0.91,
                          "flagged": true});
        let answer =
            json!({"stored": "changed", "verdict": "wrong", "variant": "cnn", "live_accuracy": live});
        assert_eq!(
            shown(&answer),
            "wrong, in place of what was said before\ncnn: live accuracy 0.8137 (0.7300 to 0.8800) by 100 verdicts, \
             measured 0.9100; it is less accurate than measured"
        );
        let stale = json!([{"device_class": "cpu:x:2", "node": "one", "slowdown": 2.134}]);
        let variant = json!({"name": "cnn", "accuracy": 0.8137, "stale": stale, "live_accuracy": live});
        let said = warnings(&variant, true).join("\n");
        assert!(
            said.starts_with("cnn takes 2.13 times what was measured of it on cpu:x:2 (node one)"),
            "{said}"
        );
        assert!(said.ends_with("floors are compared with 0.8137"), "{said}");
        assert!(warnings(&json!({"name": "cnn", "stale": [], "live_accuracy": null}), true).is_empty());
    }
}
