//! Requests that no sound server answers with success: generated from its OpenAPI document and a seed.
//!
//! Four kinds. *One field*: a valid request with exactly one thing wrong, the kind that finds missing checks.
//! *Body*: a well-formed HTTP request around a body that is none. *Picture*: one around a damaged picture.
//! *Transport*: what is no HTTP at all, or lies about its length. The last may also be hung up on; the others
//! must be answered.

mod body;
mod field;
mod picture;
mod transport;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::http::{Answer, Connection, Request};
use crate::openapi::{self, Operation, Place};
use crate::{Response, Rng};

pub use picture::jpeg;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    OneField,
    Body,
    Picture,
    Transport,
}

/// One malformed request.
#[derive(Clone, Debug)]
pub struct Case {
    pub kind: Kind,
    /// The sort of thing that is wrong with it: one of a few.
    pub class: &'static str,
    /// What is wrong with it.
    pub what: String,
    pub bytes: Vec<u8>,
    /// Close our side after sending, because the server would rightly wait for more.
    pub finish: bool,
}

/// What a document cannot know: things that exist on this server.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Existing values of path parameters, e.g. `task` = `fashion`; together they must name one thing.
    pub path: BTreeMap<String, String>,
    /// Valid raw bodies.
    pub raw: Vec<RawBody>,
}

/// A body that is right for one concrete path.
#[derive(Clone, Debug)]
pub struct RawBody {
    /// The document's path, e.g. `/v1/tasks/{task}`.
    pub template: String,
    /// The path to send it to, e.g. `/v1/tasks/fashion-tensor`.
    pub path: String,
    pub media: String,
    pub bytes: Vec<u8>,
}

/// A valid request, before one thing is broken.
#[derive(Clone, Debug)]
struct Base {
    operation: Operation,
    path: String,
    media: Option<String>,
    body: Vec<u8>,
    /// The body as JSON, when it is.
    json: Option<Value>,
}

impl Base {
    fn to_request(&self, query: &str) -> Request {
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        let request = Request::new(&self.operation.method, &format!("{}{query}", self.path));
        match &self.media {
            Some(media) => request.header("content-type", media),
            None => request,
        }
    }

    /// The request with its body and its right length.
    fn complete(&self, request: Request) -> Vec<u8> {
        if self.media.is_some() { request.body(self.body.clone()) } else { request }.to_bytes()
    }

    fn name(&self) -> String {
        format!("{} {}", self.operation.method, self.operation.path)
    }
}

/// The endless sequence of malformed requests of one seed.
pub struct Generator {
    rng: Rng,
    bases: Vec<Base>,
}

impl Generator {
    pub fn new(document: &Value, known: &Known, seed: u64) -> Result<Self> {
        let mut bases = Vec::new();
        for operation in openapi::operations(document)? {
            bases.extend(bases_of(&operation, known));
        }
        ensure!(
            bases.iter().any(|base| base.json.is_some()),
            "no operation takes a JSON body for which every path parameter is known"
        );
        ensure!(bases.iter().any(|base| base.media.is_some() && base.json.is_none()), "no raw body is known");
        Ok(Self { rng: Rng::new(seed), bases })
    }

    pub fn next_case(&mut self) -> Case {
        loop {
            let make = match self.rng.below(100) {
                0..45 => field::case,
                45..60 => body::case,
                60..70 => picture::case,
                _ => transport::case,
            };
            // Not every breakage fits every operation: then another of that kind is drawn, so that the shares hold.
            for _ in 0..TRIES {
                if let Some(case) = make(&self.bases, &mut self.rng) {
                    return case;
                }
            }
        }
    }
}

/// Before another kind is drawn, for a document in which nothing of one kind can be broken.
const TRIES: usize = 100;

/// The valid requests an operation takes, one for each body it may have.
fn bases_of(operation: &Operation, known: &Known) -> Vec<Base> {
    let mut path = operation.path.clone();
    for parameter in operation.parameters.iter().filter(|parameter| parameter.place == Place::Path) {
        if let Some(value) = known.path.get(&parameter.name) {
            path = path.replace(&format!("{{{}}}", parameter.name), value);
        }
    }
    let base = |path: String, media: Option<String>, body: Vec<u8>, json: Option<Value>| Base {
        operation: operation.clone(),
        path,
        media,
        body,
        json,
    };
    let mut bases = Vec::new();
    for raw in known.raw.iter().filter(|raw| raw.template == operation.path && operation.method == "POST") {
        bases.push(base(raw.path.clone(), Some(raw.media.clone()), raw.bytes.clone(), None));
    }
    if path.contains('{') {
        return bases;
    }
    if let Some(json) = operation.body("application/json") {
        let value = openapi::sample(&json.schema);
        let text = value.to_string().into_bytes();
        bases.push(base(path.clone(), Some("application/json".to_owned()), text, Some(value)));
    }
    if operation.bodies.is_empty() {
        bases.push(base(path, None, Vec::new(), None));
    }
    bases
}

/// Percent-encodes everything that is not unreserved.
fn encode(text: &[u8]) -> String {
    let mut out = String::new();
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02x}"); // a String takes everything
        }
    }
    out
}

