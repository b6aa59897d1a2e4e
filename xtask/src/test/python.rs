//! Virtual environments: the clients that end-to-end tests use, our own, and a server of others, each as its requirements pin it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::system::torch_python;
use crate::command::{output, program, run};
use crate::say;

/// The Python that environments are made of, where nothing else is asked for.
const PYTHON: &str = "python3";

/// The clients.
pub(crate) fn ensure(root: &Path, target: &Path) -> Result<PathBuf> {
    environment(root, &target.join("python-clients"), "tests/requirements.txt")
}

/// What the package of our own is built and tested with.
pub(super) fn sdk(root: &Path, target: &Path) -> Result<PathBuf> {
    environment(root, &target.join("python-sdk"), "python/requirements-dev.txt")
}

/// What the package is tested with beside a torch that the system brings.
pub(super) fn torch(root: &Path, target: &Path) -> Result<PathBuf> {
    let python = torch_python(root)
        .context("no Python here has torch: `cargo xtask test --only system` installs one")?;
    environment_of(
        root,
        python,
        &["--system-site-packages"],
        &target.join("python-torch"),
        "python/requirements-torch.txt",
    )
}

/// The server of others.
pub(super) fn peer(root: &Path, target: &Path) -> Result<PathBuf> {
    environment(root, &target.join("python-peer"), "crates/engine/tests/peer/requirements.txt")
}

/// The server that answers as EC2 does.
pub(crate) fn moto(root: &Path, target: &Path) -> Result<PathBuf> {
    environment(root, &target.join("python-moto"), "crates/fleet/tests/moto/requirements.txt")
}

/// What stands for an API server of Kubernetes.
pub(super) fn kubernetes(root: &Path, target: &Path) -> Result<PathBuf> {
    environment(root, &target.join("python-kubernetes"), "crates/fleet/tests/kubernetes/requirements.txt")
}

/// What asks a server by its OpenAPI document.
pub(crate) fn schemathesis(root: &Path, target: &Path) -> Result<PathBuf> {
    environment(root, &target.join("python-schemathesis"), "tests/schemathesis/requirements.txt")
}

/// What the recipes of demos run with.
pub(crate) fn recipes(root: &Path, target: &Path) -> Result<PathBuf> {
    environment(root, &target.join("python-demos"), "examples/imagenet/tools.txt")
}

/// Makes one, or finds it as it should be, and gives its `python`.
fn environment(root: &Path, folder: &Path, requirements: &str) -> Result<PathBuf> {
    environment_of(root, PYTHON, &[], folder, requirements)
}

fn environment_of(
    root: &Path,
    base: &str,
    options: &[&str],
    folder: &Path,
    requirements: &str,
) -> Result<PathBuf> {
    let requirements = root.join(requirements);
    let wanted =
        fs::read_to_string(&requirements).with_context(|| format!("reading {}", requirements.display()))?;
    let version = output(program(root, base).arg("--version"))?;
    let wanted = format!("# {version}{wanted}");

    let python = folder.join("bin/python");
    // Written last, so a venv that was cut short is made again.
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && python.exists() {
        return Ok(python);
    }
    say("making a virtual environment");
    run(program(root, base).args(["-m", "venv", "--clear"]).args(options).arg(folder))?;
    run(program(root, &python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&requirements))
    .context("the packages come from the index that pip is set up with")?;
    fs::write(stamp, wanted)?;
    Ok(python)
}
