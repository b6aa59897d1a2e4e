//! What every engine has to do, whichever library it hosts: one suite, run once for each.
//!
//! A model is named without an ending: each engine finds the format it takes. Where an engine cannot have a property
//! at all (a format without declared shapes has no fixed batch to find) the test says so and checks what it does
//! instead.

pub(crate) mod batches;
mod faults;
mod loading;

use super::*;
use modelless_engine::Io;
use modelless_types::{DType, Processor, TensorSpec};
use std::io::Write as _;

/// What the suite is run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Under {
    pub(crate) kind: Kind,
    pub(crate) processor: Processor,
}

impl From<Kind> for Under {
    fn from(kind: Kind) -> Self {
        Self { kind, processor: Processor::Cpu }
    }
}

#[cfg(feature = "conformance-gpu")]
impl Under {
    pub(crate) const fn first_gpu(kind: Kind) -> Self {
        Self { kind, processor: Processor::Cuda(0) }
    }
}

/// An engine under test.
pub(crate) struct Bench {
    under: Under,
    pub(crate) engine: ProcessEngine,
}

impl Bench {
    pub(crate) fn new(under: impl Into<Under>) -> Self {
        Self::with(under, |_| {})
    }

    pub(crate) fn with(under: impl Into<Under>, change: impl FnOnce(&mut ProcessConfig)) -> Self {
        let under = under.into();
        let engine = engine_of(under.kind, |config| {
            if under.processor != Processor::Cpu {
                // As the engines of a node start a runner for models on a GPU.
                (config.gpu, config.spare) = (true, false);
            }
            change(config);
        });
        Self { under, engine }
    }

    /// Variant `n` of model `n`, one lane, batches of up to 8.
    pub(crate) fn spec(&self, n: u32, name: &str) -> LoadSpec {
        let mut spec = spec_of(self.under.kind, n, name);
        spec.settings.processor = self.under.processor;
        spec
    }

    pub(crate) async fn load(&self, n: u32, name: &str) -> Loaded {
        let spec = self.spec(n, name);
        self.engine.load(spec).await.unwrap_or_else(|error| panic!("{:?} {name}: {error}", self.under))
    }

    pub(crate) async fn run(&self, n: u32, batch: u32, inputs: &[&[u8]]) -> BatchResult {
        run(&self.engine, n, batch, inputs).await
    }

    pub(crate) async fn refused(&self, spec: LoadSpec) -> String {
        refused(&self.engine, spec).await
    }
}

/// The file of a model in the format that an engine takes, and what has to be known of it beside.
pub(crate) fn spec_of(kind: Kind, n: u32, name: &str) -> LoadSpec {
    let (file, expect) = match kind {
        Kind::Onnx | Kind::Openvino => (model_file(&format!("{name}.onnx")), None),
        Kind::Torch => (model_file(&format!("{name}.pt")), tensors_of(name)),
        Kind::Remote => (at_peer(&peer(), name, ""), None),
    };
    LoadSpec {
        variant: VariantId(n),
        model: ModelId(n),
        artefact: file,
        settings: VariantSettings::new(kind, "fp32", 8),
        lanes: 1,
        expect,
        memory_limit: None,
        shown: false,
    }
}

/// The server of others that `cargo xtask test --only remote` starts.
pub(crate) fn peer() -> String {
    std::env::var("MODELLESS_TEST_PEER").unwrap_or_else(|_| {
        panic!("MODELLESS_TEST_PEER names no server; `cargo xtask test --only remote` starts one")
    })
}

/// The same by gRPC.
#[cfg(feature = "conformance-remote")]
pub(crate) fn grpc_peer() -> String {
    std::env::var("MODELLESS_TEST_PEER_GRPC").unwrap_or_else(|_| {
        panic!("MODELLESS_TEST_PEER_GRPC names no server; `cargo xtask test --only remote` starts one")
    })
}

