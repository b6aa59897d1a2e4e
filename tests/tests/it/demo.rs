//! A demo server for each test, without paying the first start's measurements each time.
//!
//! The first test that needs it makes a data folder with `up --demo`, keyed by the binary, and for tests on Postgres a
//! database as well; all later ones copy it.

use crate::database::{Database, OwnDatabase, databases, drop_database};
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

/// A data folder and, unless that is in the folder, its database.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    database: Option<OwnDatabase>,
}

impl Place {
    /// A fresh copy of one in which the demo is registered and measured.
    pub(crate) fn new(database: Database) -> Result<Self> {
        let binary = server::binary()?;
        let about = fs::metadata(&binary)?;
        let made = about.modified()?.duration_since(UNIX_EPOCH)?.as_millis();
        let key = format!("demo_{made}_{}", about.len());
        let cache = std::env::temp_dir().join("modelless-e2e");
        fs::create_dir_all(&cache)?;
        let lock = File::create(cache.join("lock"))?;
        lock.lock().context("waiting for another test that makes the demo's data")?;
        let folder = tempfile::tempdir()?;
        let database = match database {
            Database::Sqlite => {
                copy_all(&sqlite_template(&cache, &key)?, folder.path())?;
                None
            }
            Database::Postgres => {
                copy_all(&postgres_template(&cache, &key)?, folder.path())?;
                Some(OwnDatabase::create(&format!("e2e_{}", std::process::id()), Some(&key))?)
            }
        };
        Ok(Self { folder, database })
    }

    /// Its database, unless that is in the folder.
    pub(crate) fn database_url(&self) -> Result<Option<String>> {
        self.database.as_ref().map(OwnDatabase::url).transpose()
    }

    /// Starts a server here.
    pub(crate) fn start(&self, args: &[&str]) -> Result<Server> {
        let mut builder = Server::builder().data(self.folder.path()).arg("--demo");
        if let Some(database) = &self.database {
            builder = builder.arg("--database").arg(database.url()?);
        }
        args.iter().fold(builder, |builder, arg: &&str| builder.arg(*arg)).start()
    }
}

fn sqlite_template(cache: &Path, key: &str) -> Result<PathBuf> {
    let template = cache.join(format!("{key}-sqlite"));
    if !template.exists() {
        let fresh = clear(cache, key)?;
        Server::builder().data(&fresh).arg("--demo").start()?.stop()?;
        fs::rename(&fresh, &template)?;
    }
    Ok(template)
}

/// The folder is of no use without its database: a Postgres may be another one than last time.
fn postgres_template(cache: &Path, key: &str) -> Result<PathBuf> {
    let template = cache.join(format!("{key}-postgres"));
    let known = databases("demo_")?;
    if !template.exists() || !known.iter().any(|name| name == key) {
        for old in known {
            drop_database(&old)?;
        }
        if template.exists() {
            fs::remove_dir_all(&template)?;
        }
        let fresh = clear(cache, key)?;
        let database = OwnDatabase::create("making_demo", None)?;
        Server::builder()
            .data(&fresh)
            .arg("--demo")
            .arg("--database")
            .arg(database.url()?)
            .start()?
            .stop()?;
        database.keep(key)?;
        fs::rename(&fresh, &template)?;
    }
    Ok(template)
}

/// Removes what other binaries left, and what was left half made.
fn clear(cache: &Path, key: &str) -> Result<PathBuf> {
    for old in fs::read_dir(cache)?.filter_map(Result::ok).filter(|entry| entry.path().is_dir()) {
        if !old.file_name().to_string_lossy().starts_with(key) {
            fs::remove_dir_all(old.path())?;
        }
    }
    Ok(cache.join("making"))
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

/// A running demo, with what it owns.
pub(crate) struct Demo {
    pub(crate) server: Server,
    pub(crate) place: Place,
}

impl Demo {
    /// On SQLite.
    pub(crate) fn start(args: &[&str]) -> Result<Self> {
        Self::start_on(Database::Sqlite, args)
    }

    pub(crate) fn start_on(database: Database, args: &[&str]) -> Result<Self> {
        Self::start_at(Place::new(database)?, args)
    }

    pub(crate) fn start_at(place: Place, args: &[&str]) -> Result<Self> {
        Ok(Self { server: place.start(args)?, place })
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
