//! Servers as measures use them: the demo, other packages, and one query whose answer can be told right from wrong.

use std::path::Path;

use anyhow::{Result, ensure};
use modelless_testkit::turns::Side;
use modelless_testkit::{Request, Response, Rng, Server};
use serde_json::Value;

use super::Context;

/// The demo's task that takes raw tensors: 1x28x28 `f32`.
pub(crate) const TENSOR_TASK: &str = "fashion-tensor";
/// The demo's task that takes pictures.
pub(crate) const PICTURE_TASK: &str = "fashion";
pub(crate) const TENSOR_FLOATS: usize = 28 * 28;

pub(crate) fn start(context: &Context) -> Result<Server> {
    Server::builder().binary(context.binary()?).arg("--demo").start()
}

/// Registers a package with the command line a user would use.
pub(crate) fn register(server: &Server, package: &Path) -> Result<()> {
    register_with(server, package, &["--budget", "none"])
}

/// The same with more options.
pub(crate) fn register_with(server: &Server, package: &Path, options: &[&str]) -> Result<()> {
    let (package, url) = (package.to_string_lossy(), server.url());
    let said = ["model", "register", &package, "--server", &url];
    let output = server.command(&[&said[..], options].concat())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`modelless model register` failed: {}", said.trim());
    Ok(())
}

/// The load generator for these streams.
pub(crate) fn load(context: &Context, server: &Server, streams: &[Value]) -> Result<Side> {
    let streams = Value::Array(streams.to_vec()).to_string();
    let program = context.bench_program("http-load")?;
    Side::start(&program, &[&server.address().to_string(), &streams, &context.seed.to_string()])
}

/// What `http-load` saw without every single answer, which would make the file of a measure large.
pub(crate) fn bare(mut load: Value) -> Value {
    for stream in load["streams"].as_array_mut().into_iter().flatten() {
        if let Some(stream) = stream.as_object_mut() {
            stream.remove("answers");
        }
    }
    load
}

/// What a load of so many milliseconds took of one core where it was made, in per cent.
#[expect(clippy::cast_precision_loss, reason = "times of one run are far below 2^52 ns")]
pub(crate) fn percent_of_a_core(load: &Value, ms: u64) -> f64 {
    load["client_cpu_ns"].as_u64().map_or(f64::NAN, |cpu| cpu as f64 / (ms.max(1) as f64 * 1e4))
}

pub(crate) fn tensor_body(floats: usize, rng: &mut Rng) -> Vec<u8> {
    (0..floats).flat_map(|_| rng.unit_f32().to_le_bytes()).collect()
}

pub(crate) fn tensor_request(task: &str, body: Vec<u8>) -> Request {
    Request::post(&format!("/v1/tasks/{task}")).header("content-type", "application/octet-stream").body(body)
}

/// A valid query, answered with numbers.
pub(crate) fn good_query(server: &Server) -> Result<()> {
    let response = server.send(&tensor_request(TENSOR_TASK, tensor_body(TENSOR_FLOATS, &mut Rng::new(1))))?;
    let values = numbers(&response)?;
    ensure!(values.len() == 10, "ten classes make ten numbers, not {}: {response}", values.len());
    Ok(())
}

/// The numbers of the first output of a `tensor` task's answer.
pub(crate) fn numbers(response: &Response) -> Result<Vec<f64>> {
    ensure!(response.status == 200, "{response}");
    let json = response.json()?;
    // `{"outputs": {name: {"shape", "datatype", "data"}}}`
    let first = json["outputs"].as_object().and_then(|outputs| outputs.values().next());
    let mut found = Vec::new();
    collect(first.map_or(&Value::Null, |output| &output["data"]), &mut found);
    ensure!(!found.is_empty(), "no numbers in the first of `outputs`: {response}");
    Ok(found)
}

/// Flat or nested, in row-major order.
fn collect(value: &Value, into: &mut Vec<f64>) {
    if let Some(number) = value.as_f64() {
        into.push(number);
    }
    for item in value.as_array().into_iter().flatten() {
        collect(item, into);
    }
}