/// What a run of cases came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub sent: usize,
    pub by_kind: BTreeMap<Kind, usize>,
    pub by_class: BTreeMap<&'static str, usize>,
    pub by_status: BTreeMap<u16, usize>,
    pub hung_up: usize,
    /// Every wrong answer with what was sent; only the first few in full.
    pub wrong: Vec<String>,
}

const SHOWN_WRONG: usize = 50;

impl Report {
    fn add(&mut self, case: &Case, answer: &Result<Answer>) {
        self.sent += 1;
        *self.by_kind.entry(case.kind).or_default() += 1;
        *self.by_class.entry(case.class).or_default() += 1;
        let wrong = match answer {
            Ok(Answer::Response(response)) => {
                *self.by_status.entry(response.status).or_default() += 1;
                (!is_refusal(response)).then(|| response.to_string())
            }
            Ok(Answer::Closed) => {
                self.hung_up += 1;
                (case.kind != Kind::Transport).then(|| "hung up without an answer".to_owned())
            }
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(wrong) = wrong {
            let start: String = String::from_utf8_lossy(&case.bytes).chars().take(300).collect();
            if self.wrong.len() < SHOWN_WRONG {
                self.wrong.push(format!("{}: {wrong}; sent {start:?}", case.what));
            } else {
                self.wrong.push(case.what.clone());
            }
        }
    }
}

/// The caller's fault, named as such. 501 and 505 are what HTTP has for a method or version nobody knows.
fn is_refusal(response: &Response) -> bool {
    matches!(response.status, 400..=499 | 501 | 505)
}

/// Sends `count` cases, each on a connection of its own so that none can spoil the next, and adds them up.
pub fn drive(
    address: SocketAddr,
    generator: &mut Generator,
    count: usize,
    report: &mut Report,
) -> Result<()> {
    for _ in 0..count {
        let case = generator.next_case();
        let mut connection = Connection::open(address)
            .with_context(|| format!("after {} malformed requests the server takes no more", report.sent))?;
        let sent = connection.send_raw(&case.bytes);
        if case.finish {
            connection.finish();
        }
        report.add(&case, &sent.and_then(|()| connection.answer()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn generator(seed: u64) -> Generator {
        let goal = json!({"type": "number", "minimum": 0, "maximum": 1});
        let document = json!({"paths": {
            "/v1/tasks": {"get": {}},
            "/v1/tasks/{task}": {"post": {
                "parameters": [
                    {"name": "task", "in": "path", "required": true, "schema": {"type": "string"}},
                    {"name": "accuracy", "in": "query", "schema": goal},
                    {"name": "modelless-accuracy", "in": "header", "schema": goal}],
                "requestBody": {"required": true, "content": {
                    "application/json": {"schema": {"type": "object", "required": ["inputs"],
                        "properties": {"inputs": {"type": "array", "items": {"type": "number"}}}}},
                    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}}}});
        let known = Known {
            path: BTreeMap::from([("task".to_owned(), "fashion".to_owned())]),
            raw: [("application/octet-stream", vec![0; 64]), ("image/jpeg", jpeg())]
                .map(|(media, bytes)| RawBody {
                    template: "/v1/tasks/{task}".to_owned(),
                    path: "/v1/tasks/fashion-tensor".to_owned(),
                    media: media.to_owned(),
                    bytes,
                })
                .into(),
        };
        Generator::new(&document, &known, seed).unwrap()
    }

    #[test]
    fn a_seed_makes_the_same_requests_again() {
        let (mut a, mut b) = (generator(5), generator(5));
        for _ in 0..200 {
            assert_eq!(a.next_case().bytes, b.next_case().bytes);
        }
    }

    #[test]
    fn a_third_is_valid_but_for_one_field_and_no_request_is_valid() {
        let mut generator = generator(9);
        let mut one_field = 0;
        for _ in 0..3_000 {
            let case = generator.next_case();
            one_field += usize::from(case.kind == Kind::OneField);
            for base in &generator.bases {
                assert_ne!(case.bytes, base.complete(base.to_request("")), "{} is valid", case.what);
            }
        }
        assert!(one_field > 1_000, "{one_field}");
    }

    #[test]
    fn success_server_errors_and_silence_are_wrong_answers() {
        let case = |kind| Case { kind, class: "x", what: "x".to_owned(), bytes: vec![], finish: false };
        let answer = |status| Ok(Answer::Response(Response { status, headers: vec![], body: vec![] }));
        let mut report = Report::default();
        for status in [200, 302, 500, 503, 504] {
            report.add(&case(Kind::OneField), &answer(status));
        }
        report.add(&case(Kind::Body), &Ok(Answer::Closed));
        assert_eq!(report.wrong.len(), 6);
        for status in [400, 404, 413, 415, 422, 431, 505] {
            report.add(&case(Kind::OneField), &answer(status));
        }
        report.add(&case(Kind::Transport), &Ok(Answer::Closed));
        assert_eq!((report.wrong.len(), report.sent, report.hung_up), (6, 14, 2));
    }
}
