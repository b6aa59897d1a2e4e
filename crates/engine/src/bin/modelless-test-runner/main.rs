//! What the tests start in place of `modelless runner ENGINE`: the same runner (without an engine, ONNX Runtime's), or,
//! after `probe TARGETS` or `misbehave HOW`, which come first, one that does its worst where it should load a model.

mod misbehave;
mod probe;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // What `modelless boxed` does.
    if args.first().is_some_and(|arg| arg == "boxed") {
        return modelless_engine::boxed_main(args.into_iter().skip(1));
    }
    let mut word = |named: bool| {
        let text = args.first().and_then(|arg| arg.to_str()).filter(|arg| !arg.starts_with("--"))?.to_owned();
        (!named || ["probe", "misbehave"].contains(&text.as_str())).then(|| {
            args.remove(0);
            text
        })
    };
    let badness = word(true).map(|what| (what, word(false).unwrap_or_default()));
    let engine = word(false).unwrap_or_else(|| "onnx".to_owned());
    match badness {
        None => modelless_engine::builtin_runner_main(&engine, args),
        Some((what, how)) if what == "misbehave" => {
            modelless_engine::hostile_runner_main(&engine, args, move || misbehave::run(&how))
        }
        Some((_, targets)) => match serde_json::from_str::<probe::Targets>(&targets) {
            Ok(targets) => {
                if let Some(port) = targets.allowed {
                    args.extend(["--connect".into(), port.to_string().into()]);
                }
                modelless_engine::hostile_runner_main(&engine, args, move || probe::run(&targets))
            }
            Err(error) => {
                eprintln!("probe: {error}");
                ExitCode::FAILURE
            }
        },
    }
}
