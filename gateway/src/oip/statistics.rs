//! What the variants of a task did, as Triton counts it; as the protocol's messages, which both encodings are made from.
//!
//! `success`, `fail`, `queue` and `compute_*` count requests; `inference_count` counts queries, each row being one, and `execution_count`
//! batches. `cache_hit` and `cache_miss` count queries too, since each is looked for by itself.

use super::about::chosen;
use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use crate::view::{TaskView, VariantView, View};
use modelless_oip::messages::{BatchStatistics, Duration, InferStatistics, MemoryUsage, ModelStatistics};
use modelless_telemetry::{OfSize, Totals};
use modelless_types::{Micros, ReplicaState};

/// Of all its variants or of the one that is asked for. What failed was answered by none of them, so it stands under version 0, once
/// there is any.
pub(crate) fn of_task(view: &View, task: &TaskView, asked: &str) -> Result<Vec<ModelStatistics>, ApiError> {
    let chosen = chosen(task, asked)?;
    let of_variant = |variant: &VariantView| {
        let totals = variant.served.totals();
        let mut entry = entry(task, variant.variant.id.0, &totals, (0, Micros::ZERO));
        entry.batch_stats = variant.served.sizes().iter().map(of_size).collect();
        entry.memory_usage = memory(view, task, variant).into_iter().collect();
        entry
    };
    let mut all: Vec<ModelStatistics> = chosen.into_iter().map(of_variant).collect();
    let failures = task.metrics.failures();
    if asked.is_empty() && failures.0 > 0 {
        all.push(entry(task, 0, &Totals::default(), failures));
    }
    Ok(all)
}

/// Of all tasks, by name. That is as much work as a query.
pub(crate) fn of_all(core: &Core, caller: &Caller) -> Result<Vec<ModelStatistics>, ApiError> {
    caller.asks(core.driver.clock().now())?;
    let view = &*core.view_of(caller);
    let mut tasks: Vec<&TaskView> = view.tasks.values().collect();
    tasks.sort_by(|a, b| a.task.name.cmp(&b.task.name));
    let all: Result<Vec<_>, ApiError> = tasks.into_iter().map(|task| of_task(view, task, "")).collect();
    Ok(all?.concat())
}

fn entry(task: &TaskView, version: u32, totals: &Totals, failures: (u64, Micros)) -> ModelStatistics {
    let Totals { queries, batches, last_unix_ms, requests, requests_took, ran, .. } = *totals;
    ModelStatistics {
        name: task.task.name.clone(),
        version: version.to_string(),
        last_inference: last_unix_ms,
        inference_count: queries,
        execution_count: batches,
        inference_stats: Some(InferStatistics {
            success: Some(duration(requests, requests_took)),
            fail: Some(duration(failures.0, failures.1.0)),
            queue: Some(duration(ran, totals.queue)),
            compute_input: Some(duration(ran, totals.input)),
            compute_infer: Some(duration(ran, totals.infer)),
            compute_output: Some(duration(ran, totals.output)),
            cache_hit: Some(duration(totals.hits, totals.hits_took)),
            cache_miss: Some(duration(totals.misses, totals.misses_took)),
        }),
        ..ModelStatistics::default()
    }
}

fn duration(count: u64, us: u64) -> Duration {
    Duration { count, ns: us.saturating_mul(1_000) }
}

fn of_size(of: &OfSize) -> BatchStatistics {
    let OfSize { size, batches, input_ns, infer_ns, output_ns } = *of;
    let all = |ns| Some(Duration { count: batches, ns });
    BatchStatistics {
        batch_size: size.into(),
        compute_input: all(input_ns),
        compute_infer: all(infer_ns),
        compute_output: all(output_ns),
    }
}

/// What its replicas take on all nodes together, as measured: memory of machines, since nobody measures what they take of a GPU. How many
/// there are goes by how much is asked, so it is for the owner of the task.
fn memory(view: &View, task: &TaskView, variant: &VariantView) -> Option<MemoryUsage> {
    use ReplicaState::{Active, Draining, Interfered, Overloaded};
    task.owned().ok()?;
    let all = view.nodes.iter().flat_map(|node| &node.replicas);
    let there = all.filter(|replica| {
        replica.variant == variant.variant.id
            && matches!(replica.state, Active | Overloaded | Interfered | Draining)
    });
    let byte_size: u64 = there.map(|replica| replica.memory.0).sum();
    (byte_size > 0).then(|| MemoryUsage { kind: "CPU".to_owned(), id: 0, byte_size })
}
