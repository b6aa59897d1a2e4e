//! Clients that others wrote, unmodified.

use crate::demo::Demo;
use anyhow::{Context, Result, ensure};
use std::process::Command;

#[test]
fn hugging_faces_client_classifies_a_picture_with_goals_in_its_url() -> Result<()> {
    let python = std::env::var("MODELLESS_PYTHON").context("no Python: run this by `cargo xtask test`")?;
    let demo = Demo::start(&[])?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/hugging_face.py");
    let picture = crate::demo::fashion().join("pictures/boot.png");
    let output = Command::new(python).arg(script).arg(demo.server.url()).arg(picture).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(String::from_utf8_lossy(&output.stdout).contains("Ankle boot"), "{output:?}");
    demo.server.stop()
}
