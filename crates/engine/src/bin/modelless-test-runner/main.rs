//! What the tests start in place of `modelless runner ENGINE`: the same runner (without an engine, ONNX Runtime's), or,
//! after `probe TARGETS` or `misbehave HOW`, one that does its worst where it should load a model.

mod misbehave;
mod probe;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "probe") {
        let text = args.get(1).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
        args.drain(..2);
        return match serde_json::from_str::<probe::Targets>(&text) {
            Ok(targets) => {
                if let Some(port) = targets.allowed {
                    args.extend(["--connect".into(), port.to_string().into()]);
                }
                modelless_engine::hostile_runner_main(args, move || probe::run(&targets))
            }
            Err(error) => {
                eprintln!("probe: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if args.first().is_some_and(|arg| arg == "misbehave") {
        let how = args.get(1).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
        args.drain(..2);
        return modelless_engine::hostile_runner_main(args, move || misbehave::run(&how));
    }
    let named =
        args.first().and_then(|arg| arg.to_str()).filter(|arg| !arg.starts_with("--")).map(str::to_owned);
    if named.is_some() {
        args.remove(0);
    }
    modelless_engine::builtin_runner_main(named.as_deref().unwrap_or("onnx"), args)
}
