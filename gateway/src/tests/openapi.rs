//! Answers of the Open Inference Protocol are what the document says they are.

use super::oip::{ARRAYS, asked, binary, echoing, floats};
use super::world::{Setup, replica};
use crate::openapi::document;
use modelless_types::ReplicaState;
use serde_json::{Value, json};

/// What is wrong with a value, by as much of JSON Schema as these answers are described with.
fn wrong(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            found.push(format!("{at}: {what}: {value}"));
        }
    };
    let several = schema["type"].as_array().into_iter().flatten();
    let kinds: Vec<&str> = several.chain(Some(&schema["type"])).filter_map(Value::as_str).collect();
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("{other} is not known here"),
    };
    must(kinds.is_empty() || kinds.iter().any(is), "another type");
    must(schema.get("const").is_none_or(|only| only == value), "another value");
    must(schema["enum"].as_array().is_none_or(|all| all.contains(value)), "none of those");
    let least = schema["minimum"].as_i64().zip(value.as_i64());
    must(least.is_none_or(|(least, value)| value >= least), "too small");
    match (schema["pattern"].as_str(), value.as_str()) {
        (Some("^[0-9]+$"), Some(text)) => {
            must(!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()), "no number");
        }
        (Some("^TYPE_[A-Z0-9]+$"), Some(text)) => must(text.starts_with("TYPE_"), "no type"),
        (Some(other), _) => panic!("the pattern {other} is not known here"),
        (None, _) => {}
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        must(value.get(name.as_str().unwrap()).is_some(), &format!("{name} is missing"));
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        let own = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        found.extend(own.map_or_else(Vec::new, |own| wrong(own, value, &format!("{at}.{name}"))));
    }
    for item in value.as_array().into_iter().flatten() {
        found.extend(wrong(&schema["items"], item, &format!("{at}[]")));
    }
    found
}

#[tokio::test]
async fn answers_of_the_open_inference_protocol_are_as_the_document_says() {
    let document = document(&crate::Config::default());
    let schema = |path: &str, method: &str| {
        let answer = &document["paths"][path][method]["responses"]["200"];
        answer["content"]["application/json"]["schema"].clone()
    };
    let replicas = vec![replica(3, ReplicaState::Active, 1_000)];
    let world = echoing(Setup { replicas, texts: true, ..Setup::default() }).await;
    let mut asks = asked(2);
    asks["parameters"] = json!({});
    let json = binary(&world, ARRAYS, &asks, &floats(2)).await;
    let mixed = binary(&world, ARRAYS, &asked(2), &floats(2)).await;
    let length: usize = mixed.header("inference-header-content-length").parse().unwrap();
    let head: Value = serde_json::from_slice(&mixed.body[..length]).unwrap();
    assert_eq!(world.post(ARRAYS, "", b"{}").await.status, 400, "so that there is a failure to tell of");
    let infer = "/v2/models/{task}/infer";
    let mut seen = vec![(infer, "post", json.json()), (infer, "post", head)];
    for (path, of) in [
        ("/v2", "/v2"),
        ("/v2/models", "/v2/models"),
        ("/v2/models/{task}", "/v2/models/fashion"),
        ("/v2/models/{task}", "/v2/models/arrays"),
        ("/v2/models/{task}/versions/{version}", "/v2/models/fashion/versions/2"),
        ("/v2/models/{task}/ready", "/v2/models/words/ready"),
        ("/v2/models/{task}/config", "/v2/models/fashion/config"),
        ("/v2/models/{task}/config", "/v2/models/arrays/config"),
        ("/v2/models/{task}/stats", "/v2/models/arrays/stats"),
        ("/v2/models/stats", "/v2/models/stats"),
    ] {
        seen.push((path, "get", world.get(of).await.json()));
    }
    seen.push(("/v2/repository/index", "post", world.post("/v2/repository/index", "", b"").await.json()));
    for (path, method, answer) in &seen {
        let schema = schema(path, method);
        assert_eq!(wrong(&schema, answer, path), Vec::<String>::new());
        // What says nothing would go with anything.
        let nothing = if answer.is_array() { json!([{}]) } else { json!({}) };
        assert_ne!(wrong(&schema, &nothing, path), Vec::<String>::new(), "{path} is not described");
    }
    let statistics =
        &seen.iter().find(|(path, ..)| *path == "/v2/models/{task}/stats").unwrap().2["model_stats"];
    assert!(statistics[0]["batch_stats"][0].is_object() && statistics[0]["memory_usage"][0].is_object());
    assert_eq!(statistics[1]["version"], "0", "everything that there can be was looked at");
}

#[test]
fn a_pinned_model_is_told_to_answer_with_its_default_version() {
    let document = document(&crate::Config::default());
    let words = document["components"]["schemas"]["Goals"]["properties"]["model"]["description"].to_string();
    assert!(words.contains("by default") && !words.contains("newest"), "{words}");
}

#[test]
fn the_length_of_the_json_before_tensors_is_declared_both_ways() {
    let document = document(&crate::Config::default());
    for path in ["/v2/models/{task}/infer", "/v2/models/{task}/versions/{version}/infer"] {
        let operation = &document["paths"][path]["post"];
        let name = "inference-header-content-length";
        let parameters = operation["parameters"].as_array().unwrap();
        let declared = parameters.iter().find(|parameter| parameter["name"] == name).unwrap();
        assert_eq!((&declared["in"], &declared["schema"]["type"]), (&json!("header"), &json!("integer")));
        assert_eq!(operation["responses"]["200"]["headers"][name]["schema"]["type"], "integer");
    }
}
