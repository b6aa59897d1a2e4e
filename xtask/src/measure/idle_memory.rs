//! What `up` holds without models: its own resident memory, runners not counted.

use anyhow::Result;
use modelless_testkit::{Server, stats};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "idle-memory",
    what: "resident memory of `up` without models, after reading every list",
    run: measure,
};

const READS: [&str; 8] = [
    "/v1/tasks",
    "/v1/models",
    "/v1/variants",
    "/v1/nodes",
    "/v1/replicas",
    "/openapi.json",
    "/metrics",
    "/v2/health/ready",
];

fn measure(context: &Context) -> Result<Outcome> {
    let mut repetitions = Vec::new();
    let mut held = Vec::new();
    for _ in 0..context.choose(5, 1) {
        let server = Server::builder().binary(context.binary()?).start()?;
        let at_ready = server.resident_bytes()?;
        for _ in 0..20 {
            for path in READS {
                let response = server.get(path)?;
                anyhow::ensure!(response.status == 200, "GET {path}: {response}");
            }
        }
        let after = server.resident_bytes()?;
        repetitions.push(json!({"at_ready_bytes": at_ready, "after_reads_bytes": after}));
        held.push(mb(after));
        server.stop()?;
    }
    let median = stats::median(&held).unwrap_or(f64::NAN);
    let worst = stats::percentile(&held, 100).unwrap_or(f64::NAN);
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: Value::Array(repetitions),
        summary: json!({"median_mb": median, "worst_mb": worst}),
        result: format!("{median:.1} MB (worst {worst:.1})"),
        // A development build is larger.
        checks: vec![Check { what: "worst", value: worst, limit: context.choose(60.0, 120.0), unit: "MB" }],
    })
}

#[expect(clippy::cast_precision_loss, reason = "a process is smaller than 2^52 bytes")]
pub(crate) fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
