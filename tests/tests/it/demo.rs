//! A demo server for each test, without paying the first start's measurements each time.
//!
//! The first test that needs it makes a data folder with `up --demo`, keyed by the binary; all later ones copy it.

use anyhow::{Context, Result, ensure};
use modelless_testkit::{Request, Response, Server, server};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Where the repository's demo files lie.
pub(crate) fn fashion() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/fashion")
}

/// A picture of the demo.
pub(crate) fn picture(name: &str) -> Vec<u8> {
    fs::read(fashion().join("pictures").join(name)).expect("a picture of the demo")
}

/// A fresh copy of a data folder in which the demo is registered and measured.
pub(crate) fn data() -> Result<tempfile::TempDir> {
    let binary = server::binary()?;
    let about = fs::metadata(&binary)?;
    let made = about.modified()?.duration_since(UNIX_EPOCH)?.as_millis();
    let cache = std::env::temp_dir().join("modelless-e2e");
    fs::create_dir_all(&cache)?;
    let lock = File::create(cache.join("lock"))?;
    lock.lock().context("waiting for another test that makes the demo's data")?;
    let template = cache.join(format!("demo-{made}-{}", about.len()));
    if !template.exists() {
        for old in fs::read_dir(&cache)?.filter_map(Result::ok).filter(|entry| entry.path().is_dir()) {
            fs::remove_dir_all(old.path())?;
        }
        let fresh = cache.join("making");
        let server = Server::builder().data(&fresh).arg("--demo").start()?;
        server.stop()?;
        fs::rename(&fresh, &template)?;
    }
    let copy = tempfile::tempdir()?;
    copy_all(&template, copy.path())?;
    Ok(copy)
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&target)?;
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// A running demo, with the folder that it owns.
pub(crate) struct Demo {
    pub(crate) server: Server,
    pub(crate) folder: tempfile::TempDir,
}

impl Demo {
    pub(crate) fn start(args: &[&str]) -> Result<Self> {
        let folder = data()?;
        let builder = Server::builder().data(folder.path()).arg("--demo");
        let server = args.iter().fold(builder, |builder, arg: &&str| builder.arg(*arg)).start()?;
        Ok(Self { server, folder })
    }

    /// Asks the demo task about a picture, with goals as a query string such as `?accuracy=0.9`.
    pub(crate) fn ask(&self, picture_name: &str, goals: &str) -> Result<Response> {
        self.server.send(&ask(picture_name, goals))
    }

    /// The same for an answer that must come.
    pub(crate) fn answer(&self, picture_name: &str, goals: &str) -> Result<Answer> {
        Answer::of(&self.ask(picture_name, goals)?)
    }
}

pub(crate) fn ask(picture_name: &str, goals: &str) -> Request {
    let target = format!("/v1/tasks/fashion{goals}");
    Request::post(&target).header("content-type", "image/png").body(picture(picture_name))
}

/// An answer with the decision that came in its headers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) label: String,
    pub(crate) model: String,
    pub(crate) variant: String,
    pub(crate) accuracy: f64,
}

impl Answer {
    pub(crate) fn of(response: &Response) -> Result<Self> {
        ensure!(response.status == 200, "{}: {}", response.status, response.text());
        let header = |name: &str| {
            let value = response.header(name).with_context(|| format!("no header {name}"))?;
            Ok::<_, anyhow::Error>(value.to_owned())
        };
        let best = response.json()?;
        let label = best[0]["label"].as_str().context("no label")?.to_owned();
        Ok(Self {
            label,
            model: header("modelless-model")?,
            variant: header("modelless-variant")?,
            accuracy: header("modelless-accuracy")?.parse()?,
        })
    }
}

/// The reason in an error's body.
pub(crate) fn reason(response: &Response) -> Result<String> {
    let body: Value = response.json()?;
    Ok(body["reason"].as_str().with_context(|| format!("no reason in {body}"))?.to_owned())
}
