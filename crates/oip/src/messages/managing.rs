//! Messages of Triton's extensions around inference: configuration, statistics, repository, shared memory, settings.

use prost::Message;
use prost::bytes::Bytes;
use std::collections::BTreeMap;

/// How a model is set up.
#[derive(Clone, PartialEq, Message)]
pub struct ModelConfigResponse {
    /// Config.
    #[prost(message, optional, tag = "1")]
    pub config: Option<ModelConfig>,
}

/// How a model is set up, as far as clients look.
#[derive(Clone, PartialEq, Message)]
pub struct ModelConfig {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Platform.
    #[prost(string, tag = "2")]
    pub platform: String,
    /// Backend.
    #[prost(string, tag = "17")]
    pub backend: String,
    /// Max batch size.
    #[prost(int32, tag = "4")]
    pub max_batch_size: i32,
    /// Input.
    #[prost(message, repeated, tag = "5")]
    pub input: Vec<ConfigInput>,
    /// Output.
    #[prost(message, repeated, tag = "6")]
    pub output: Vec<ConfigOutput>,
    /// Dynamic batching.
    #[prost(message, optional, tag = "11")]
    pub dynamic_batching: Option<DynamicBatching>,
    /// Transaction policy.
    #[prost(message, optional, tag = "19")]
    pub transaction_policy: Option<TransactionPolicy>,
    /// Response cache.
    #[prost(message, optional, tag = "24")]
    pub response_cache: Option<ResponseCache>,
}

/// An input of a model.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigInput {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Data type.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Dims.
    #[prost(int64, repeated, tag = "4")]
    pub dims: Vec<i64>,
    /// Optional.
    #[prost(bool, tag = "8")]
    pub optional: bool,
}

/// An output of a model.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigOutput {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Data type.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Dims.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
}

/// That queries share batches.
#[derive(Clone, PartialEq, Message)]
pub struct DynamicBatching {
    /// Preferred batch size.
    #[prost(int32, repeated, tag = "1")]
    pub preferred_batch_size: Vec<i32>,
    /// Priority levels.
    #[prost(uint64, tag = "4")]
    pub priority_levels: u64,
    /// Default priority level.
    #[prost(uint64, tag = "5")]
    pub default_priority_level: u64,
}

/// Whether one question has other than one answer.
#[derive(Clone, PartialEq, Message)]
pub struct TransactionPolicy {
    /// Decoupled.
    #[prost(bool, tag = "1")]
    pub decoupled: bool,
}

/// Whether answers are given again.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseCache {
    /// Enable.
    #[prost(bool, tag = "1")]
    pub enable: bool,
}

/// How often, and for how long altogether.
#[derive(Clone, PartialEq, Message)]
pub struct Duration {
    /// Count.
    #[prost(uint64, tag = "1")]
    pub count: u64,
    /// Ns.
    #[prost(uint64, tag = "2")]
    pub ns: u64,
}

/// Where time went.
#[derive(Clone, PartialEq, Message)]
pub struct InferStatistics {
    /// Success.
    #[prost(message, optional, tag = "1")]
    pub success: Option<Duration>,
    /// Fail.
    #[prost(message, optional, tag = "2")]
    pub fail: Option<Duration>,
    /// Queue.
    #[prost(message, optional, tag = "3")]
    pub queue: Option<Duration>,
    /// Compute input.
    #[prost(message, optional, tag = "4")]
    pub compute_input: Option<Duration>,
    /// Compute infer.
    #[prost(message, optional, tag = "5")]
    pub compute_infer: Option<Duration>,
    /// Compute output.
    #[prost(message, optional, tag = "6")]
    pub compute_output: Option<Duration>,
    /// Cache hit.
    #[prost(message, optional, tag = "7")]
    pub cache_hit: Option<Duration>,
    /// Cache miss.
    #[prost(message, optional, tag = "8")]
    pub cache_miss: Option<Duration>,
}

/// What a version of a model did.
#[derive(Clone, PartialEq, Message)]
pub struct ModelStatistics {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Last inference.
    #[prost(uint64, tag = "3")]
    pub last_inference: u64,
    /// Inference count.
    #[prost(uint64, tag = "4")]
    pub inference_count: u64,
    /// Execution count.
    #[prost(uint64, tag = "5")]
    pub execution_count: u64,
    /// Inference stats.
    #[prost(message, optional, tag = "6")]
    pub inference_stats: Option<InferStatistics>,
    /// Batch stats.
    #[prost(message, repeated, tag = "7")]
    pub batch_stats: Vec<BatchStatistics>,
    /// Memory usage.
    #[prost(message, repeated, tag = "8")]
    pub memory_usage: Vec<MemoryUsage>,
}

