//! Databases that cannot be used are refused without harm.

use crate::database::Database;
use crate::demo::Place;
use anyhow::{Context, Result, ensure};
use modelless_testkit::server;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn a_corrupt_database_is_named_and_left_alone() -> Result<()> {
    let folder = Place::new(Database::Sqlite)?.folder;
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
