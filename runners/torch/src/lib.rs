//! What hosts libtorch in a runner: a binary of its own (`main.rs`), because libtorch has to be linked.
//!
//! Everything but the library is [`modelless_engine`]'s. TorchScript neither names its tensors nor says what they look
//! like, so a model needs them said: in its task, or by its adapter. Outputs are what its first run shows.

use modelless_engine::library::TORCH_VERSION;
use modelless_engine::{Backend, Declared, Inputs, LoadRequest, Model, Needs, Program, Results};
use modelless_types::{DType, Optimisation, Processor};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use tch::{CModule, Device, IValue, Kind, Tensor};

/// The library was mapped when the process started.
#[expect(clippy::unnecessary_wraps, reason = "the signature of every backend")]
pub fn open(_: &Path) -> Result<Box<dyn Backend>, String> {
    Ok(Box::new(Torch))
}

struct Torch;

impl Backend for Torch {
    /// Its kernels look at the processor when they first run, and some are made for each shape.
    fn needs(&self) -> Needs {
        let read = ["/proc/cpuinfo", "/sys/devices/system/cpu", "/sys/devices/system/node"];
        Needs { read: read.map(Into::into).into(), code: true, connect: None }
    }

    fn start(&mut self) -> Result<String, String> {
        // The executor that specialises a graph for shapes it has seen makes every new batch size slow twice.
        tch::jit::f_set_profiling_mode(false).map_err(|error| said(&error))?;
        Ok(TORCH_VERSION.to_owned())
    }

    fn load(&mut self, request: &LoadRequest<'_>) -> Result<Model, String> {
        let settings = request.settings;
        let device = device(settings.processor)?;
        let expect = request.expect.map(|io| io.inputs.as_slice()).unwrap_or_default();
        if expect.is_empty() {
            return Err(
                "TorchScript does not say what its inputs look like: they must be said, in the task \
                        (kind `tensor`) or by the adapter"
                    .to_owned(),
            );
        }
        let mut bytes = request.artefact;
        let module = CModule::load_data_on_device(&mut bytes, device).map_err(|error| said(&error))?;
        let module = Arc::new(module);
        let program = |_| {
            Box::new(TorchProgram {
                module: Arc::clone(&module),
                device,
                threads: settings.threads,
                optimise: settings.optimisation > Optimisation::Off,
            }) as Box<dyn Program>
        };
        Ok(Model {
            programs: (0..request.lanes).map(program).collect(),
            first_runs: 1,
            inputs: expect.iter().map(Declared::open).collect(),
            outputs: None,
            device: settings.processor.to_string(),
        })
    }
}

fn device(processor: Processor) -> Result<Device, String> {
    match processor {
        Processor::Cpu => Ok(Device::Cpu),
        Processor::Cuda(number) if tch::Cuda::is_available() => {
            let count = tch::Cuda::device_count();
            if i64::from(number) < count {
                Ok(Device::Cuda(number.into()))
            } else {
                Err(format!("there is no {processor} here: libtorch sees {count} GPUs"))
            }
        }
        Processor::Cuda(_) => Err(format!(
            "{processor} is not available: this libtorch sees no GPU (what `modelless engine install torch` brings \
             computes on the CPU only)"
        )),
        Processor::Tensorrt(_) => Err("TensorRT is ONNX Runtime's; give a torch variant `cuda`".to_owned()),
    }
}

/// Running a module from several threads is what libtorch promises to be safe, so lanes share its weights.
struct TorchProgram {
    module: Arc<CModule>,
    device: Device,
    threads: u16,
    optimise: bool,
}

thread_local! {
    /// What this lane's thread was last told: threads of a run, and whether graphs are optimised.
    static TOLD: Cell<Option<(u16, bool)>> = const { Cell::new(None) };
}

impl TorchProgram {
    /// Libtorch keeps these by thread.
    fn tell(&self) -> Result<(), String> {
        let now = Some((self.threads, self.optimise));
        if TOLD.replace(now) != now {
            tch::set_num_threads(self.threads.into());
            tch::jit::f_set_graph_executor_optimize(self.optimise).map_err(|error| said(&error))?;
        }
        Ok(())
    }
}

impl Program for TorchProgram {
    fn run(&mut self, inputs: Inputs<'_>, results: &mut Results<'_>) -> Result<(), String> {
        self.tell()?;
        let tensors: Vec<IValue> =
            (0..inputs.len()).map(|ix| input(inputs, ix, self.device)).collect::<Result<_, _>>()?;
        results.begin();
        let output = tch::no_grad(|| self.module.forward_is(&tensors)).map_err(|error| said(&error))?;
        let mut outputs = Vec::new();
        flatten(None, output, &mut outputs)?;
        // To main memory, which for a GPU is also the end of the computation.
        let outputs: Vec<_> = outputs
            .into_iter()
            .map(|(name, tensor)| (name, tensor.to_device(Device::Cpu).contiguous()))
            .collect();
        results.end();
        for (name, tensor) in &outputs {
            hand_over(name.as_deref(), tensor, results);
        }
        Ok(())
    }
}

