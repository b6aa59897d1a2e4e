//! `modelless engine`: the inference library, found or installed.

mod torch;

use crate::out;
use crate::progress::Phase;
use crate::up::half_of_memory;
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use modelless_engine::install::{self, Progress};
use modelless_engine::library::{self, Source};
use modelless_engine::{
    Availability, Confinement, Engine as _, EngineSet, Library, LibraryError, ProcessConfig, ServerFiles,
    default_engines_dir,
};
use modelless_types::{Bytes, Engine, Processor};
use modelless_wire::Gpu;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Fetch an inference library for this user.
    Install(Install),
    /// Show which inference libraries there are and whether they run.
    List(List),
}

#[derive(Args, Debug)]
pub(crate) struct Install {
    /// Which one.
    #[arg(value_enum)]
    engine: Known,
    #[command(flatten)]
    torch: torch::Options,
    /// For programs.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// For programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    library: LibraryOption,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Known {
    /// ONNX Runtime (24 MB).
    Onnx,
    /// OpenVINO (59 MB): a second engine for the CPU, on the same models.
    Openvino,
    /// libtorch (546 MB, or your own) for TorchScript, and its runner, which is built from source: some three minutes
    /// on two cores, and it takes the sources of modelless, cargo and a C++ compiler.
    Torch,
}

impl Known {
    fn engine(self) -> Engine {
        match self {
            Self::Onnx => Engine::Onnx,
            Self::Openvino => Engine::Openvino,
            Self::Torch => Engine::Torch,
        }
    }
}

/// Which library to use, for commands that run models.
#[derive(Args, Clone, Debug)]
pub(crate) struct LibraryOption {
    /// The libonnxruntime.so to use, or its folder. Otherwise ORT_DYLIB_PATH, otherwise the installed one.
    #[arg(long = "onnxruntime", value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Install(Install { engine, torch, json }) => {
            let path = match engine {
                Known::Onnx | Known::Openvino => install(engine.engine())?,
                Known::Torch => torch::install(&torch)?,
            };
            if json {
                let version = match engine {
                    Known::Onnx => library::ONNX_VERSION,
                    Known::Openvino => library::OPENVINO_VERSION,
                    Known::Torch => library::TORCH_VERSION,
                };
                out::json(&json!({"engine": engine.engine().name(), "version": version, "library": path}))
            } else {
                out::line(path.display())
            }
        }
        Command::List(options) => list(options),
    }
}

