//! A labelled set as a model's adapter prepares it, in files that numpy reads: for whoever wants to check a figure without
//! any code of ours.

use crate::exit::usage;
use crate::out;
use crate::progress::{Phase, count};
use clap::Args;
use modelless_profiler::{Dumped, LabelledSet, Package};
use modelless_store::{MemStore, Store as _};
use modelless_types::TenantId;
use std::path::PathBuf;

/// Items of a batch while accuracy is measured.
const BATCH: u32 = 32;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A folder with task.toml and models/*.toml.
    package: PathBuf,
    /// Which model's adapter.
    #[arg(long)]
    model: String,
    /// The folder to write: dump.json, labels.npy, and input-N.npy for each input of the model.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A labelled set instead of the one in task.toml.
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Package { task: manifest, models } = Package::read(&options.package)?;
    let Some(model) = models.iter().find(|model| model.name == options.model) else {
        let known: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
        return Err(usage(format!(
            "no model of this package is called {}; it has {}",
            options.model,
            known.join(", ")
        )));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Only so that the task is checked and numbered as it would be.
    let task = runtime.block_on(MemStore::default().create_task(manifest.new_task(TenantId::DEFAULT)?))?;
    let set = match (&options.set, &manifest.labelled_set) {
        (Some(path), _) => {
            LabelledSet::open(path, &path.file_name().unwrap_or_default().to_string_lossy(), &task)?
        }
        (None, Some(set)) => LabelledSet::open(&set.path, &set.name, &task)?,
        (None, None) => {
            return Err(usage("there is nothing to dump: give --set FILE, or a labelled set in task.toml"));
        }
    };
    let mut phase = Phase::start("preparing");
    let dumped = Dumped { model, adapter: None, variant: 0, task: &task, set: &set, batch: BATCH };
    let of = set.len();
    let dump = dumped.write(&options.out, &mut |done| phase.at(set.name(), &format!("{done} of {of}")))?;
    phase.done(&format!("{} written", count(dump.items, "item")));
    if options.json { out::json(&dump) } else { out::line(options.out.display()) }
}
