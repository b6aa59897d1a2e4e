//! `modelless engine install torch`: libtorch, and the runner that is linked to it.
//!
//! The library is fetched like every other (or the user's own is taken, which may compute on a GPU); the runner is built
//! from its sources, in a folder beside the library that later builds go on from.

use crate::progress::Phase;
use anyhow::{Context, bail, ensure};
use clap::Args;
use modelless_engine::library::{TORCH_VERSION, torch_runner};
use modelless_engine::{Availability, Engine as _, ProcessConfig, ProcessEngine, default_engines_dir};
use modelless_types::Engine;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What only the installation of libtorch takes.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// With torch: a libtorch of your own, such as site-packages/torch (for GPUs), in place of the fetched one.
    #[arg(long, value_name = "DIR")]
    libtorch: Option<PathBuf>,
    /// With torch: the sources of modelless, whose runners/torch is built. Otherwise this folder or one above it.
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
}

/// Fetches what is missing, builds the runner, and sees whether it runs. The runner.
pub(super) fn install(options: &Options) -> anyhow::Result<PathBuf> {
    let source = source(options.source.as_deref())?;
    let folder = default_engines_dir().join("torch").join(TORCH_VERSION);
    let libtorch = if let Some(own) = &options.libtorch {
        own.canonicalize().with_context(|| format!("there is no libtorch at {}", own.display()))?
    } else {
        super::install(Engine::Torch)?;
        stub(&folder.join("lib"))?;
        folder.clone()
    };
    ensure!(
        libtorch.join("lib/libtorch_cpu.so").is_file() && libtorch.join("include").is_dir(),
        "{} is no libtorch: it has no lib/libtorch_cpu.so or no include",
        libtorch.display()
    );
    let runner = build(&source, &folder, &libtorch, options.libtorch.is_some())?;
    let check =
        ProcessConfig::installed(Engine::Torch, &default_engines_dir()).map_err(anyhow::Error::msg)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(ProcessEngine::new(check)?.check()) {
        Availability::Ready { .. } => Ok(runner),
        Availability::Unavailable { reason } => bail!("the runner was built but does not run: {reason}"),
    }
}

/// The folder of the runner's sources.
fn source(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir()?;
    let inside =
        |root: &Path| Some(root.join("runners/torch")).filter(|dir| dir.join("Cargo.toml").is_file());
    let found = match named {
        Some(root) => inside(root),
        None => here.ancestors().find_map(inside),
    };
    found.context(
        "the torch runner is built from source, and its sources are not here: run this in a checkout of modelless, or \
         name one with --source DIR",
    )
}

/// The wheel's own `libtorch.so` wants CUDA's libraries as well; this one only what is there.
fn stub(lib: &Path) -> anyhow::Result<()> {
    let stub = lib.join("libtorch.so");
    if stub.is_file() {
        return Ok(());
    }
    let made = Command::new("cc")
        .args(["-shared", "-o"])
        .arg(&stub)
        .args(["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN", "-L"])
        .arg(lib)
        .args(["-l:libtorch_cpu.so", "-l:libc10.so"])
        .stdin(Stdio::null())
        .output()
        .context("a C compiler (`cc`) is needed")?;
    ensure!(made.status.success(), "cc failed: {}", String::from_utf8_lossy(&made.stderr).trim());
    Ok(())
}

fn build(source: &Path, folder: &Path, libtorch: &Path, own: bool) -> anyhow::Result<PathBuf> {
    let phase = Phase::start("building the torch runner");
    let target = folder.parent().unwrap_or(folder).join("build");
    let lib = libtorch.join("lib");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(source.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("LIBTORCH", libtorch)
        .env("LIBTORCH_INCLUDE", libtorch)
        .env("LIBTORCH_LIB", libtorch)
        .env("LIBTORCH_CXX11_ABI", "1")
        .stdin(Stdio::null());
    if own {
        // The fetched one lies where the runner looks by itself; this one stays where it is.
        cargo.env("MODELLESS_LIBTORCH_RPATH", &lib);
    }
    let built = cargo.output().context("`cargo` is needed to build the torch runner")?;
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr);
        let start = said.ceil_char_boundary(said.len().saturating_sub(2_000));
        bail!("cargo could not build the torch runner; it said:\n{}", said[start..].trim());
    }
    let runner = torch_runner(&default_engines_dir());
    fs::create_dir_all(runner.parent().unwrap_or(folder))?;
    // In one step, so that a runner that is being started is the old one or the new one.
    let new = runner.with_extension("new");
    fs::copy(target.join("release/modelless-runner-torch"), &new)?;
    fs::rename(&new, &runner)?;
    phase.done("torch runner built");
    Ok(runner)
}
