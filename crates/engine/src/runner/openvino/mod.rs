//! OpenVINO: a second engine for the CPU, on the very artefacts that ONNX Runtime takes.
//!
//! One compiled model serves all lanes, each through a request of its own, so its weights are in memory once. Inputs
//! are tensors over the slot itself; outputs, being small, are copied into it.
#![expect(unsafe_code, reason = "a C interface")]

mod ffi;

use super::backend::{Backend, Inputs, LoadRequest, Model, Needs, Program, Results};
use super::specs::Declared;
use ffi::{Functions, Object, c};
use modelless_types::{DType, Processor, VariantSettings};
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

/// What OpenVINO opens by itself once it reads or compiles a model.
const LATER: [&str; 2] = ["libopenvino_onnx_frontend.so", "libopenvino_intel_cpu_plugin.so"];

/// The library, mapped into this process for good.
struct Openvino {
    ov: Functions,
    /// Where its parts lie.
    folder: PathBuf,
    core: Handle,
}

/// Maps the library and what it would open later.
pub(super) fn open(path: &Path) -> Result<Box<dyn Backend>, String> {
    let ov = ffi::open(path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    for name in LATER {
        let found = std::fs::read_dir(folder).ok().and_then(|entries| {
            entries
                .filter_map(|entry| entry.ok().map(|entry| entry.path()))
                .find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
        });
        ffi::hold(&found.ok_or_else(|| format!("there is no {name} beside {}", path.display()))?)?;
    }
    // SAFETY: `made` gives the place to write to.
    let core = ov.made(|core| unsafe { (ov.core_create)(core) })?;
    let core = Handle { object: core, free: ov.core_free };
    for key in [c"FULL_DEVICE_NAME", c"RANGE_FOR_STREAMS", c"OPTIMIZATION_CAPABILITIES"] {
        ov.property(core.object, c"CPU", key)?;
    }
    Ok(Box::new(Openvino { ov, folder: folder.to_owned(), core }))
}

impl Backend for Openvino {
    /// Its list of parts is read when it starts, and its kernels are compiled for each model.
    fn needs(&self) -> Needs {
        let machine = ["/proc/cpuinfo", "/sys/devices/system/cpu", "/sys/devices/system/node"];
        let read = machine.map(PathBuf::from).into_iter().chain([self.folder.clone()]).collect();
        Needs { read, code: true, connect: None }
    }

    fn start(&mut self) -> Result<String, String> {
        self.ov.number()
    }

    fn load(&mut self, request: &LoadRequest<'_>) -> Result<Model, String> {
        let ov = self.ov;
        let core = &self.core;
        if request.settings.processor != Processor::Cpu {
            return Err(format!("OpenVINO runs on the CPU here, not on {}", request.settings.processor));
        }
        let (bytes, len) = (request.artefact.as_ptr().cast::<c_char>(), request.artefact.len());
        // SAFETY: the artefact is mapped for longer than this call, and the library copies what it keeps of it.
        let model =
            ov.made(|model| unsafe { (ov.core_read)(core.object, bytes, len, ptr::null_mut(), model) })?;
        let model = Handle { object: model, free: ov.model_free };
        let inputs = ports(&ov, model.object, ov.model_inputs, ov.model_input)?;
        let outputs = ports(&ov, model.object, ov.model_outputs, ov.model_output)?;
        let compiled = Arc::new(compile(&ov, core, &model, request.settings, request.lanes)?);
        let mut programs: Vec<Box<dyn Program>> = Vec::new();
        for _ in 0..request.lanes {
            // SAFETY: `compiled` lives, and is kept by the program for as long as its request.
            let made = ov.made(|made| unsafe { (ov.request_create)(compiled.object, made) })?;
            let request = Handle { object: made, free: ov.request_free };
            let (compiled, outputs) = (Arc::clone(&compiled), outputs.len());
            programs.push(Box::new(OpenvinoProgram { ov, request, compiled, outputs }));
        }
        let first_runs = programs.len();
        Ok(Model { programs, first_runs, inputs, outputs: Some(outputs), device: "cpu".to_owned() })
    }
}

/// An object that is given back to the library.
struct Handle {
    object: Object,
    free: unsafe extern "C" fn(Object),
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by the library, of the kind that `free` takes, and given back once.
        unsafe { (self.free)(self.object) };
    }
}

