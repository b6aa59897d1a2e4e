//! Reading an OpenAPI document as far as it takes to write requests from it: operations, parameters, bodies,
//! a value a schema accepts and a value it refuses.
//!
//! Not a validator. Where a schema refuses nothing (a free string), no wrong value is made up for it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Path,
    Query,
    Header,
}

#[derive(Clone, Debug)]
pub struct Parameter {
    pub name: String,
    pub place: Place,
    pub required: bool,
    pub schema: Value,
}

#[derive(Clone, Debug)]
pub struct Body {
    pub media: String,
    pub required: bool,
    pub schema: Value,
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub method: String,
    /// With its placeholders, e.g. `/v1/tasks/{task}`.
    pub path: String,
    pub parameters: Vec<Parameter>,
    pub bodies: Vec<Body>,
    /// What a key must have for it, whichever way it is presented: empty where none is needed, `None` where that is not said.
    pub roles: Option<BTreeSet<String>>,
}

impl Operation {
    pub fn body(&self, media: &str) -> Option<&Body> {
        self.bodies.iter().find(|body| body.media == media)
    }
}

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];
/// Schemas may refer to themselves; a sample need not.
const MAX_DEPTH: usize = 6;

/// Every operation, in the document's order, with all references resolved.
pub fn operations(document: &Value) -> Result<Vec<Operation>> {
    let paths = document["paths"].as_object().context("the OpenAPI document has no `paths`")?;
    let mut found = Vec::new();
    for (path, item) in paths {
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let shared = item["parameters"].as_array().into_iter().flatten();
            let own = operation["parameters"].as_array().into_iter().flatten();
            let parameters = shared
                .chain(own)
                .filter_map(|parameter| read_parameter(document, parameter).transpose())
                .collect::<Result<Vec<_>>>()
                .with_context(|| format!("{method} {path}"))?;
            found.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                parameters,
                bodies: read_bodies(document, &operation["requestBody"]),
                roles: operation["security"].as_array().map(|ways| roles(ways)),
            });
        }
    }
    ensure!(!found.is_empty(), "the OpenAPI document names no operation");
    Ok(found)
}

fn roles(ways: &[Value]) -> BTreeSet<String> {
    let schemes = ways.iter().flat_map(|way| way.as_object().into_iter().flatten());
    let roles = schemes.flat_map(|(_, roles)| roles.as_array().into_iter().flatten());
    roles.filter_map(|role| role.as_str().map(str::to_owned)).collect()
}

fn read_parameter(document: &Value, parameter: &Value) -> Result<Option<Parameter>> {
    let parameter = resolve(document, parameter);
    let name = parameter["name"].as_str().context("a parameter without a name")?.to_owned();
    let place = match parameter["in"].as_str() {
        Some("path") => Place::Path,
        Some("query") => Place::Query,
        Some("header") => Place::Header,
        Some(_) | None => return Ok(None), // cookies: there are none to set
    };
    let mut schema = expand(document, &parameter["schema"], 0);
    if let (Some(example), Some(schema)) = (parameter.get("example"), schema.as_object_mut()) {
        schema.insert("example".to_owned(), example.clone());
    }
    let required = parameter["required"].as_bool().unwrap_or(false);
    Ok(Some(Parameter { name, place, required, schema }))
}

fn read_bodies(document: &Value, body: &Value) -> Vec<Body> {
    let body = resolve(document, body);
    let required = body["required"].as_bool().unwrap_or(false);
    let content = body["content"].as_object().into_iter().flatten();
    content
        .map(|(media, content)| {
            let mut schema = expand(document, &content["schema"], 0);
            if let (Some(example), Some(schema)) = (content.get("example"), schema.as_object_mut()) {
                schema.insert("example".to_owned(), example.clone());
            }
            Body { media: media.clone(), required, schema }
        })
        .collect()
}

fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let target =
        value.get("$ref").and_then(Value::as_str).and_then(|to| document.pointer(to.strip_prefix('#')?));
    target.unwrap_or(value)
}

/// The schema with every `$ref` put in its place.
fn expand(document: &Value, schema: &Value, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return json!({});
    }
    match resolve(document, schema) {
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(key, value)| (key.clone(), expand(document, value, depth + 1))).collect(),
        ),
        Value::Array(items) => items.iter().map(|item| expand(document, item, depth + 1)).collect(),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain.clone(),
    }
}

/// The types a schema admits; `"type": ["number", "null"]` is number.
fn kind(schema: &Value) -> &str {
    let told = &schema["type"];
    let several = told.as_array().into_iter().flatten().filter_map(Value::as_str);
    let fallback = if schema.get("properties").is_some() { "object" } else { "" };
    told.as_str().or_else(|| several.into_iter().find(|kind| *kind != "null")).unwrap_or(fallback)
}

/// A value the schema accepts: its example where it has one.
pub fn sample(schema: &Value) -> Value {
    for key in ["example", "default", "const"] {
        if let Some(value) = schema.get(key) {
            return value.clone();
        }
    }
    let first = |key: &str| schema[key].as_array().and_then(|values| values.first().cloned());
    if let Some(value) = first("examples").or_else(|| first("enum")) {
        return value;
    }
    if let Some(option) = first("oneOf").or_else(|| first("anyOf")) {
        return sample(&option);
    }
    if let Some(parts) = schema["allOf"].as_array() {
        let objects = parts.iter().map(sample).filter_map(|part| part.as_object().cloned());
        return Value::Object(objects.flatten().collect());
    }
    match kind(schema) {
        "integer" => json!(schema["minimum"].as_f64().map_or(1, to_integer).max(1)),
        "number" => json!(match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
            (Some(low), Some(high)) => low.midpoint(high),
            (Some(low), None) => low + 1.0,
            (None, Some(high)) => high,
            (None, None) => 1.0,
        }),
        "boolean" => json!(true),
        "array" => json!([sample(&schema["items"])]),
        "object" => sample_object(schema),
        "string" if schema["format"] == "byte" => json!("AAAA"),
        "string" => json!("sample"),
        _ => json!({}),
    }
}

