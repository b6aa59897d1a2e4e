//! ONNX Runtime: opening models and running batches straight from shared memory.
//!
//! Lanes share a variant's session where it has no threads of its own, so its weights are in memory once. A session with
//! threads is one lane's: they would all be for each of its runs. On a GPU lanes take turns over two, each with a stream.
//! Inputs are tensors over the slot itself, but for strings; outputs, being small, are copied into it.

mod gpu;
mod session;
mod strings;

use super::backend::{Backend, Inputs, LoadRequest, Model, Program, Results};
use super::specs::Declared;
use modelless_types::{DType, Optimisation, Processor, TensorSpec};
use ort::environment::Environment;
use ort::memory::MemoryInfo;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{Session, SessionInputValue};
use ort::value::{
    DynTensorValueType, DynValue, Outlet, Shape, Tensor, TensorElementType, TensorRefMut, ValueType,
};
use session::Shared;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// The library, mapped into this process for good.
struct Onnx {
    path: PathBuf,
    environment: Environment,
}

/// Maps the library and has it read what it wants to know of the machine. That starts no thread.
pub(super) fn open(path: &Path) -> Result<Box<dyn Backend>, String> {
    let builder = ort::init_from(path).map_err(|error| error.to_string())?;
    let environment = builder
        .with_name("modelless")
        .with_telemetry(false)
        .build()
        .map_err(|error| format!("ONNX Runtime does not start: {error}"))?;
    Ok(Box::new(Onnx { path: path.to_owned(), environment }))
}

impl Backend for Onnx {
    fn gives_way(&self) -> bool {
        true
    }

    fn start(&mut self) -> Result<String, String> {
        if let Err(why) = rehearse(&self.environment) {
            eprintln!("runner: the first load will be slower: {why}");
        }
        Ok(version(&self.path))
    }

    fn load(&mut self, request: &LoadRequest<'_>) -> Result<Model, String> {
        let sessions = sessions(&self.environment, &self.path, request)?;
        let first = sessions.first().ok_or("it needs at least one lane")?.session();
        let (inputs, outputs) = (declare(first.inputs())?, declare(first.outputs())?);
        // In turn, which for one session is all of them.
        let lanes = sessions.iter().cycle().take(request.lanes.into());
        Ok(Model {
            first_runs: sessions.len(),
            inputs,
            outputs: Some(outputs),
            programs: lanes.map(|session| Box::new(OnnxProgram(Arc::clone(session))) as _).collect(),
            device: request.settings.processor.to_string(),
        })
    }
}

/// One for all lanes, one for each, or on a GPU two for all.
fn sessions(
    environment: &Environment,
    library: &Path,
    request: &LoadRequest<'_>,
) -> Result<Vec<Arc<Shared>>, String> {
    let one = || {
        let mut builder = builder(environment, library, request)?;
        let session = builder.commit_from_memory(request.artefact).map_err(|error| error.to_string())?;
        Shared::new(session).map(Arc::new)
    };
    let count = match request.settings.processor {
        Processor::Cpu if request.settings.threads > 1 => request.lanes,
        Processor::Cpu => 1,
        // Each has its weights on the GPU.
        Processor::Cuda(_) | Processor::Tensorrt(_) => request.lanes.min(gpu::STREAMS),
    };
    // Side by side: each keeps a core busy, and its lane will have more than one.
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count).map(|_| scope.spawn(one)).collect();
        let first = (count > 0).then(one);
        let others = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|_| Err("a thread that loaded it ended".to_owned())));
        first.into_iter().chain(others).collect()
    })
}

/// A model with the usual operators of pictures and of sentences, a thousand bytes in all.
const REHEARSAL: &[u8] = include_bytes!("onnx/warm.onnx");