/// A model of a server as an artefact; `more` are further fields, each with a comma before it.
pub(crate) fn at_peer(url: &str, name: &str, more: &str) -> File {
    let model = name.trim_start_matches("fashion/");
    let binary = if more.contains("binary") { "" } else { ", \"binary\": true" };
    let limit = if more.contains("timeout_ms") { "" } else { ", \"timeout_ms\": 120000" };
    let mut file = tempfile::tempfile().unwrap();
    write!(file, r#"{{"url": "{url}", "model": "{model}"{binary}{limit}{more}}}"#).unwrap();
    file
}

/// TorchScript does not say what its tensors look like.
pub(crate) fn tensors_of(name: &str) -> Option<Io> {
    let spec = |(name, dtype, shape): &(&str, DType, &[u32])| TensorSpec {
        name: (*name).to_owned(),
        dtype: *dtype,
        shape: shape.to_vec(),
    };
    let io = |inputs: &[(&str, DType, &[u32])], outputs: &[(&str, DType, &[u32])]| {
        Some(Io {
            inputs: inputs.iter().map(spec).collect(),
            outputs: outputs.iter().map(spec).collect(),
            longest: None,
        })
    };
    let types: Vec<_> = TYPES.iter().map(|(name, dtype)| (format!("in_{name}"), *dtype)).collect();
    let types: Vec<(&str, DType, &[u32])> =
        types.iter().map(|(name, dtype)| (&**name, *dtype, &[3][..])).collect();
    match name {
        "echo" => io(&[("x", DType::Fp32, &[4])], &[("y", DType::Fp32, &[4])]),
        "types" => io(&types, &[]),
        "fixed" => io(&[("x", DType::Fp32, &[3])], &[]),
        "gather" => io(&[("index", DType::Int64, &[])], &[]),
        "picky" => io(&[("length", DType::Int64, &[])], &[("y", DType::Fp32, &[10])]),
        "ragged" | "mixes" => io(&[("x", DType::Fp32, if name == "mixes" { &[3] } else { &[] })], &[]),
        "open" => io(&[("x", DType::Fp32, &[5])], &[]),
        "slow" => io(&[("rounds", DType::Int64, &[])], &[]),
        "greedy" | "grows" => io(&[("mib", DType::Int64, &[])], &[]),
        "divides" => io(&[("x", DType::Int32, &[])], &[]),
        _ if name.starts_with("fashion/") => io(&[("input", DType::Fp32, &[1, 28, 28])], &[]),
        _ => None,
    }
}

/// The element types of the model `types`, by the names of its inputs.
pub(crate) const TYPES: [(&str, DType); 8] = [
    ("f32", DType::Fp32),
    ("f16", DType::Fp16),
    ("f64", DType::Fp64),
    ("i8", DType::Int8),
    ("u8", DType::Uint8),
    ("i32", DType::Int32),
    ("i64", DType::Int64),
    ("bool", DType::Bool),
];

/// The suite, once for each engine.
macro_rules! conforms {
    ($module:ident, $kind:expr) => {
        mod $module {
            use super::*;
            conforms!(@ Under::from($kind),
                batches: a_batch_in_parts_gives_every_item_what_is_its_own,
                loading: says_which_library_there_is_or_why_none,
                loading: what_cannot_be_served_item_by_item_is_refused_with_the_reason,
                loading: an_open_axis_is_filled_from_what_is_expected,
                loading: a_bound_on_a_gpus_memory_is_kept_to_or_refused,
                loading: strings_that_an_engine_does_not_take_are_refused_when_the_model_is_loaded,
                loading: a_fixed_batch_is_found_and_smaller_ones_are_padded,
                batches: every_element_type_passes_through_unharmed,
                batches: strings_pass_through_unharmed_each_in_its_own_row,
                batches: strings_longer_than_their_room_are_an_error_and_not_cut,
                batches: a_trained_model_agrees_with_itself_in_any_batch,
                batches: row_i_in_is_row_i_out_however_batches_overlap,
                batches: lanes_run_one_variant_at_the_same_time,
                batches: lanes_at_once_answer_as_one_alone,
                batches: an_empty_batch_and_one_too_large_are_refused,
                batches: threads_and_optimisation_change_no_answer,
                faults: a_model_that_throws_fails_its_batch_and_nothing_else,
                faults: outputs_of_another_shape_are_an_error_not_an_answer,
                faults: a_model_that_hangs_is_ended_within_the_limit,
                faults: a_model_that_aborts_its_process_takes_nothing_else_with_it,
            );
        }
    };
    (@ $under:expr, $($part:ident: $test:ident,)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $part::$test($under).await;
        })*
    };
}

conforms!(onnx, Kind::Onnx);
conforms!(openvino, Kind::Openvino);
#[cfg(feature = "conformance-torch")]
conforms!(torch, Kind::Torch);
#[cfg(feature = "conformance-remote")]
conforms!(remote, Kind::Remote);
#[cfg(feature = "conformance-gpu")]
conforms!(onnx_gpu, Under::first_gpu(Kind::Onnx));
#[cfg(feature = "conformance-gpu")]
conforms!(torch_gpu, Under::first_gpu(Kind::Torch));

/// For those that compute on this machine.
macro_rules! computes_here {
    ($module:ident, $kind:expr) => {
        mod $module {
            use super::*;
            conforms!(@ Under::from($kind),
                faults: a_model_that_takes_memory_without_end_is_stopped_at_the_limit,
                faults: a_model_that_takes_more_and_more_memory_is_stopped_at_the_limit,
            );
        }
    };
}

computes_here!(onnx_here, Kind::Onnx);
computes_here!(openvino_here, Kind::Openvino);
#[cfg(feature = "conformance-torch")]
computes_here!(torch_here, Kind::Torch);
