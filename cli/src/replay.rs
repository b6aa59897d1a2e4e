//! `modelless replay`: a recording of `up --record`, fed to a fresh machine.

use crate::out;
use anyhow::Context;
use clap::{Args, ValueEnum};
use modelless_decision::route::{Limits, Router};
use modelless_decision::worker::{Worker, WorkerConfig};
use modelless_drive::replay;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The recording, such as router.jsonl. Its settings stand beside it, in router.json.
    file: PathBuf,
    /// Which machine it is of.
    #[arg(long, value_enum)]
    machine: Machine,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Machine {
    /// The gateway's.
    Router,
    /// The executor's.
    Worker,
}

/// What a router was made with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RouterSettings {
    pub(crate) limits: Limits,
    pub(crate) seed: u64,
}

/// Writes a machine's settings beside its recording, and opens the recording.
pub(crate) fn record<T: Serialize>(folder: &Path, machine: &str, settings: &T) -> anyhow::Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(format!("{machine}.json"));
    fs::write(&path, serde_json::to_string_pretty(settings)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let path = folder.join(format!("{machine}.jsonl"));
    File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}

fn settings<T: DeserializeOwned>(recording: &Path) -> anyhow::Result<T> {
    let path = recording.with_extension("json");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}, the settings of the recording", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} holds no settings of this machine", path.display()))
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let path = &options.file;
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = BufReader::new(file);
    let replayed = match options.machine {
        Machine::Router => {
            let RouterSettings { limits, seed } = settings(path)?;
            replay(&mut Router::new(limits, seed), file)
        }
        Machine::Worker => replay(&mut Worker::new(settings::<WorkerConfig>(path)?), file),
    };
    let done = replayed.map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?;
    out::line(format!("{} inputs replayed, {} actions, all the same", done.inputs, done.actions))
}