/// What batches of one size took.
#[derive(Clone, PartialEq, Message)]
pub struct BatchStatistics {
    /// Batch size.
    #[prost(uint64, tag = "1")]
    pub batch_size: u64,
    /// Compute input.
    #[prost(message, optional, tag = "2")]
    pub compute_input: Option<Duration>,
    /// Compute infer.
    #[prost(message, optional, tag = "3")]
    pub compute_infer: Option<Duration>,
    /// Compute output.
    #[prost(message, optional, tag = "4")]
    pub compute_output: Option<Duration>,
}

/// Memory that a version of a model takes.
#[derive(Clone, PartialEq, Message)]
pub struct MemoryUsage {
    /// Kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Id.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Byte size.
    #[prost(uint64, tag = "3")]
    pub byte_size: u64,
}

/// What models did.
#[derive(Clone, PartialEq, Message)]
pub struct Statistics {
    /// Model stats.
    #[prost(message, repeated, tag = "1")]
    pub model_stats: Vec<ModelStatistics>,
}

/// Which models there are.
#[derive(Clone, PartialEq, Message)]
pub struct IndexRequest {
    /// Repository name.
    #[prost(string, tag = "1")]
    pub repository_name: String,
    /// Ready.
    #[prost(bool, tag = "2")]
    pub ready: bool,
}

/// The models there are.
#[derive(Clone, PartialEq, Message)]
pub struct Index {
    /// Models.
    #[prost(message, repeated, tag = "1")]
    pub models: Vec<IndexEntry>,
}

/// A version of a model.
#[derive(Clone, PartialEq, Message)]
pub struct IndexEntry {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// State.
    #[prost(string, tag = "3")]
    pub state: String,
    /// Reason.
    #[prost(string, tag = "4")]
    pub reason: String,
}

/// A model to be loaded or unloaded.
#[derive(Clone, PartialEq, Message)]
pub struct RepositoryRequest {
    /// Repository name.
    #[prost(string, tag = "1")]
    pub repository_name: String,
    /// Model name.
    #[prost(string, tag = "2")]
    pub model_name: String,
    /// Parameters.
    #[prost(btree_map = "string, message", tag = "3")]
    pub parameters: BTreeMap<String, RepositoryParameter>,
}

/// A value of any kind.
#[derive(Clone, PartialEq, Message)]
pub struct RepositoryParameter {
    /// Which kind, and the value.
    #[prost(oneof = "RepositoryChoice", tags = "1, 2, 3, 4")]
    pub choice: Option<RepositoryChoice>,
}

/// Which region of shared memory is meant; none, all.
#[derive(Clone, PartialEq, Message)]
pub struct RegionName {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A region of the system's shared memory.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterRegion {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// Offset.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Byte size.
    #[prost(uint64, tag = "4")]
    pub byte_size: u64,
}

/// The regions that are registered.
#[derive(Clone, PartialEq, Message)]
pub struct Regions {
    /// Regions.
    #[prost(btree_map = "string, message", tag = "1")]
    pub regions: BTreeMap<String, RegisterRegion>,
}

/// A region of a GPU's memory.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterCudaRegion {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Raw handle.
    #[prost(bytes = "bytes", tag = "2")]
    pub raw_handle: Bytes,
    /// Device id.
    #[prost(int64, tag = "3")]
    pub device_id: i64,
    /// Byte size.
    #[prost(uint64, tag = "4")]
    pub byte_size: u64,
}

/// Settings of tracing.
#[derive(Clone, PartialEq, Message)]
pub struct Settings {
    /// Settings.
    #[prost(btree_map = "string, message", tag = "1")]
    pub settings: BTreeMap<String, SettingValue>,
    /// Model name.
    #[prost(string, tag = "2")]
    pub model_name: String,
}

/// A setting of tracing.
#[derive(Clone, PartialEq, Message)]
pub struct SettingValue {
    /// Value.
    #[prost(string, repeated, tag = "1")]
    pub value: Vec<String>,
}

/// Settings of the log.
#[derive(Clone, PartialEq, Message)]
pub struct LogSettings {
    /// Settings.
    #[prost(btree_map = "string, message", tag = "1")]
    pub settings: BTreeMap<String, LogValue>,
}

/// A setting of the log.
#[derive(Clone, PartialEq, Message)]
pub struct LogValue {
    /// Which kind, and the value.
    #[prost(oneof = "LogChoice", tags = "1, 2, 3")]
    pub choice: Option<LogChoice>,
}

/// The kinds of a parameter of the repository.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum RepositoryChoice {
    /// Bool.
    #[prost(bool, tag = "1")]
    Bool(bool),
    /// Int.
    #[prost(int64, tag = "2")]
    Int(i64),
    /// Text.
    #[prost(string, tag = "3")]
    Text(String),
    /// Raw.
    #[prost(bytes = "bytes", tag = "4")]
    Raw(Bytes),
}

/// The kinds of a setting of the log.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum LogChoice {
    /// Bool.
    #[prost(bool, tag = "1")]
    Bool(bool),
    /// Number.
    #[prost(uint32, tag = "2")]
    Number(u32),
    /// Text.
    #[prost(string, tag = "3")]
    Text(String),
}
