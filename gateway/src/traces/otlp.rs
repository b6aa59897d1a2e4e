//! Spans as OTLP's messages: <https://github.com/open-telemetry/opentelemetry-proto>, the fields that are used.

use super::spans::{Kind, Part, Span, Spans, Value};
use modelless_types::Time;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Told>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Told {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(oneof = "AnyOf", tags = "1, 2, 3, 4")]
    value: Option<AnyOf>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnyOf {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Truth(bool),
    #[prost(int64, tag = "3")]
    Whole(i64),
    #[prost(double, tag = "4")]
    Number(f64),
}

/// What a server says of what it was sent.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Answered {
    #[prost(message, optional, tag = "1")]
    pub(super) partial: Option<Partial>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Partial {
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) why: String,
}

const ERROR: i32 = 2;
/// The lowest bit says that the trace is kept; the others, whether the parent is known to be elsewhere.
const KEPT: u32 = 0x101;
const ELSEWHERE: u32 = 0x200;

/// One message of many queries. Spans of one part stand together.
pub(super) fn encode(all: &[Spans], resource: &[(String, String)]) -> Vec<u8> {
    let mut parts: Vec<(&Part, Vec<Told>)> = Vec::new();
    for query in all {
        for span in &query.all {
            let told = told(query, span);
            match parts.iter_mut().find(|(part, _)| **part == span.of) {
                Some((_, spans)) => spans.push(told),
                None => parts.push((&span.of, vec![told])),
            }
        }
    }
    let of_part = |(part, spans): (&Part, Vec<Told>)| ResourceSpans {
        resource: Some(Resource { attributes: who(part, resource) }),
        scope_spans: vec![ScopeSpans {
            scope: Some(Scope {
                name: "modelless".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            spans,
        }],
    };
    Export { resource_spans: parts.into_iter().map(of_part).collect() }.encode_to_vec()
}

/// What the operator set holds for all parts, but a part's own name and place are its own.
fn who(part: &Part, set: &[(String, String)]) -> Vec<KeyValue> {
    let of = |name: &str| set.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let service = of("service.name").unwrap_or_else(|| "modelless".to_owned());
    let (name, place) = match part {
        Part::Gateway => (format!("{service}-gateway"), of("service.instance.id")),
        Part::Node(node) => (format!("{service}-executor"), Some(node.clone())),
        Part::Runner(node) => (format!("{service}-runner"), Some(node.clone())),
    };
    let mut attributes = vec![pair("service.name", AnyOf::Text(name))];
    attributes.extend(place.map(|place| pair("service.instance.id", AnyOf::Text(place))));
    let own = ["service.name", "service.instance.id"];
    let rest = set.iter().filter(|(key, _)| !own.contains(&key.as_str()));
    attributes.extend(rest.map(|(key, value)| pair(key, AnyOf::Text(value.clone()))));
    attributes
}

fn pair(key: &str, value: AnyOf) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(Any { value: Some(value) }) }
}

fn told(query: &Spans, span: &Span) -> Told {
    let unix = |at: Time| query.zero.saturating_add(at.0).saturating_mul(1_000);
    let attributes = span.attributes.iter().map(|(key, value)| {
        let value = match value {
            Value::Text(text) => AnyOf::Text(text.to_string()),
            Value::Truth(truth) => AnyOf::Truth(*truth),
            Value::Whole(number) => AnyOf::Whole(*number),
            Value::Number(number) => AnyOf::Number(*number),
        };
        pair(key, value)
    });
    Told {
        trace_id: query.trace.to_be_bytes().to_vec(),
        span_id: span.id.to_be_bytes().to_vec(),
        trace_state: query.state.clone(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.to_be_bytes().to_vec()),
        name: span.name.to_string(),
        kind: match span.kind {
            Kind::Inside => 1,
            Kind::Serves => 2,
            Kind::Asks => 3,
        },
        start_time_unix_nano: unix(span.start),
        end_time_unix_nano: unix(span.end.max(span.start)),
        attributes: attributes.collect(),
        status: span.failed.clone().map(|message| Status { message, code: ERROR }),
        flags: if span.remote { KEPT | ELSEWHERE } else { KEPT },
    }
}

/// A message as tests look at it.
#[cfg(test)]
pub(crate) mod shown {
    use super::{AnyOf, Export, KeyValue, Message};
    use std::collections::BTreeMap;

    #[derive(Debug)]
    pub(crate) struct Shown {
        /// What its part says of itself.
        pub(crate) resource: BTreeMap<String, String>,
        pub(crate) trace: u128,
        pub(crate) id: Vec<u8>,
        pub(crate) parent: Vec<u8>,
        pub(crate) state: String,
        pub(crate) name: String,
        pub(crate) kind: i32,
        pub(crate) start: u64,
        pub(crate) end: u64,
        pub(crate) attributes: BTreeMap<String, String>,
        pub(crate) failed: Option<String>,
        pub(crate) flags: u32,
    }

    fn pairs(all: &[KeyValue]) -> BTreeMap<String, String> {
        let text = |value: &KeyValue| match value.value.as_ref().and_then(|any| any.value.as_ref()) {
            Some(AnyOf::Text(text)) => text.clone(),
            Some(AnyOf::Truth(truth)) => truth.to_string(),
            Some(AnyOf::Whole(number)) => number.to_string(),
            Some(AnyOf::Number(number)) => number.to_string(),
            None => String::new(),
        };
        all.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
    }

    pub(crate) fn of(message: &[u8]) -> Vec<Shown> {
        let export = Export::decode(message).unwrap();
        let mut all = Vec::new();
        for part in export.resource_spans {
            let resource = pairs(&part.resource.unwrap().attributes);
            for span in part.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                all.push(Shown {
                    resource: resource.clone(),
                    trace: u128::from_be_bytes(span.trace_id.try_into().unwrap()),
                    id: span.span_id,
                    parent: span.parent_span_id,
                    state: span.trace_state,
                    name: span.name,
                    kind: span.kind,
                    start: span.start_time_unix_nano,
                    end: span.end_time_unix_nano,
                    attributes: pairs(&span.attributes),
                    failed: span.status.filter(|status| status.code == 2).map(|status| status.message),
                    flags: span.flags,
                });
            }
        }
        all
    }
}
