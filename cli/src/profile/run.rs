//! `modelless profile`: the models of a package, measured on this machine without a server.

use crate::engines::{self, LibraryOption};
use crate::exit::usage;
use crate::out;
use crate::progress::{Phase, count};
use crate::table::Table;
use anyhow::Context;
use clap::Args;
use modelless_engine::Engine;
use modelless_executor::node;
use modelless_profiler::{Config, LabelledSet, Package, Profiler, Progress, Report, Subject};
use modelless_store::{MemStore, Store};
use modelless_types::{AccuracyMeasure, Profile, Task, TenantId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A folder with task.toml and models/*.toml.
    package: PathBuf,
    /// A labelled set instead of the one in task.toml: NAME-images-idx3-ubyte[.gz], or a .csv of FILE,LABEL.
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
    /// What that set is called where its figures are shown. Otherwise its file's name.
    #[arg(long, requires = "set")]
    set_name: Option<String>,
    /// Leave latency out: only compare answers with labels.
    #[arg(long)]
    accuracy_only: bool,
    /// Only this variant; may be given several times.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Write the accuracies to this file, for `also` in a task.toml.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    library: LibraryOption,
}

impl Options {
    /// The command that makes the same figures again.
    fn command(&self) -> String {
        let mut words = vec!["modelless profile".to_owned(), self.package.display().to_string()];
        if let Some(set) = &self.set {
            words.push(format!("--set {}", set.display()));
        }
        if self.accuracy_only {
            words.push("--accuracy-only".to_owned());
        }
        words.join(" ")
    }
}

/// What was measured of one variant.
#[derive(Serialize)]
struct Measured {
    variant: String,
    accuracy: AccuracyMeasure,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let library = engines::library(&options.library)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let measured = runtime.block_on(async {
        let engine = engines::engine(library, &node::hardware().gpus, &engines::Tokens::new())?;
        let measured = measure(options, engine.clone()).await;
        engine.shutdown().await;
        measured
    })?;
    if let Some(path) = &options.write {
        let accuracies: BTreeMap<&str, &AccuracyMeasure> =
            measured.iter().map(|one| (one.variant.as_str(), &one.accuracy)).collect();
        let text = serde_json::to_string_pretty(&accuracies)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.json { out::json(&measured) } else { out::line(table(&measured)) }
}

async fn measure(options: &Options, engine: Arc<dyn Engine>) -> anyhow::Result<Vec<Measured>> {
    let package = Package::read(&options.package)?;
    // Only so that the task is checked and numbered as it would be.
    let task = MemStore::default().create_task(package.task.new_task(TenantId::DEFAULT)?).await?;
    let set = set(options, &package, &task)?;
    if set.is_none() && options.accuracy_only {
        return Err(usage("--accuracy-only needs a labelled set: give --set FILE, or one in task.toml"));
    }
    let all =
        package.models.iter().flat_map(|model| model.variants.iter().map(move |variant| (model, variant)));
    let wanted = |name: &str| options.variants.is_empty() || options.variants.iter().any(|v| v == name);
    let chosen: Vec<_> = all.filter(|(_, variant)| wanted(&variant.name)).collect();
    if chosen.is_empty() {
        return Err(usage(format!("no variant of this package is called {}", options.variants.join(" or "))));
    }
    let profiler =
        Profiler::new(engine, Config::default(), node::device_class(&node::hardware()), options.command());
    let mut phase = Phase::start("measuring");
    let mut measured = Vec::new();
    for (model, variant) in chosen {
        let artefact = File::open(&variant.file);
        let artefact = artefact.with_context(|| format!("cannot read {}", variant.file.display()))?;
        let settings = variant.settings();
        let tokenizer = model.tokenizer()?;
        let subject = Subject {
            name: &variant.name,
            task: &task,
            adapter: &model.adapter,
            settings: &settings,
            artefact,
            tokenizer: tokenizer.clone(),
            declared: model.declared(),
        };
        let report: Report<'_> = &mut |name: &str, progress| phase.at(name, &detail(progress));
        let (accuracy, profile) = match &set {
            Some(set) if options.accuracy_only => (profiler.accuracy(subject, set, report).await?, None),
            set => {
                let profile = profiler.profile(subject, set.as_ref(), report).await?;
                (profile.accuracy.clone(), Some(profile))
            }
        };
        measured.push(Measured { variant: variant.name.clone(), accuracy, profile });
    }
    phase.done(&format!("{} measured on {}", count(measured.len(), "variant"), profiler.device_class()));
    Ok(measured)
}

fn set(options: &Options, package: &Package, task: &Task) -> anyhow::Result<Option<LabelledSet>> {
    let Some(path) = &options.set else { return Ok(package.open_set(task)?) };
    let name = match &options.set_name {
        Some(name) => name.clone(),
        None => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    Ok(Some(LabelledSet::open(path, &name, task)?))
}

/// Where a variant is, in a few words.
pub(crate) fn detail(progress: Progress) -> String {
    match progress {
        Progress::Loading => "loading".to_owned(),
        Progress::Latency { batch } => format!("timing batches of {batch}"),
        Progress::Accuracy { done, of } => format!("{done} of {of} labelled items"),
    }
}

fn table(measured: &[Measured]) -> Table {
    let mut head = vec!["variant", ">accuracy", "95 % interval", ">items"];
    if measured.iter().any(|one| one.profile.is_some()) {
        head.extend([">ms at 1", ">ms at largest", ">memory", ">load ms"]);
    }
    let mut table = Table::new(&head);
    for one in measured {
        let AccuracyMeasure { value, low, high, samples, .. } = &one.accuracy;
        let mut row = vec![
            one.variant.clone(),
            format!("{:.4}", value.as_f64()),
            format!("{:.4} to {:.4}", low.as_f64(), high.as_f64()),
            samples.to_string(),
        ];
        if let Some(profile) = &one.profile {
            let ms = |us: f64| format!("{:.3}", us / 1_000.0);
            row.push(profile.latency.first().map(|point| ms(point.mean_us)).unwrap_or_default());
            let last = profile.latency.last();
            row.push(
                last.map(|point| format!("{} ({})", ms(point.mean_us), point.batch)).unwrap_or_default(),
            );
            row.push(profile.memory.to_string());
            row.push(format!("{:.0}", profile.load_time.as_millis_f64()));
        }
        table.row(row);
    }
    table
}