// SAFETY: the library's objects belong to no thread; whoever owns the handle is the only one to use it, and compiled
// models, which are shared, may be used from several threads.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// One stream with one thread swallows what is thrown while a batch runs, and the answer is then the batch before's:
/// seen with 2026.4.1, and asserted by the conformance suite. Two streams do not, and one that nobody uses costs little.
const LEAST_STREAMS: u16 = 2;

/// Threads are divided among the lanes and stay where the scheduler of the system puts them: cores belong to lanes of
/// several processes. fp32 is computed in fp32 unless `bf16` is asked for, so that answers agree with other engines.
fn compile(
    ov: &Functions,
    core: &Handle,
    model: &Handle,
    settings: &VariantSettings,
    lanes: u16,
) -> Result<Handle, String> {
    let number = if settings.precision == "bf16" { "bf16" } else { "f32" };
    let streams = lanes.max(LEAST_STREAMS);
    let threads = u32::from(settings.threads.max(1)) * u32::from(streams);
    let (threads, streams) = (c(threads.to_string())?, c(streams.to_string())?);
    let number = c(number)?;
    // SAFETY: the count says how many C strings follow, names and values in turn, and all outlive the call.
    let compiled = ov.made(|compiled| unsafe {
        (ov.core_compile)(
            core.object,
            model.object,
            c"CPU".as_ptr(),
            10,
            compiled,
            c"INFERENCE_NUM_THREADS".as_ptr(),
            threads.as_ptr(),
            c"NUM_STREAMS".as_ptr(),
            streams.as_ptr(),
            c"ENABLE_CPU_PINNING".as_ptr(),
            c"NO".as_ptr(),
            c"INFERENCE_PRECISION_HINT".as_ptr(),
            number.as_ptr(),
            c"PERFORMANCE_HINT".as_ptr(),
            c"LATENCY".as_ptr(),
        )
    })?;
    Ok(Handle { object: compiled, free: ov.compiled_free })
}

type Count = unsafe extern "C" fn(Object, *mut usize) -> c_int;
type Port = unsafe extern "C" fn(Object, usize, *mut Object) -> c_int;

/// What a model says of its inputs or outputs.
fn ports(ov: &Functions, model: Object, count: Count, port: Port) -> Result<Vec<Declared>, String> {
    let mut len = 0;
    // SAFETY: `model` lives, here and below.
    ov.check(unsafe { count(model, &raw mut len) })?;
    (0..len)
        .map(|ix| {
            let made = ov.made(|made| unsafe { port(model, ix, made) })?;
            let port = Handle { object: made, free: ov.port_free };
            let name = ov.name(port.object)?;
            let mut element = 0;
            // SAFETY: `port` lives.
            ov.check(unsafe { (ov.port_type)(port.object, &raw mut element) })?;
            let dtype = dtype(element).map_err(|why| format!("`{name}`: {why}"))?;
            Ok(Declared {
                axes: axes(ov, port.object).map_err(|why| format!("`{name}`: {why}"))?,
                name,
                dtype,
            })
        })
        .collect()
}

fn axes(ov: &Functions, port: Object) -> Result<Vec<Option<u32>>, String> {
    let none = ffi::Dimension { min: 0, max: 0 };
    let mut shape = ffi::PartialShape { rank: none, dims: ptr::null_mut() };
    // SAFETY: `port` lives; the library writes the shape, says how many extents it has, and takes it back.
    unsafe {
        ov.check((ov.port_shape)(port, &raw mut shape))?;
        let known = shape.rank.min == shape.rank.max && shape.rank.max >= 0;
        let axes = match usize::try_from(shape.rank.max) {
            Ok(rank) if known && rank == 0 => Ok(Vec::new()),
            Ok(rank) if known && !shape.dims.is_null() => {
                let dims = std::slice::from_raw_parts(shape.dims, rank);
                Ok(dims
                    .iter()
                    .map(|dim| (dim.min == dim.max).then(|| u32::try_from(dim.max).ok()).flatten())
                    .collect())
            }
            _ => Err("the number of its axes is open".to_owned()),
        };
        (ov.partial_shape_free)(&raw mut shape);
        axes
    }
}

/// One lane's request.
struct OpenvinoProgram {
    ov: Functions,
    /// Dropped before what it was made of.
    request: Handle,
    #[expect(dead_code, reason = "it has to live for as long as its request")]
    compiled: Arc<Handle>,
    outputs: usize,
}

