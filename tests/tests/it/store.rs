//! The same on Postgres; and databases that cannot be used are refused without harm.

use crate::demo::{Demo, data};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Server, server};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn the_demo_lives_in_postgres_as_well() -> Result<()> {
    let base =
        std::env::var("MODELLESS_TEST_POSTGRES").context("no Postgres: run this by `cargo xtask test`")?;
    let name = format!("e2e_{}", std::process::id());
    psql(&base, &format!("CREATE DATABASE {name}"))?;
    let (front, _) = base.rsplit_once('/').context("a URL with a database")?;
    let url = format!("{front}/{name}");
    let folder = tempfile::tempdir()?;
    let start = || Server::builder().data(folder.path()).arg("--demo").arg("--database").arg(&url).start();
    let server = start()?;
    let demo = Demo { server, folder: tempfile::tempdir()? };
    let answer = demo.answer("boot.png", "?accuracy=0.92")?;
    ensure!(answer.model == "cnn_l", "{answer:?}");
    demo.server.stop()?;
    // What was measured is kept there, and a server that is killed leaves nothing that hinders the next.
    let again = start()?;
    ensure!(again.ready_after().as_secs() < 10, "{:?}", again.timeline());
    again.kill()?;
    let demo = Demo { server: start()?, folder: tempfile::tempdir()? };
    demo.answer("boot.png", "?accuracy=0.92")?;
    demo.server.stop()?;
    psql(&base, &format!("DROP DATABASE {name}"))
}

fn psql(url: &str, sql: &str) -> Result<()> {
    let output = Command::new("psql").args([url, "--quiet", "--command", sql]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn a_corrupt_database_is_named_and_left_alone() -> Result<()> {
    let folder = data()?;
    let file = database(folder.path())?;
    let mut bytes = fs::read(&file)?;
    bytes[..64].fill(0x5a);
    fs::write(&file, &bytes)?;
    let said = refused(folder.path())?;
    ensure!(
        said.contains("modelless.db")
            || said.contains(&*file.file_name().context("a name")?.to_string_lossy()),
        "{said}"
    );
    ensure!(fs::read(&file)? == bytes, "the file was touched");
    Ok(())
}

fn database(folder: &Path) -> Result<std::path::PathBuf> {
    let is_database =
        |path: &std::path::PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3"));
    let mut files = fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    files.find(is_database).context("a database in the data folder")
}

fn refused(folder: &Path) -> Result<String> {
    let Output { status, stderr, .. } = Command::new(server::binary()?)
        .args(["up", "--http", "127.0.0.1:0", "--data"])
        .arg(folder)
        .output()?;
    let said = String::from_utf8_lossy(&stderr).into_owned();
    ensure!(!status.success(), "it started all the same");
    ensure!(!said.contains("panicked"), "{said}");
    Ok(said)
}
