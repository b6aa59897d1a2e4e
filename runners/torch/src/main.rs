//! The runner that hosts libtorch.

use std::process::ExitCode;

fn main() -> ExitCode {
    modelless_engine::runner_main(modelless_runner_torch::open, std::env::args_os().skip(1))
}
