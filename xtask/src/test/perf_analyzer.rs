//! NVIDIA's load generator `perf_analyzer`, as its wheel has it.
//!
//! It needs a C library of 2.38. Where the system's is older, the loader and libraries of a newer Debian stand beside it in a folder
//! of their own; the system stays as it is.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::command::{program, shown, succeeds};
use crate::say;

/// What is wanted, pinned by its digest.
pub(crate) const PIN: &str = "tests/perf-analyzer.txt";
/// Whose C library is new enough.
const DEBIAN: &str = "trixie";
/// What it links, and what that links.
const LIBRARIES: [&str; 6] = ["libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libssl3t64", "libzstd1"];
/// The systems that the wheels are built for.
const PLATFORMS: [&str; 2] = ["manylinux_2_38_x86_64", "manylinux_2_17_x86_64"];
/// Where the library of CUDA's runtime comes to lie, and its name without a version, by which it is looked for.
const CUDA: &str = "nvidia/cuda_runtime/lib";
const LOADER: &str = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";

/// The program and the folder that tells its version, or why it cannot be had here.
pub(crate) struct PerfAnalyzer {
    pub(crate) program: PathBuf,
    pub(crate) package: PathBuf,
}

/// Fetches it once.
pub(crate) fn ensure(root: &Path, target: &Path) -> Result<Result<PerfAnalyzer, String>> {
    let folder = target.join("perf-analyzer");
    let (package, started) = (folder.join("package"), folder.join("perf_analyzer"));
    let wanted = fs::read_to_string(root.join(PIN)).with_context(|| format!("reading {PIN}"))?;
    let stamp = folder.join("installed.txt");
    let there = || PerfAnalyzer { program: started.clone(), package: package.clone() };
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && runs(root, &started) {
        return Ok(Ok(there()));
    }
    if !cfg!(target_arch = "x86_64") {
        return Ok(Err("perf_analyzer is built for x86_64 only".to_owned()));
    }
    say("fetching perf_analyzer");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let mut pip = program(root, "python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]);
    pip.args(["--retries", "1", "--timeout", "15", "--only-binary", ":all:"]);
    pip.args(PLATFORMS.iter().flat_map(|platform| ["--platform", platform]));
    pip.arg("--target").arg(&package).args(["-r", PIN]);
    if let Err(why) = quietly(&mut pip) {
        return Ok(Err(format!("its wheel cannot be had: {why}")));
    }
    let cuda = package.join(CUDA);
    symlink("libcudart.so.12", cuda.join("libcudart.so")).context("its library of CUDA's runtime")?;
    let binary = package.join("perf_analyzer/bin/perf_analyzer");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
    wrapper(&started, &format!("exec env LD_LIBRARY_PATH='{}' '{}'", cuda.display(), binary.display()))?;
    if !runs(root, &started) {
        let system = folder.join("system");
        if let Err(why) = libraries(root, &folder, &system) {
            return Ok(Err(format!(
                "it needs a C library of 2.38, and one of Debian {DEBIAN} cannot be had: {why}"
            )));
        }
        let (loader, libraries) = (system.join(LOADER), system.join("usr/lib/x86_64-linux-gnu"));
        let line = format!(
            "exec '{}' --library-path '{}:{}' '{}'",
            loader.display(),
            libraries.display(),
            cuda.display(),
            binary.display()
        );
        wrapper(&started, &line)?;
        if !runs(root, &started) {
            return Ok(Err("it does not start, with this system's libraries or with newer ones".to_owned()));
        }
    }
    fs::write(stamp, wanted)?;
    Ok(Ok(there()))
}

fn runs(root: &Path, started: &Path) -> bool {
    succeeds(program(root, started).arg("--version"))
}

fn wrapper(at: &Path, line: &str) -> Result<()> {
    fs::write(at, format!("#!/bin/sh\n{line} \"$@\"\n"))?;
    Ok(fs::set_permissions(at, fs::Permissions::from_mode(0o755))?)
}

/// Has `apt` bring the packages of the newer release from where it brings this one's, checked against Debian's keys, and unpacks them.
/// Its lists and its cache are our own: nothing is installed.
fn libraries(root: &Path, folder: &Path, system: &Path) -> Result<(), String> {
    let (parts, debs) = (folder.join("apt/parts"), folder.join("apt/debs"));
    let made = [&parts, &debs, &folder.join("apt/lists/partial"), &folder.join("apt/cache/archives/partial")]
        .iter()
        .try_for_each(fs::create_dir_all);
    made.map_err(|error| error.to_string())?;
    let sources = fs::read_to_string("/etc/apt/sources.list.d/debian.sources")
        .map_err(|error| format!("this system's sources of packages cannot be read: {error}"))?;
    fs::write(parts.join("newer.sources"), newer(&sources)?).map_err(|error| error.to_string())?;
    let apt = |args: &[&str]| {
        let mut apt = Command::new("apt-get");
        for (name, value) in [
            ("Dir::Etc::SourceList", Path::new("/dev/null")),
            ("Dir::Etc::SourceParts", &parts),
            ("Dir::State::Lists", &folder.join("apt/lists")),
            ("Dir::State::status", Path::new("/dev/null")),
            ("Dir::Cache", &folder.join("apt/cache")),
            ("APT::Sandbox::User", Path::new("root")),
        ] {
            apt.arg("-o").arg(format!("{name}={}", value.display()));
        }
        quietly(apt.current_dir(&debs).arg("-q").args(args))
    };
    apt(&["update"])?;
    apt(&[&["download"], &LIBRARIES[..]].concat())?;
    let packages = fs::read_dir(&debs).map_err(|error| error.to_string())?;
    for package in packages.filter_map(Result::ok) {
        quietly(program(root, "dpkg-deb").arg("-x").arg(package.path()).arg(system))?;
    }
    // The lists are large and of no more use.
    fs::remove_dir_all(folder.join("apt")).map_err(|error| error.to_string())
}

/// The first source of this system, for the newer release.
fn newer(sources: &str) -> Result<String, String> {
    let first = sources.split("\n\n").find(|stanza| stanza.lines().any(|line| line.starts_with("URIs:")));
    let first = first.ok_or("this system's sources of packages name none")?;
    let line = |line: &str| {
        if line.starts_with("Suites:") { format!("Suites: {DEBIAN}") } else { line.to_owned() }
    };
    Ok(first.lines().map(line).collect::<Vec<_>>().join("\n") + "\n")
}

/// Runs it, and in words why it failed: the last line that it wrote. Addresses of servers stay out of it, since it may be written down.
fn quietly(command: &mut Command) -> Result<(), String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{}: {error}", name(command)))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    let words: Vec<&str> = last.split_whitespace().filter(|word| !word.contains("://")).collect();
    Err(format!("`{}` failed: {}", name(command), words.join(" ")))
}

fn name(command: &Command) -> String {
    shown(command).split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_release_comes_from_where_this_one_comes() {
        let sources = "Types: deb\nURIs: http://x/debian\nSuites: old old-updates\nSigned-By: /k\n\nTypes: deb\nURIs: http://x/security\nSuites: old-security\n";
        let wanted = "Types: deb\nURIs: http://x/debian\nSuites: trixie\nSigned-By: /k\n";
        assert_eq!(newer(sources).unwrap(), wanted);
        assert!(newer("").is_err());
    }

    #[test]
    fn why_it_failed_is_its_last_line_without_addresses() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo no http://server/x today >&2; exit 3"]);
        assert_eq!(quietly(&mut command).unwrap_err(), "`sh` failed: no today");
    }
}
