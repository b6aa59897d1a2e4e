//! `modelless query`: a prediction, and the decision behind it.

use super::{GoalOptions, Reply, Server, segment};
use crate::out;
use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http::Method;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Headers that tell of the decision start so.
const PREFIX: &str = "modelless-";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The task.
    task: String,
    /// The input: a JPEG or PNG, or raw tensors. `-` reads standard input.
    file: PathBuf,
    #[command(flatten)]
    goals: GoalOptions,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let body = read(&options.file)?;
    let path = format!("/v1/tasks/{}{}", segment(&options.task), options.goals.query());
    let media = Some("application/octet-stream");
    let reply = options.server.api()?.send(Method::POST, &path, media, body)?.ok()?;
    let answer = reply.json()?;
    if options.server.json {
        return out::json(&json!({"answer": answer, "decision": decision(&reply)}));
    }
    out::line(format!("{}\n{}", shown(&answer), why(&reply)))
}

fn read(file: &Path) -> anyhow::Result<Bytes> {
    if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes.into());
    }
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(bytes.into())
}

/// The headers of the decision, by their names without the prefix.
fn decision(reply: &Reply) -> Value {
    let headers = reply.headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(PREFIX)?;
        Some((name.to_owned(), Value::from(value.to_str().ok()?)))
    });
    Value::Object(headers.collect::<Map<_, _>>())
}

/// Labels with their scores, or whatever else it is as JSON.
fn shown(answer: &Value) -> String {
    let labels: Option<Vec<(&str, f64)>> = answer.as_array().and_then(|all| {
        all.iter().map(|one| Some((one["label"].as_str()?, one["score"].as_f64()?))).collect()
    });
    let Some(labels) = labels.filter(|labels| !labels.is_empty()) else { return answer.to_string() };
    let width = labels.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let lines =
        labels.iter().map(|(label, score)| format!("{score:7.4}  {label:width$}").trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// The decision in a few words.
fn why(reply: &Reply) -> String {
    let header = |name: &str| {
        let value = reply.headers.get(format!("{PREFIX}{name}"))?;
        value.to_str().ok().filter(|text| !text.is_empty())
    };
    let mut text = format!("answered by {}", header("variant").unwrap_or("a variant"));
    if let Some(accuracy) = header("accuracy") {
        let _ = write!(text, ", accuracy {accuracy}");
    }
    if let Some(total) = header("total-ms") {
        let _ = write!(text, ", in {total} ms");
    }
    if let Some(reason) = header("reason") {
        let _ = write!(text, ": {reason}");
    }
    let more: Vec<String> = [
        ("predicted-ms", "predicted", " ms"),
        ("queue-ms", "queued", " ms"),
        ("decode-ms", "decoded", " ms"),
        ("prepare-ms", "prepared", " ms"),
        ("run-ms", "ran", " ms"),
        ("batch", "batch of", ""),
        ("cost", "cost", " USD per 1,000"),
        ("node", "on", ""),
    ]
    .into_iter()
    .filter_map(|(name, word, unit)| Some(format!("{word} {}{unit}", header(name)?)))
    .collect();
    if !more.is_empty() {
        let _ = write!(text, "\n  {}", more.join(", "));
    }
    if let Some(id) = header("query-id") {
        let _ = write!(text, "\nquery {id}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderValue, StatusCode};

    #[test]
    fn labels_are_shown_with_their_scores_and_tensors_as_json() {
        let labels = json!([{"label": "Ankle boot", "score": 0.98}, {"label": "Bag", "score": 0.02}]);
        assert_eq!(shown(&labels), " 0.9800  Ankle boot\n 0.0200  Bag");
        let tensors = json!({"outputs": {"logits": {"data": [1.0]}}});
        assert_eq!(shown(&tensors), tensors.to_string());
    }

    #[test]
    fn the_decision_is_told_from_the_headers() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("modelless-variant", "cnn_m-int8"),
            ("modelless-accuracy", "0.916"),
            ("modelless-total-ms", "1.250"),
            ("modelless-reason", "cheapest that meets the goals"),
            ("modelless-run-ms", "0.060"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let reply = Reply { status: StatusCode::OK, headers, body: Bytes::new() };
        assert_eq!(
            why(&reply),
            "answered by cnn_m-int8, accuracy 0.916, in 1.250 ms: cheapest that meets the goals\n  ran 0.060 ms"
        );
        assert_eq!(decision(&reply)["run-ms"], "0.060");
    }
}
