//! What an answer says of the decision that led to it: headers, the same for every way of asking.

use crate::ask::Answered;
use crate::core::Core;
use crate::errors::ApiError;
use crate::ids::{NUMBER, QueryId, number_header};
use crate::view::{TaskView, View};
use http::header::AGE;
use http::{HeaderMap, HeaderName, HeaderValue};
use modelless_store::UnixMicros;
use modelless_types::Micros;
use serde::Deserialize;
use std::borrow::Cow;
use std::io::Write as _;
use std::time::SystemTime;

/// Why a variant answered that was not asked.
pub(crate) const GIVEN_BEFORE: &str = "given before";

/// Every such header starts so.
pub(crate) const PREFIX: &str = "modelless-";
/// So many answers of one request have their names told; more would be a head that clients do not take.
pub(crate) const IDS_MAX: usize = 64;

/// Puts into `headers` what is to be said of the answers to one request. Of several, times are those of the slowest; names are all
/// that answered, the accuracy is the lowest of theirs, ids are in the order in which they were asked.
pub(crate) fn tell(
    core: &Core,
    view: &View,
    task: &TaskView,
    parts: &[Answered],
    headers: &mut HeaderMap,
) -> Result<(), ApiError> {
    let Some(slowest) = parts.iter().max_by_key(|part| part.total) else { return Ok(()) };
    if parts.iter().any(|part| part.answer.space != parts[0].answer.space) {
        // The task's default changed in between.
        let message = "the inputs were answered in different output spaces; ask again";
        return Err(ApiError::unavailable("space_changed", message));
    }
    headers.reserve(20);
    one(core, view, task, slowest, headers);
    given_before(task, parts, headers);
    if let Some(running) = parts.iter().find_map(|part| part.seen.as_ref()?.drawn()) {
        headers.insert(name("modelless-trial"), running.header.clone());
    }
    if parts.len() > 1 {
        names(task, parts, headers);
    }
    if parts.len() <= IDS_MAX {
        let mut ids = query_id(core, task, &parts[0]);
        for part in &parts[1..] {
            ids.push_str(", ");
            ids.push_str(&query_id(core, task, part));
        }
        if let Ok(ids) = HeaderValue::try_from(ids) {
            headers.insert(name("modelless-query-id"), ids);
        }
    }
    Ok(())
}

fn one(core: &Core, view: &View, task: &TaskView, answered: &Answered, headers: &mut HeaderMap) {
    let Answered { key, answer, node, predicted, queued, total, cached, seen: _ } = answered;
    headers.insert(NUMBER, number_header(core.number(*key)));
    if let Some(variant) = task.variant(answer.variant) {
        headers.insert(name("modelless-model"), variant.model_header.clone());
        headers.insert(name("modelless-variant"), variant.variant_header.clone());
        headers.insert(name("modelless-space"), variant.space_header.clone());
        if let Some(accuracy) = &variant.accuracy_header {
            headers.insert(name("modelless-accuracy"), accuracy.clone());
        }
        if let Some(from) = &variant.accuracy_from_header {
            headers.insert(name("modelless-accuracy-provenance"), from.clone());
        }
    }
    if let Some(node) = node.and_then(|node| core.node_header(view, node)) {
        headers.insert(name("modelless-node"), node);
    }
    headers.insert(name("modelless-batch"), HeaderValue::from(answer.batch));
    headers.insert(name("modelless-cost"), decimal(answer.cost.0, 9));
    for (header, time) in [
        (name("modelless-predicted-ms"), *predicted),
        (name("modelless-predicted-run-ms"), answer.predicted_run),
        (name("modelless-queue-ms"), *queued),
        (name("modelless-decode-ms"), answer.decode),
        (name("modelless-prepare-ms"), answer.prepare),
        (name("modelless-run-ms"), answer.run),
        (name("modelless-total-ms"), *total),
    ] {
        headers.insert(header, millis(time));
    }
    let why = if cached.is_some() { GIVEN_BEFORE } else { answer.why.text() };
    headers.insert(name("modelless-reason"), HeaderValue::from_static(why));
}

/// Whether answers were given before, and how long ago: the oldest of several. Only of tasks that allow it.
fn given_before(task: &TaskView, parts: &[Answered], headers: &mut HeaderMap) {
    if task.task.cache.time().is_none() {
        return;
    }
    let hits = parts.iter().filter(|part| part.cached.is_some()).count();
    let told = match hits {
        0 => "miss",
        _ if hits == parts.len() => "hit",
        _ => "some",
    };
    headers.insert(name("modelless-cache"), HeaderValue::from_static(told));
    if let Some(age) = parts.iter().filter_map(|part| part.cached).max() {
        headers.insert(AGE, HeaderValue::from(age.0 / 1_000_000));
    }
}

