//! Requests with a key that holds, of which none can be answered: each has a body that is none, in one of the forms in which tasks are asked.

use modelless_testkit::Request;

/// Deeper than any input is.
const DEEP: usize = 10_000;

/// What there is of them for a task, with the bytes of a right body.
pub(crate) fn requests(target: &str, task: &str, key: &str, body: &[u8]) -> Vec<Vec<u8>> {
    let oip = format!("/v2/models/{task}/infer");
    let tensor = |shape: &str, data: &str| {
        format!(
            r#"{{"inputs": [{{"name": "input", "datatype": "FP32", "shape": {shape}, "data": {data}}}]}}"#
        )
    };
    let json = "application/json";
    let raw = "application/octet-stream";
    let cases: Vec<(&str, &str, Vec<u8>)> = vec![
        (target, json, b"{\"inputs\": [".to_vec()),
        (target, json, br#"{"inputs": "no picture, no numbers", "parameters": 7}"#.to_vec()),
        (target, json, "[".repeat(DEEP).into()),
        (target, raw, body[..body.len() / 2].to_vec()),
        (&oip, json, b"{\"inputs\": [".to_vec()),
        (&oip, json, tensor("[1, -28, 28]", "[0]").into()),
        (&oip, json, tensor("[1, 1, 28, 28]", "[0, 1]").into()),
        (&oip, json, tensor("[1, 1, 28, 28]", &"[".repeat(DEEP)).into()),
        (&oip, json, b"\xff\xfe\0".to_vec()),
    ];
    let request = |(target, media, body): (&str, &str, Vec<u8>)| {
        Request::post(target).header("api-key", key).header("content-type", media).body(body).to_bytes()
    };
    cases.into_iter().map(request).collect()
}
