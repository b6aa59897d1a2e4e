//! Running other programs: in the root, with a message that says what was run when it fails.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// `cargo` in the root.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = modelless_testkit::server::cargo();
    command.current_dir(root);
    command
}

pub(crate) fn program(root: &Path, name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root);
    command
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    std::iter::once(name)
        .chain(command.get_args())
        .map(|part| part.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs it with our own output; fails when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status =
        command.stdin(Stdio::null()).status().with_context(|| format!("running {}", shown(command)))?;
    ensure!(status.success(), "`{}` failed ({status})", shown(command));
    Ok(())
}

/// Runs it and gives its standard output; its errors go where ours go.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("running {}", shown(command)))?;
    ensure!(output.status.success(), "`{}` failed ({})", shown(command), output.status);
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote no UTF-8", shown(command)))
}

/// Whether it can be started and succeeds, without a word.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Runs it, passes its standard error on line by line, and gives back the lines from the last that `from`
/// accepts: how nextest's closing lines come to stand at the very end.
pub(crate) fn run_keeping_tail(
    command: &mut Command,
    from: impl Fn(&str) -> bool,
) -> Result<(bool, Vec<String>)> {
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {}", shown(command)))?;
    let stderr = child.stderr.take().context("stderr is piped; this is a bug")?;
    let mut kept = Vec::new();
    for line in BufReader::new(stderr).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        if from(&line) {
            kept.clear();
        }
        if from(&line) || !kept.is_empty() {
            kept.push(line);
        }
    }
    Ok((child.wait()?.success(), kept))
}

pub(crate) fn metadata(root: &Path) -> Result<Value> {
    let text = output(cargo(root).args(["metadata", "--format-version", "1", "--locked"]))?;
    serde_json::from_str(&text).context("cargo metadata wrote no JSON")
}

/// Where cargo builds to.
pub(crate) fn target_dir(root: &Path) -> Result<std::path::PathBuf> {
    let text = output(cargo(root).args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata wrote no JSON")?;
    match metadata["target_directory"].as_str() {
        Some(folder) => Ok(folder.into()),
        None => bail!("cargo metadata names no target directory"),
    }
}