/// A tensor over the slot itself; on a GPU a copy of it.
#[expect(unsafe_code, reason = "tensors over shared memory, without a copy")]
fn input(inputs: Inputs<'_>, ix: usize, device: Device) -> Result<IValue, String> {
    let (spec, pointer) = inputs.get(ix);
    let size: Vec<i64> =
        std::iter::once(inputs.rows()).chain(spec.shape.iter().copied()).map(i64::from).collect();
    let mut strides = vec![1; size.len()];
    for axis in (0..size.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * size[axis + 1];
    }
    let kind =
        kind(spec.dtype).ok_or_else(|| format!("tensors of {} are not supported", spec.dtype.name()))?;
    // SAFETY: main memory, as large as shape and type say (the layout was made from them), which stays where it is until
    // the run is over; the tensor is dropped before.
    let tensor = unsafe { Tensor::f_from_blob(pointer.as_ptr(), &size, &strides, kind, Device::Cpu) };
    let tensor = tensor.map_err(|error| said(&error))?;
    Ok(IValue::Tensor(if device == Device::Cpu { tensor } else { tensor.to_device(device) }))
}

/// The tensors in what a module gives back, in order, with names where it gives names.
fn flatten(
    name: Option<String>,
    value: IValue,
    into: &mut Vec<(Option<String>, Tensor)>,
) -> Result<(), String> {
    match value {
        IValue::Tensor(tensor) => into.push((name, tensor)),
        IValue::TensorList(tensors) => into.extend(tensors.into_iter().map(|tensor| (None, tensor))),
        IValue::Tuple(values) | IValue::GenericList(values) => {
            for value in values {
                flatten(None, value, into)?;
            }
        }
        IValue::GenericDict(entries) => {
            for (key, value) in entries {
                let IValue::String(key) = key else {
                    return Err("it gives back a dictionary whose keys are no strings".to_owned());
                };
                flatten(Some(key), value, into)?;
            }
        }
        IValue::None
        | IValue::Double(_)
        | IValue::Int(_)
        | IValue::Bool(_)
        | IValue::IntList(_)
        | IValue::DoubleList(_)
        | IValue::BoolList(_)
        | IValue::String(_)
        | IValue::StringList(_)
        | IValue::Object(_)
        | IValue::Device(_) => return Err("it gives back something that is no tensor".to_owned()),
        _ => return Err("it gives back something unknown".to_owned()),
    }
    Ok(())
}

#[expect(unsafe_code, reason = "the bytes of a tensor that libtorch made")]
fn hand_over(name: Option<&str>, tensor: &Tensor, results: &mut Results<'_>) {
    let Some((dtype, item)) = dtype(tensor.kind()) else {
        results.wrong(format!("an output has elements of type {:?}, which is not supported", tensor.kind()));
        return;
    };
    let axes: Vec<u32> = tensor.size().iter().map(|axis| u32::try_from(*axis).unwrap_or(u32::MAX)).collect();
    let (data, len) = (tensor.data_ptr().cast_const().cast::<u8>(), tensor.numel() * item);
    // SAFETY: contiguous and in main memory, so its elements lie there one after another, and `tensor` keeps them.
    let bytes =
        if len == 0 || data.is_null() { &[][..] } else { unsafe { std::slice::from_raw_parts(data, len) } };
    results.push_named(name, dtype, axes.iter().copied(), bytes);
}

const KINDS: [(Kind, DType, usize); 8] = [
    (Kind::Bool, DType::Bool, 1),
    (Kind::Uint8, DType::Uint8, 1),
    (Kind::Int8, DType::Int8, 1),
    (Kind::Int, DType::Int32, 4),
    (Kind::Int64, DType::Int64, 8),
    (Kind::Half, DType::Fp16, 2),
    (Kind::Float, DType::Fp32, 4),
    (Kind::Double, DType::Fp64, 8),
];

fn kind(dtype: DType) -> Option<Kind> {
    KINDS.iter().find(|(_, ours, _)| *ours == dtype).map(|(theirs, ..)| *theirs)
}

fn dtype(kind: Kind) -> Option<(DType, usize)> {
    KINDS.iter().find(|(theirs, ..)| *theirs == kind).map(|(_, ours, item)| (*ours, *item))
}

/// What libtorch said, without where in its own code it said it: the last lines of a TorchScript error tell what was
/// raised.
fn said(error: &tch::TchError) -> String {
    let text = error.to_string();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("frame #")).map(str::trim_end);
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
