//! What the tests start in place of `modelless runner onnx`.

fn main() -> std::process::ExitCode {
    modelless_engine::runner_main(std::env::args_os().skip(1))
}
