//! Thousands of malformed requests: none may succeed, break the server, or stay in its memory.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::malformed::{Generator, Kind, Known, RawBody, Report, drive, jpeg};
use modelless_testkit::openapi::{self, Place};
use modelless_testkit::{Request, Rng, Server};
use serde_json::{Value, json};

use super::idle_memory::mb;
use super::{Check, Context, Measure, Outcome, demo};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "malformed",
    what: "malformed requests generated from the OpenAPI document: answered 4xx, memory kept, next query good",
    run: measure,
};

/// Names of what there is none of: a server without keys has no entry to take one from.
const NOTHING: &str = "1";

fn measure(context: &Context) -> Result<Outcome> {
    // A leak of 400 bytes a request would show; the short form asks too little to be that exact.
    let (count, step, bound) = context.choose((10_000, 500, 2.0), (1_500, 250, 8.0));
    let mut server = demo::start(context)?;
    let document = server.get_json("/openapi.json")?;
    let mut generator = Generator::new(&document, &known(context, &document, &server)?, context.seed)?;
    say(format!("seed {}", context.seed));

    demo::good_query(&server)?;
    let started = Instant::now();
    let mut report = Report::default();
    let mut memory = vec![Sample { sent: 0, bytes: server.resident_bytes()? }];
    while report.sent < count {
        drive(server.address(), &mut generator, step.min(count - report.sent), &mut report)?;
        memory.push(Sample { sent: report.sent, bytes: server.resident_bytes()? });
    }
    let seconds = started.elapsed().as_secs_f64();

    ensure!(server.is_running()?, "the server ended\n{}", server.output());
    demo::good_query(&server)?;
    for wrong in report.wrong.iter().take(10) {
        eprintln!("wrong: {wrong}");
    }
    let one_field = report.by_kind.get(&Kind::OneField).copied().unwrap_or(0);
    ensure!(one_field * 3 >= report.sent, "only {one_field} of {} were valid but for one field", report.sent);
    let pictures = report.by_kind.get(&Kind::Picture).copied().unwrap_or(0);
    ensure!(pictures * 20 >= report.sent, "only {pictures} of {} were damaged pictures", report.sent);
    let panics = server.stop_and_count_panics()?;

    let growth = growth_mb(&memory);
    let statuses: BTreeMap<String, usize> =
        report.by_status.iter().map(|(status, count)| (status.to_string(), *count)).collect();
    let memory: Vec<Value> =
        memory.iter().map(|at| json!({"sent": at.sent, "rss_bytes": at.bytes})).collect();
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: json!([{
            "sent": report.sent, "by_class": report.by_class, "by_status": statuses, "hung_up": report.hung_up,
            "wrong": report.wrong, "memory": memory, "panics": panics, "seconds": seconds,
        }]),
        summary: json!({
            "sent": report.sent, "valid_but_for_one_field": one_field, "damaged_pictures": pictures,
            "classes": report.by_class.len(), "wrong_answers": report.wrong.len(), "panics": panics,
            "growth_in_second_half_mb": growth,
        }),
        result: format!(
            "{} sent ({one_field} valid but for one field, {pictures} damaged pictures), {} wrong answers, \
             {panics} panics, memory {growth:+.2} MB in the second half, seed {}",
            report.sent,
            report.wrong.len(),
            context.seed
        ),
        checks: vec![
            Check { what: "wrong answers", value: number(report.wrong.len()), limit: 0.0, unit: "requests" },
            Check { what: "panics seen", value: number(panics), limit: 0.0, unit: "" },
            Check { what: "growth in the second half", value: growth, limit: bound, unit: "MB" },
        ],
    })
}

/// How much memory the server had after so many requests.
struct Sample {
    sent: usize,
    bytes: u64,
}

