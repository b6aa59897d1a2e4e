//! Thousands of malformed requests: none may succeed, break the server, or stay in its memory.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use modelless_testkit::malformed::{Generator, Kind, Known, RawBody, Report, drive};
use modelless_testkit::openapi::{self, Place};
use modelless_testkit::{Rng, Server};
use serde_json::{Value, json};

use super::idle_memory::mb;
use super::{Check, Context, Measure, Outcome, demo};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "malformed",
    what: "malformed requests generated from the OpenAPI document: answered 4xx, memory kept, next query good",
    run: measure,
};

fn measure(context: &Context) -> Result<Outcome> {
    let (count, warm_up) = context.choose((10_000, 1_000), (1_000, 300));
    let mut server = demo::start(context)?;
    let document = server.get_json("/openapi.json")?;
    let mut generator = Generator::new(&document, &known(&document, &server)?, context.seed)?;
    say(format!("seed {}", context.seed));

    demo::good_query(&server)?;
    let started = Instant::now();
    let mut report = Report::default();
    // The allocator and the pools have their size after the first ones; growth is counted from there.
    drive(server.address(), &mut generator, warm_up, &mut report)?;
    let warm = server.resident_bytes()?;
    drive(server.address(), &mut generator, count - warm_up, &mut report)?;
    let seconds = started.elapsed().as_secs_f64();
    let end = server.resident_bytes()?;

    ensure!(server.is_running()?, "the server ended\n{}", server.output());
    let panicked = server.output().contains("panicked at");
    demo::good_query(&server)?;
    for wrong in report.wrong.iter().take(10) {
        eprintln!("wrong: {wrong}");
    }
    let one_field = report.by_kind.get(&Kind::OneField).copied().unwrap_or(0);
    ensure!(one_field * 3 >= report.sent, "only {one_field} of {} were valid but for one field", report.sent);
    server.stop()?;

    let growth = mb(end) - mb(warm);
    let statuses: BTreeMap<String, usize> =
        report.by_status.iter().map(|(status, count)| (status.to_string(), *count)).collect();
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: json!([{
            "sent": report.sent, "by_status": statuses, "hung_up": report.hung_up, "wrong": report.wrong,
            "rss_after_warm_up_bytes": warm, "rss_at_end_bytes": end, "seconds": seconds,
        }]),
        summary: json!({
            "sent": report.sent, "valid_but_for_one_field": one_field, "wrong_answers": report.wrong.len(),
            "panicked": panicked, "growth_mb": growth,
        }),
        result: format!(
            "{} sent ({one_field} valid but for one field), {} wrong answers, memory {growth:+.1} MB, seed {}",
            report.sent,
            report.wrong.len(),
            context.seed
        ),
        checks: vec![
            Check { what: "wrong answers", value: number(report.wrong.len()), limit: 0.0, unit: "requests" },
            Check { what: "panics seen", value: f64::from(u8::from(panicked)), limit: 0.0, unit: "" },
            Check { what: "growth after warm-up", value: growth, limit: 16.0, unit: "MB" },
        ],
    })
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests")]
fn number(count: usize) -> f64 {
    count as f64
}

/// Names that exist: the demo's, and the first of every list the server shows.
fn known(document: &Value, server: &Server) -> Result<Known> {
    let mut known = Known::default();
    known.path.insert("task".to_owned(), demo::TENSOR_TASK.to_owned());
    for operation in openapi::operations(document)? {
        let path = &operation.path;
        // `/v1/models/{model}` takes a name out of the list `/v1/models`.
        if let Some((list, rest)) = path.split_once("/{")
            && let Some(parameter) = rest.strip_suffix('}')
            && operation.parameters.iter().any(|p| p.place == Place::Path && p.name == parameter)
            && !known.path.contains_key(parameter)
            && let Some(name) = first_name(&server.get(list)?.json().unwrap_or_default())
        {
            known.path.insert(parameter.to_owned(), name);
        }
        if operation.method == "POST" && operation.body("application/octet-stream").is_some() {
            known.raw.push(RawBody {
                template: path.clone(),
                path: path.replace("{task}", demo::TENSOR_TASK),
                media: "application/octet-stream".to_owned(),
                bytes: demo::tensor_body(demo::TENSOR_FLOATS, &mut Rng::new(1)),
            });
        }
    }
    Ok(known)
}

/// The name of the first entry, whether the list stands bare or under a key.
fn first_name(list: &Value) -> Option<String> {
    let under_key = || list.as_object()?.values().find_map(Value::as_array);
    let first = list.as_array().or_else(under_key)?.first()?;
    first["name"].as_str().or_else(|| first["id"].as_str()).map(str::to_owned)
}