/// All that answered, each once.
fn names(task: &TaskView, parts: &[Answered], headers: &mut HeaderMap) {
    let mut seen: Vec<_> = parts.iter().map(|part| part.answer.variant).collect();
    seen.sort_unstable();
    seen.dedup();
    let variants: Vec<_> = seen.into_iter().filter_map(|id| task.variant(id)).collect();
    let all = |mut names: Vec<&HeaderValue>| {
        names.sort_unstable();
        names.dedup();
        HeaderValue::from_bytes(
            &names.iter().map(|name| name.as_bytes()).collect::<Vec<_>>().join(&b", "[..]),
        )
        .ok()
    };
    let lowest = variants.iter().min_by_key(|variant| variant.accuracy);
    for (header, value) in [
        (name("modelless-model"), all(variants.iter().map(|variant| &variant.model_header).collect())),
        (name("modelless-variant"), all(variants.iter().map(|variant| &variant.variant_header).collect())),
        (name("modelless-accuracy"), lowest.and_then(|variant| variant.accuracy_header.clone())),
        (
            name("modelless-accuracy-provenance"),
            lowest.and_then(|variant| variant.accuracy_from_header.clone()),
        ),
    ] {
        if let Some(value) = value {
            headers.insert(header, value);
        }
    }
}

fn query_id(core: &Core, task: &TaskView, part: &Answered) -> String {
    core.ids.issue(QueryId {
        label: best_label(&part.answer.body).and_then(|label| task.label(&label)),
        variant: part.answer.variant,
        at_unix_us: UnixMicros::of(SystemTime::now()).0,
        number: core.number(part.key).0,
        arm: part.seen.as_ref().map(|seen| seen.arm),
    })
}

/// The label of a body that begins with `[{"label": ...`, or with several such brackets: the best comes first.
pub(crate) fn best_label(body: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Best<'a> {
        #[serde(borrow)]
        label: Cow<'a, str>,
    }
    let start = body.iter().position(|byte| *byte != b'[')?;
    if body.get(start) != Some(&b'{') || start == 0 {
        return None;
    }
    let first = serde_json::Deserializer::from_slice(&body[start..]).into_iter::<Best<'_>>().next()?;
    first.ok().map(|best| best.label)
}

const fn name(text: &'static str) -> HeaderName {
    HeaderName::from_static(text)
}

fn millis(time: Micros) -> HeaderValue {
    decimal(time.0, 3)
}

/// `value / 10^digits`, exactly, without an allocation of its own.
fn decimal(value: u64, digits: u8) -> HeaderValue {
    let mut buffer = [0; 40];
    let scale = 10_u64.pow(u32::from(digits));
    let mut rest = buffer.as_mut_slice();
    let width = usize::from(digits);
    // 20 digits, a point and at most 9 more always fit.
    let fits = write!(rest, "{}.{:0width$}", value / scale, value % scale).is_ok();
    let left = rest.len();
    let written = if fits { &buffer[..buffer.len() - left] } else { &b"0"[..] };
    HeaderValue::from_bytes(written).unwrap_or(HeaderValue::from_static("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_label_is_read_from_the_answer_itself() {
        for (body, label) in [
            (r#"[{"label":"bag","score":0.9},{"label":"coat","score":0.1}]"#, Some("bag")),
            (r#"[[{"label":"a \"b\"","score":1.0}]]"#, Some("a \"b\"")),
            (r#"{"outputs":{"label":{}}}"#, None),
            ("[[0.5,0.5]]", None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(best_label(body.as_bytes()).as_deref(), label, "{body}");
        }
    }

    #[test]
    fn times_and_prices_are_written_exactly() {
        assert_eq!(millis(Micros(12_345)), "12.345");
        assert_eq!(millis(Micros(7)), "0.007");
        assert_eq!(millis(Micros(0)), "0.000");
        assert_eq!(millis(Micros(u64::MAX)), "18446744073709551.615");
        assert_eq!(decimal(1_500_000, 9), "0.001500000");
        assert_eq!(decimal(u64::MAX, 9), "18446744073.709551615");
    }
}
