//! Two processes and one data folder. The second process is this test program, started again.

use modelless_store::{DataDir, Error};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

#[test]
fn makes_the_folder_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let dir = DataDir::lock(folder.path().join("a/b")).unwrap();
    assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(dir.database().starts_with(dir.path()) && dir.artefacts().starts_with(dir.path()));
}

#[test]
fn a_second_one_is_told_who_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = DataDir::lock(folder.path()).unwrap();
    fs::write(first.database(), "precious").unwrap();
    let error = DataDir::lock(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Locked { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert!(error.to_string().contains("--data"), "{error}");
    assert_eq!(fs::read(first.database()).unwrap(), b"precious");
    drop(first);
    DataDir::lock(folder.path()).expect("free again");
}

#[test]
fn a_killed_holder_leaves_no_lock_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "data_dir::holds_the_folder_named_in_the_environment", "--nocapture"])
        .env("HOLD_DATA_DIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("holding")), "the other process took the folder");

    let error = DataDir::lock(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Locked { pid: Some(pid), .. } if pid == holder.id()), "{error}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    DataDir::lock(folder.path()).expect("the system gave the lock back");
}

/// Not a test by itself: what the other process of the one above does. Alone it has nothing to hold.
#[test]
fn holds_the_folder_named_in_the_environment() {
    let Some(folder) = std::env::var_os("HOLD_DATA_DIR") else { return };
    let _held = DataDir::lock(folder).unwrap();
    println!("holding");
    loop {
        std::thread::park();
    }
}

#[test]
fn what_is_no_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = DataDir::lock(&file).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("file"), "{error}");
}
