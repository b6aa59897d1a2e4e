//! Configuration and statistics in the form that Triton gives them over HTTP.

use modelless_oip::messages::{
    BatchStatistics, Duration, InferStatistics, MemoryUsage, ModelConfig, ModelStatistics,
};
use serde_json::{Value, json};

pub(crate) fn config(config: &ModelConfig) -> Value {
    let kind = |number: i32| match number {
        1 => "TYPE_BOOL",
        2 => "TYPE_UINT8",
        6 => "TYPE_INT8",
        8 => "TYPE_INT32",
        9 => "TYPE_INT64",
        10 => "TYPE_FP16",
        11 => "TYPE_FP32",
        12 => "TYPE_FP64",
        13 => "TYPE_STRING",
        _ => "TYPE_INVALID",
    };
    let inputs = config.input.iter().map(|input| {
        json!({"name": input.name, "data_type": kind(input.data_type), "format": "FORMAT_NONE", "dims": input.dims,
            "is_shape_tensor": false, "allow_ragged_batch": false, "optional": input.optional})
    });
    let outputs = config.output.iter().map(|output| {
        json!({"name": output.name, "data_type": kind(output.data_type), "dims": output.dims, "label_filename": "",
            "is_shape_tensor": false})
    });
    let batching = config.dynamic_batching.clone().unwrap_or_default();
    json!({
        "name": config.name,
        "platform": config.platform,
        "backend": config.backend,
        "version_policy": {"all": {}},
        "max_batch_size": config.max_batch_size,
        "input": inputs.collect::<Vec<_>>(),
        "output": outputs.collect::<Vec<_>>(),
        "dynamic_batching": {
            "preferred_batch_size": batching.preferred_batch_size,
            "priority_levels": batching.priority_levels,
            "default_priority_level": batching.default_priority_level,
        },
        "model_transaction_policy": {"decoupled": false},
        "response_cache": {"enable": config.response_cache.clone().unwrap_or_default().enable},
    })
}

pub(crate) fn statistics(all: &[ModelStatistics]) -> Value {
    json!({"model_stats": all.iter().map(of_model).collect::<Vec<Value>>()})
}

fn of_model(model: &ModelStatistics) -> Value {
    let InferStatistics {
        success,
        fail,
        queue,
        compute_input,
        compute_infer,
        compute_output,
        cache_hit,
        cache_miss,
    } = model.inference_stats.clone().unwrap_or_default();
    json!({
        "name": model.name,
        "version": model.version,
        "last_inference": model.last_inference,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {
            "success": duration(success),
            "fail": duration(fail),
            "queue": duration(queue),
            "compute_input": duration(compute_input),
            "compute_infer": duration(compute_infer),
            "compute_output": duration(compute_output),
            "cache_hit": duration(cache_hit),
            "cache_miss": duration(cache_miss),
        },
        "response_stats": {},
        "batch_stats": model.batch_stats.iter().map(of_size).collect::<Vec<Value>>(),
        "memory_usage": model.memory_usage.iter().map(memory).collect::<Vec<Value>>(),
    })
}

fn of_size(of: &BatchStatistics) -> Value {
    json!({
        "batch_size": of.batch_size,
        "compute_input": duration(of.compute_input.clone()),
        "compute_infer": duration(of.compute_infer.clone()),
        "compute_output": duration(of.compute_output.clone()),
    })
}

fn memory(MemoryUsage { kind, id, byte_size }: &MemoryUsage) -> Value {
    json!({"type": kind, "id": id, "byte_size": byte_size})
}

fn duration(of: Option<Duration>) -> Value {
    let Duration { count, ns } = of.unwrap_or_default();
    json!({"count": count, "ns": ns})
}
