//! ONNX Runtime: opening models and running batches straight from shared memory.
//!
//! One session for each (variant, lane). ONNX Runtime documents `Run` as safe to share, but the binding's authors
//! saw it corrupt memory, and lanes must run one variant at the same time; the price is a copy of the weights for
//! each lane. Inputs are tensors over the slot itself; outputs, being small, are copied into it.

use super::gentle::Threads;
use super::lane::Seat;
use super::specs::{self, Declared};
use crate::clock;
use crate::ring::{Answer, Reply, Shapes};
use crate::seam::Io;
use crate::shm::Mapping;
use modelless_types::{DType, TensorSpec};
use ort::environment::Environment;
use ort::memory::MemoryInfo;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{Session, SessionInputValue};
use ort::value::{DynTensorValueType, DynValue, Outlet, Shape, TensorElementType, TensorRefMut, ValueType};
use std::path::Path;
use std::ptr::NonNull;

/// The library, loaded into this process for good.
pub(super) struct Library(Environment);

/// A variant that can run.
pub(super) struct Loaded {
    /// One for each lane.
    pub(super) sessions: Vec<Session>,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) fixed_batch: Option<u32>,
}

impl Library {
    /// Loads the library, and says which version it is.
    pub(super) fn open(path: &Path) -> Result<(Self, String), String> {
        let builder = ort::init_from(path).map_err(|error| error.to_string())?;
        let environment = builder
            .with_name("modelless")
            .with_telemetry(false)
            .build()
            .map_err(|error| format!("ONNX Runtime does not start: {error}"))?;
        Ok((Self(environment), version(path)))
    }

    pub(super) fn load(
        &self,
        artefact: &Mapping,
        pool: &Threads,
        threads: u16,
        lanes: u16,
        rows: u32,
        expect: Option<&Io>,
    ) -> Result<Loaded, String> {
        let mut sessions = Vec::new();
        for _ in 0..lanes {
            sessions.push(self.session(artefact, pool, threads).map_err(|error| error.to_string())?);
        }
        let first = sessions.first().ok_or("it needs at least one lane")?;
        let declared_inputs = declare(first.inputs())?;
        let declared_outputs = declare(first.outputs())?;
        let (inputs, fixed_batch) = specs::inputs(&declared_inputs, expect)?;
        // Two items, where allowed, tell a batch axis from an axis of one.
        let rows = fixed_batch.unwrap_or(rows.min(2));
        let mut seen = Err("it was not run".to_owned());
        for session in &mut sessions {
            seen = warm_up(session, &inputs, rows);
        }
        let outputs = specs::outputs(&declared_outputs, &seen, rows, expect)?;
        Ok(Loaded { sessions, inputs, outputs, fixed_batch })
    }

    #[expect(unsafe_code, reason = "a slice over the mapped artefact")]
    fn session(&self, artefact: &Mapping, pool: &Threads, threads: u16) -> ort::Result<Session> {
        // SAFETY: artefacts are content-addressed and never written in place. Whoever does so all the same
        // spoils this runner only: ONNX Runtime parses untrusted bytes anyway.
        let bytes = unsafe { artefact.whole() };
        self.builder(pool, threads)?.commit_from_memory(bytes)
    }

    /// Threads of a pool that spin between runs would take the cores from other runners and from the executor.
    fn builder(&self, pool: &Threads, threads: u16) -> ort::Result<SessionBuilder> {
        Ok(Session::builder(&self.0)?
            .with_optimization_level(GraphOptimizationLevel::All)?
            .with_intra_threads(usize::from(threads.max(1)))?
            .with_inter_threads(1)?
            .with_parallel_execution(false)?
            .with_intra_op_spinning(false)?
            .with_inter_op_spinning(false)?
            .with_thread_manager(pool.clone())?)
    }
}

/// The version stands in the library's name; one that was renamed tells at least what it was built from.
fn version(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let number = name.split_once(".so.").map(|(_, number)| number);
    number.map_or_else(|| ort::info().trim_start_matches("ORT Build Info: ").to_owned(), str::to_owned)
}

