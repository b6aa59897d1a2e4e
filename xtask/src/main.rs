//! The project's own commands: `cargo xtask test | tidy | measure | clients`.
//!
//! What CI runs is what a person runs. Nothing here is linked into modelless, and it links none of modelless
//! either: it builds in seconds and drives the real binary.
#![expect(clippy::print_stdout, reason = "a command-line program; everything it says goes through `say`")]
#![allow(
    clippy::disallowed_methods,
    reason = "it times real processes from outside: there is no runtime to block and no clock to pause"
)]

mod clients;
mod command;
mod fuzz;
mod measure;
mod schemathesis;
mod scoreboard;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
cargo xtask test [--quick] [--only STAGE]...     install what is missing, then check and test everything
cargo xtask test --only nextest -- -p CRATE      one crate's tests, with the database they need
cargo xtask tidy                                 the rules that no compiler checks
cargo xtask measure [--short] NAME...            make a figure again; --short writes nothing and checks a loose bound
cargo xtask measure --list                       what can be measured
cargo xtask clients                              every call of every client of others, tried anew and written down as a table
cargo xtask scoreboard [--short]                 every policy on every published scenario; --short writes nothing
cargo xtask fuzz [--seconds N] [TARGET...]       what strangers can send, in millions of forms; keeps what reaches new code
cargo xtask schemathesis [--examples N]          a real server, asked by what its OpenAPI document says";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.split_first() {
        Some((&"test", rest)) => test::run(rest),
        Some((&"tidy", [])) => tidy::run(),
        Some((&"measure", rest)) => measure::run(rest),
        Some((&"clients", [])) => clients::run(),
        Some((&"scoreboard", rest)) => scoreboard::run(rest),
        Some((&"fuzz", rest)) => fuzz::run(rest),
        Some((&"schemathesis", rest)) => schemathesis::run(rest),
        Some((&("help" | "--help" | "-h"), _)) => {
            say(USAGE);
            Ok(())
        }
        Some(_) | None => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: impl AsRef<str>) {
    println!("{}", text.as_ref());
}

/// The root of the checkout this program was built from.
fn root() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask ...`")?;
    let root = Path::new(&manifest).parent().context("xtask/ lies in the root")?;
    if !root.join("Cargo.lock").is_file() {
        bail!("{} is not the root of the checkout", root.display());
    }
    Ok(root.to_owned())
}
