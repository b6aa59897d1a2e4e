//! Whether the packages that demos are made of can be had here, and the environment that their recipes run in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Result;

use super::python;
use crate::command::program;

/// Fetched for every run of the demos' tests, or a like one: small, and pinned by its digest.
const PROBE: &str = "examples/vad/models.txt";

/// Python with the recipes' tools, or why packages cannot be had.
pub(super) fn ensure(root: &Path, target: &Path) -> Result<Result<PathBuf, String>> {
    let folder = target.join("demo-packages");
    fs::create_dir_all(&folder)?;
    let mut pip = program(root, "python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]);
    pip.args(["--retries", "1", "--timeout", "15", "--dest"]).arg(&folder).args(["-r", PROBE]);
    let output = pip.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("pip said nothing");
        return Ok(Err(format!("packages that demos are made of cannot be had here: {}", why.trim())));
    }
    python::recipes(root, target).map(Ok)
}
