//! Providers of ONNX Runtime besides the CPU's: used where their libraries and a device are there, never assumed.

use crate::library;
use modelless_types::{Bytes, Processor, VariantSettings};
use ort::ep::cuda::ConvAlgorithmSearch;
use ort::ep::{ArenaExtendStrategy, CUDA, ExecutionProviderDispatch, TensorRT};
use ort::session::builder::SessionBuilder;
use std::path::Path;

/// Puts the provider that the settings ask for before the CPU's. A provider that cannot be had is an error: a variant
/// measured on a GPU must not silently run on the CPU.
pub(super) fn provide(
    builder: SessionBuilder,
    library: &Path,
    settings: &VariantSettings,
) -> Result<SessionBuilder, String> {
    let providers = match settings.processor {
        Processor::Cpu => return Ok(builder),
        Processor::Cuda(number) => vec![cuda(number, settings.gpu_memory)],
        Processor::Tensorrt(number) => {
            let mut tensorrt = TensorRT::default().with_device_id(number.into());
            if let Some(bytes) = settings.gpu_memory {
                tensorrt = tensorrt.with_max_workspace_size(size(bytes));
            }
            // What TensorRT does not know runs on the same GPU through CUDA.
            vec![tensorrt.build().error_on_failure(), cuda(number, settings.gpu_memory)]
        }
    };
    library::has_processor(library, settings.processor)?;
    builder.with_execution_providers(providers).map_err(|error| error.to_string())
}

/// Every session, and so every lane, has a stream of its own. Its memory grows by what is asked for, not by doubling,
/// so that replicas can share a GPU. Algorithms are chosen by rule: to try them all, which is the library's default, takes
/// the first batch of each size many times its usual time. And numbers stay as long as the variant's precision says: TF32
/// would answer otherwise than where its accuracy was measured.
fn cuda(number: u16, memory: Option<Bytes>) -> ExecutionProviderDispatch {
    let mut cuda = CUDA::default()
        .with_device_id(number.into())
        .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested)
        .with_conv_algorithm_search(ConvAlgorithmSearch::Heuristic)
        .with_tf32(false);
    if let Some(bytes) = memory {
        cuda = cuda.with_memory_limit(size(bytes));
    }
    cuda.build().error_on_failure()
}

fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.0).unwrap_or(usize::MAX)
}
