//! The Python package in `python/`: built as a wheel, installed, checked for types and old versions of Python, and tested against a
//! real server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use modelless_testkit::process;

use super::python;
use crate::command::{program, run, shown};

/// Its folder in the checkout.
const FOLDER: &str = "python";
/// The oldest Python that it runs on, as `vermin` writes it.
const OLDEST: &str = "-t=3.9-";
/// Tests that import torch, which has an environment of its own.
const LIVE_MODULES: &str = "tests/test_torch.py";
/// Its tests take far less, most of it the server's first start.
const TESTS_WITHIN: Duration = Duration::from_mins(3);

/// A Python with the package as it is now, installed from its wheel, and what it is tested with.
pub(crate) fn installed(root: &Path, target: &Path) -> Result<PathBuf> {
    let python = python::sdk(root, target)?;
    let wheel = built(root, target, &python)?;
    install(root, &python, &wheel)?;
    Ok(python)
}

fn built(root: &Path, target: &Path, python: &Path) -> Result<PathBuf> {
    let wheels = target.join("python-wheels");
    run(pip(root, python, &["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir"])
        .arg(&wheels)
        .arg(root.join(FOLDER)))?;
    wheel(&wheels)
}

fn install(root: &Path, python: &Path, wheel: &Path) -> Result<()> {
    run(pip(root, python, &["install", "--no-deps", "--no-index", "--force-reinstall"]).arg(wheel))
}

fn pip(root: &Path, python: &Path, args: &[&str]) -> Command {
    let mut pip = program(root, python);
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(args);
    pip
}

fn wheel(folder: &Path) -> Result<PathBuf> {
    let name = format!("modelless-{}-py3-none-any.whl", env!("CARGO_PKG_VERSION"));
    let wheel = folder.join(name);
    ensure!(
        wheel.is_file(),
        "python/ does not build {}: its version must be that of the workspace",
        wheel.display()
    );
    Ok(wheel)
}

/// Everything that is checked of it.
pub(super) fn test(root: &Path, target: &Path, binary: &Path) -> Result<()> {
    let python = python::sdk(root, target)?;
    let wheel = built(root, target, &python)?;
    install(root, &python, &wheel)?;
    let folder = root.join(FOLDER);
    let cache = target.join("python-mypy");
    let mut mypy = module(&folder, &python, "mypy");
    run(mypy.args(["--strict", "--cache-dir"]).arg(cache).args(["src", "tests", "bench"]))?;
    let vermin = python.with_file_name("vermin"); // it has no form for `python -m`
    run(program(&folder, vermin).args([OLDEST, "--quiet", "--no-tips", "src"]))?;
    pytest(&folder, &python, binary, &["--ignore", LIVE_MODULES])?;

    let with_torch = python::torch(root, target)?;
    install(root, &with_torch, &wheel)?;
    pytest(&folder, &with_torch, binary, &[LIVE_MODULES])
}

fn module(folder: &Path, python: &Path, name: &str) -> Command {
    let mut module = program(folder, python);
    module.args(["-B", "-m", name]);
    module
}

fn pytest(folder: &Path, python: &Path, binary: &Path, args: &[&str]) -> Result<()> {
    let mut tests = module(folder, python, "pytest");
    tests.args(args).env("MODELLESS_BIN", binary).env_remove("MODELLESS_SERVER").env("OMP_NUM_THREADS", "1");
    within(&mut tests, TESTS_WITHIN)
}

/// Runs it for so long at most.
fn within(command: &mut Command, time: Duration) -> Result<()> {
    let mut child = command.spawn().with_context(|| format!("running {}", shown(command)))?;
    match process::wait(&mut child, time)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("`{}` failed ({status})", shown(command)),
        None => {
            process::signal(&child, process::Signal::INT)?; // it stops its server then
            if process::wait(&mut child, Duration::from_secs(40))?.is_none() {
                child.kill()?;
            }
            bail!("`{}` did not end within {time:?}", shown(command))
        }
    }
}
