//! Clients that others wrote, unmodified. What each of them does stands in a script of its own; every call is told in one line.

use crate::demo::{Demo, fashion};
use anyhow::{Context, Result, ensure};
use modelless_testkit::clients::{self, Place, Told, Verdict};
use modelless_testkit::{packages, temp_dir};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn python() -> Result<PathBuf> {
    Ok(std::env::var_os("MODELLESS_PYTHON").context("no Python: run this by `cargo xtask test`")?.into())
}

/// Runs a script; a call that did not pass fails.
fn all_calls(script: &str, place: &Place) -> Result<()> {
    passed(&clients::run(&python()?, root(), clients::script(script)?, place)?)
}

/// The same for a script with arguments of its own, which makes so many calls at least.
pub(crate) fn all_calls_with(file: &str, args: &[&str], least: usize) -> Result<()> {
    passed(&clients::tell(&python()?, root(), (file, args), least)?)
}

/// What cannot be run here is told as that, where tests are run by hand: the stage fails before where the work is judged.
fn passed(told: &Told) -> Result<()> {
    let bad: Vec<_> = told.calls.iter().filter(|call| matches!(call.verdict, Verdict::Failed(_))).collect();
    ensure!(bad.is_empty(), "{bad:#?}\n{}", told.stderr);
    Ok(())
}

fn place(demo: &Demo) -> Result<Place> {
    let picture = fashion().join("pictures/boot.png");
    let picture = picture.to_str().context("the checkout lies at a path that is no text")?.to_owned();
    Ok(Place { url: demo.server.url(), picture, ..Place::default() })
}

/// Where it serves gRPC, as it says at its start.
fn with_grpc(demo: &Demo) -> Result<Place> {
    Ok(Place { grpc: demo.server.told("grpc ")?, ..place(demo)? })
}

/// Tasks of texts beside the demo's.
fn register_texts(demo: &Demo) -> Result<()> {
    crate::texts::register(&demo.server.url(), crate::texts::package(&["onnx"])?.path())?;
    let ratings = temp_dir("ratings")?;
    packages::classes(root(), ratings.path(), "deadline")?;
    crate::texts::register(&demo.server.url(), ratings.path())?;
    Ok(())
}

#[test]
fn every_piece_of_the_guide_to_clients_prints_what_it_says() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0", "--shared-memory"])?;
    register_texts(&demo)?;
    let (url, grpc) = (demo.server.url(), demo.server.told("grpc ")?);
    all_calls_with("guide.py", &[&url, &grpc, packages::VECTORS, "8"], 11)?;
    demo.server.stop()
}

#[test]
fn hugging_faces_and_openais_clients_ask_for_classes_and_vectors() -> Result<()> {
    let demo = Demo::start(&[])?;
    register_texts(&demo)?;
    let (vectors, classes) = (packages::VECTORS.to_owned(), packages::CLASSES.to_owned());
    let place = Place { vectors, classes, ..place(&demo)? };
    all_calls("hugging_face.py", &place)?;
    all_calls("openai_embeddings.py", &place)?;
    demo.server.stop()
}

#[test]
fn tritons_http_clients_make_every_call_they_have() -> Result<()> {
    let demo = Demo::start(&[])?;
    all_calls("oip_http.py", &place(&demo)?)?;
    demo.server.stop()
}

#[test]
fn tritons_grpc_clients_and_a_health_probe_make_every_call_they_have() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0"])?;
    all_calls("oip_grpc.py", &with_grpc(&demo)?)?;
    demo.server.stop()
}

#[test]
fn kserves_clients_make_every_call_they_have() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0"])?;
    let place = with_grpc(&demo)?;
    all_calls("oip_kserve_grpc.py", &place)?;
    all_calls("oip_kserve_rest.py", &place)?;
    demo.server.stop()
}

#[test]
fn clients_that_are_generated_from_the_protocol_make_every_call_they_have() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0"])?;
    let place = with_grpc(&demo)?;
    all_calls("oip_open_inference_grpc.py", &place)?;
    all_calls("oip_open_inference_rest.py", &place)?;
    demo.server.stop()
}

#[test]
fn tritons_clients_have_tensors_in_shared_memory() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0", "--shared-memory"])?;
    all_calls("shared_memory.py", &with_grpc(&demo)?)?;
    demo.server.stop()
}

#[test]
fn nvidias_load_generator_measures_over_both_protocols() -> Result<()> {
    let demo = Demo::start(&["--grpc", "127.0.0.1:0", "--shared-memory"])?;
    let perf_analyzer =
        std::env::var("MODELLESS_TEST_PERF_ANALYZER").context("run this by `cargo xtask test`")?;
    all_calls("perf_analyzer.py", &Place { perf_analyzer, ..with_grpc(&demo)? })?;
    demo.server.stop()
}