/// Makes a session and runs it, once. The first one in a process registers every operator that there is and has the
/// library's code read in, which takes longer than a small model itself; a spare has the time for it.
fn rehearse(environment: &Environment) -> Result<(), String> {
    let rehearsed = || -> ort::Result<()> {
        let mut session = Session::builder(environment)?
            .with_intra_threads(1)?
            .with_inter_threads(1)?
            .commit_from_memory(REHEARSAL)?;
        let picture = Tensor::<f32>::from_array(([1, 1, 8, 8], vec![0.5; 64]))?;
        let words = Tensor::<i64>::from_array(([1, 4], vec![0, 1, 2, 0]))?;
        session.run(ort::inputs![picture, words])?;
        Ok(())
    };
    rehearsed().map_err(|error| error.to_string())
}

/// Without it, and without VNNI, the library adds products of eight bits in pairs of sixteen, which saturate: of the
/// demo's cnn_l-int8 9.1 % of answers were wrong in place of 6.4. What is exact everywhere has one accuracy everywhere. It changes
/// nothing where the processor does not saturate, and nothing below `extended`.
const EXACT_INTEGERS: (&str, &str) = ("session.x64quantprecision", "1");

/// Threads of a pool that spin between runs would take the cores from other runners and from the executor.
fn builder(
    environment: &Environment,
    library: &Path,
    request: &LoadRequest<'_>,
) -> Result<SessionBuilder, String> {
    let settings = request.settings;
    let level = match settings.optimisation {
        Optimisation::Off => GraphOptimizationLevel::Disable,
        Optimisation::Basic => GraphOptimizationLevel::Level1,
        Optimisation::Extended => GraphOptimizationLevel::Level2,
        Optimisation::All => GraphOptimizationLevel::All,
    };
    let build = || -> ort::Result<SessionBuilder> {
        Ok(Session::builder(environment)?
            .with_optimization_level(level)?
            .with_intra_threads(usize::from(settings.threads.max(1)))?
            .with_inter_threads(1)?
            .with_parallel_execution(false)?
            .with_intra_op_spinning(false)?
            .with_inter_op_spinning(false)?
            .with_config_entry(EXACT_INTEGERS.0, EXACT_INTEGERS.1)?
            .with_thread_manager(request.pool.clone())?)
    };
    let builder = build().map_err(|error| error.to_string())?;
    gpu::provide(builder, library, settings)
}

/// The version stands in the library's name; one that was renamed tells at least what it was built from.
fn version(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let number = name.split_once(".so.").map(|(_, number)| number);
    number.map_or_else(|| ort::info().trim_start_matches("ORT Build Info: ").to_owned(), str::to_owned)
}

struct OnnxProgram(Arc<Shared>);

impl Program for OnnxProgram {
    fn run(&mut self, inputs: Inputs<'_>, results: &mut Results<'_>) -> Result<(), String> {
        let tensors = (0..inputs.len()).map(|ix| {
            let (spec, pointer) = inputs.get(ix);
            let tensor = if spec.dtype == DType::Bytes {
                strings::tensor(spec, inputs.rows(), &inputs.strings(ix)?)
            } else {
                tensor(spec, inputs.rows(), pointer)
            };
            tensor.map_err(|error| error.message().to_owned())
        });
        let tensors = tensors.collect::<Result<Vec<_>, String>>()?;
        results.begin();
        let outputs = self.0.run(&tensors)?;
        results.end();
        for output in &outputs {
            if let Err(why) = hand_over(output, results) {
                results.wrong(why);
            }
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "the bytes of a tensor that ONNX Runtime made")]
fn hand_over(value: &DynValue, results: &mut Results<'_>) -> Result<(), String> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err("an output is no tensor".to_owned());
    };
    let dtype = dtype(*ty)?;
    let axes: Vec<u32> = shape.iter().map(|axis| u32::try_from(*axis).unwrap_or(u32::MAX)).collect();
    if dtype == DType::Bytes {
        let packed = strings::packed(value, shape.num_elements()).map_err(|error| error.to_string())?;
        results.push(dtype, axes.iter().copied(), &packed);
        return Ok(());
    }
    let tensor = value.view().downcast::<DynTensorValueType>().map_err(|error| error.to_string())?;
    let len = tensor.size().unwrap_or(0);
    let pointer = NonNull::new(tensor.data_ptr().cast_mut().cast::<u8>()).unwrap_or(NonNull::dangling());
    // SAFETY: ONNX Runtime says that this tensor in main memory has `len` bytes there, and `value` keeps it.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) };
    results.push(dtype, axes.iter().copied(), bytes);
    Ok(())
}

