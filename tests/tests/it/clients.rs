//! Clients that others wrote, unmodified. What each of them does stands in a script of its own; every call is told in one line.

use crate::demo::{Demo, fashion};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// Runs a script with these arguments, and gives the lines that it wrote. One line that is no `ok` fails.
fn tried(script: &str, args: &[&str]) -> Result<Vec<String>> {
    let python = std::env::var("MODELLESS_PYTHON").context("no Python: run this by `cargo xtask test`")?;
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
    let output = Command::new(python).arg("-B").arg(folder.join(script)).args(args).output()?;
    let (told, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{told}\n{error}");
    Ok(told.lines().map(str::to_owned).collect())
}

/// The same, where each line is a call, and all of so many are made.
pub(crate) fn all_calls(script: &str, args: &[&str], least: usize) -> Result<()> {
    let calls = tried(script, args)?;
    ensure!(calls.len() >= least, "{} calls of {least}: {calls:?}", calls.len());
    let bad: Vec<_> = calls.iter().filter(|call| !call.ends_with("\tok")).collect();
    ensure!(bad.is_empty(), "{bad:?}");
    Ok(())
}

/// Where it serves gRPC, as it says at its start.
fn grpc_of(demo: &Demo) -> Result<String> {
    demo.server.told("grpc ")
}

fn boot() -> Result<String> {
    let picture = fashion().join("pictures/boot.png");
    picture.to_str().map(str::to_owned).context("the checkout lies at a path that is no text")
}

#[test]
fn hugging_faces_and_openais_clients_ask_for_classes_and_vectors() -> Result<()> {
    let demo = Demo::start(&[])?;
    crate::texts::register(&demo.server.url(), crate::texts::package(&["onnx"])?.path())?;
    all_calls("hugging_face.py", &[&demo.server.url(), &boot()?, "tiny"], 7)?;
    all_calls("openai_embeddings.py", &[&demo.server.url(), "tiny"], 14)?;
    demo.server.stop()
}

#[test]
fn tritons_http_clients_make_every_call_they_have() -> Result<()> {
    let demo = Demo::start(&[])?;
    all_calls("oip_http.py", &[&demo.server.url(), &boot()?], 30)?;
    demo.server.stop()
}

#[test]
fn tritons_grpc_clients_and_a_health_probe_make_every_call_they_have() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0"])?;
    all_calls("oip_grpc.py", &[&grpc_of(&demo)?, &boot()?], 40)?;
    demo.server.stop()
}

#[test]
fn kserves_grpc_client_makes_every_call_it_has() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0"])?;
    all_calls("oip_kserve_grpc.py", &[&grpc_of(&demo)?, &boot()?], 6)?;
    demo.server.stop()
}

#[test]
fn kserves_rest_client_makes_every_call_it_has() -> Result<()> {
    let demo = Demo::start(&[])?;
    all_calls("oip_kserve_rest.py", &[&demo.server.url(), &boot()?], 6)?;
    demo.server.stop()
}
