//! A virtual environment with the clients that end-to-end tests use, as `tests/requirements.txt` pins them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{output, program, run};
use crate::say;

/// Makes it, or finds it as it should be, and gives its `python`.
pub(super) fn ensure(root: &Path, target: &Path) -> Result<PathBuf> {
    let requirements = root.join("tests/requirements.txt");
    let wanted = fs::read_to_string(&requirements).context("reading tests/requirements.txt")?;
    let version = output(program(root, "python3").arg("--version"))?;
    let wanted = format!("# {version}{wanted}");

    let folder = target.join("python-clients");
    let python = folder.join("bin/python");
    // Written last, so a venv that was cut short is made again.
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && python.exists() {
        return Ok(python);
    }
    say("making a virtual environment");
    run(program(root, "python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    run(program(root, &python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&requirements))
    .context("the packages come from the index that pip is set up with")?;
    fs::write(stamp, wanted)?;
    Ok(python)
}
