//! `cargo xtask fuzz`: gives what strangers can send to what reads it, in millions of forms, guided by which code each form reaches.
//!
//! The targets stand in the crates that they try (`fuzzing.rs`), their fuzzer in `fuzz/`. What it keeps lies in `fuzz/corpus`, made
//! small again after each run, and is given to the same targets by the ordinary tests. Figures are written as measurements are.

mod corpus;
mod log;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::command::{cargo, output, run as run_command, shown, succeeds};
use crate::measure::host::Load;
use crate::measure::record::{self, Figure};
use crate::measure::{Check, Outcome};
use crate::{root, say};
use log::Seen;

/// Something that reads what strangers send.
struct Target {
    name: &'static str,
    what: &'static str,
    /// The largest input: what is larger shows nothing new, and takes long.
    longest: usize,
}

const TARGETS: &[Target] = &[
    Target {
        name: "oip_json",
        what: "requests of the Open Inference Protocol in JSON, and their rows",
        longest: 2_048,
    },
    Target {
        name: "oip_binary",
        what: "the same with tensors as bytes behind the JSON, or nothing but bytes",
        longest: 2_048,
    },
    Target { name: "oip_grpc", what: "the same as messages over gRPC", longest: 2_048 },
    Target { name: "answers", what: "what a node answers for a task of tensors", longest: 1_024 },
    Target {
        name: "wire_frames",
        what: "what a gateway, node or scheduler hears from another, whole and in pieces",
        longest: 8_192,
    },
    Target { name: "image", what: "JPEG and PNG into a model's input", longest: 4_096 },
    Target { name: "tensor", what: "a task's tensors as JSON and as bytes", longest: 1_024 },
    Target { name: "text", what: "texts into tokens", longest: 512 },
    Target {
        name: "goals",
        what: "goals as parameters, in the query string, headers and JSON",
        longest: 512,
    },
];

const SECONDS: u64 = 600;
/// An input that takes longer is a finding.
const SECONDS_EACH: u64 = 10;
/// Memory of the fuzzer; what a target may hold for an input it bounds itself. And one piece of memory: a frame of 256 MiB that was
/// begun gets room at once.
const MEMORY_MB: [u64; 2] = [2_560, 320];

/// `--cfg fuzzing`, counters and AddressSanitizer need flags that a released compiler has, but does not promise to keep.
const UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

pub(crate) fn run(args: &[&str]) -> Result<()> {
    let Options { seconds, targets } = parse(args)?;
    let root = root()?;
    ensure!(
        succeeds(cargo(&root).args(["fuzz", "--version"])),
        "cargo-fuzz is not installed; `cargo install --locked cargo-fuzz` installs it (it needs a C++ compiler)"
    );
    let mut found = Vec::new();
    for target in targets {
        say(format!("\n--- {}: {}", target.name, target.what));
        let seen = fuzz(&root, target, seconds)?;
        if let Some(artifact) = seen {
            say(format!("FOUND: cargo fuzz run --fuzz-dir fuzz {} {}", target.name, artifact.display()));
            say("mend it, and keep the input in `fuzz/seeds`, so that the tests try it for ever");
            found.push(target.name);
        }
    }
    ensure!(found.is_empty(), "found something: {}", found.join(", "));
    Ok(())
}

struct Options {
    seconds: u64,
    targets: Vec<&'static Target>,
}

fn parse(args: &[&str]) -> Result<Options> {
    let mut options = Options { seconds: SECONDS, targets: Vec::new() };
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        if arg == "--seconds" {
            let seconds = args.next().and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
            options.seconds = seconds.context("--seconds takes how long each target runs, such as 600")?;
            continue;
        }
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        match TARGETS.iter().find(|target| target.name == arg) {
            Some(target) => options.targets.push(target),
            None => bail!("`{arg}` is no fuzz target: {}; or --seconds N", names.join(", ")),
        }
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.iter().collect();
    }
    Ok(options)
}

