//! `modelless query`: a prediction, and the decision behind it.

use super::{Api, Away, GoalOptions, Reply, Server, segment, text};
use crate::exit::usage;
use crate::out;
use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use http::Method;
use http::header::AGE;
use modelless_types::TaskKind;
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
    /// The input: a file with a JPEG or PNG, a text, or raw tensors, as the task takes it; `-` reads standard input. For a task of
    /// texts what is no file is the text itself.
    #[arg(value_name = "FILE|TEXT")]
    input: PathBuf,
    /// So many of the best labels.
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    #[command(flatten)]
    goals: GoalOptions,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let api = options.server.api()?;
    let Body { content, media } = body(&api, options)?;
    let path = format!("/v1/tasks/{}{}", segment(&options.task), options.goals.query());
    let reply = api.send(Method::POST, &path, Some(media), content)?.ok()?;
    let answer = reply.json()?;
    if options.server.json {
        return out::json(&json!({"answer": answer, "decision": decision(&reply)}));
    }
    out::line(format!("{}\n{}", shown(&answer), why(&reply)))
}

#[derive(PartialEq, Eq, Debug)]
struct Body {
    content: Bytes,
    media: &'static str,
}

/// What is sent. Only where that depends on the task the server is asked what it takes.
fn body(api: &Api, options: &Options) -> anyhow::Result<Body> {
    let kind = || -> anyhow::Result<TaskKind> {
        let task = api.get(&format!("/v1/tasks/{}", segment(&options.task)))?.ok()?.json()?;
        let kind = TaskKind::parse(text(&task, "kind"));
        kind.context(
            "the server told of a task that this program does not understand; use one of its version",
        )
    };
    let given = options.input.as_path();
    let is_file = given.as_os_str() == "-" || given.exists();
    let content = match (is_file, given.to_str()) {
        (false, Some(words)) if !looks_like_a_file(words) => match kind() {
            Ok(TaskKind::TextClassification | TaskKind::FeatureExtraction) => Bytes::from(words.to_owned()),
            Ok(TaskKind::ImageClassification | TaskKind::Tensor) => read(given)?,
            Err(error) if error.is::<Away>() => {
                let why =
                    format!("{words:?} is no file, and no server says whether the task takes it as a text");
                return Err(error.context(why));
            }
            Err(error) => return Err(error),
        },
        _ => read(given)?,
    };
    match options.top_k {
        None => Ok(Body { content, media: "application/octet-stream" }),
        Some(most) => asking(kind()?, &content, most),
    }
}

/// What is more likely a file that is not there than a text: one word with a folder or an ending.
fn looks_like_a_file(words: &str) -> bool {
    let ending = Path::new(words).extension().is_some_and(|ending| (1..=5).contains(&ending.len()));
    !words.contains(char::is_whitespace) && (words.contains('/') || ending)
}