impl Program for OpenvinoProgram {
    fn run(&mut self, inputs: Inputs<'_>, results: &mut Results<'_>) -> Result<(), String> {
        let ov = self.ov;
        let mut held = Vec::with_capacity(inputs.len());
        for ix in 0..inputs.len() {
            let (spec, pointer) = inputs.get(ix);
            let mut dims: Vec<i64> =
                std::iter::once(inputs.rows()).chain(spec.shape.iter().copied()).map(i64::from).collect();
            let shape = ffi::Shape { rank: i64::try_from(dims.len()).unwrap_or(0), dims: dims.as_mut_ptr() };
            let element = element(spec.dtype)?;
            // SAFETY: main memory, at least as large as shape and type say (the layout was made from them), which
            // the caller holds until the run is over; the request gets other inputs before its next run.
            let made =
                ov.made(|made| unsafe { (ov.tensor_over)(element, shape, pointer.as_ptr().cast(), made) })?;
            let tensor = Handle { object: made, free: ov.tensor_free };
            // SAFETY: both live.
            ov.check(unsafe { (ov.request_input)(self.request.object, ix, tensor.object) })?;
            held.push(tensor);
        }
        results.begin();
        // SAFETY: the request lives, and this lane is the only one to use it.
        ov.check(unsafe { (ov.request_infer)(self.request.object) })?;
        results.end();
        for ix in 0..self.outputs {
            // SAFETY: as above.
            let made = ov.made(|made| unsafe { (ov.request_output)(self.request.object, ix, made) })?;
            hand_over(&ov, &Handle { object: made, free: ov.tensor_free }, results)?;
        }
        Ok(())
    }
}

fn hand_over(ov: &Functions, tensor: &Handle, results: &mut Results<'_>) -> Result<(), String> {
    let mut shape = ffi::Shape { rank: 0, dims: ptr::null_mut() };
    let (mut element, mut len, mut data) = (0, 0, ptr::null_mut());
    // SAFETY: the tensor lives; the library writes what it is asked for, says how many extents and bytes there are,
    // and takes the shape back.
    unsafe {
        ov.check((ov.tensor_type)(tensor.object, &raw mut element))?;
        ov.check((ov.tensor_bytes)(tensor.object, &raw mut len))?;
        ov.check((ov.tensor_data)(tensor.object, &raw mut data))?;
        ov.check((ov.tensor_shape)(tensor.object, &raw mut shape))?;
        let rank = usize::try_from(shape.rank).unwrap_or(0);
        let axes: Vec<u32> = if rank == 0 || shape.dims.is_null() {
            Vec::new()
        } else {
            let dims = std::slice::from_raw_parts(shape.dims, rank);
            dims.iter().map(|dim| u32::try_from(*dim).unwrap_or(u32::MAX)).collect()
        };
        (ov.shape_free)(&raw mut shape);
        let bytes = if data.is_null() {
            &[][..]
        } else {
            std::slice::from_raw_parts(data.cast_const().cast::<u8>(), len)
        };
        match dtype(element) {
            Ok(dtype) => results.push(dtype, axes.iter().copied(), bytes),
            Err(why) => results.wrong(why),
        }
    }
    Ok(())
}

/// OpenVINO's numbers of element types.
const TYPES: [(c_int, DType); 8] = [
    (1, DType::Bool),
    (3, DType::Fp16),
    (4, DType::Fp32),
    (5, DType::Fp64),
    (7, DType::Int8),
    (9, DType::Int32),
    (10, DType::Int64),
    (16, DType::Uint8),
];

/// Their tensors hold objects of C++, which its C interface cannot be handed from shared memory.
const STRING: c_int = 23;

fn dtype(element: c_int) -> Result<DType, String> {
    let known = TYPES.iter().find(|(theirs, _)| *theirs == element).map(|(_, ours)| *ours);
    known.ok_or_else(|| match element {
        STRING => "strings (BYTES) are not supported by this engine; `onnx` takes them".to_owned(),
        _ => format!("elements of OpenVINO's type {element} are not supported"),
    })
}

fn element(dtype: DType) -> Result<c_int, String> {
    let known = TYPES.iter().find(|(_, ours)| *ours == dtype).map(|(theirs, _)| *theirs);
    known.ok_or_else(|| format!("tensors of {} are not supported", dtype.name()))
}
