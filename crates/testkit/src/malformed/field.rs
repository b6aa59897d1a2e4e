//! Valid requests with exactly one thing wrong.

use serde_json::{Value, json};

use super::{Base, Case, Kind, encode};
use crate::Rng;
use crate::openapi::{Parameter, Place, sample, wrong_text, wrong_value};

pub(super) fn case(bases: &[Base], rng: &mut Rng) -> Option<Case> {
    let base = rng.pick(bases).clone();
    let (class, (what, bytes)) = match rng.below(16) {
        0..4 => ("field: query parameter", wrong_parameter(&base, Place::Query, rng)?),
        4 | 5 => ("field: header", wrong_parameter(&base, Place::Header, rng)?),
        6 | 7 => ("field: said twice", said_twice(&base, rng)?),
        8..12 => ("field: in JSON", wrong_json_field(&base, rng)?),
        12 | 13 => ("field: content-type", wrong_media(&base, rng)?),
        14 => ("field: name in the path", unknown_name(&base, rng)?),
        _ => ("field: method", wrong_method(&base, bases, rng)?),
    };
    Some(Case { kind: Kind::OneField, class, what: format!("{}: {what}", base.name()), bytes, finish: false })
}

fn wrong_parameter(base: &Base, place: Place, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    let candidates: Vec<&Parameter> =
        base.operation.parameters.iter().filter(|parameter| parameter.place == place).collect();
    if candidates.is_empty() {
        return None;
    }
    let parameter = *rng.pick(&candidates);
    let text = wrong_text(&parameter.schema, rng)?;
    let what = format!("{place:?} {}={text}", parameter.name);
    let request = if place == Place::Query {
        base.to_request(&format!("{}={}", encode(parameter.name.as_bytes()), encode(text.as_bytes())))
    } else {
        base.to_request("").header(&parameter.name, text)
    };
    Some((what, base.complete(request)))
}

/// One goal given twice with different values, in the query string or there and as a header.
fn said_twice(base: &Base, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    let numbers: Vec<&Parameter> = base
        .operation
        .parameters
        .iter()
        .filter(|parameter| parameter.place == Place::Query && sample(&parameter.schema).as_f64().is_some())
        .collect();
    if numbers.is_empty() {
        return None;
    }
    let parameter = *rng.pick(&numbers);
    let first = sample(&parameter.schema);
    let second = if first.is_f64() { json!(first.as_f64()? / 2.0) } else { json!(first.as_i64()? + 1) };
    let header = format!("modelless-{}", parameter.name.replace('_', "-"));
    let has_header = base.operation.parameters.iter().any(|p| p.name.eq_ignore_ascii_case(&header));
    let name = encode(parameter.name.as_bytes());
    let request = if has_header && rng.chance(50) {
        base.to_request(&format!("{name}={first}")).header(&header, second.to_string())
    } else {
        base.to_request(&format!("{name}={first}&{name}={second}"))
    };
    Some((format!("{} is both {first} and {second}", parameter.name), base.complete(request)))
}

fn wrong_json_field(base: &Base, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    let schema = &base.operation.body("application/json")?.schema;
    let mut value = base.json.clone()?;
    let properties = schema["properties"].as_object()?;
    let names: Vec<&String> = properties.keys().collect();
    if names.is_empty() {
        return None;
    }
    let name = (*rng.pick(&names)).clone();
    let required = schema["required"].as_array().is_some_and(|all| all.contains(&Value::from(name.as_str())));
    let object = value.as_object_mut()?;
    let what = if required && rng.chance(30) {
        object.remove(&name);
        format!("JSON without {name}")
    } else {
        let inner = properties[&name]["properties"].as_object();
        let wrong = match inner.filter(|inner| !inner.is_empty() && rng.chance(80)) {
            Some(inner) => {
                let keys: Vec<&String> = inner.keys().collect();
                let key = *rng.pick(&keys);
                json!({ key.as_str(): wrong_value(&inner[key], rng)? })
            }
            None => wrong_value(&properties[&name], rng)?,
        };
        let what = format!("JSON {name} = {wrong}");
        object.insert(name, wrong);
        what
    };
    let request = base.to_request("").body(value.to_string());
    Some((what, request.to_bytes()))
}

fn wrong_media(base: &Base, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    base.media.as_ref()?;
    let media =
        *rng.pick(&["application/pdf", "video/mp4", "text/html", "application/x-nothing", "no media type"]);
    let mut base = base.clone();
    base.media = Some(media.to_owned());
    let request = base.to_request("");
    Some((format!("content-type {media}"), base.complete(request)))
}

fn unknown_name(base: &Base, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    let mut names = base.operation.parameters.iter().filter(|parameter| parameter.place == Place::Path);
    // A region has the name that its client chooses, and giving up one that is unknown is no mistake, as with Triton.
    names.next().filter(|parameter| parameter.name != "region")?;
    let mut base = base.clone();
    let garbage = rng.bytes(6);
    let names = [format!("no-such-thing-{}", rng.below(1_000)), encode(&garbage), "..%2f..%2fetc".to_owned()];
    let name = rng.pick(&names).clone();
    // One placeholder of the document's path, as a whole segment of ours.
    let parts = base.operation.path.split('/').enumerate();
    let places: Vec<usize> = parts.filter(|(_, part)| part.starts_with('{')).map(|(at, _)| at).collect();
    let at = *rng.pick(&places);
    let parts: Vec<&str> = base.path.split('/').collect();
    let with: Vec<&str> =
        parts.iter().enumerate().map(|(i, part)| if i == at { name.as_str() } else { part }).collect();
    base.path = with.join("/");
    let request = base.to_request("");
    Some((format!("unknown name {name}"), base.complete(request)))
}

/// A method that the document does not have for this path.
fn wrong_method(base: &Base, bases: &[Base], rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    let method = *rng.pick(&["GET", "POST", "PUT", "PATCH", "DELETE", "BREW"]);
    if bases
        .iter()
        .any(|other| other.operation.path == base.operation.path && other.operation.method == method)
    {
        return None;
    }
    let mut base = base.clone();
    method.clone_into(&mut base.operation.method);
    let request = base.to_request("");
    Some((format!("method {method}"), base.complete(request)))
}
