//! The runner that hosts libtorch, with the probe of the engine's own tests where it should load a model:
//! `probe TARGETS` comes before a runner's arguments. Built for tests only.

#[path = "../../../crates/engine/src/bin/modelless-test-runner/probe.rs"]
mod probe;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let targets = match args.as_slice() {
        [word, targets, ..] if word == "probe" => {
            serde_json::from_str::<probe::Targets>(&targets.to_string_lossy())
        }
        _ => {
            eprintln!("probe: what to try it on is missing");
            return ExitCode::FAILURE;
        }
    };
    match targets {
        Ok(targets) => {
            args.drain(..2);
            if let Some(port) = targets.allowed {
                args.extend(["--connect".into(), port.to_string().into()]);
            }
            modelless_engine::hostile_runner_of(modelless_runner_torch::open, args, move || {
                probe::run(&targets)
            })
        }
        Err(error) => {
            eprintln!("probe: {error}");
            ExitCode::FAILURE
        }
    }
}