/// Runs a batch that lies in a slot.
pub(super) fn run(seat: &mut Seat, slot: usize, rows: u32) -> Reply {
    let Seat { session, layout, arena } = seat;
    let inputs = layout.inputs.iter().map(|place| {
        let pointer = arena.pointer(&layout.range(place, slot, rows));
        tensor(&place.spec, rows, pointer)
    });
    let failed = |error: &ort::Error| Reply { run_us: 0, answer: Answer::Failed(error.message().to_owned()) };
    let inputs = match inputs.collect::<ort::Result<Vec<_>>>() {
        Ok(inputs) => inputs,
        Err(error) => return failed(&error),
    };
    let start = clock::now();
    let outputs = match session.run(inputs.as_slice()) {
        Ok(outputs) => outputs,
        Err(error) => return failed(&error),
    };
    let run_us = clock::micros(start.elapsed());
    let mut shapes = Shapes::default();
    let mut values = Vec::new();
    for ix in 0..outputs.len() {
        match Seen::of(&outputs[ix]) {
            Ok(seen) => {
                shapes.push(seen.dtype, seen.axes.iter().copied());
                values.push(seen);
            }
            Err(why) => return Reply { run_us, answer: Answer::Misshapen(why) },
        }
    }
    if let Err(why) = shapes.check(&layout.outputs, rows) {
        return Reply { run_us, answer: Answer::Misshapen(why) };
    }
    for (seen, place) in values.iter().zip(&layout.outputs) {
        let range = layout.range(place, slot, rows);
        debug_assert_eq!(seen.bytes.len(), range.len(), "the shapes were checked");
        arena.write(range.start, seen.bytes);
    }
    Reply { run_us, answer: Answer::Ran(shapes) }
}

/// The first run takes memory and time that later ones do not, and shows the shapes that a model leaves open.
fn warm_up(session: &mut Session, inputs: &[TensorSpec], rows: u32) -> Result<Vec<Vec<u32>>, String> {
    let mut memory = Vec::new();
    for spec in inputs {
        let bytes = spec.item_bytes().and_then(|bytes| bytes.checked_mul(rows as usize)).filter(|n| *n > 0);
        let bytes = bytes.ok_or_else(|| format!("`{}` has no size", spec.name))?;
        memory.push(Mapping::private(bytes).map_err(|error| error.to_string())?);
    }
    let zeros: ort::Result<Vec<_>> = inputs
        .iter()
        .zip(&memory)
        .map(|(spec, memory)| tensor(spec, rows, memory.pointer(&(0..0))))
        .collect();
    let zeros = zeros.map_err(|error| error.to_string())?;
    let outputs = session.run(zeros.as_slice()).map_err(|error| error.message().to_owned())?;
    (0..outputs.len()).map(|ix| Seen::of(&outputs[ix]).map(|seen| seen.axes)).collect()
}

/// An output of a run.
struct Seen<'a> {
    dtype: DType,
    axes: Vec<u32>,
    bytes: &'a [u8],
}

impl<'a> Seen<'a> {
    #[expect(unsafe_code, reason = "the bytes of a tensor that ONNX Runtime made")]
    fn of(value: &'a DynValue) -> Result<Self, String> {
        let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
            return Err("an output is no tensor".to_owned());
        };
        let dtype = dtype(*ty)?;
        let axes: Vec<u32> = shape.iter().map(|axis| u32::try_from(*axis).unwrap_or(u32::MAX)).collect();
        let tensor = value.view().downcast::<DynTensorValueType>().map_err(|error| error.to_string())?;
        let len = tensor.size().unwrap_or(0);
        let pointer = NonNull::new(tensor.data_ptr().cast_mut().cast::<u8>()).unwrap_or(NonNull::dangling());
        // SAFETY: ONNX Runtime says that this tensor in main memory has `len` bytes there, and `value` keeps it.
        let bytes = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) };
        Ok(Self { dtype, axes, bytes })
    }
}

/// A tensor over memory that is already there. The caller keeps the memory for longer than the tensor.
#[expect(unsafe_code, reason = "tensors over shared memory, without a copy")]
fn tensor<'a>(spec: &TensorSpec, rows: u32, data: NonNull<u8>) -> ort::Result<SessionInputValue<'a>> {
    let shape = Shape::new(std::iter::once(rows).chain(spec.shape.iter().copied()).map(i64::from));
    let (info, data) = (MemoryInfo::default(), data.as_ptr().cast());
    // SAFETY: `data` is main memory, at least as large as shape and type say (the layout was made from them) and
    // aligned to 64 bytes. Both callers hold the mapping until the run is over, and drop the tensors before it.
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
            DType::Bytes => return Err(ort::Error::new("tensors of strings are not supported")),
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
    const KNOWN: [(TensorElementType, DType); 8] = [
        (TensorElementType::Bool, DType::Bool),
        (TensorElementType::Uint8, DType::Uint8),
        (TensorElementType::Int8, DType::Int8),
        (TensorElementType::Int32, DType::Int32),
        (TensorElementType::Int64, DType::Int64),
        (TensorElementType::Float16, DType::Fp16),
        (TensorElementType::Float32, DType::Fp32),
        (TensorElementType::Float64, DType::Fp64),
    ];
    let known = KNOWN.iter().find(|(theirs, _)| *theirs == ty).map(|(_, ours)| *ours);
    known.ok_or_else(|| format!("elements of type {ty} are not supported"))
}
