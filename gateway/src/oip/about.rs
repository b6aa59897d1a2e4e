//! What there is to be known of tasks as models: metadata, configuration, the index. As the protocol's messages, which both encodings
//! are made from.

use super::ROWS_MAX;
use super::signature::Port;
use crate::errors::ApiError;
use crate::suggest::excerpt;
use crate::view::{TaskView, VariantView, View};
use modelless_decision::route::{Offer, Ready};
use modelless_oip::messages::{
    ConfigInput, ConfigOutput, DynamicBatching, IndexEntry, ModelConfig, ModelMetadata, ResponseCache,
    ServerMetadata, TensorMetadata, TransactionPolicy,
};
use modelless_types::{DType, Priority};

/// What serves a model, where a client asks for it.
const PLATFORM: &str = "modelless";

/// The extensions of the protocol that are spoken.
pub(crate) const EXTENSIONS: [&str; 8] = [
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "statistics",
    "binary_tensor_data",
    "parameters",
    "schedule_policy",
];

/// The one that is spoken where it is switched on.
const SHARED_MEMORY: &str = "system_shared_memory";

pub(crate) fn server(shared_memory: bool) -> ServerMetadata {
    let shared_memory = shared_memory.then_some(SHARED_MEMORY);
    ServerMetadata {
        name: PLATFORM.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.into_iter().chain(shared_memory).map(str::to_owned).collect(),
    }
}

/// The variant that a version names; none for the empty one.
pub(crate) fn version<'a>(task: &'a TaskView, version: &str) -> Result<Option<&'a VariantView>, ApiError> {
    if version.is_empty() {
        return Ok(None);
    }
    let found = task.variants.iter().find(|view| view.variant.id.0.to_string() == version);
    found.map(Some).ok_or_else(|| {
        let mut known: Vec<String> = task.variants.iter().map(|view| view.variant.id.0.to_string()).collect();
        known.truncate(20);
        let (name, version, known) = (&task.task.name, excerpt(version), known.join(", "));
        let message = format!("task {name:?} has no version {version}; variants have the numbers {known}");
        ApiError::not_found("unknown_version", message)
    })
}

/// All variants, or the one that is asked for.
pub(super) fn chosen<'a>(task: &'a TaskView, asked: &str) -> Result<Vec<&'a VariantView>, ApiError> {
    Ok(version(task, asked)?.map_or_else(|| task.variants.iter().collect(), |one| vec![one]))
}

pub(crate) fn metadata(task: &TaskView, asked: &str) -> Result<ModelMetadata, ApiError> {
    let versions = chosen(task, asked)?.into_iter().map(|view| view.variant.id.0.to_string()).collect();
    let tensor = |port: &Port| TensorMetadata {
        name: port.name.clone(),
        datatype: port.dtype.name().to_owned(),
        shape: port.shape(),
    };
    Ok(ModelMetadata {
        name: task.task.name.clone(),
        versions,
        platform: PLATFORM.to_owned(),
        inputs: task.signature.inputs.iter().map(tensor).collect(),
        outputs: task.signature.outputs.iter().map(tensor).collect(),
    })
}

/// `cached` is whether its answers are given again.
pub(crate) fn config(task: &TaskView, asked: &str, cached: bool) -> Result<ModelConfig, ApiError> {
    chosen(task, asked)?;
    let input = |port: &Port| ConfigInput {
        name: port.name.clone(),
        data_type: type_number(port.dtype),
        dims: port.dims.clone(),
        optional: false,
    };
    let output = |port: &Port| ConfigOutput {
        name: port.name.clone(),
        data_type: type_number(port.dtype),
        dims: port.dims.clone(),
    };
    Ok(ModelConfig {
        name: task.task.name.clone(),
        platform: PLATFORM.to_owned(),
        backend: PLATFORM.to_owned(),
        max_batch_size: i32::try_from(ROWS_MAX).unwrap_or(i32::MAX),
        input: task.signature.inputs.iter().map(input).collect(),
        output: task.signature.outputs.iter().map(output).collect(),
        dynamic_batching: Some(DynamicBatching {
            preferred_batch_size: Vec::new(),
            priority_levels: Priority::LOWEST.into(),
            default_priority_level: Priority::DEFAULT_LEVEL.into(),
        }),
        transaction_policy: Some(TransactionPolicy { decoupled: false }),
        response_cache: Some(ResponseCache { enable: cached }),
    })
}

/// As `model_config.proto` numbers them.
const fn type_number(dtype: DType) -> i32 {
    match dtype {
        DType::Bool => 1,
        DType::Uint8 => 2,
        DType::Int8 => 6,
        DType::Int32 => 8,
        DType::Int64 => 9,
        DType::Fp16 => 10,
        DType::Fp32 => 11,
        DType::Fp64 => 12,
        DType::Bytes => 13,
    }
}

/// Every variant of every task, by task and number; `ready` leaves those that are in memory.
pub(crate) fn index(view: &View, ready: bool) -> Vec<IndexEntry> {
    let mut tasks: Vec<&TaskView> = view.tasks.values().collect();
    tasks.sort_by(|a, b| a.task.name.cmp(&b.task.name));
    let all = tasks.into_iter().flat_map(|task| {
        task.variants.iter().map(move |variant| {
            let (state, reason) = state(view, task, variant);
            IndexEntry {
                name: task.task.name.clone(),
                version: variant.variant.id.0.to_string(),
                state: state.to_owned(),
                reason: reason.to_owned(),
            }
        })
    });
    all.filter(|entry| !ready || entry.state == READY).collect()
}

pub(crate) const READY: &str = "READY";
const LOADING: &str = "LOADING";
const UNAVAILABLE: &str = "UNAVAILABLE";

/// Triton's words for where a variant stands.
pub(crate) const STATES: [&str; 3] = [READY, LOADING, UNAVAILABLE];

/// One of these, and why where it is not ready.
fn state(view: &View, task: &TaskView, variant: &VariantView) -> (&'static str, &'static str) {
    let offers = offers(view, task, Some(variant));
    let mut best = (UNAVAILABLE, "no node offers it");
    for offer in offers {
        match offer.ready {
            Ready::Resident => return (READY, ""),
            Ready::Loading { .. } => best = (LOADING, ""),
            Ready::Cold { .. } if best.0 != LOADING => {
                best = (UNAVAILABLE, "not in memory; it is loaded when a query needs it");
            }
            Ready::Cold { .. } => {}
        }
    }
    best
}

/// What nodes that take queries offer of a task, or of one of its variants.
pub(crate) fn offers<'a>(
    view: &'a View,
    task: &'a TaskView,
    variant: Option<&'a VariantView>,
) -> impl Iterator<Item = &'a Offer> {
    let nodes = view.nodes.iter().filter(|node| !node.draining);
    nodes.flat_map(|node| &node.info.offers).filter(move |offer| {
        offer.task == task.task.id && variant.is_none_or(|variant| variant.variant.ordinal == offer.ordinal)
    })
}

/// Whether queries for it are taken: some node can run it, if it must be loaded first.
pub(crate) fn ready(view: &View, task: &TaskView, asked: &str) -> Result<bool, ApiError> {
    let variant = version(task, asked)?;
    Ok(offers(view, task, variant).next().is_some())
}
