//! The OpenAPI 3.1 document, made from the table of routes: what is served is described, and the other way round.
//!
//! Built by hand, because what matters in it (ranges, units, what a 422 means) is in no type. It is precise enough
//! that a generator can make a valid request from it, and one that is valid but for one field.

pub(crate) mod fleet;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod models;
pub(crate) mod oip;
pub(crate) mod openai;
pub(crate) mod plans;
pub(crate) mod profiles;
pub(crate) mod query;
pub(crate) mod regions;
mod schemas;
pub(crate) mod tasks;
mod tensors;
pub(crate) mod trials;

use crate::access::Needs;
use crate::config::Config;
use crate::routes::ROUTES;
use serde_json::{Map, Value, json};

/// What the document says of one route.
pub(crate) struct Doc {
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    description: String,
    parameters: Vec<Value>,
    body: Option<Value>,
    success: Vec<(u16, Value)>,
    /// Statuses of errors besides 404, 405 and what any request can get.
    errors: &'static [u16],
}

impl Doc {
    fn new(id: &'static str, tag: &'static str, summary: &'static str) -> Self {
        let description = String::new();
        Self { id, tag, summary, description, parameters: vec![], body: None, success: vec![], errors: &[] }
    }

    fn describe(mut self, text: &str) -> Self {
        text.clone_into(&mut self.description);
        self
    }

    fn parameter(mut self, parameter: Value) -> Self {
        self.parameters.push(parameter);
        self
    }

    fn parameters(mut self, parameters: Vec<Value>) -> Self {
        self.parameters.extend(parameters);
        self
    }

    fn body(mut self, required: bool, content: Value) -> Self {
        let mut body = json!({"required": required});
        body["content"] = content;
        self.body = Some(body);
        self
    }

    fn json_body(self, required: bool, schema: &Value) -> Self {
        self.body(required, json!({"application/json": {"schema": schema}}))
    }

    /// A JSON answer.
    fn answers(self, status: u16, description: &str, schema: &Value) -> Self {
        self.answers_as(
            status,
            json!({
                "description": description,
                "content": {"application/json": {"schema": schema}},
            }),
        )
    }

    fn answers_as(mut self, status: u16, response: Value) -> Self {
        self.success.push((status, response));
        self
    }

    fn errors(mut self, errors: &'static [u16]) -> Self {
        self.errors = errors;
        self
    }

    /// With the scope that a key must have for it, and whether it asks the store.
    fn operation(self, needs: Needs, looks: bool) -> Value {
        let mut responses: Map<String, Value> =
            self.success.into_iter().map(|(status, response)| (status.to_string(), response)).collect();
        let unlocked: &[u16] = if needs == Needs::Nothing { &[] } else { &[401, 403] };
        let form = if self.tag == openai::TAG { openai::ERROR } else { ERROR };
        let often: &[u16] = if looks { &[429] } else { &[] };
        for status in self.errors.iter().chain(unlocked).chain(often) {
            responses.insert(status.to_string(), error(*status, form));
        }
        responses.insert("default".to_owned(), json!({"$ref": format!("#/components/responses/{form}")}));
        let mut operation = json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "responses": responses,
            "security": security(needs),
        });
        if let Value::Object(fields) = &mut operation {
            if !self.description.is_empty() {
                fields.insert("description".to_owned(), self.description.into());
            }
            if !self.parameters.is_empty() {
                fields.insert("parameters".to_owned(), self.parameters.into());
            }
            if let Some(body) = self.body {
                fields.insert("requestBody".to_owned(), body);
            }
        }
        operation
    }
}

/// The two ways to present a key.
const BEARER: &str = "bearer";
const API_KEY: &str = "key";

/// Which scope a key must have, in either way; nothing where none is needed. `operator` beside it: of the first tenant.
fn security(needs: Needs) -> Value {
    let Some(scope) = needs.scope() else { return json!([]) };
    let mut roles = vec![scope.name()];
    if needs == Needs::Operator {
        roles.push("operator");
    }
    json!([{BEARER: roles}, {API_KEY: roles}])
}

/// The form of errors, but for what speaks as others do.
const ERROR: &str = "Error";

fn error(status: u16, form: &str) -> Value {
    let description = match status {
        400 => "The request does not follow its form; `error` says what was expected.",
        401 => "There is no key on the request, or it is not known, has expired or was revoked.",
        403 => "The key does not have the scope that `security` names.",
        404 => "There is no such thing; `error` names what is near.",
        406 => "`Accept` does not name what is told here.",
        408 => "The body did not come in time.",
        409 => "It exists already, or is in use.",
        410 => "The query was answered too long ago, or by a variant that was removed since.",
        413 => "The body is larger than the limit.",
        415 => "The content type or encoding is not taken here.",
        422 => {
            "Nothing registered can meet these goals (`nearest` says what could be met), or the model cannot \
                process this input."
        }
        429 => "The quota is used up.",
        501 => "Not served by this gateway.",
        507 => "The server's disk is full.",
        503 => {
            "Overloaded, loading, shutting down, or nothing can run it now; `Retry-After` says when to try again."
        }
        504 => "The latency goal could no longer be met.",
        _ => "An error.",
    };
    json!({
        "description": description,
        "content": {"application/json": {"schema": schemas::reference(form)}},
    })
}

/// The whole document.
pub(crate) fn document(config: &Config) -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method.as_str().to_lowercase()] = (route.doc)().operation(route.needs, route.looks);
    }
    let limits = json!({
        "max_body_bytes": config.max_body_bytes,
        "max_artefact_bytes": config.max_artefact_bytes,
        "max_header_bytes": config.max_header_bytes,
        "max_headers": config.max_headers,
        "max_connections": config.max_connections,
        "max_connections_per_address": config.max_connections_per_address,
        "header_timeout_ms": config.header_timeout_ms,
        "idle_timeout_ms": config.idle_timeout_ms,
        "body_timeout_ms": config.body_timeout_ms,
        "max_latency_ms": crate::goals::LATENCY_MAX_MS,
    });
    let mut schemas = schemas::all();
    schemas[openai::ERROR] = openai::error();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "modelless",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Ask a task under goals; the platform chooses the model. Every error is JSON with `error` \
                (for people) and `reason` (for programs). `x-limits` holds this server's limits.",
            "x-limits": limits,
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {ERROR: error(0, ERROR), openai::ERROR: error(0, openai::ERROR)},
            "securitySchemes": {
                BEARER: {"type": "http", "scheme": "bearer", "description": "A key, once there are any."},
                API_KEY: {"type": "apiKey", "in": "header", "name": "api-key", "description": "The same key."},
            },
        },
    })
}

fn path(name: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "path", "required": true, "description": description,
        "schema": {"type": "string", "minLength": 1},
    })
}

fn query_parameter(name: &str, description: &str, schema: &Value) -> Value {
    json!({"name": name, "in": "query", "required": false, "description": description, "schema": schema})
}

fn task_parameter() -> Value {
    path("task", "The task's name.")
}