/// From half of the requests to the end. The first half is the warm-up: by then the allocator and the pools have
/// the size they need, and what still grows is kept.
fn growth_mb(memory: &[Sample]) -> f64 {
    let end = memory.last().map_or(0, |last| last.sent);
    let half = memory.iter().find(|sample| sample.sent * 2 >= end);
    mb(memory.last().map_or(0, |last| last.bytes)) - mb(half.map_or(0, |half| half.bytes))
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests")]
fn number(count: usize) -> f64 {
    count as f64
}

/// Names that exist, and bodies that are right: the demo's.
fn known(context: &Context, document: &Value, server: &Server) -> Result<Known> {
    let mut known = Known::default();
    known.path.insert("task".to_owned(), demo::TENSOR_TASK.to_owned());
    let answered = server.send(&demo::tensor_request(
        demo::TENSOR_TASK,
        demo::tensor_body(demo::TENSOR_FLOATS, &mut Rng::new(1)),
    ))?;
    let query = answered.header("modelless-query-id").context("an answer without the query's name")?;
    known.path.insert("query".to_owned(), query.to_owned());
    let variants = server.get_json("/v1/variants")?;
    let of_task = |variant: &&Value| variant["task"] == demo::TENSOR_TASK;
    let variant = variants["variants"].as_array().and_then(|all| all.iter().find(of_task));
    // The Open Inference Protocol's version of a task is the number of a variant of it.
    let version = variant.and_then(|variant| variant["id"].as_u64()).context("the task has no variant")?;
    known.path.insert("version".to_owned(), version.to_string());
    let sha256 = variants["variants"][0]["artefact"]["sha256"].as_str().context("no variant has a sha256")?;
    known.path.insert("sha256".to_owned(), sha256.to_owned());
    // No list of regions is asked for: they are for clients of this machine, and this server takes none.
    known.path.insert("region".to_owned(), NOTHING.to_owned());
    let picture = std::fs::read(context.root.join("examples/fashion/pictures/shirt.png"))?;
    for operation in openapi::operations(document)? {
        let path = &operation.path;
        let names = operation.parameters.iter().filter(|p| p.place == Place::Path).map(|p| p.name.as_str());
        let names: Vec<&str> = names.collect();
        // `/v1/models/{task}/{model}` takes its names out of the list `/v1/models`.
        if let Some((list, _)) = path.split_once("/{")
            && names.iter().any(|name| !known.path.contains_key(*name))
        {
            let listed = server.get_json(list)?;
            let entries = entries(&listed).with_context(|| format!("{list} is no list"))?;
            if entries.is_empty() {
                for name in names {
                    known.path.entry(name.to_owned()).or_insert_with(|| NOTHING.to_owned());
                }
            } else {
                let found = named(entries, &names, &known.path);
                known
                    .path
                    .extend(found.with_context(|| format!("no entry of {list} has the names in {path}"))?);
            }
        }
        if operation.method != "POST" {
            continue;
        }
        let tensor = if path.starts_with("/v2/") {
            protocol_body(server)?
        } else {
            demo::tensor_body(demo::TENSOR_FLOATS, &mut Rng::new(1))
        };
        for (media, task, bytes) in [
            ("application/octet-stream", demo::TENSOR_TASK, tensor),
            ("image/png", demo::PICTURE_TASK, picture.clone()),
            ("image/jpeg", demo::PICTURE_TASK, jpeg()),
        ] {
            if operation.body(media).is_some() {
                known.raw.push(RawBody {
                    template: path.clone(),
                    path: path.replace("{task}", task).replace("{version}", &known.path["version"]),
                    media: media.to_owned(),
                    bytes,
                });
            }
        }
    }
    // Only what is right in the first place can be broken in exactly one way.
    for raw in &known.raw {
        let request = Request::post(&raw.path).header("content-type", &raw.media).body(raw.bytes.clone());
        let response = server.send(&request)?;
        ensure!(response.status == 200, "the {} body for {} is wrong: {response}", raw.media, raw.path);
    }
    Ok(known)
}

/// A right query to the tensor task in the Open Inference Protocol. As raw bytes it is the JSON with no binary part.
fn protocol_body(server: &Server) -> Result<Vec<u8>> {
    let metadata = server.get_json(&format!("/v2/models/{}", demo::TENSOR_TASK))?;
    let input = &metadata["inputs"][0];
    let shape = input["shape"].as_array().context("an input without a shape")?;
    let shape: Vec<i64> = shape.iter().filter_map(Value::as_i64).map(|length| length.max(1)).collect();
    let data = vec![0.5; demo::TENSOR_FLOATS];
    let input = json!({"name": input["name"], "datatype": input["datatype"], "shape": shape, "data": data});
    Ok(json!({"inputs": [input]}).to_string().into_bytes())
}

/// Of a list, or of an object with one.
fn entries(listed: &Value) -> Option<&Vec<Value>> {
    listed.as_array().or_else(|| listed.as_object()?.values().find_map(Value::as_array))
}

/// The path parameters of the first entry of a list that agrees with what is known already. The last parameter is
/// the entry's name or number, or a field of its own, as those before it are.
fn named(
    list: &[Value],
    names: &[&str],
    known: &BTreeMap<String, String>,
) -> Option<BTreeMap<String, String>> {
    list.iter().find_map(|entry| {
        let mut found = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            let fields = if at + 1 == names.len() { &["name", name, "id"][..] } else { &[*name][..] };
            let value = fields.iter().map(|field| &entry[*field]).find(|value| !value.is_null())?;
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if known.get(*name).is_some_and(|known| *known != value) {
                return None;
            }
            found.insert((*name).to_owned(), value);
        }
        Some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_path_parameters_come_from_one_entry() {
        let list = json!({"models": [
            {"name": "a", "task": "fashion"}, {"name": "b", "task": "fashion-tensor"}]});
        let known = BTreeMap::from([("task".to_owned(), "fashion-tensor".to_owned())]);
        let list = entries(&list).unwrap();
        let found = named(list, &["task", "model"], &known).unwrap();
        assert_eq!(found["model"], "b");
        assert!(
            named(list, &["task", "node"], &BTreeMap::from([("task".to_owned(), "x".to_owned())])).is_none()
        );
        let plans = [json!({"id": 7})];
        assert_eq!(named(&plans, &["plan"], &BTreeMap::new()).unwrap()["plan"], "7");
    }

    #[test]
    fn growth_is_counted_from_half_of_the_requests() {
        let memory = [(0, 1), (500, 9), (1_000, 10), (1_500, 11)];
        let memory = memory.map(|(sent, mb)| Sample { sent, bytes: mb * 1_000_000 });
        assert!(growth_mb(&memory) > 0.9 && growth_mb(&memory) < 1.1);
    }
}