/// A tensor over memory that is already there. The caller keeps the memory for longer than the tensor.
#[expect(unsafe_code, reason = "tensors over shared memory, without a copy")]
fn tensor<'a>(spec: &TensorSpec, rows: u32, data: NonNull<u8>) -> ort::Result<SessionInputValue<'a>> {
    let shape = Shape::new(std::iter::once(rows).chain(spec.shape.iter().copied()).map(i64::from));
    let (info, data) = (MemoryInfo::default(), data.as_ptr().cast());
    // SAFETY: `data` is main memory, at least as large as shape and type say (the layout was made from them) and
    // aligned to its elements, which is all that ONNX Runtime asks for. The caller holds the mapping until the run is over, and drops the tensors before it.
    // Raw pointers all the way: no reference is made to what may not be valid for its type, such as a bool of 7.
    unsafe {
        Ok(match spec.dtype {
            DType::Bool => TensorRefMut::<bool>::from_raw(info, data, shape)?.into(),
            DType::Uint8 => TensorRefMut::<u8>::from_raw(info, data, shape)?.into(),
            DType::Int8 => TensorRefMut::<i8>::from_raw(info, data, shape)?.into(),
            DType::Int32 => TensorRefMut::<i32>::from_raw(info, data, shape)?.into(),
            DType::Int64 => TensorRefMut::<i64>::from_raw(info, data, shape)?.into(),
            DType::Fp16 => TensorRefMut::<half::f16>::from_raw(info, data, shape)?.into(),
            DType::Fp32 => TensorRefMut::<f32>::from_raw(info, data, shape)?.into(),
            DType::Fp64 => TensorRefMut::<f64>::from_raw(info, data, shape)?.into(),
            DType::Bytes => {
                return Err(ort::Error::new("strings do not lie in a tensor's memory; this is a bug"));
            }
        })
    }
}

fn declare(outlets: &[Outlet]) -> Result<Vec<Declared>, String> {
    outlets
        .iter()
        .map(|outlet| {
            let ValueType::Tensor { ty, shape, .. } = outlet.dtype() else {
                return Err(format!("`{}` is no tensor", outlet.name()));
            };
            let dtype = dtype(*ty).map_err(|why| format!("`{}`: {why}", outlet.name()))?;
            let axes = shape.iter().map(|axis| u32::try_from(*axis).ok()).collect();
            Ok(Declared { name: outlet.name().to_owned(), dtype, axes })
        })
        .collect()
}

fn dtype(ty: TensorElementType) -> Result<DType, String> {
    const KNOWN: [(TensorElementType, DType); 9] = [
        (TensorElementType::Bool, DType::Bool),
        (TensorElementType::Uint8, DType::Uint8),
        (TensorElementType::Int8, DType::Int8),
        (TensorElementType::Int32, DType::Int32),
        (TensorElementType::Int64, DType::Int64),
        (TensorElementType::Float16, DType::Fp16),
        (TensorElementType::Float32, DType::Fp32),
        (TensorElementType::Float64, DType::Fp64),
        (TensorElementType::String, DType::Bytes),
    ];
    let known = KNOWN.iter().find(|(theirs, _)| *theirs == ty).map(|(_, ours)| *ours);
    known.ok_or_else(|| format!("elements of type {ty} are not supported"))
}