fn list(List { json, library }: List) -> anyhow::Result<()> {
    let onnx = Library::locate(library.path, &default_engines_dir());
    let (path, source) = match &onnx {
        Ok(found) => (Ok(found.path.clone()), Some(found.source)),
        Err(error) => (Err(error.to_string()), None),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = {
        let engines = set(&path, half_of_memory(), (false, false, 0), &Servers::new())?;
        runtime.block_on(async {
            let found = engines.engines().await;
            engines.shutdown().await;
            found
        })
    };
    let mut rows = Vec::new();
    for (engine, availability) in found {
        let (version, library, reason) = match availability {
            Availability::Ready { version, library } => (Some(version), Some(library), None),
            Availability::Unavailable { reason } => (None, None, Some(reason)),
        };
        let source = match (engine, source, &library) {
            (Engine::Onnx, Some(Source::Option), _) => Some("--onnxruntime"),
            (Engine::Onnx, Some(Source::Environment), _) => Some("ORT_DYLIB_PATH"),
            (Engine::Remote, ..) | (_, _, None) => None,
            _ => Some("installed"),
        };
        // What ONNX Runtime could compute on besides the CPU.
        let mut lacking = Vec::new();
        if let (Engine::Onnx, Ok(path), None) = (engine, &path, &reason) {
            for processor in [Processor::Cuda(0), Processor::Tensorrt(0)] {
                lacking.push((processor, library::has_processor(path, processor).err()));
            }
        }
        rows.push((engine, version, library.filter(|path| !path.is_empty()), source, reason, lacking));
    }
    if json {
        let row = |(engine, version, library, source, reason, processors): &Row| {
            let processors: Vec<_> = processors
                .iter()
                .map(|(processor, why)| json!({"processor": processor.to_string(), "unavailable": why}))
                .collect();
            json!({
                "engine": engine.name(), "version": version, "library": library, "source": source,
                "unavailable": reason, "processors": processors,
            })
        };
        return out::json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    for (engine, version, library, source, reason, processors) in &rows {
        match (version, reason) {
            (Some(version), _) => {
                let library = library.as_deref().unwrap_or_default();
                let source = source.map(|source| format!(" ({source})")).unwrap_or_default();
                out::line(format!("{:<9} {version}  {library}{source}", engine.name()))?;
            }
            (None, reason) => {
                let reason = reason.as_deref().unwrap_or_default();
                out::line(format!("{:<9} not available: {reason}", engine.name()))?;
            }
        }
        for (processor, why) in processors {
            let why = why.as_deref().unwrap_or("its library and the device are there");
            out::line(format!("{:<9} {processor}: {why}", ""))?;
        }
    }
    Ok(())
}

type Row = (
    Engine,
    Option<String>,
    Option<String>,
    Option<&'static str>,
    Option<String>,
    Vec<(Processor, Option<String>)>,
);

/// The library to use, installed first if there is none. One that the user named is never replaced.
pub(crate) fn library(option: &LibraryOption) -> anyhow::Result<PathBuf> {
    match Library::locate(option.path.clone(), &default_engines_dir()) {
        Ok(found) => Ok(found.path),
        Err(LibraryError::Missing(_)) => install(Engine::Onnx),
        Err(error @ LibraryError::NotThere { .. }) => Err(crate::exit::usage(error.to_string())),
    }
}

fn install(engine: Engine) -> anyhow::Result<PathBuf> {
    let title = match engine {
        Engine::Onnx => "ONNX Runtime",
        Engine::Openvino => "OpenVINO",
        Engine::Torch => "libtorch",
        Engine::Remote => "nothing",
    };
    let mut phase = Phase::start(title);
    let mut fetched = false;
    let path = install::install(engine, &default_engines_dir(), &mut |step| match step {
        Progress::Downloading { bytes, of } => {
            fetched = true;
            phase.at(&format!("downloading {title}"), "");
            phase.bytes(bytes, of);
        }
        Progress::Verifying => phase.at("checking its digest", ""),
        Progress::Unpacking => phase.at("unpacking", ""),
        Progress::Done => {}
    })
    .with_context(|| format!("{title} was not installed"))?;
    let done = if fetched { "installed" } else { "found" };
    phase.done(&format!("{title} {done}"));
    Ok(path)
}

/// Servers that may be reached, and files about them, by their `HOST:PORT`.
pub(crate) type Servers = BTreeMap<String, ServerFiles>;

/// All engines there are, to measure with; their runners are this program. None may take more than this; all stand back by `nice`.
pub(crate) fn engine(
    library: PathBuf,
    (memory, nice): (Bytes, u8),
    gpus: &[Gpu],
    servers: &Servers,
) -> anyhow::Result<Arc<EngineSet>> {
    // It loads one model after another, and nobody waits.
    set(&Ok(library), memory, (false, !gpus.is_empty(), nice), servers).map(Arc::new)
}

/// Engines to serve with: no runner may take more than there is for all of them.
pub(crate) fn serving(
    library: PathBuf,
    memory: Bytes,
    gpus: &[Gpu],
    servers: &Servers,
) -> anyhow::Result<Arc<EngineSet>> {
    set(&Ok(library), memory, (true, !gpus.is_empty(), 0), servers).map(Arc::new)
}

/// Engines that members of crashed batches are rerun in: apart from the others, and empty but for that time.
pub(crate) fn quarantine(
    library: PathBuf,
    memory: Bytes,
    gpus: &[Gpu],
    servers: &Servers,
) -> anyhow::Result<Arc<EngineSet>> {
    set(&Ok(library), memory, (false, !gpus.is_empty(), 0), servers).map(Arc::new)
}

fn set(
    onnx: &Result<PathBuf, String>,
    memory: Bytes,
    (spare, gpus, nice): (bool, bool, u8),
    servers: &Servers,
) -> anyhow::Result<EngineSet> {
    let folder = default_engines_dir();
    Ok(EngineSet::new(|engine| {
        let config = match engine {
            Engine::Onnx => ProcessConfig { library: onnx.clone()?, ..ProcessConfig::default() },
            Engine::Openvino | Engine::Torch | Engine::Remote => ProcessConfig::installed(engine, &folder)?,
        };
        let servers = if engine == Engine::Remote { servers.clone() } else { Servers::new() };
        // A remote server's runner cannot be started before it is known which server that is.
        let spare = spare && config.spare;
        Ok(ProcessConfig { memory_limit: Some(memory), spare, servers, nice, gpu: gpus, ..config })
    })?)
}

/// How models are confined on this machine: said at once, and what is not as it should be returned as warnings.
pub(crate) async fn confinement(engines: &EngineSet) -> Vec<String> {
    // Starts a runner of each engine, which tries. Why one did not start is told by whoever asks next.
    engines.engines().await;
    let known: Vec<_> =
        Engine::ALL.into_iter().filter_map(|kind| Some((kind, engines.get(kind)?.confinement()?))).collect();
    let whole: Vec<_> =
        known.iter().filter(|(_, found)| found.is_whole()).map(|(kind, _)| kind.to_string()).collect();
    if let Some((_, confinement)) = known.iter().find(|(_, found)| found.is_whole()) {
        eprintln!("models run confined on {}: {confinement}", whole.join(", "));
    }
    let told = |(kind, found): (Engine, Confinement)| {
        let warnings = found.warnings().into_iter();
        warnings.map(move |warning| format!("{kind}: {warning}")).collect::<Vec<_>>()
    };
    known.into_iter().flat_map(told).collect()
}
