//! `modelless engine`: the inference library, found or installed.

use crate::out;
use crate::progress::Phase;
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use modelless_engine::install::{Progress, install_onnx};
use modelless_engine::library::{ONNX_VERSION, Source};
use modelless_engine::{
    Availability, Engine, Library, LibraryError, ProcessConfig, ProcessEngine, default_engines_dir,
};
use serde_json::json;
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
    /// ONNX Runtime.
    Onnx,
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
        Command::Install(Install { engine: Known::Onnx, json }) => {
            let path = install()?;
            if json {
                out::json(&json!({"engine": "onnx", "version": ONNX_VERSION, "library": path}))
            } else {
                out::line(path.display())
            }
        }
        Command::List(options) => list(options),
    }
}

fn list(List { json, library }: List) -> anyhow::Result<()> {
    let (found, availability) = match Library::locate(library.path, &default_engines_dir()) {
        Ok(found) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let availability = {
                let engine = engine(found.path.clone())?;
                runtime.block_on(engine.check())
            };
            (Some(found), availability)
        }
        Err(error) => (None, Availability::Unavailable { reason: error.to_string() }),
    };
    let source = found.as_ref().map(|found| match found.source {
        Source::Option => "--onnxruntime",
        Source::Environment => "ORT_DYLIB_PATH",
        Source::Installed => "installed",
    });
    let (version, reason) = match &availability {
        Availability::Ready { version, .. } => (Some(version), None),
        Availability::Unavailable { reason } => (None, Some(reason)),
    };
    if json {
        let library = found.as_ref().map(|found| &found.path);
        return out::json(&json!([{
            "engine": "onnx", "version": version, "library": library, "source": source, "unavailable": reason,
        }]));
    }
    match (version, reason) {
        (Some(version), _) => {
            let path = found.map(|found| found.path.display().to_string()).unwrap_or_default();
            out::line(format!("onnx  {version}  {path} ({})", source.unwrap_or_default()))
        }
        (None, reason) => out::line(format!("onnx  not available: {}", reason.map_or("", String::as_str))),
    }
}

/// The library to use, installed first if there is none. One that the user named is never replaced.
pub(crate) fn library(option: &LibraryOption) -> anyhow::Result<PathBuf> {
    match Library::locate(option.path.clone(), &default_engines_dir()) {
        Ok(found) => Ok(found.path),
        Err(LibraryError::Missing(_)) => install(),
        Err(error @ LibraryError::NotThere { .. }) => Err(crate::exit::usage(error.to_string())),
    }
}

fn install() -> anyhow::Result<PathBuf> {
    let mut phase = Phase::start("ONNX Runtime");
    let mut fetched = false;
    let path = install_onnx(&default_engines_dir(), &mut |step| match step {
        Progress::Downloading { bytes, of } => {
            fetched = true;
            phase.at("downloading ONNX Runtime", "");
            phase.bytes(bytes, of);
        }
        Progress::Verifying => phase.at("checking its digest", ""),
        Progress::Unpacking => phase.at("unpacking", ""),
        Progress::Done => {}
    })
    .context("ONNX Runtime was not installed")?;
    let done = if fetched { "ONNX Runtime installed" } else { "ONNX Runtime found" };
    phase.done(done);
    Ok(path)
}

/// An engine whose runners are this program.
pub(crate) fn engine(library: PathBuf) -> anyhow::Result<Arc<ProcessEngine>> {
    let config = ProcessConfig { library, ..ProcessConfig::default() };
    Ok(Arc::new(ProcessEngine::new(config)?))
}