/// Only what is required: fewer fields are fewer ways to be wrong by accident.
fn sample_object(schema: &Value) -> Value {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let fields: Map<String, Value> =
        required.map(|name| (name.to_owned(), sample(&schema["properties"][name]))).collect();
    Value::Object(fields)
}

#[expect(clippy::cast_possible_truncation, reason = "a bound in a schema is a small whole number")]
fn to_integer(value: f64) -> i64 {
    value.ceil() as i64
}

/// A text for a query or header parameter that the schema refuses, if it refuses any.
pub fn wrong_text(schema: &Value, rng: &mut Rng) -> Option<String> {
    let number =
        ["NaN", "nan", "inf", "-Infinity", "1e999", "abc", "0x10", "1,5", "--1", "1 2", "\u{661}", "null"];
    if schema["enum"].is_array() {
        return Some((*rng.pick(&["no-such-value", "0", "\u{1f600}", "null"])).to_owned());
    }
    match kind(schema) {
        "number" | "integer" => {
            let mut options: Vec<String> = number.iter().map(|&text| text.to_owned()).collect();
            if let Some(low) = schema["minimum"].as_f64().or_else(|| schema["exclusiveMinimum"].as_f64()) {
                options.extend([format!("{}", low - 1.0), format!("{}", low - 1e9)]);
            }
            if let Some(high) = schema["maximum"].as_f64().or_else(|| schema["exclusiveMaximum"].as_f64()) {
                options.extend([format!("{}", high + 1.0), format!("{}", high + 1e9)]);
            }
            if kind(schema) == "integer" {
                options.push("1.5".to_owned());
            }
            Some(rng.pick(&options).clone())
        }
        "boolean" => Some("maybe".to_owned()),
        _ => None,
    }
}

/// A JSON value of a type, or outside a range, that the schema refuses.
pub fn wrong_value(schema: &Value, rng: &mut Rng) -> Option<Value> {
    if schema["enum"].is_array() {
        return Some(rng.pick(&[json!("no-such-value"), json!(-7), json!([])]).clone());
    }
    let options = match kind(schema) {
        "number" | "integer" => {
            let mut options = vec![json!("abc"), json!([]), json!({}), json!(true)];
            options.extend(schema["minimum"].as_f64().map(|low| json!(low - 1.0)));
            options.extend(schema["maximum"].as_f64().map(|high| json!(high + 1.0)));
            options
        }
        "boolean" => vec![json!("maybe"), json!([]), json!(7)],
        "string" if schema["format"] == "byte" => vec![json!("!!! no base64 !!!"), json!([[]]), json!(true)],
        "string" => vec![json!(7), json!([]), json!({}), json!(true)],
        "array" => vec![json!("abc"), json!(7), json!(true)],
        "object" => vec![json!("abc"), json!(7), json!([1]), json!(true)],
        _ => return None,
    };
    Some(rng.pick(&options).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        json!({
            "paths": {"/v1/tasks/{task}": {
                "parameters": [{"$ref": "#/components/parameters/Task"}],
                "post": {
                    "parameters": [{"name": "accuracy", "in": "query", "schema": {"$ref": "#/components/schemas/Floor"}}],
                    "requestBody": {"required": true, "content": {
                        "application/json": {"schema": {"type": "object", "required": ["inputs"], "properties": {
                            "inputs": {"type": "string", "format": "byte"},
                            "goals": {"$ref": "#/components/schemas/Goals"}}}},
                        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}}},
            "components": {
                "parameters": {"Task": {"name": "task", "in": "path", "required": true, "schema": {"type": "string"}}},
                "schemas": {
                    "Floor": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
                    "Goals": {"type": "object", "properties": {"self": {"$ref": "#/components/schemas/Goals"}}}}}
        })
    }

    #[test]
    fn reads_operations_with_their_references_resolved() {
        let found = operations(&document()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].method.as_str(), found[0].parameters.len()), ("POST", 2));
        assert_eq!(found[0].parameters[1].schema["maximum"], 1);
        assert_eq!(sample(&found[0].body("application/json").unwrap().schema), json!({"inputs": "AAAA"}));
    }

    #[test]
    fn a_document_without_operations_is_refused() {
        assert!(operations(&json!({})).is_err());
        assert!(operations(&json!({"paths": {}})).is_err());
    }

    #[test]
    fn a_wrong_number_is_never_a_right_one() {
        let schema = json!({"type": ["number", "null"], "minimum": 0, "maximum": 1});
        let mut rng = Rng::new(3);
        for _ in 0..500 {
            let text = wrong_text(&schema, &mut rng).unwrap();
            assert!(!text.parse::<f64>().is_ok_and(|value| (0.0..=1.0).contains(&value)), "{text}");
        }
        assert_eq!(wrong_text(&json!({"type": "string"}), &mut rng), None);
    }
}
