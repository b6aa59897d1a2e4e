//! What the tests start in place of `modelless runner ENGINE`; without an engine it is ONNX Runtime's.

fn main() -> std::process::ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let engine = args.next_if(|arg| !arg.starts_with("--")).unwrap_or_else(|| "onnx".to_owned());
    modelless_engine::builtin_runner_main(&engine, args.map(Into::into))
}