/// Runs one target, keeps its corpus and its figures, and gives the input that broke it, if one did.
fn fuzz(root: &Path, target: &Target, seconds: u64) -> Result<Option<PathBuf>> {
    let name = target.name;
    run_command(fuzzer(root).args(["build", "--fuzz-dir", "fuzz", name]))?;
    let (kept, seeds) = (format!("fuzz/corpus/{name}"), format!("fuzz/seeds/{name}"));
    std::fs::create_dir_all(root.join(&kept))?;
    let mut command = fuzzer(root);
    command.args(["run", "--fuzz-dir", "fuzz", name, &kept, &seeds, "--"]);
    let [all, one] = MEMORY_MB;
    command.args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={}", target.longest),
        format!("-timeout={SECONDS_EACH}"),
        format!("-rss_limit_mb={all}"),
        format!("-malloc_limit_mb={one}"),
        "-print_final_stats=1".to_owned(),
    ]);
    let dictionary = format!("fuzz/dictionaries/{name}.dict");
    if root.join(&dictionary).is_file() {
        command.arg(format!("-dict={dictionary}"));
    }
    let before = Load::read()?;
    let seen = watch(&mut command)?;
    let after = Load::read()?;
    let found = seen.artifact.as_ref().map(PathBuf::from);
    if found.is_none() {
        ensure!(seen.executions > 0, "the fuzzer of {name} ended without having run anything");
        run_command(
            fuzzer(root)
                .args(["cmin", "--fuzz-dir", "fuzz", name])
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        corpus::bound(&root.join(&kept))?;
    }
    let corpus = corpus::size(&root.join(&kept))?;
    let path = record(root, target, seconds, &seen, corpus, (&before, &after))?;
    say(format!("written to {path} and docs/measurements.md"));
    Ok(found)
}

fn fuzzer(root: &Path) -> Command {
    let mut command = cargo(root);
    command.arg("fuzz").env(UNSTABLE.0, UNSTABLE.1);
    command
}

/// Runs the fuzzer and tells now and then how far it is.
fn watch(command: &mut Command) -> Result<Seen> {
    let line = shown(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {line}"))?;
    let stderr = child.stderr.take().context("stderr is piped; this is a bug")?;
    let seen = log::follow(stderr, Duration::from_secs(30), say)?;
    let status = child.wait()?;
    if !status.success() && seen.artifact.is_none() {
        bail!("`{line}` failed ({status}):\n{}", seen.last.join("\n"));
    }
    Ok(seen)
}

fn record(
    root: &Path,
    target: &Target,
    seconds: u64,
    seen: &Seen,
    (files, bytes): (usize, u64),
    (before, after): (&Load, &Load),
) -> Result<String> {
    let findings = usize::from(seen.artifact.is_some());
    let compiler = output(Command::new("rustc").arg("--version"))?;
    #[expect(clippy::cast_precision_loss, reason = "0 or 1")]
    let found = findings as f64;
    let outcome = Outcome {
        seeds: Vec::new(),
        repetitions: json!([{
            "target": target.name, "seconds": seconds, "executions": seen.executions, "coverage": seen.coverage,
            "features": seen.features, "corpus_files": files, "corpus_bytes": bytes, "peak_rss_mb": seen.memory_mb,
            "findings": findings, "sanitizer": "address", "compiler": compiler.trim(),
        }]),
        summary: json!({"executions": seen.executions, "coverage": seen.coverage, "findings": findings}),
        result: format!(
            "{} executions in {seconds} s, {} edges and {} features reached, {findings} findings; {files} inputs of {} kB kept",
            seen.executions,
            seen.coverage,
            seen.features,
            bytes.div_ceil(1_000),
        ),
        checks: vec![Check { what: "findings", value: found, limit: 0.0, unit: "" }],
    };
    say(&outcome.result);
    let figure = Figure {
        name: format!("fuzz-{}", target.name),
        folder: "fuzz",
        what: format!("fuzzing {}", target.what),
        command: format!("cargo xtask fuzz --seconds {seconds} {}", target.name),
    };
    record::write(&figure, &outcome, root, before, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_runs_unless_some_are_named() {
        let all = parse(&[]).unwrap();
        assert_eq!((all.targets.len(), all.seconds), (TARGETS.len(), SECONDS));
        let some = parse(&["--seconds", "5", "image"]).unwrap();
        assert_eq!((some.targets[0].name, some.targets.len(), some.seconds), ("image", 1, 5));
        assert!(parse(&["pictures"]).err().unwrap().to_string().contains("oip_json"));
        assert!(parse(&["--seconds", "0"]).is_err() && parse(&["--seconds"]).is_err());
    }

    #[test]
    fn every_target_is_a_program_with_seeds() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
        for Target { name, .. } in TARGETS {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
            assert!(fuzz.join("fuzz_targets").join(name).with_extension("rs").is_file(), "{name}");
            assert!(std::fs::read_dir(fuzz.join("seeds").join(name)).unwrap().count() > 3, "{name}");
        }
    }
}