/// An input with how many labels of its answer are wanted, which only JSON has a place for.
fn asking(kind: TaskKind, content: &[u8], top_k: u32) -> anyhow::Result<Body> {
    let input = match kind {
        TaskKind::ImageClassification => STANDARD.encode(content),
        TaskKind::TextClassification => std::str::from_utf8(content)
            .map_err(|error| usage(format!("the text is not UTF-8: {error}")))?
            .to_owned(),
        TaskKind::FeatureExtraction | TaskKind::Tensor => {
            return Err(usage(format!(
                "--top-k is for answers with labels, and those of a {} task have none",
                kind.name()
            )));
        }
    };
    let content = json!({"inputs": input, "parameters": {"top_k": top_k}}).to_string().into();
    Ok(Body { content, media: "application/json" })
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
    // A text's are in a list of one answer.
    let all = answer.as_array().map(|all| match &all[..] {
        [Value::Array(only)] => only,
        _ => all,
    });
    let labels: Option<Vec<(&str, f64)>> = all.and_then(|all| {
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
    // Nothing was expected, waited for or run then.
    let again = header("cache") == Some("hit");
    if again {
        let age = reply.headers.get(AGE).and_then(|age| age.to_str().ok()).unwrap_or("some");
        let _ = write!(text, ", {age} s ago to who asked the very same");
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
    .filter(|_| !again)
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
    use std::io::Write as _;

    #[test]
    fn labels_are_shown_with_their_scores_and_tensors_as_json() {
        let labels = json!([{"label": "Ankle boot", "score": 0.98}, {"label": "Bag", "score": 0.02}]);
        assert_eq!(shown(&labels), " 0.9800  Ankle boot\n 0.0200  Bag");
        assert_eq!(shown(&json!([labels])), shown(&labels), "a text's");
        assert_eq!(shown(&json!([[0.5, 0.25]])), "[[0.5,0.25]]");
        let tensors = json!({"outputs": {"logits": {"data": [1.0]}}});
        assert_eq!(shown(&tensors), tensors.to_string());
    }

    #[test]
    fn an_answer_that_was_given_before_tells_no_times_of_a_run() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("modelless-variant", "a"),
            ("modelless-total-ms", "0.021"),
            ("modelless-reason", "given before"),
            ("modelless-cache", "hit"),
            ("age", "12"),
            ("modelless-predicted-ms", "0.000"),
            ("modelless-batch", "1"),
            ("modelless-query-id", "AgI"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let reply = Reply { status: StatusCode::OK, headers, body: Bytes::new() };
        let told = "answered by a, in 0.021 ms: given before, 12 s ago to who asked the very same\nquery AgI";
        assert_eq!(why(&reply), told);
    }

    /// A server that tells one who asks of which kind its task is.
    fn with_task(kind: &'static str) -> (String, std::thread::JoinHandle<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap();
            assert!(head[..read].starts_with(b"GET /v1/tasks/t "), "{}", String::from_utf8_lossy(&head));
            let task = json!({"kind": kind}).to_string();
            let length = task.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{task}")
                .unwrap();
        });
        (url, serving)
    }

    fn body_of(url: &str, input: &str) -> anyhow::Result<Body> {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            options: Options,
        }
        let Only { options } = clap::Parser::parse_from(["query", "t", input, "--server", url]);
        body(&options.server.api()?, &options)
    }

    #[test]
    fn what_is_no_file_is_the_text_itself_where_the_task_takes_texts() {
        let long = "so good ".repeat(100);
        for (kind, words) in [("text-classification", "so good"), ("feature-extraction", &*long)] {
            let (url, serving) = with_task(kind);
            let body = body_of(&url, words).unwrap();
            assert_eq!((&body.content[..], body.media), (words.as_bytes(), "application/octet-stream"));
            serving.join().unwrap();
        }
        let (url, serving) = with_task("image-classification");
        let error = format!("{:#}", body_of(&url, "so good").unwrap_err());
        assert!(error.contains("cannot read so good"), "{error}");
        serving.join().unwrap();
        for file in ["reveiw.txt", "texts/one"] {
            assert!(body_of("http://127.0.0.1:1", file).unwrap_err().to_string().contains(file), "{file}");
        }
        // A file is read, and nobody asked.
        let folder = modelless_testkit::temp_dir("query").unwrap();
        let file = folder.path().join("x");
        std::fs::write(&file, "words").unwrap();
        assert_eq!(body_of(&url, file.to_str().unwrap()).unwrap().content, "words");
    }

    #[test]
    fn how_many_labels_are_wanted_goes_beside_the_input() {
        let sent = |kind, content: &[u8]| {
            let Body { content, media } = asking(kind, content, 2).unwrap();
            assert_eq!(media, "application/json");
            serde_json::from_slice::<Value>(&content).unwrap()
        };
        let with = |input: &str| json!({"inputs": input, "parameters": {"top_k": 2}});
        assert_eq!(sent(TaskKind::TextClassification, "gut".as_bytes()), with("gut"));
        assert_eq!(sent(TaskKind::ImageClassification, &[0, 1]), with("AAE="));
        for (kind, content) in [(TaskKind::Tensor, &[0_u8][..]), (TaskKind::TextClassification, &[0xff])] {
            assert!(asking(kind, content, 2).unwrap_err().is::<crate::exit::Usage>());
        }
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
